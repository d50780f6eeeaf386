"""`process/*`: the wire in front of the engine, and nothing else."""

from collections.abc import Awaitable

from msgspec import UNSET

from holdfast.errors import InvalidParams
from holdfast.process.backend import signal_number
from holdfast.process.local import LocalProcess
from holdfast.protocol.base import Empty
from holdfast.protocol.methods import (
    PROCESS_CLOSE_STDIN,
    PROCESS_LIST,
    PROCESS_READ,
    PROCESS_RESIZE,
    PROCESS_SIGNAL,
    PROCESS_START,
    PROCESS_TERMINATE,
    PROCESS_WRITE,
)
from holdfast.protocol.process import (
    CloseStdinParams,
    ListResponse,
    ReadParams,
    ReadResponse,
    ResizeParams,
    SignalParams,
    StartParams,
    StartResponse,
    TerminateParams,
    TerminateResponse,
    WriteParams,
    WriteResponse,
    WriteStatus,
)
from holdfast.rpc.router import Router
from holdfast.server.connection import ServerConnection

__all__ = ["add_process_methods"]

_ACCEPTED = WriteResponse(status=WriteStatus.ACCEPTED)
_EMPTY = Empty()


def add_process_methods(router: Router[ServerConnection]) -> None:
    """Serve the methods of this file."""
    router.add(PROCESS_START, _start)
    router.add(PROCESS_READ, _read)
    router.add(PROCESS_WRITE, _write)
    router.add(PROCESS_SIGNAL, _signal)
    router.add(PROCESS_TERMINATE, _terminate)
    router.add(PROCESS_RESIZE, _resize)
    router.add(PROCESS_CLOSE_STDIN, _close_stdin)
    router.add(PROCESS_LIST, _list)


def _start(
    client: ServerConnection, params: StartParams
) -> StartResponse | Awaitable[StartResponse]:
    process = client.session.processes.launch(params)
    # Also for a profile that isolates nothing, as the real server says it (sandbox spec 4).
    sandbox_type = "none" if params.sandbox is None else "linuxSeccomp"
    if isinstance(process, LocalProcess):
        return StartResponse(process_id=params.process_id, sandbox_type=sandbox_type)
    return _started(process, sandbox_type)


async def _started(starting: Awaitable[LocalProcess], sandbox_type: str) -> StartResponse:
    process = await starting
    return StartResponse(
        process_id=process.process_id,
        sandbox_type=sandbox_type,
        enforcement=process.enforcement or UNSET,
    )


def _read(client: ServerConnection, params: ReadParams) -> ReadResponse | Awaitable[ReadResponse]:
    return client.session.processes.get(params.process_id).read(
        params.after_seq or 0, params.max_bytes, (params.wait_ms or 0) / 1000
    )


def _write(
    client: ServerConnection, params: WriteParams
) -> WriteResponse | Awaitable[WriteResponse]:
    if not params.write_id:
        raise InvalidParams("writeId must not be empty")
    if client.session.processes.is_starting(params.process_id):
        return WriteResponse(status=WriteStatus.STARTING)
    process = client.session.processes.find(params.process_id)
    if process is None:
        return WriteResponse(status=WriteStatus.UNKNOWN_PROCESS)
    status = process.write(params.chunk.data, params.write_id)
    if status is WriteStatus.ACCEPTED:
        return _ACCEPTED
    if isinstance(status, WriteStatus):
        return WriteResponse(status=status)
    return _accepted(status)


async def _accepted(waiting: Awaitable[None]) -> WriteResponse:
    await waiting
    return _ACCEPTED


def _signal(client: ServerConnection, params: SignalParams) -> Empty:
    number = signal_number(params.signal)
    process = client.session.processes.find(params.process_id)
    if process is not None:
        process.signal(number)
    return _EMPTY


def _terminate(client: ServerConnection, params: TerminateParams) -> TerminateResponse:
    running = client.session.processes.terminate(
        params.process_id, tree=params.tree, left=params.left, streams=params.streams
    )
    return TerminateResponse(running=running)


def _resize(client: ServerConnection, params: ResizeParams) -> Empty:
    client.session.processes.get(params.process_id).resize(params.rows, params.cols)
    return _EMPTY


def _close_stdin(client: ServerConnection, params: CloseStdinParams) -> Empty:
    client.session.processes.get(params.process_id).close_stdin()
    return _EMPTY


def _list(client: ServerConnection, params: Empty) -> ListResponse:
    return ListResponse(processes=[process.summary() for process in client.session.processes])

"""Handlers of `process/*`, which translate between the wire and a session's processes."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.backends import Ready
from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams, StdinClosed
from holdfast.engine.process.logged import ACCEPTED, LoggedProcess
from holdfast.engine.process.variable_marks import is_mark
from holdfast.server.delivery import exited_event
from holdfast.server.dispatch import AnswerAfter, Outlasting
from holdfast.server.server_connection import ServerConnection
from holdfast.wire.protocol.methods import (
    PROCESS_CLOSE_STDIN,
    PROCESS_END_MARKED,
    PROCESS_HOLD,
    PROCESS_LIST,
    PROCESS_READ,
    PROCESS_RESIZE,
    PROCESS_SIGNAL,
    PROCESS_START,
    PROCESS_TERMINATE,
    PROCESS_WAITING_FOR,
    PROCESS_WRITE,
)
from holdfast.wire.protocol.process import (
    CloseStdinParams,
    EndMarkedParams,
    EndMarkedResponse,
    HoldParams,
    ListResponse,
    ReadParams,
    ReadResponse,
    ResizeParams,
    SignalParams,
    StartParams,
    StartResponse,
    TerminateParams,
    TerminateResponse,
    WaitingForParams,
    WaitingForResponse,
    WriteParams,
    WriteResponse,
    WriteStatus,
    signal_number,
)
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.rpc.router import Router

__all__ = ["add_process_methods"]

_ACCEPTED = WriteResponse(status=WriteStatus.ACCEPTED)
_EMPTY = Empty()


def add_process_methods(router: Router[ServerConnection]) -> None:
    """Add the handlers of this module to a router."""
    router.add(PROCESS_START, _start)
    router.add(PROCESS_READ, _after_start(_read))
    router.add(PROCESS_WRITE, _after_start(_write))
    router.add(PROCESS_SIGNAL, _after_start(_signal))
    router.add(PROCESS_TERMINATE, _terminate)
    router.add(PROCESS_RESIZE, _after_start(_resize))
    router.add(PROCESS_CLOSE_STDIN, _after_start(_close_stdin))
    router.add(PROCESS_LIST, _list)
    router.add(PROCESS_HOLD, _after_start(_hold))
    router.add(PROCESS_WAITING_FOR, _after_start(_waiting_for))
    router.add(PROCESS_END_MARKED, _end_marked)


class _OfProcess(Protocol):
    """Params of a request about a process."""

    @property
    def process_id(self) -> str: ...


P = TypeVar("P", bound=_OfProcess)
R = TypeVar("R")
V = TypeVar("V")


def _after_start(
    handler: Callable[[ServerConnection, P], R | Awaitable[R]],
) -> Callable[[ServerConnection, P], R | Awaitable[R]]:
    """
    Return a handler that waits for the start of its process, if the start only waits for files.

    A client that sends several requests at once thus need not know whether the files of a start
    were in the kernel's cache. Requests keep their order.
    """

    def handle(client: ServerConnection, params: P) -> R | Awaitable[R]:
        handled: asyncio.Future[R | Awaitable[R]]

        def call() -> None:
            if not handled.done():
                try:
                    handled.set_result(handler(client, params))
                except Exception as error:  # noqa: BLE001 - raised again where it is awaited
                    handled.set_exception(error)
                    # If the client has disconnected, the exception is not retrieved, which
                    # asyncio would log.
                    handled.exception()

        if not client.session.processes.call_after_start(params.process_id, call):
            return handler(client, params)
        handled = asyncio.get_running_loop().create_future()
        return _result_of(handled)

    return handle


async def _result_of(handled: "asyncio.Future[R | Awaitable[R]]") -> R:
    result = await handled
    return await result if isinstance(result, Awaitable) else result


def _answer(work: Coroutine[Any, Any, V], make: Callable[[V], R]) -> R | Awaitable[R]:
    """Return the response for a result, at once if the result needs no wait."""
    if type(work) is not Ready:
        return AnswerAfter(work, make)
    if work.error is not None:
        raise work.error
    return make(work.value)


def _empty(nothing: None) -> Empty:
    return _EMPTY


def _start(
    client: ServerConnection, params: StartParams
) -> StartResponse | Awaitable[StartResponse]:
    client.state.check_draining()
    # Before the launch, whose observers count the process.
    client.usage.check("processes")
    processes = client.session.processes
    processes.check_output()
    process = processes.launch(params)
    if isinstance(process, LoggedProcess):
        return _started(client, process)
    # Not cancelled with its connection: the process may already run, and a client that resumes
    # its session must not have to start it again.
    return Outlasting(
        lambda: _started_later(client, process),
        lambda task: processes.keep_start(params.process_id, task),
    )


async def _started_later(
    client: ServerConnection, starting: Awaitable[LoggedProcess]
) -> StartResponse:
    return _started(client, await starting)


def _started(client: ServerConnection, process: LoggedProcess) -> StartResponse:
    return StartResponse(
        process_id=process.process_id,
        sandbox_type=process.sandbox_type,
        enforcement=process.enforcement or UNSET,
        # An extension: the base protocol's response has no pid.
        pid=process.pid if client.acknowledges and process.pid is not None else UNSET,
    )


def _read(client: ServerConnection, params: ReadParams) -> ReadResponse | Awaitable[ReadResponse]:
    process = client.session.processes.get(params.process_id)
    after_seq = params.after_seq or 0
    work = process.read(after_seq, params.max_bytes, (params.wait_ms or 0) / 1000)
    return _answer(work, lambda found: _complete(client, process, after_seq, found))


def _complete(
    client: ServerConnection, process: LoggedProcess, after_seq: int, found: ReadResponse
) -> ReadResponse:
    """
    Add the exit event, for which the base protocol's response has no field.

    If the response reaches the end of the log, later events are sent as notifications again.
    """
    if not client.acknowledges:
        return found
    if found.next_seq == process.log.next_seq:
        client.session.caught_up(process.process_id, after_seq)
    verdict = process.log.verdict
    if verdict is None:
        return found
    event = exited_event(process.process_id, process.log.exit_seq, verdict, complete=True)
    return msgspec.structs.replace(found, exit=event)


def _hold(client: ServerConnection, params: HoldParams) -> Empty:
    client.session.hold(params.process_id, params.held)
    return _EMPTY


def _write(
    client: ServerConnection, params: WriteParams
) -> WriteResponse | Awaitable[WriteResponse]:
    if not params.write_id:
        raise InvalidParams(texts.WRITE_ID_EMPTY)
    processes = client.session.processes
    process = processes.find(params.process_id)
    if process is None:
        # Statuses in the protocol, not errors: a client may write at any time.
        if processes.is_starting(params.process_id):
            return WriteResponse(status=WriteStatus.STARTING)
        return WriteResponse(status=WriteStatus.UNKNOWN_PROCESS)
    work = process.write(params.chunk.data, params.write_id)
    # The usual case, on the path of every key press.
    if work is ACCEPTED:
        return _ACCEPTED
    return _answer(work, lambda status: _written(process, status))


def _written(process: LoggedProcess, status: WriteStatus) -> WriteResponse:
    if status is WriteStatus.STDIN_CLOSED and process.input_refused:
        # An error on the wire [write.terminated], a status in the backend interface.
        raise StdinClosed("failed to write to process stdin")
    return WriteResponse(status=status)


def _signal(client: ServerConnection, params: SignalParams) -> Empty | Awaitable[Empty]:
    # Refused even if the process is unknown.
    signal_number(params.signal)
    # An unknown process is not an error [signal.gone]: it may just have been forgotten.
    process = client.session.processes.find(params.process_id)
    return _EMPTY if process is None else _answer(process.signal(params.signal), _empty)


def _terminate(
    client: ServerConnection, params: TerminateParams
) -> TerminateResponse | Awaitable[TerminateResponse]:
    work = client.session.processes.terminate(
        params.process_id, tree=params.tree, left=params.left, streams=params.streams
    )
    return _answer(work, lambda running: TerminateResponse(running=running))


def _resize(client: ServerConnection, params: ResizeParams) -> Empty | Awaitable[Empty]:
    process = client.session.processes.get(params.process_id)
    return _answer(process.resize(params.rows, params.cols), _empty)


def _close_stdin(client: ServerConnection, params: CloseStdinParams) -> Empty | Awaitable[Empty]:
    return _answer(client.session.processes.get(params.process_id).close_stdin(), _empty)


def _waiting_for(
    client: ServerConnection, params: WaitingForParams
) -> WaitingForResponse | Awaitable[WaitingForResponse]:
    work = client.session.processes.get(params.process_id).waiting_for()
    return _answer(work, lambda found: WaitingForResponse(waiting_for=found.value))


def _list(client: ServerConnection, params: Empty) -> ListResponse:
    return ListResponse(processes=[process.summary() for process in client.session.processes])


async def _end_marked(client: ServerConnection, params: EndMarkedParams) -> EndMarkedResponse:
    if not is_mark(params.mark):
        raise InvalidParams("mark must be 16 hex digits, and -N for one command")
    return EndMarkedResponse(killed=await client.session.end_marked(params.mark))

"""
`process/*`, the experimental family, which responds at the start and reports the end.

See [app-server.process].
"""

from collections.abc import Awaitable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from holdfast.base.dialect import debug_text, texts
from holdfast.base.errors import InvalidParams, InvalidRequest, OperationFailed, Refused
from holdfast.front.app_server.app_server_kind import APP_SERVER
from holdfast.front.app_server.command_exec.command import Command
from holdfast.front.app_server.command_exec.command_errors import (
    CommandExecError,
    CommandLost,
    DuplicateCommand,
    NoLongerRunning,
    SpawnRefused,
    StdinNotStreamed,
    UnknownCommand,
)
from holdfast.front.app_server.command_exec.command_manager import CommandExec
from holdfast.front.app_server.family import DONE, CommandFamily, coded, milliseconds
from holdfast.front.app_server.order import QueuePosition
from holdfast.wire.protocol.command_exec import (
    PROCESS_EXITED_NOTE,
    PROCESS_KILL,
    PROCESS_OUTPUT_DELTA,
    PROCESS_RESIZE_PTY,
    PROCESS_SPAWN,
    PROCESS_WRITE_STDIN,
    ProcessExitedNote,
    ProcessKillParams,
    ProcessResizePtyParams,
    ProcessSpawnParams,
    ProcessWriteStdinParams,
)
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.rpc.router import Router

if TYPE_CHECKING:
    from holdfast.front.app_server.app_connection import AppConnection

__all__ = ["add_process_methods", "process_family"]


def add_process_methods(router: "Router[AppConnection]") -> None:
    """Serve `process/*`."""
    router.add(PROCESS_SPAWN, _spawn)
    router.add(PROCESS_WRITE_STDIN, _write)
    router.add(PROCESS_KILL, _kill)
    router.add(PROCESS_RESIZE_PTY, _resize)


def process_family(client: "AppConnection", commands: CommandExec) -> CommandFamily:
    """Return the `process/spawn` commands of a connection."""
    return CommandFamily(
        client,
        commands,
        delta_method=PROCESS_OUTPUT_DELTA,
        id_member="processHandle",
        write_method=PROCESS_WRITE_STDIN.name,
        size_text="process size rows and cols must be greater than 0",
        refusal=_refusal,
    )


def _refusal(error: CommandExecError) -> Refused:
    match error:
        case DuplicateCommand():
            text = f"duplicate active process handle: {debug_text(error.process_id)}"
        case SpawnRefused():
            text = f"failed to spawn process: {error.reason}"
        case UnknownCommand():
            text = f"no active process for process handle {debug_text(error.process_id)}"
        case NoLongerRunning():
            text = f"process {debug_text(error.process_id)} is no longer running"
        case CommandLost():
            where = f"on environment `{error.environment_id}`"
            text = f"process {debug_text(error.process_id)} {where} is lost: {error.reason}"
        case StdinNotStreamed():
            text = "stdin streaming is not enabled for this process"
        case _:
            text = str(error)
    return coded(error, text)


def _admit(client: "AppConnection", method: str) -> None:
    if not client.experimental:
        raise InvalidRequest(texts.needs_experimental_api(method))


def _spawn(client: "AppConnection", params: ProcessSpawnParams) -> Awaitable[Empty]:
    _admit(client, PROCESS_SPAWN.name)
    if not params.command:
        raise InvalidRequest(texts.COMMAND_EMPTY)
    if not params.process_handle:
        raise InvalidRequest(texts.HANDLE_EMPTY)
    if params.size is not None and not params.tty:
        raise InvalidParams(texts.size_without_tty(PROCESS_SPAWN.name))
    if params.timeout_ms is not None and params.timeout_ms < 0:
        raise InvalidParams(texts.negative_timeout(PROCESS_SPAWN.name, params.timeout_ms))
    if params.size is not None:
        client.processes.check_size(params.size)
    # The request is answered early, so the dispatcher's limit does not count it.
    if client.spawned >= client.server.concurrent_requests:
        raise APP_SERVER.overload()
    return _answer(client, params, client.processes.take_position(params.process_handle))


async def _start(client: "AppConnection", params: ProcessSpawnParams) -> Command:
    with client.processes.refusals():
        return await client.processes.commands.start(
            params.command,
            process_id=params.process_handle,
            cwd=params.cwd,
            env=params.env,
            codex_variables=False,
            tty=params.tty,
            size=None if params.size is None else (params.size.rows, params.size.cols),
            stdin=params.tty or params.stream_stdin,
            stream=params.tty or params.stream_stdout_stderr,
            timeout=milliseconds(params.timeout_ms),
            cap=params.output_bytes_cap,
            hold_id=True,
        )


async def _answer(
    client: "AppConnection", params: ProcessSpawnParams, position: QueuePosition | None
) -> Empty:
    # Counted before the start, so that concurrent starts cannot exceed the limit.
    client.spawned += 1
    try:
        async with position or nullcontext():
            command = await _start(client, params)
    except BaseException:
        client.spawned -= 1
        raise
    # The task begins in the next iteration of the loop, after the response was sent.
    client.tasks.start(_follow(client, params, command))
    return DONE


async def _follow(client: "AppConnection", params: ProcessSpawnParams, command: Command) -> None:
    """Send the output of a process, and then its exit."""
    try:
        stream = params.tty or params.stream_stdout_stderr
        try:
            done = await client.processes.finish(command, stream=stream)
        except OperationFailed as error:
            if client.connection.ended:
                # The process was ended together with its connection.
                return
            client.log_lost(params.process_handle, error)
            note = _lost_note(params.process_handle)
        else:
            note = ProcessExitedNote(
                process_handle=params.process_handle,
                exit_code=done.exit_code,
                output_drain_timed_out=done.drain_timed_out,
                stdout="" if stream else await done.stdout_text(),
                stdout_cap_reached=done.stdout_cap_reached,
                stderr="" if stream else await done.stderr_text(),
                stderr_cap_reached=done.stderr_cap_reached,
            )
        # Like the output before it, the exit waits for the client to read.
        await client.writable()
        client.notify(PROCESS_EXITED_NOTE, note)
    finally:
        client.spawned -= 1
        command.release()


def _lost_note(process_handle: str) -> ProcessExitedNote:
    """Return the exit notification for a lost process, whose end is unknown."""
    return ProcessExitedNote(
        process_handle=process_handle,
        exit_code=-1,
        output_drain_timed_out=True,
        stdout="",
        stdout_cap_reached=False,
        stderr="",
        stderr_cap_reached=False,
    )


def _write(client: "AppConnection", params: ProcessWriteStdinParams) -> Awaitable[Empty]:
    _admit(client, PROCESS_WRITE_STDIN.name)
    return client.processes.write(params.process_handle, params.delta_base64, params.close_stdin)


def _kill(client: "AppConnection", params: ProcessKillParams) -> Awaitable[Empty]:
    _admit(client, PROCESS_KILL.name)
    return client.processes.terminate(params.process_handle)


def _resize(client: "AppConnection", params: ProcessResizePtyParams) -> Awaitable[Empty]:
    _admit(client, PROCESS_RESIZE_PTY.name)
    return client.processes.resize(params.process_handle, params.size)

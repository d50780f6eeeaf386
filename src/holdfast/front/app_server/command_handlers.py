"""`command/exec` and its controls, with their checks in order [app-server.controls]."""

from collections.abc import Awaitable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams, InvalidRequest, OperationFailed, Refused
from holdfast.environments.environment import Environment
from holdfast.environments.path_uris import below
from holdfast.environments.sandbox import home_here
from holdfast.front.app_server.command_exec.command import Command
from holdfast.front.app_server.command_exec.command_errors import CommandExecError
from holdfast.front.app_server.command_exec.command_manager import CommandExec
from holdfast.front.app_server.family import CommandFamily, coded, milliseconds
from holdfast.front.app_server.order import QueuePosition
from holdfast.wire.protocol.command_exec import (
    APP_INITIALIZE,
    COMMAND_EXEC,
    COMMAND_EXEC_OUTPUT_DELTA,
    COMMAND_EXEC_RESIZE,
    COMMAND_EXEC_TERMINATE,
    COMMAND_EXEC_WRITE,
    DEFAULT_OUTPUT_CAP,
    DEFAULT_TIMEOUT_MS,
    CommandExecParams,
    CommandExecResponse,
    CommandResizeParams,
    CommandTerminateParams,
    CommandWriteParams,
)
from holdfast.wire.protocol.paths import InvalidPathUri, PathUri
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.rpc.router import Router

if TYPE_CHECKING:
    from holdfast.front.app_server.app_connection import AppConnection

__all__ = ["add_command_methods", "command_family"]


def add_command_methods(router: "Router[AppConnection]") -> None:
    """Serve the handshake and `command/exec`."""
    router.add(APP_INITIALIZE, lambda client, params: client.initialize(params))
    router.add(COMMAND_EXEC, _execute)
    router.add(COMMAND_EXEC_WRITE, _write)
    router.add(COMMAND_EXEC_TERMINATE, _terminate)
    router.add(COMMAND_EXEC_RESIZE, _resize)


def command_family(
    client: "AppConnection", commands: CommandExec, *, refuse_late: bool
) -> CommandFamily:
    """Return the `command/exec` commands of a connection."""
    return CommandFamily(
        client,
        commands,
        delta_method=COMMAND_EXEC_OUTPUT_DELTA,
        id_member="processId",
        write_method=COMMAND_EXEC_WRITE.name,
        size_text="command/exec size rows and cols must be greater than 0",
        refusal=_refusal,
        refuse_late=refuse_late,
    )


def _refusal(error: CommandExecError) -> Refused:
    # The texts of the library are those of this family.
    return coded(error, str(error))


def _execute(client: "AppConnection", params: CommandExecParams) -> Awaitable[CommandExecResponse]:
    if params.permission_profile is not None and not client.experimental:
        raise InvalidRequest(texts.needs_experimental_api("command/exec.permissionProfile"))
    _check(params)
    return _run(client, params, client.commands.take_position(params.process_id))


def _check(params: CommandExecParams) -> None:
    """
    Refuse params that contradict each other; earlier and later checks are elsewhere.

    Raises:
        InvalidRequest: The command is empty, or has two sandboxes.
        InvalidParams: Two members are mutually exclusive, or the timeout is negative.
    """
    if not params.command:
        raise InvalidRequest(texts.COMMAND_EMPTY)
    if params.sandbox_policy is not None and params.permission_profile is not None:
        raise InvalidRequest(texts.TWO_SANDBOXES)
    if params.size is not None and not params.tty:
        raise InvalidParams(texts.size_without_tty(COMMAND_EXEC.name))
    if params.output_bytes_cap is not None and params.disable_output_cap:
        raise InvalidParams(texts.TWO_CAPS)
    if params.timeout_ms is not None and params.disable_timeout:
        raise InvalidParams(texts.TWO_TIMEOUTS)
    if params.timeout_ms is not None and params.timeout_ms < 0:
        raise InvalidParams(texts.negative_timeout(COMMAND_EXEC.name, params.timeout_ms))


async def _start(client: "AppConnection", params: CommandExecParams) -> Command:
    environment = client.server.environment
    # May have to request the directory of the environment.
    with client.commands.reachable():
        folder = await _folder(environment, params.cwd)
        sandbox = await client.server.sandboxes.context(
            environment, policy=params.sandbox_policy, profile=params.permission_profile, cwd=folder
        )
    if params.size is not None:
        client.commands.check_size(params.size)
    stream = params.tty or params.stream_stdout_stderr
    # Without an id, output could not be attributed and input could not be sent.
    if params.process_id is None and (stream or params.stream_stdin):
        raise InvalidRequest(texts.NO_PROCESS_ID)
    with client.commands.refusals():
        return await client.commands.commands.start(
            params.command,
            process_id=params.process_id,
            cwd=folder,
            env=params.env,
            tty=params.tty,
            size=None if params.size is None else (params.size.rows, params.size.cols),
            stdin=params.tty or params.stream_stdin,
            stream=stream,
            timeout=_timeout(params),
            cap=_cap(params),
            sandbox=sandbox,
            hold_id=True,
        )


def _timeout(params: CommandExecParams) -> float | None:
    if params.disable_timeout:
        return None
    return milliseconds(DEFAULT_TIMEOUT_MS if params.timeout_ms is None else params.timeout_ms)


def _cap(params: CommandExecParams) -> int | None:
    if params.disable_output_cap:
        return None
    return DEFAULT_OUTPUT_CAP if params.output_bytes_cap is None else params.output_bytes_cap


async def _folder(environment: Environment, cwd: str | None) -> PathUri:
    """
    Return the directory for a command; a relative one starts at the environment's.

    Raises:
        OperationFailed: It is not a path, or in an unknown home.
    """
    try:
        if not cwd:
            return await environment.uri()
        if cwd != "~" and not cwd.startswith("~/"):
            return await environment.uri(cwd)
        home = await _home(environment)
        return home if len(cwd) <= 2 else below(home, cwd[2:])
    except (InvalidParams, ValueError) as error:
        reason = "nul byte found in provided data" if "\0" in (cwd or "") else str(error)
        raise OperationFailed(f"failed to spawn command: {reason}") from error


async def _home(environment: Environment) -> PathUri:
    home: PathUri | str | None
    home = (await environment.info()).user_home_dir if environment.is_remote else home_here()
    if home is None:
        raise InvalidPathUri("the home of the environment is unknown")
    return home if isinstance(home, PathUri) else PathUri.parse(home)


async def _run(
    client: "AppConnection", params: CommandExecParams, position: QueuePosition | None
) -> CommandExecResponse:
    # Only held for the start: other requests with its id need not wait for the end.
    async with position or nullcontext():
        command = await _start(client, params)
    try:
        stream = params.tty or params.stream_stdout_stderr
        done = await client.commands.finish(command, stream=stream)
        if stream:
            return CommandExecResponse(exit_code=done.exit_code, stdout="", stderr="")
        # As JSON it may be six times as large, so it is not encoded while the client does not read.
        await client.writable()
        return CommandExecResponse(
            exit_code=done.exit_code,
            stdout=await done.stdout_text(),
            stderr=await done.stderr_text(),
        )
    finally:
        # The response is sent before anything else runs, so the id is free right after it.
        command.release()


def _write(client: "AppConnection", params: CommandWriteParams) -> Awaitable[Empty]:
    return client.commands.write(params.process_id, params.delta_base64, params.close_stdin)


def _terminate(client: "AppConnection", params: CommandTerminateParams) -> Awaitable[Empty]:
    return client.commands.terminate(params.process_id)


def _resize(client: "AppConnection", params: CommandResizeParams) -> Awaitable[Empty]:
    return client.commands.resize(params.process_id, params.size)

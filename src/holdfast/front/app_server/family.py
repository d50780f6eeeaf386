"""
The common part of `command/exec` and `process/*`: the commands of a connection.

Both start a command, send its output, and control it by the client's id. They differ in names,
error texts, and when they respond.
"""

from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.base.dialect import texts
from holdfast.base.errors import (
    ConnectionLost,
    HoldfastError,
    InvalidParams,
    InvalidRequest,
    NotFound,
    OperationFailed,
    Refused,
    RemoteError,
)
from holdfast.front.app_server.app_server_kind import DeltaEncoder
from holdfast.front.app_server.command_exec.command import Command, Done
from holdfast.front.app_server.command_exec.command_errors import (
    CommandExecClosed,
    CommandExecError,
    CommandLost,
    InvalidSize,
    NegativeTimeout,
    NoLongerRunning,
    SizeNeedsTerminal,
    SpawnRefused,
)
from holdfast.front.app_server.command_exec.command_manager import CommandExec
from holdfast.front.app_server.order import QueuePosition, RequestQueues
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.rpc.base64 import InvalidBase64, decode_base64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.front.app_server.app_connection import AppConnection

__all__ = ["DONE", "CommandFamily", "RowsAndColumns", "coded", "milliseconds"]

DONE: Final = Empty()
"""Response to a control request."""

# Bytes of stdin not read by commands above which the connection is not read. Refusing a write
# instead would leave a gap in the input if the client does not wait for responses.
MAX_WAITING_INPUT: Final = 16 << 20

# Bytes counted for a waiting control request, in addition to its input.
_REQUEST_COST: Final = 1024


class RowsAndColumns(Protocol):
    """Rows and columns in either family's params."""

    @property
    def rows(self) -> int: ...

    @property
    def cols(self) -> int: ...


def milliseconds(timeout_ms: int | None) -> float | None:
    """Return a timeout of the wire in seconds."""
    return None if timeout_ms is None else timeout_ms / 1000


def coded(error: HoldfastError, text: str) -> Refused:
    """Return an error with the wire code of a refusal."""
    if isinstance(error, SizeNeedsTerminal | InvalidSize | NegativeTimeout):
        return InvalidParams(text)
    if isinstance(error, SpawnRefused | CommandExecClosed | CommandLost):
        # The class determines the code on the wire, here -32603.
        return OperationFailed(text, errno=error.errno, path=error.path, program=error.program)
    return InvalidRequest(text)


class CommandFamily:
    """The commands that a connection has started by a family of methods."""

    def __init__(
        self,
        client: "AppConnection",
        commands: CommandExec,
        *,
        delta_method: str,
        id_member: str,
        write_method: str,
        size_text: str,
        refusal: Callable[[CommandExecError], Refused],
        refuse_late: bool = True,
    ) -> None:
        """
        Args:
            client: Connection for the output.
            commands: Starts the commands and knows their ids.
            delta_method: Notification for output.
            id_member: Name of the id in its params.
            write_method: Name of the write method in errors.
            size_text: Error for a size with a zero.
            refusal: Converts an error of the library to one of the wire.
            refuse_late: True to refuse a control during the drain at once, not after the
                response.
        """
        self.commands = commands
        self._client = client
        self._delta_method = delta_method
        self._id_member = id_member
        self._write_method = write_method
        self._size_text = size_text
        self._refusal = refusal
        self._refuse_late = refuse_late
        # Requests in the order of arrival: starts and controls by id, writes by command.
        self._requests = RequestQueues()
        self._writes = RequestQueues()

    # -- start and end

    def take_position(self, command_id: str | None) -> QueuePosition | None:
        """
        Return the queue position of a start among the requests for its id.

        Call this when the request arrives, which defines the order.

        Args:
            command_id: The client's id; None for a command without controls.
        """
        return None if command_id is None else self._requests.take(command_id)

    @contextmanager
    def refusals(self) -> "Iterator[None]":
        """
        Convert errors of a start to errors of the wire.

        Raises:
            Refused: The command was not started.
        """
        try:
            with self.reachable():
                yield
        except CommandExecError as error:
            raise self._refusal(error) from error
        except InvalidParams as error:
            # This environment does not support the sandbox or another argument.
            raise OperationFailed(f"exec failed: {error}") from error

    @contextmanager
    def reachable(self) -> "Iterator[None]":
        """
        Convert a lost environment, or a refusal by its server, to an error of the wire.

        Raises:
            OperationFailed: The message names the environment.
        """
        try:
            yield
        except CommandExecError:
            # The error of a lost command has a better text.
            raise
        except NotFound as error:
            # The server's own start directory is missing.
            raise OperationFailed(f"exec failed: {error}") from error
        except (ConnectionLost, RemoteError) as error:
            name = self._client.server.environment.id
            raise OperationFailed(f"exec failed: environment `{name}`: {error}") from error

    async def finish(self, command: Command, *, stream: bool) -> Done:
        """
        Send the output of a command, if streamed, and wait for its end.

        Raises:
            OperationFailed: The environment and with it the command is lost, or the
                connection has ended.
        """
        client = self._client
        try:
            if stream:
                # Streaming requires an id, as checked before the start.
                assert command.process_id is not None
                wanted = client.wants(self._delta_method)
                encoder = DeltaEncoder(self._delta_method, self._id_member, command.process_id)
                async for delta in command.output():
                    if wanted:
                        # While the client does not read, its command waits.
                        await client.writable()
                        client.send_parts(
                            encoder.encode(delta.stream, delta.data, delta.cap_reached)
                        )
            return await command.wait()
        except CommandLost as error:
            raise OperationFailed(f"exec failed: {error}") from error
        except CommandExecError as error:
            raise self._refusal(error) from error

    # -- controls

    def write(self, command_id: str, delta: str | None, close: bool) -> Awaitable[Empty]:
        """
        Write to a command and then close its stdin, each if requested.

        Raises (when awaited):
            InvalidParams: Neither is requested, or the base64 is invalid.
            Refused: The command does not exist, or has no writable stdin.
        """
        position = self._requests.take(command_id)
        if delta is None and not close:
            text = texts.delta_missing(self._write_method)
            return _refuse(position, InvalidParams(text))
        try:
            data = b"" if delta is None else decode_base64(delta)
        except InvalidBase64 as error:
            return _refuse(position, InvalidParams(texts.delta_not_base64(error)))
        return self._write(position, command_id, data, close)

    async def _write(
        self, position: QueuePosition, command_id: str, data: bytes, close: bool
    ) -> Empty:
        with self._waiting(len(data)):
            async with position:
                command = await self._find(command_id)
                # Leave the position before the write, which may block on a command that does
                # not read: a later request has to be able to terminate it.
                turn = self._writes.take(command)
            async with turn:
                await self._control(command, command.write(data, close=close))
        return DONE

    def resize(self, command_id: str, size: RowsAndColumns) -> Awaitable[Empty]:
        """
        Change the size of a terminal.

        Raises (when awaited):
            InvalidParams: A terminal cannot have that size.
            Refused: The command does not exist, or has no terminal.
        """
        position = self._requests.take(command_id)
        try:
            self.check_size(size)
        except InvalidParams as error:
            return _refuse(position, error)
        return self._run_control(
            position, command_id, lambda command: command.resize(size.rows, size.cols)
        )

    def terminate(self, command_id: str) -> Awaitable[Empty]:
        """
        Kill a command.

        Raises:
            Refused: The command does not exist (when awaited).
        """
        position = self._requests.take(command_id)
        return self._run_control(position, command_id, lambda command: command.terminate())

    def check_size(self, size: RowsAndColumns) -> None:
        """
        Refuse a size with a zero.

        Raises:
            InvalidParams: A number is zero.
        """
        if size.rows == 0 or size.cols == 0:
            raise InvalidParams(self._size_text)

    async def _run_control(
        self, position: QueuePosition, command_id: str, act: Callable[[Command], Awaitable[None]]
    ) -> Empty:
        with self._waiting(0):
            async with position:
                command = await self._find(command_id)
                acting = act(command)
            await self._control(command, acting)
        return DONE

    async def _find(self, command_id: str) -> Command:
        """Return the command with an id; call this in the turn of the request."""
        try:
            command = self.commands.get(command_id)
        except CommandExecError as error:
            raise self._refusal(error) from error
        # A control during the drain keeps its turn until the response; later ones find the id
        # free.
        if not (self._refuse_late or command.running):
            await command.released()
        return command

    async def _control(self, command: Command, acting: Awaitable[None]) -> None:
        try:
            with self.reachable():
                await acting
        except NoLongerRunning as error:
            if not self._refuse_late:
                await command.released()
            raise self._refusal(error) from error
        except CommandExecError as error:
            raise self._refusal(error) from error

    @contextmanager
    def _waiting(self, size: int) -> "Iterator[None]":
        cost = size + _REQUEST_COST
        self._client.input_waits(cost)
        try:
            yield
        finally:
            self._client.input_waits(-cost)


async def _refuse(position: QueuePosition, error: Refused) -> Empty:
    """Raise the error in the turn of the request, so that responses for an id keep their order."""
    async with position:
        raise error

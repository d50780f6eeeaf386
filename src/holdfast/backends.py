"""
The seams: what the layers above know of processes, wherever those live.

A local and a remote implementation pass the same contract tests, so a caller does
not know which one it has. Seconds and native types here; the wire's units end below.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from holdfast.events import ProcessEvent, Verdict
from holdfast.protocol.process import ReadResponse, StartParams, WriteStatus

__all__ = ["ExecBackend", "ExecProcess"]


class ExecProcess(Protocol):
    """One process that was started."""

    @property
    def process_id(self) -> str:
        """The handle it was started with."""

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        """
        The retained output after a number.

        Args:
            after_seq: The last number the caller has.
            max_bytes: Stop before exceeding it, but never before the first chunk.
            wait: Seconds to wait for news if there are none.
        """

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        """
        Write to its input; waits while its queue is full.

        Args:
            data: May be empty.
            write_id: Bytes with an id that was accepted before are not written
                again; a fresh one is made if none is given.

        Raises:
            StdinClosed: It was terminated.
        """

    async def close_stdin(self) -> None:
        """
        Let it read the end of its input.

        Raises:
            Unsupported: The server does not know how.
        """

    async def resize(self, rows: int, cols: int) -> None:
        """
        Change the size of its terminal.

        Raises:
            Unsupported: The server does not know how.
        """

    async def signal(self, name: str) -> None:
        """
        Signal its group; nothing happens once it has exited.

        Args:
            name: `interrupt`, or where the server takes them a name like `SIGTERM`.
        """

    async def terminate(self) -> bool:
        """Kill its group at once; whether it was running."""

    def events(self) -> AsyncIterator[ProcessEvent]:
        """
        Everything that happens to it, in order and without loss, up to the close.

        Begins with what is retained. A caller that falls behind makes the process
        wait rather than lose anything.

        Raises:
            ConnectionLost: The process cannot be reached any more, nor will be.
        """

    async def wait(self) -> Verdict:
        """
        Wait for its close and tell how it ended.

        Raises:
            ConnectionLost: As for `events`.
        """


class ExecBackend(Protocol):
    """A place where processes can be started."""

    async def start(self, params: StartParams) -> ExecProcess:
        """
        Start one.

        Raises:
            Refused: The arguments are wrong, or the system said no.
            RemoteError: The same, said by a server.
            ConnectionLost: There is no connection to start it over.
        """

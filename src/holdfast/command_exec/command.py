"""One command: its output, its controls and its end (command-exec spec 4 to 7)."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from holdfast.events import Verdict

__all__ = ["Command", "Delta", "Done"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of output."""

    stream: Literal["stdout", "stderr"]
    """A terminal has `stdout` only."""
    data: bytes
    """May be empty only where the cap is 0."""
    cap_reached: bool = False
    """True on the last piece of a stream whose byte count has reached the cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended, and what it wrote if that was not streamed."""

    exit_code: int
    """The status, 128 plus the signal (1 on a terminal), 124 after a timeout, -1 if not known."""
    verdict: Verdict
    stdout: bytes = b""
    """Empty for a command that was streamed."""
    stderr: bytes = b""
    stdout_cap_reached: bool = False
    """True if it wrote as much as the cap, or more; also if it was streamed."""
    stderr_cap_reached: bool = False
    drain_timed_out: bool = False
    """True if a stream was given up before its end and its cap: somebody still holds it."""

    async def stdout_text(self) -> str:
        """Return stdout as text: UTF-8, else by a guess of its encoding; lets the loop run."""
        raise NotImplementedError

    async def stderr_text(self) -> str:
        """Return stderr as text, as `stdout_text`."""
        raise NotImplementedError


class Command:
    """One command that was started by `CommandExec.start`."""

    @property
    def process_id(self) -> str | None:
        """The id it was started with; `None` if there was none, and it cannot be looked up."""
        raise NotImplementedError

    @property
    def pid(self) -> int | None:
        """The kernel's number for it where it runs; `None` if a server does not tell."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """True until the exit of the process, however far behind a reader of its output is."""
        raise NotImplementedError

    def output(self) -> AsyncIterator[Delta]:
        """
        Return the output piece by piece, up to the end of the drain; with `stream=True` only.

        There is one reader. One that is slow makes the command wait.

        Raises:
            RuntimeError: It is not streamed, or somebody reads already.
            ConnectionLost: (While iterating) its server is lost for good.
        """
        raise NotImplementedError

    async def write(self, data: bytes = b"", *, close: bool = False) -> None:
        """
        Queue input, and close stdin after it if asked to; waits while the queue is full.

        A terminal is not closed: a newline and the end-of-file key are typed.
        That the command has closed its end is not reported.

        Raises:
            StdinNotStreamed: It was started without `stdin` and `tty`.
            StdinAlreadyClosed: There is data, and stdin was closed before.
            NoLongerRunning: It has exited.
        """
        raise NotImplementedError

    async def resize(self, rows: int, cols: int) -> None:
        """
        Change the size of its terminal.

        Raises:
            InvalidSize: There is no such size.
            NotATerminal: It runs on pipes.
            NoLongerRunning: It has exited.
            ExtensionMissing: The server cannot, and the start accepted that.
        """
        raise NotImplementedError

    async def terminate(self) -> None:
        """
        Kill it and all below it; with `compat` only its process group.

        Raises:
            NoLongerRunning: It has exited.
        """
        raise NotImplementedError

    async def wait(self) -> Done:
        """
        Wait until it has exited and its output is drained.

        Output that is streamed is waited for until `output` has handed it out; if nobody
        reads it, it is dropped. Can be called again, and by several tasks.

        Raises:
            ConnectionLost: Its server is lost for good.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Free its id, after a start with `hold_id`; call it when the answer was sent."""
        raise NotImplementedError

    async def released(self) -> None:
        """
        Wait until its id is free.

        For a server that answers a control during the drain after the result, as Codex does.
        """
        raise NotImplementedError

"""Reads lines of the prompt: plainly, or with history and completion."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from holdfast.base.late_import import late_module
from holdfast.base.tasks import in_daemon_thread

if TYPE_CHECKING:
    from holdfast.front.prompt import rich_reader
else:
    # Needs prompt_toolkit, an optional dependency (extra `shell`) that takes 0.1 s to import.
    rich_reader = late_module("holdfast.front.prompt.rich_reader")

__all__ = ["LineReader", "PlainReader", "make_reader"]


class LineReader(Protocol):
    """Reader of lines."""

    async def read(self, prompt: str) -> str | None:
        """Return the next line, or None at the end of input. Ctrl-C returns an empty one."""


class PlainReader:
    """Reader of plain lines from a terminal or a file."""

    def __init__(self, source: TextIO, target: TextIO) -> None:
        """
        Args:
            source: Stream to read.
            target: Stream for the prompt, which is shown only if `source` is a terminal.
        """
        self._source = source
        self._target = target
        self._shows = source.isatty()

    async def read(self, prompt: str) -> str | None:
        """Return the next line, or None at the end of input."""
        if self._shows:
            self._target.write(prompt)
            self._target.flush()
        # A wait for a key must not delay the exit.
        try:
            line = await in_daemon_thread(self._source.readline)
        except (OSError, ValueError):
            return None
        return line.rstrip("\n") if line else None


def make_reader(
    source: TextIO,
    target: TextIO,
    *,
    history: Path | None,
    sessions: Callable[[], Iterable[int]],
) -> LineReader:
    """
    Return a reader with history and completion, if there is a terminal and the extra `shell`.

    Args:
        source: Stream to read.
        target: Stream for the prompt.
        history: File for the history; None to keep it in memory.
        sessions: Returns the session numbers for completion.
    """
    if source.isatty() and target.isatty():
        try:
            return rich_reader.RichReader(history, sessions)
        # The extra is not installed; plain lines will do.
        except ImportError:
            pass
    return PlainReader(source, target)

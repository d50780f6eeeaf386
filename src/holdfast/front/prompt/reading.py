"""Reads lines of the prompt: plainly, or with history and completion."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from holdfast.base.late_import import late_module

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
        line = await _in_thread(self._source.readline)
        return line.rstrip("\n") if line else None


async def _in_thread(read: Callable[[], str]) -> str:
    """Call a function in a daemon thread: a wait for a key must not delay the exit."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()

    def settle(line: str) -> None:
        if not found.done():
            found.set_result(line)

    def work() -> None:
        try:
            line = read()
        except (OSError, ValueError):
            line = ""
        try:
            loop.call_soon_threadsafe(settle, line)
        except RuntimeError:
            # The loop is closed, so nobody waits for the line.
            return

    threading.Thread(target=work, daemon=True).start()
    return await found


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

"""Reads lines from a person: plainly, or with history and completion (`prompt_toolkit`)."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TextIO

from holdfast.prompt.lines import completions

__all__ = ["LineReader", "PlainReader", "make_reader"]


class LineReader(Protocol):
    """Gives one line at a time."""

    async def read(self, prompt: str) -> str | None:
        """Return the next line, or None at the end of input. Ctrl-C returns an empty one."""


class PlainReader:
    """Reads lines as the terminal, or a file, gives them."""

    def __init__(self, source: TextIO, target: TextIO) -> None:
        """
        Args:
            source: Where lines come from.
            target: Where the prompt is written, if lines come from a terminal.
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
    """Call in a daemon thread: one that waits for a key must not hold up the end."""
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
            return  # the loop is closed: nobody wants it any more

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
        source: Where lines come from.
        target: Where the prompt is written.
        history: The file that remembers lines.
        sessions: Returns the numbers that can be completed.
    """
    if source.isatty() and target.isatty():
        try:
            return _rich_reader(history, sessions)
        except ImportError:
            pass
    return PlainReader(source, target)


def _rich_reader(history: Path | None, sessions: Callable[[], Iterable[int]]) -> LineReader:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import ANSI
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class _Words(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterator[Completion]:
            typed = document.text_before_cursor
            last = typed.rpartition(" ")[2]
            for found in completions(typed, sessions()):
                yield Completion(found, start_position=-len(last))

    kept = InMemoryHistory() if history is None else FileHistory(str(history))
    session: PromptSession[str] = PromptSession(
        history=kept, completer=_Words(), complete_while_typing=False
    )

    class _Reader:
        async def read(self, prompt: str) -> str | None:
            try:
                return await session.prompt_async(ANSI(prompt))
            except KeyboardInterrupt:
                return ""
            except EOFError:
                return None

    return _Reader()

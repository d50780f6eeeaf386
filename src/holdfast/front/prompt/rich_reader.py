"""Reads lines of the prompt with history and completion, by `prompt_toolkit` (extra `shell`)."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, InMemoryHistory

from holdfast.front.prompt.prompt_lines import completions

__all__ = ["RichReader"]


class _Words(Completer):
    """Completer of commands and session numbers."""

    def __init__(self, sessions: Callable[[], Iterable[int]]) -> None:
        self._sessions = sessions

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        typed = document.text_before_cursor
        last = typed.rpartition(" ")[2]
        for found in completions(typed, self._sessions()):
            yield Completion(found, start_position=-len(last))


class RichReader:
    """Reader of lines at a terminal."""

    def __init__(self, history: Path | None, sessions: Callable[[], Iterable[int]]) -> None:
        """
        Args:
            history: File for the history; None to keep it in memory.
            sessions: Returns the session numbers for completion.
        """
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory() if history is None else FileHistory(str(history)),
            completer=_Words(sessions),
            complete_while_typing=False,
        )

    async def read(self, prompt: str) -> str | None:
        """Return the next line, or None at the end of input. Ctrl-C returns an empty one."""
        try:
            return await self._session.prompt_async(ANSI(prompt))
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None

"""Limits the work for one command: a script may be designed to waste time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "MAX_COMMANDS",
    "MAX_DEPTH",
    "MAX_SECONDS",
    "MAX_TEXT",
    "AmbiguousError",
    "Budget",
    "ScriptSyntaxError",
    "TooCostlyError",
    "UnreadableError",
    "part_of_script",
]

MAX_TEXT = 256 * 1024
"""Most characters to analyse in an argument list."""

MAX_COMMANDS = 2000
"""Most commands found in one argument list. Each is compared with the rules."""

MAX_DEPTH = 40
"""Most levels of parentheses, substitutions, nested scripts and nested wrappers in total."""

MAX_SECONDS = 0.25
"""Most seconds of this thread's CPU time for one argument list."""


# The part of the script shown in a message: a reserved word, or one character.
_SIGN = re.compile(r"case\b|\[\[|.", re.DOTALL)
_SHOWN = {"`": "the backtick", "": "something"}


class UnreadableError(Exception):
    """A script cannot be read completely. The text says why, for the person who is asked."""


class AmbiguousError(UnreadableError):
    """Shells read the script differently, and it is unknown which reading applies."""


class ScriptSyntaxError(UnreadableError):
    """A shell cannot parse the script: a sign in it lacks its counterpart."""

    def __init__(self, script: str, position: int, why: str) -> None:
        match = _SIGN.match(script, position)
        sign = "" if match is None else match[0]
        super().__init__(f"{_SHOWN.get(sign, f'`{sign}`')} {why}")
        self.script = script
        """The text with the error: the whole script, or an extracted part."""
        self.position = position

    @property
    def located(self) -> str:
        """The text with the line and column of the sign."""
        before = self.script[: self.position]
        line = before.count("\n") + 1
        column = self.position - (before.rfind("\n") + 1) + 1
        return f"line {line}, column {column}: {self}"


class TooCostlyError(UnreadableError):
    """The budget of the whole argument list is exhausted, which ends reading."""


@contextmanager
def part_of_script() -> Iterator[None]:
    """Make each error ambiguous: a separately read part may fail while the script continues."""
    try:
        yield
    except (TooCostlyError, AmbiguousError):
        raise
    except UnreadableError as error:
        raise AmbiguousError(str(error)) from error


class Budget:
    """Limits for reading one argument list; each method raises `UnreadableError` beyond them."""

    def __init__(self) -> None:
        # CPU time, so that a busy machine does not affect the decision.
        self._deadline = time.thread_time() + MAX_SECONDS
        self._text = 0
        self._commands = 0
        self._words = 0

    @property
    def late(self) -> bool:
        """True if the CPU time is used up."""
        return time.thread_time() > self._deadline

    def forgive(self, seconds: float) -> None:
        """Exclude CPU time that was not spent on reading."""
        self._deadline += seconds

    def check_time(self) -> None:
        """Raise if the CPU time is used up."""
        if self.late:
            raise TooCostlyError("it takes too long to read")

    def spend_text(self, length: int) -> None:
        """Count characters before reading them."""
        self._text += length
        # Scripts inside scripts are read again; four times the limit leaves room for that.
        if length > MAX_TEXT or self._text > 4 * MAX_TEXT:
            raise TooCostlyError("it is too long")

    def spend_command(self) -> None:
        """Count one command."""
        self._commands += 1
        if self._commands > MAX_COMMANDS:
            raise TooCostlyError(f"it has more than {MAX_COMMANDS} commands")
        if self._commands % 32 == 0:
            self.check_time()

    def spend_word(self) -> None:
        """Count one word or sign of a script."""
        self._words += 1
        if self._words % 128 == 0:
            self.check_time()

    def check_depth(self, depth: int) -> None:
        """Raise if `depth` exceeds the limit."""
        if depth > MAX_DEPTH:
            raise UnreadableError("it is nested too deeply")

"""Every command that can be seen in an argument list, at any depth."""

from __future__ import annotations

import enum
import posixpath
import shlex
from collections import deque
from collections.abc import Iterator, Sequence

from holdfast.approvals.split.budget import Budget, TooCostlyError, UnreadableError
from holdfast.approvals.split.reader import ReadCommand, read_expanded, read_script
from holdfast.approvals.split.words import UNKNOWN, Word, WordPart, expand_braces
from holdfast.approvals.split.wrappers import (
    Inner,
    base_name,
    inner_commands,
    may_run_text,
    reads_input,
)

__all__ = ["Literals"]

# Readings of one wrapper's arguments that are followed to the command that gets the input.
_MAX_READINGS = 16


class Literals:
    """
    The commands of one argument list, collected.

    Each is kept as it would be called, and under other spellings that a rule may use: without
    the directories before its name, without variables that may be empty, without its wrapper.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._found: dict[tuple[str, ...], None] = {}
        # Scripts that were read already. With and without unset variables they are often equal.
        self._scripts: set[tuple[str, bool]] = set()
        # Commands and scripts that are not analysed yet, with their nesting level.
        self._pending: deque[tuple[Inner, int]] = deque()
        self._aliases: dict[str, str] = {}
        self.unseen: str | None = None
        """The first reason why something could not be read to its end."""

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The commands in the order in which they were found."""
        return tuple(self._found)

    def add_command(self, words: Sequence[str]) -> None:
        """Collect a command and all that it runs."""
        self._pending.append((Inner(tuple(words)), 0))
        self._drain()

    def add_commands(self, commands: Sequence[tuple[str, ...]]) -> None:
        """Collect the commands of one script and all that they run."""
        use = max(map(_text_use, commands), default=_TextUse.NONE)
        for words in commands:
            self._pending.append((Inner(words), 0))
            if use is not _TextUse.NONE and (text := _printed(words)):
                self._pending.append((Inner(script=text, posix=True, guess=True), 1))
        self._drain()

    def add_script(self, script: str, *, posix: bool) -> tuple[ReadCommand, ...]:
        """Collect the commands of a script and all that they run; return its own ones."""
        try:
            read = self._read_script(script, 0, posix=posix)
        except TooCostlyError as error:
            self._unseen(error)
            read = ()
        self._drain()
        return read

    def _drain(self) -> None:
        try:
            while self._pending:
                inner, depth = self._pending.popleft()
                self._budget.check_time()
                if inner.expanded is not None:
                    self._read_expanded(inner.expanded, depth)
                elif inner.script is not None:
                    self._read_inner(inner, depth)
                elif inner.words:
                    self._add(inner.words, depth, inner.aliases)
        except TooCostlyError as error:
            self._unseen(error)
            self._pending.clear()

    def _unseen(self, error: UnreadableError) -> None:
        self.unseen = self.unseen or str(error)

    def _read_inner(self, inner: Inner, depth: int) -> None:
        """Read a script that was found in another one."""
        assert inner.script is not None
        unseen = self.unseen
        self._read_script(inner.script, depth, posix=inner.posix, aliases=inner.aliases)
        if inner.guess:
            self.unseen = unseen

    def _read_expanded(self, text: str, depth: int) -> None:
        """Read the substitutions of a text that is expanded like a here-document."""
        found: list[ReadCommand] = []
        try:
            self._budget.check_depth(depth)
            read_expanded(text.replace(UNKNOWN, "${_}"), self._budget, found)
        except TooCostlyError:
            raise
        except UnreadableError:
            # Most of these texts are no array subscripts at all.
            pass
        for command in found:
            self._take(command, depth)

    def _read_script(
        self, script: str, depth: int, *, posix: bool, aliases: frozenset[str] = frozenset()
    ) -> tuple[ReadCommand, ...]:
        """Read a script, in which unknown parts become variables again."""
        script = script.replace(UNKNOWN, "${_}")
        if (script, posix) in self._scripts:
            return ()
        self._scripts.add((script, posix))
        found: list[ReadCommand] = []
        try:
            self._budget.check_depth(depth)
            read_script(script, self._budget, found, posix=posix)
        except UnreadableError as error:
            self._unseen(error)
        use = _TextUse.NONE
        for command in found:
            self._budget.check_time()
            use = max(use, self._take(command, depth, aliases))
        if use is not _TextUse.NONE:
            # It may get there through a pipe, from a group around it, or as a substitution.
            guess = use is _TextUse.POSSIBLE
            for text in dict.fromkeys(text for one in found for text in one.input_texts):
                self._pending.append((Inner(script=text, posix=True, guess=guess), depth + 1))
            printed = [_printed([word.text for word in one.words]) for one in found]
            for text in dict.fromkeys(filter(None, printed)):
                self._pending.append((Inner(script=text, posix=True, guess=True), depth + 1))
        return tuple(found)

    def _take(
        self, command: ReadCommand, depth: int, aliases: frozenset[str] = frozenset()
    ) -> _TextUse:
        """Queue the spellings of a command that was read; return whether it runs texts."""
        words: list[Word] = []
        for word in command.words:
            self._budget.check_time()
            parts = expand_braces(word)
            if parts is None:
                if not words:
                    self._unseen(UnreadableError("the braces of a name make too many words"))
                parts = [Word([WordPart("", unknown=True)], quoted=True)]
            words += parts
        use = _TextUse.NONE
        for spelling in _spellings(words):
            self._pending.append((Inner(spelling, aliases=aliases), depth))
            use = max(use, _text_use(spelling))
        return use

    def _add(self, words: tuple[str, ...], depth: int, aliases: frozenset[str]) -> None:
        """Keep one command and queue what it runs."""
        if words in self._found:
            return
        self._budget.spend_command()
        self._note_alias(words)
        self._replace_alias(words, depth, aliases)
        for spelling in _paths(words):
            self._found[spelling] = None
        try:
            self._budget.check_depth(depth)
        except UnreadableError as error:
            self._unseen(error)
            return
        try:
            for inner in inner_commands(words):
                self._pending.append((inner, depth + 1))
        except UnreadableError as error:
            self._unseen(error)

    def _note_alias(self, words: tuple[str, ...]) -> None:
        """Remember the aliases that a command makes; they count for commands before it, too."""
        if words[0] != "alias":
            return
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if not equals or name in self._aliases:
                continue
            self._aliases[name] = value
            for found in tuple(self._found):
                if found[0] == name:
                    self._replace_alias(found, 0, frozenset())

    def _replace_alias(self, words: tuple[str, ...], depth: int, aliases: frozenset[str]) -> None:
        """Queue what a command becomes if its name is an alias."""
        value = self._aliases.get(words[0])
        if value is None or words[0] in aliases:
            return
        rest = [shlex.quote(word) for word in words[1:]]
        if value.endswith((" ", "\t")):
            # Then the next word may be an alias, too.
            rest = [self._aliases.get(word) or shlex.quote(word) for word in words[1:]]
        script = " ".join([value, *rest])
        inner = Inner(script=script, posix=True, guess=True, aliases=aliases | {words[0]})
        self._pending.append((inner, depth + 1))


def _spellings(words: list[Word]) -> Iterator[tuple[str, ...]]:
    """Yield a command with its unknown parts marked, and with them left out."""
    marked = tuple([word.text for word in words])
    if marked:
        yield marked
    if any(UNKNOWN in text for text in marked):
        unset = tuple([text for word in words for text in word.if_unset()])
        if unset:
            yield unset


def _paths(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """
    Yield a command with its name as it is, and as a rule may name it.

    A relative path gets its file name. An absolute one only loses detours: rules compare its
    file name themselves, unless a `host_executable` says which paths count.
    """
    name = words[0]
    if name != UNKNOWN:
        yield words
    if name.startswith("=") and len(name) > 1:
        # zsh looks =rm up like a command.
        yield (name[1:], *words[1:])
    if "/" not in name:
        return
    if not name.startswith("/"):
        file_name = name.rpartition("/")[2]
        if file_name:
            yield (file_name, *words[1:])
        return
    normal = "/" + posixpath.normpath(name).lstrip("/")
    if normal != name:
        yield (normal, *words[1:])


class _TextUse(enum.IntEnum):
    """
    Likelihood that a command runs texts of the script around it: here-documents, printed text.
    """

    NONE = 0
    POSSIBLE = 1
    CERTAIN = 2


def _text_use(words: tuple[str, ...]) -> _TextUse:
    """Return the likelihood that a command, or one behind its wrappers, runs texts."""
    level = [words]
    found = _TextUse.NONE
    for _ in range(8):
        if any(reads_input(one) for one in level):
            return _TextUse.CERTAIN
        if any(may_run_text(one) for one in level):
            found = _TextUse.POSSIBLE
        try:
            level = [inner.words for one in level for inner in inner_commands(one) if inner.words]
        except UnreadableError:
            return _TextUse.CERTAIN
        if not level:
            return found
        level = level[:_MAX_READINGS]
    return _TextUse.CERTAIN


def _printed(words: Sequence[str]) -> str | None:
    """Return the text that a command prints as it is given, if it is one that does."""
    if not words or base_name(words[0]) not in ("echo", "printf"):
        return None
    return " ".join(words[1:])

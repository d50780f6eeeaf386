"""Collects every command found in an argument list, at any depth."""

from __future__ import annotations

import enum
import posixpath
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from holdfast.agent.approvals.split.budget import (
    AmbiguousError,
    Budget,
    ScriptSyntaxError,
    TooCostlyError,
    UnreadableError,
)
from holdfast.agent.approvals.split.printed import printed_texts
from holdfast.agent.approvals.split.read_command import ReadCommand
from holdfast.agent.approvals.split.read_input import (
    input_arguments,
    input_delimiter,
    may_run_text,
    read_arguments,
    reads_input,
)
from holdfast.agent.approvals.split.script_reader import read_expanded, read_script
from holdfast.agent.approvals.split.shell_arguments import ZSH, base_name
from holdfast.agent.approvals.split.subscripts import ZSH_TABLES, texts_expanded_later
from holdfast.agent.approvals.split.words import UNKNOWN, Word, WordPart, expand_braces
from holdfast.agent.approvals.split.wrappers import (
    Inner,
    inner_commands,
)

__all__ = ["Literals"]

# Values of one alias: those of several commands, and of one with and without unset variables.
# Also the most argument lists that are tried.
_MAX_VALUES = 4


class Literals:
    """
    Collects the commands of one argument list.

    Each is kept as it would be called, and in other spellings that a rule may use: without the
    directories before its name, without variables that may be empty, and without its wrapper.
    """

    def __init__(self, budget: Budget, *, zsh: bool = False) -> None:
        """
        Args:
            budget: Limit on the work of reading.
            zsh: The shell is zsh; otherwise one of the commands may be.
        """
        self._budget = budget
        self._found: dict[tuple[str, ...], None] = {}
        # Scripts already read. With and without unset variables they are often equal.
        self._scripts: set[tuple[str, bool, tuple[str, ...]]] = set()
        # Commands and scripts to analyse, with their nesting levels.
        self._pending: deque[tuple[Inner, int]] = deque()
        # Texts that a command may read and run: here-documents and output of commands. They may
        # reach it through a pipe, from an enclosing group, or as a substitution.
        self._inputs: dict[str, int] = {}
        self._printed: dict[str, int] = {}
        # True if a command prints a text that only the shell will know.
        self._prints_unknown = False
        self._use = _TextUse.NONE
        self._aliases: dict[str, list[str]] = {}
        # Arguments of shells.
        self._arguments: dict[tuple[str, ...], None] = {}
        # Pairs of signs, of which the first may stand for the second in a text that is read. A
        # substitution outside quotes makes blanks of its lines. A shell that takes its input for a
        # terminal's ends them at a carriage return, too.
        self._signs: dict[tuple[str, str], None] = {("\n", " "): None, ("\r", "\n"): None}
        # What separates the arguments that `xargs` reads.
        self._delimiters: dict[str, None] = {}
        self._zsh = zsh
        # Why zsh may run a command that cannot be found.
        self._for_zsh: str | None = None
        self.unseen: str | None = None
        """The first reason why something could not be read completely."""
        self.fault: str | None = None
        """The syntax error of the script itself, with its position."""

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The commands in the order in which they were found."""
        return tuple(self._found)

    def add_command(self, words: Sequence[str]) -> None:
        """Collect a command and all commands that it runs."""
        self._pending.append((Inner(tuple(words)), 0))
        self._drain()

    def add_commands(self, commands: Sequence[tuple[str, ...]]) -> None:
        """Collect the commands of one script and all commands that they run."""
        for words in commands:
            self._pending.append((Inner(words), 0))
        self._drain()

    def add_script(self, script: str, *, posix: bool) -> tuple[ReadCommand, ...]:
        """Collect the commands of a script and all that these run; return the script's commands."""
        read: tuple[ReadCommand, ...] = ()
        try:
            read = self._read_script(script, 0, posix=posix)
        except UnreadableError as error:
            self._unseen(error)
            # Extracted parts, such as a here-document or backticks, count as separate scripts.
            if isinstance(error, ScriptSyntaxError) and error.script == script:
                self.fault = error.located
        self._drain()
        return read

    def _drain(self) -> None:
        try:
            while self._pending or self._queue_texts():
                inner, depth = self._pending.popleft()
                self._budget.check_time()
                if inner.expanded is not None:
                    self._read_expanded(inner, depth)
                elif inner.script is not None:
                    self._read_inner(inner, depth)
                elif inner.words:
                    self._add(inner.words, depth, inner.aliases)
        except TooCostlyError as error:
            self._unseen(error)
            self._pending.clear()
        if self._zsh and self._for_zsh is not None:
            self._unseen(AmbiguousError(self._for_zsh))

    def _queue_texts(self) -> bool:
        """Queue the texts that commands run as scripts; return True if there are any."""
        if self._use is _TextUse.NONE:
            return False
        if self._prints_unknown:
            self._unseen(AmbiguousError("only zsh knows a text that is printed and run"))
        for texts, guess in ((self._inputs, self._use is _TextUse.POSSIBLE), (self._printed, True)):
            for text, depth in texts.items():
                self._pending.append((Inner(script=text, posix=True, guess=guess), depth + 1))
                for end, kept in self._signs:
                    if end in text.rstrip("\n"):
                        other = text.replace(end, kept)
                        inner = Inner(script=other, posix=True, guess=True)
                        self._pending.append((inner, depth + 1))
                for delimiter in self._delimiters:
                    if read := read_arguments(text, delimiter):
                        self._pending.append((Inner(read), depth + 1))
            texts.clear()
        return bool(self._pending)

    def _unseen(self, error: UnreadableError) -> None:
        self.unseen = self.unseen or str(error)

    def _read_inner(self, inner: Inner, depth: int) -> None:
        """Read a script found in another one."""
        assert inner.script is not None
        if not inner.arguments and "$" in inner.script:
            # It may be run by a shell that has arguments, as by `eval`.
            for given in self._arguments:
                self._pending.append((replace(inner, arguments=given), depth))
        try:
            self._read_script(
                *(inner.script, depth),
                posix=inner.posix,
                aliases=inner.aliases,
                arguments=inner.arguments,
            )
        except TooCostlyError:
            raise
        except UnreadableError as error:
            if not inner.guess or isinstance(error, AmbiguousError):
                self._unseen(error)
            _, newline, rest = inner.script.partition("\n")
            if newline:
                # A shell that reads its input continues with the next line.
                self._pending.append((replace(inner, script=rest), depth + 1))

    def _read_expanded(self, inner: Inner, depth: int) -> None:
        """Read the substitutions of a text that is expanded like a here-document."""
        found: list[ReadCommand] = []
        try:
            self._budget.check_depth(depth)
            assert inner.expanded is not None
            read_expanded(inner.expanded.replace(UNKNOWN, "${_}"), self._budget, found)
        except TooCostlyError:
            raise
        except UnreadableError as error:
            if not inner.guess or isinstance(error, AmbiguousError):
                self._unseen(error)
        for command in found:
            self._take(command, depth)

    def _read_script(
        self,
        script: str,
        depth: int,
        *,
        posix: bool,
        aliases: frozenset[str] = frozenset(),
        arguments: tuple[str, ...] = (),
    ) -> tuple[ReadCommand, ...]:
        """Read a script, in which unknown parts become variables again."""
        script = script.replace(UNKNOWN, "${_}")
        key = script, posix, arguments
        if key in self._scripts:
            return ()
        self._scripts.add(key)
        found: list[ReadCommand] = []
        try:
            self._budget.check_depth(depth)
            read_script(script, self._budget, found, posix=posix, arguments=arguments)
        finally:
            for command in found:
                self._budget.check_time()
                self._take(command, depth, aliases)
        return tuple(found)

    def _take(
        self, command: ReadCommand, depth: int, aliases: frozenset[str] = frozenset()
    ) -> None:
        """Queue the spellings of a command, and keep its input."""
        self._for_zsh = self._for_zsh or command.for_zsh
        for text in command.input_texts:
            self._inputs.setdefault(text, depth)
            # This may be the value of a variable.
            for part in texts_expanded_later(text):
                self._pending.append((Inner(expanded=part, guess=True), depth))
        words: list[Word] = []
        for word in command.words:
            self._budget.check_time()
            parts = expand_braces(word)
            if parts is None:
                if not words:
                    self._unseen(UnreadableError("the braces of a name make too many words"))
                parts = [Word([WordPart("", unknown=True)], quoted=True)]
            words += parts
        for spelling in _spellings(words):
            self._pending.append((Inner(spelling, aliases=aliases), depth))

    def _add(self, words: tuple[str, ...], depth: int, aliases: frozenset[str]) -> None:
        """Keep a command and queue the commands that it runs."""
        if words in self._found:
            return
        self._budget.spend_command()
        self._use = max(self._use, _text_use(words))
        if (delimiter := input_delimiter(words)) is not None:
            self._delimiters[delimiter] = None
            if delimiter:
                self._signs[delimiter, " "] = None
        if (given := input_arguments(words)) and len(self._arguments) < _MAX_VALUES:
            self._arguments[given] = None
        self._zsh = self._zsh or base_name(words[0]) in ZSH
        if any(one == "-A" and other in ZSH_TABLES for one, other in pairwise(words)) or any(
            word[:2] == "-A" and word[2:] in ZSH_TABLES for word in words
        ):
            self._for_zsh = self._for_zsh or "an option of zsh sets one of its tables"
        for text in printed_texts(words):
            if text is None:
                self._prints_unknown = True
            else:
                self._printed.setdefault(text, depth)
        self._note_alias(words)
        self._replace_alias(words, depth, aliases)
        if words[0].startswith("=") and len(words[0]) > 1:
            # zsh resolves =sh like a command.
            self._pending.append((Inner((words[0][1:], *words[1:])), depth + 1))
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
        """Remember the aliases that a command defines; they also count for earlier commands."""
        if words[0] != "alias":
            return
        for word in words[1:]:
            name, equals, value = word.partition("=")
            values = self._aliases.setdefault(name, [])
            if not equals or value in values or len(values) == _MAX_VALUES:
                continue
            values.append(value)
            for found in tuple(self._found):
                if found[0] == name:
                    self._replace_alias(found, 0, frozenset())

    def _replace_alias(self, words: tuple[str, ...], depth: int, aliases: frozenset[str]) -> None:
        """Queue the command that results if the name is an alias."""
        if words[0] in aliases:
            return
        for value in self._aliases.get(words[0], ()):
            rest = [shlex.quote(word) for word in words[1:]]
            if value.endswith((" ", "\t")):
                # Then the next word may be an alias, too.
                rest = [(self._aliases.get(word) or [shlex.quote(word)])[0] for word in words[1:]]
            script = " ".join([value, *rest])
            inner = Inner(script=script, posix=True, guess=True, aliases=aliases | {words[0]})
            self._pending.append((inner, depth + 1))


def _spellings(words: list[Word]) -> Iterator[tuple[str, ...]]:
    """Yield a command with its unknown parts marked, and without them."""
    marked = tuple([word.text for word in words])
    if marked:
        yield marked
    if any(UNKNOWN in text for text in marked):
        nested = any(piece.nested for word in words for piece in word.pieces)
        for mark in (False, True) if nested else (False,):
            for split in (True, False):
                unset = [word.if_unset(split=split, marked=mark) for word in words]
                if any(unset):
                    yield tuple([text for texts in unset for text in texts])


def _paths(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """
    Yield a command with its name unchanged, and as a rule may spell it.

    A relative path is reduced to its file name. An absolute one is only normalized: rules compare
    its file name, unless a `host_executable` restricts the paths.
    """
    name = words[0]
    if name != UNKNOWN:
        yield words
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
    """Return the likelihood that a command runs texts."""
    if reads_input(words):
        return _TextUse.CERTAIN
    return _TextUse.POSSIBLE if may_run_text(words) else _TextUse.NONE

"""
Reads the words of a shell script: quotes, expansions, here-documents.

Commands inside a word, such as `$(…)`, are read on the way. `script_reader` passes the function for
that to the lexer, because it knows where a command begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from holdfast.agent.approvals.split import signs
from holdfast.agent.approvals.split.budget import (
    AmbiguousError,
    Budget,
    ScriptSyntaxError,
    TooCostlyError,
    UnreadableError,
    part_of_script,
)
from holdfast.agent.approvals.split.cursor import Cursor
from holdfast.agent.approvals.split.read_command import ReadCommand
from holdfast.agent.approvals.split.subscripts import (
    CODE_IN_PATTERN,
    ZSH_TABLE,
    is_prompt,
    prompt_command,
    texts_expanded_later,
)
from holdfast.agent.approvals.split.words import (
    UNKNOWN,
    Word,
    WordPart,
    decode_ansi_c,
    refuse_doubtful_quote,
)

__all__ = ["Arguments", "Lexer"]

Arguments = tuple[str, ...]
"""The words behind a script: `$0`, `$1` and so on."""

# Reads commands from a lexer up to a closing sign, so many levels deep.
ReadCommands = Callable[["Lexer", str | None, int], None]


class Lexer(Cursor):
    """A position in a text, and what was found up to there."""

    def __init__(
        self,
        text: str,
        budget: Budget,
        found: list[ReadCommand],
        read_commands: ReadCommands,
        *,
        posix: bool,
        arguments: Arguments = (),
    ) -> None:
        super().__init__(text)
        self._budget = budget
        self._found = found
        self._read_commands = read_commands
        self._posix = posix
        self._arguments = arguments
        # Positions where two parentheses turned out to be no arithmetic.
        self._subshells: set[int] = set()
        self.doubtful = False
        """Another shell may read what came before otherwise, and so find no syntax error."""
        self.waiting = 0
        """Here-documents whose text has not come yet, of all lists that are being read."""

    @property
    def posix(self) -> bool:
        """The shell may be one that has no `[[` and no `((`."""
        return self._posix

    def check_depth(self, depth: int) -> None:
        """Raise if `depth` levels are too many."""
        self._budget.check_depth(depth)

    def skip_blanks(self, *, lines: bool = False) -> None:
        """Skip blanks, joined lines and a comment; with `lines` also ends of lines."""
        self._budget.spend_word()
        while True:
            self.take(signs.BLANKS)
            if self.char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            if not (lines and self.char == "\n"):
                return
            self._at += 1

    def emit(self, command: ReadCommand) -> None:
        """Keep a command that ends here."""
        if command.words or command.input_texts or command.awaits_input:
            self._budget.spend_command()
            self._found.append(command)

    def note_for_zsh(self, why: str) -> None:
        """Note that zsh may run something here that cannot be seen."""
        self._found.append(ReadCommand(for_zsh=why))

    def syntax_error(self, position: int, why: str) -> UnreadableError:
        """Return the error about the sign at `position`."""
        error = ScriptSyntaxError(self._text, position, why)
        return AmbiguousError(str(error)) if self.doubtful else error

    def _nested(self, text: str) -> Lexer:
        """Return a lexer for a text that was found in this one."""
        return Lexer(
            *(text, self._budget, self._found, self._read_commands),
            posix=self._posix,
            arguments=self._arguments,
        )

    # Words

    def read_word(self, depth: int) -> Word:
        """Read one word. It is empty and not quoted if none begins here."""
        self._budget.spend_word()
        begin = self._at
        word = Word()
        pieces = word.pieces
        while run := self.char:
            plain = self.take(signs.PLAIN_RUN)
            if plain is not None:
                pieces.append(WordPart(plain))
            elif run == "\\":
                self._read_backslash(word)
            elif run == "'":
                word.quoted = True
                pieces.append(WordPart(self._until_quote(), quoted=True))
            elif run == '"':
                start = self._at
                self._at += 1
                # Also without a text, it makes what follows no assignment and no reserved word.
                pieces.append(WordPart("", quoted=True))
                self._read_double_quoted(pieces, depth)
                # "$@" is the one quoted text that can be no word at all.
                if not signs.ALL_ARGUMENTS.fullmatch(self._text, start, self._at):
                    word.quoted = True
            elif run == "$":
                self._read_dollar(word, depth, quoted=False)
            elif run == "`":
                self._read_backticks(pieces, depth, quoted=False)
            elif self._read_process(depth):
                pieces.append(WordPart("", unknown=True))
            elif run == "(" and word.begins_array:
                if prompt_command(word.text) is not None:
                    raise AmbiguousError("a variable has several scripts")
                self._read_array(depth)
                pieces.append(WordPart("", unknown=True))
                if self.char and self.char not in " \t\n;&|<>()":
                    # zsh starts the next word here, without a blank.
                    raise AmbiguousError("shells disagree about what follows an array")
            else:
                break
        if word.has_substitution_sign:
            self._expand_value(word, depth)
        if ZSH_TABLE.match(word.text) or ZSH_TABLE.match(word.text_if_unset):
            self.note_for_zsh("a variable of zsh makes functions or names of commands")
        if not self._text.isascii() and signs.ZSH_NAME.search(self._text[begin : self._at]):
            self.note_for_zsh("a name has a letter beyond ASCII, which only zsh allows")
        if (script := prompt_command(word.text)) is not None:
            self._read_as_commands(script.replace(UNKNOWN, "${_}"), depth)
        return word

    def _expand_value(self, word: Word, depth: int) -> None:
        """Read the substitutions that a shell runs when it uses a word as an index or a prompt."""
        for text in (word.text, word.text_if_unset):
            for part in texts_expanded_later(text):
                # What comes out may have an index again, behind one backslash less.
                self._budget.check_depth(depth + 1)
                try:
                    inner = self._nested(part).read_expanded(depth + 1)
                except (TooCostlyError, AmbiguousError):
                    raise
                except UnreadableError as error:
                    if is_prompt(text):
                        raise AmbiguousError(f"a prompt cannot be read: {error}") from error
                    # It was a text for something else, such as a pattern.
                    continue
                self._expand_value(inner, depth + 1)

    def _read_backslash(self, word: Word) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if following == "\n":
            return
        if not following:
            raise AmbiguousError("shells disagree about a backslash at the end")
        word.pieces.append(WordPart(following, quoted=True))

    def _until_quote(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise self.syntax_error(self._at, "is never closed")
        text = self._text[self._at + 1 : end]
        self._at = end + 1
        return text

    def _read_double_quoted(self, pieces: list[WordPart], depth: int) -> None:
        """Read up to the closing double quote, the opening one being read already."""
        start = self._at - 1
        while char := self.char:
            if char == '"':
                self._at += 1
                return
            self._read_part_of_quotes(pieces, depth)
        raise self.syntax_error(start, "is never closed")

    def _read_part_of_quotes(self, pieces: list[WordPart], depth: int) -> None:
        """Read one part of a text in double quotes: plain text, an escape or an expansion."""
        char = self.char
        plain = self.take(signs.IN_QUOTES)
        if plain is not None:
            pieces.append(WordPart(plain, quoted=True))
        elif char == "\\":
            self._read_escape(pieces, '$`"\\')
        elif char == "$":
            self._read_dollar(Word(pieces), depth, quoted=True)
        else:
            self._read_backticks(pieces, depth, quoted=True)

    def _read_escape(self, pieces: list[WordPart], special: str) -> None:
        """Read a backslash where it has a meaning only before the characters of `special`."""
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if following == "\n":
            return
        kept = following if following and following in special else "\\" + following
        pieces.append(WordPart(kept, quoted=True))

    def _read_dollar(self, word: Word, depth: int, *, quoted: bool) -> None:
        """Read what begins with a dollar sign."""
        self._budget.spend_word()
        pieces = word.pieces
        self._at += 1
        self._refuse_joined(signs.JOINED)
        char = self.char
        if char == "(":
            self._at += 1
            self.refuse_joined_sign("(")
            if not self._read_arithmetic(depth):
                if self._posix and self.char == "(":
                    raise AmbiguousError("shells disagree about two parentheses")
                self._read_nested(")", depth)
            pieces.append(WordPart("", unknown=True))
        elif char == "{":
            self._at += 1
            start = self._at
            try:
                pieces += self._read_parameter(depth, quoted=quoted)
            except ScriptSyntaxError as error:
                # In an expansion, not every shell takes a quote or a sign for one.
                doubtful = error.position != start - 1 or signs.QUOTE.search(self._text, start)
                if self._posix and doubtful:
                    raise AmbiguousError(str(error)) from error
                raise
        elif char == "[":
            self._at += 1
            start = self._at
            try:
                self._skip_balanced("]", depth)
            except ScriptSyntaxError as error:
                raise AmbiguousError("shells disagree about $[") from error
            if self._posix and signs.IN_NO_ARITHMETIC.search(self._text, start, self._at):
                raise AmbiguousError("shells disagree about $[")
            pieces.append(WordPart("", unknown=True))
        elif char == "'" and not quoted:
            word.quoted = True
            pieces.append(WordPart(self._read_ansi_c(), quoted=True))
        elif char == '"' and not quoted:
            word.quoted = True
            self._at += 1
            pieces.append(WordPart("", quoted=True))
            self._read_double_quoted(pieces, depth)
        elif (name := self.take(signs.NAME)) is not None:
            if name[0].isalpha() or name[0] == "_":
                self._refuse_joined(signs.JOINED_NAME)
            pieces.append(WordPart(self._value(name, quoted=quoted), unknown=True))
        elif (signs.ZSH_SIGN_IN_QUOTES if quoted else signs.ZSH_SIGN).match(self._text, self._at):
            raise AmbiguousError("shells disagree about a sign after a dollar sign")
        else:
            pieces.append(WordPart("$", quoted=True))

    def _value(self, name: str, *, quoted: bool) -> str:
        """Return what a parameter stands for if nothing sets it."""
        if self._arguments and (name.isdecimal() or name in ("@", "*")):
            return signs.argument(name, self._arguments)
        return signs.known_value(name, quoted=quoted)

    def _refuse_joined(self, pattern: re.Pattern[str]) -> None:
        """Raise if a joined line comes next, and what is after it would belong to this."""
        if pattern.match(self._text, self._at) is not None:
            raise AmbiguousError("a line is joined in the middle of a sign or an expansion")

    def refuse_joined_sign(self, sign: str) -> None:
        """Raise if `sign` was read and becomes another one by a joined line."""
        match = signs.JOINED.match(self._text, self._at)
        if match is not None and sign + match[1] in signs.LONGER_SIGNS:
            self._refuse_joined(signs.JOINED)

    def _read_ansi_c(self) -> str:
        match = signs.ANSI_C_TEXT.match(self._text, self._at)
        if match is None:
            raise self.syntax_error(self._at, "is never closed")
        # For a shell without $'…' it is a dollar and ordinary quotes: \' ends those.
        if self._posix and "'" in match[1]:
            raise AmbiguousError("shells disagree about a quote after a dollar sign")
        self._at = match.end()
        return decode_ansi_c(match[1])

    def _read_nested(self, closer: str, depth: int) -> None:
        self._budget.check_depth(depth + 1)
        self._read_commands(self, closer, depth + 1)

    def _read_backticks(self, pieces: list[WordPart], depth: int, *, quoted: bool) -> None:
        """Read a substitution in backticks, in which backslashes are taken off once first."""
        start = self._at
        self._at += 1
        inner: list[str] = []
        special = '$`\\"' if quoted else "$`\\"
        while True:
            inner.append(self.take(signs.BACKTICK_RUN) or "")
            if not self.char:
                raise self.syntax_error(start, "is never closed")
            if self.char == "`":
                break
            following = self._text[self._at + 1 : self._at + 2]
            inner.append(following if following in (*special,) else "\\" + following)
            self._at += 2
        self._at += 1
        self._budget.check_depth(depth + 1)
        text = "".join(inner)
        if "\\\n" in text and "'" in text:
            raise AmbiguousError("shells disagree about a joined line in backticks")
        self._budget.spend_text(len(text))
        with part_of_script():
            self._read_commands(self._nested(text), None, depth + 1)
        pieces.append(WordPart("", unknown=True))

    def _read_parameter(self, depth: int, *, quoted: bool) -> list[WordPart]:
        """Read `${…}` after its brace, and return the word for a variable that is not set."""
        start = self._at
        if self.char and self.char in " \t\n|":
            # A substitution for ksh and bash 5.3, a mistake for others.
            raise AmbiguousError("shells disagree about a brace after a dollar sign")
        flags = self.take(signs.FLAGS) or ""
        self._refuse_joined(signs.JOINED_PARAMETER)
        named = self._at
        operator = self.take(signs.DEFAULT)
        indexed = operator is None and self.take(signs.INDEXED) is not None
        if indexed:
            while self.char == "[":
                self._at += 1
                self._skip_balanced("]", depth, refused="}")
            self._refuse_joined(signs.JOINED_OPERATOR)
            operator = self.take(signs.DEFAULT_OF_MEMBER)
        if operator is not None:
            self._refuse_joined(signs.JOINED)
            word = self._read_default(depth, quoted=quoted)
            assigned = operator[-1] == "=" and not quoted
            if operator[-1] == "=" and ZSH_TABLE.match(self._text, named) is not None:
                self.note_for_zsh("a variable of zsh makes functions or names of commands")
            if CODE_IN_PATTERN.search(self._text[named : self._at]) is not None:
                self.note_for_zsh("a pattern of zsh may run code")
            splits = self._text.startswith(("=", "~=", "^="), named)
            if splits and not quoted and any(" " in part.text for part in word if part.quoted):
                raise AmbiguousError("shells disagree about a blank in quotes in an expansion")
            if assigned or splits:
                # Split at its blanks, also in quotes: a value has none, and zsh has signs for it.
                word = [replace(piece, quoted=False) for piece in word]
            if operator[-1] in "-=" and (value := self._argument(named)):
                word = [WordPart(value, quoted, unknown=True)]
        else:
            if signs.NAMED.match(self._text, named) is None:
                raise AmbiguousError("shells disagree about an expansion")
            quotes = not quoted or signs.PATTERN_OPERATOR.match(self._text, named) is not None
            part = signs.PART_OF_VALUE if indexed else signs.PARAMETER_PART
            numeric = part.match(self._text, self._at if indexed else named) is not None
            self._skip_balanced("}", depth, single_quotes=quotes, evaluated=numeric)
            known = signs.KNOWN_PARAMETER.match(self._text, named)
            value = "" if known is None else signs.known_value(known[1], quoted=quoted)
            word = [WordPart(self._argument(named) or value, unknown=True)]
        expanded = signs.EXPANDED_VALUE.search(self._text, named, self._at) is not None
        if expanded or "e" in flags:
            value = self._argument(named) or "".join([piece.text for piece in word])
            self.expand_again(value, depth)
            if not value and expanded:
                raise AmbiguousError("the value of a variable is expanded once more")
            if not value:
                self.note_for_zsh("the value of a variable is expanded once more")
        if flags:
            # One of the flags of zsh expands the value, whatever quotes it is in.
            self.expand_again(self._text[start : self._at - 1], depth)
            if flags != "(e)" and any(piece.text for piece in word):
                raise AmbiguousError("flags of an expansion change its text")
        return word

    def _argument(self, position: int) -> str:
        """Return the argument that is named at a position in `${…}`; empty for other names."""
        match = signs.ARGUMENT.match(self._text, position)
        return "" if match is None else signs.argument(match[0], self._arguments)

    def _read_default(self, depth: int, *, quoted: bool) -> list[WordPart]:
        """Read the word of `${name:-word}` and its brace, and return the word."""
        self._budget.check_depth(depth + 1)
        start = self._at
        pieces: list[WordPart] = []
        while char := self.char:
            plain = self.take(signs.IN_DEFAULT)
            if plain is not None:
                pieces.append(WordPart(plain))
            elif char == "}":
                self._at += 1
                return [
                    WordPart(p.text, quoted or p.quoted, unknown=True, nested=p.unknown)
                    for p in pieces or [WordPart("")]
                ]
            elif char == '"':
                self._at += 1
                self._read_double_quoted(pieces, depth + 1)
            elif char == "'":
                text = self._until_quote()
                refuse_doubtful_quote(text, single_quotes=not quoted)
                pieces.append(WordPart(f"'{text}'" if quoted else text, quoted=True))
            elif char == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                self._read_escape(pieces, '$`"\\}' if quoted else following)
            elif char == "$":
                if quoted and self.take(signs.DOLLAR_QUOTE) is not None:
                    raise AmbiguousError("shells disagree about a quote in an expansion")
                self._read_dollar(Word(pieces), depth + 1, quoted=quoted)
            elif char == "`":
                self._read_backticks(pieces, depth + 1, quoted=quoted)
            elif self._read_process(depth):
                pieces.append(WordPart("", unknown=True))
            else:
                self._refuse_brace()
                pieces.append(WordPart(char))
                self._at += 1
        raise self.syntax_error(self._text.rindex("{", 0, start), "is never closed")

    def _refuse_brace(self, inside: str = "}") -> None:
        """Raise if a brace comes next that some shells count, unless all end at the same place."""
        if inside == "}" and self.char == "{" and not self.looking_at("{}}"):
            raise AmbiguousError("shells disagree about a brace in an expansion")

    def _read_process(self, depth: int) -> bool:
        """Read a process substitution, if one begins here."""
        if self.char not in "<>" or not self._text.startswith("(", self._at + 1):
            return False
        self._at += 2
        self._read_nested(")", depth)
        return True

    def _skip_balanced(
        self,
        closer: str,
        depth: int,
        *,
        single_quotes: bool = True,
        refused: str = "",
        evaluated: bool = False,
    ) -> None:
        """
        Skip to `closer`, and read the commands of substitutions on the way.

        With `single_quotes`, these are quotes there. The characters in `refused` leave open
        where it ends. If the text is `evaluated` as a number, the index of a member in it is
        expanded once more.
        """
        self._budget.check_depth(depth + 1)
        start = self._at - 1
        closers = [closer]
        scratch: list[WordPart] = []
        pairs = {"(": ")", "[": "]"} if closer != "}" else {}
        evaluated = evaluated or bool(pairs)
        while closers:
            char = self.char
            if not char:
                raise self.syntax_error(start, "is never closed")
            if self.take(signs.IN_ARITHMETIC) is not None:
                continue
            if char in refused:
                raise AmbiguousError("shells disagree about the end of an index")
            if char == closers[-1]:
                closers.pop()
                self._at += 1
            elif char in pairs:
                self._budget.check_depth(depth + len(closers))
                closers.append(pairs[char])
                self._at += 1
            elif pairs and char in ")]":
                # For some shells the other bracket is an ordinary character here.
                raise AmbiguousError("shells disagree about a bracket in arithmetic")
            elif pairs and char in "\\'" and not self.looking_at("\\\n"):
                raise AmbiguousError("shells disagree about a quote in arithmetic")
            elif char == "\\":
                scratch.append(WordPart(self._text[self._at + 1 : self._at + 2], quoted=True))
                self._at += 2
            elif char == "'":
                scratch.append(WordPart(self._until_quote(), quoted=True))
                refuse_doubtful_quote(scratch[-1].text, single_quotes=single_quotes)
            elif char == '"':
                if pairs and self._posix:
                    raise AmbiguousError("shells disagree about a quote in arithmetic")
                self._at += 1
                self._read_double_quoted(scratch, depth + 1)
            elif char == "$":
                # In arithmetic, quotes have the meaning that they have in double quotes.
                self._read_dollar(Word(scratch), depth + 1, quoted=bool(pairs))
            elif char == "`":
                self._read_backticks(scratch, depth + 1, quoted=False)
            elif closer != "}" or not self._read_process(depth + 1):
                self._refuse_brace(inside=closer)
                self._at += 1
            if evaluated and any("$" in piece.text or "`" in piece.text for piece in scratch):
                raise AmbiguousError("a text in arithmetic is expanded once more")
            scratch.clear()

    def _read_arithmetic(self, depth: int) -> bool:
        """
        Read `(…))` if an arithmetic expression begins here, else read nothing.

        As in bash, two parentheses are arithmetic if the inner one is closed right before
        the outer one; otherwise a subshell begins.
        """
        if self.char != "(" or self._at in self._subshells:
            return False
        start = self._at
        found = len(self._found)
        self._at += 1
        try:
            self._skip_balanced(")", depth)
        except (TooCostlyError, AmbiguousError):
            raise
        except UnreadableError:
            pass
        else:
            if self.char == ")":
                self._at += 1
                return True
            self.refuse_joined_sign(")")
        self.doubtful = True
        # Commands found on the way will be found again by the second attempt.
        del self._found[found:]
        self._subshells.add(start)
        self._at = start
        return False

    def read_arithmetic_command(self, depth: int) -> bool:
        """Read `((…))` where a command may begin, if that is what begins here."""
        start = self._at
        self._at += 1
        if not self._read_arithmetic(depth):
            self._at = start
            return False
        if self._posix:
            # A shell without arithmetic commands starts two subshells instead.
            if signs.DOUBTFUL_ARITHMETIC.search(self._text, start + 2, self._at - 2) is not None:
                raise AmbiguousError("shells disagree about two parentheses")
            self._read_as_commands(self._text[start + 2 : self._at - 2], depth)
        return True

    def _read_as_commands(self, text: str, depth: int) -> None:
        """Read a text that is commands only for some shells; for those it may be wrong."""
        self._budget.spend_text(len(text))
        self._budget.check_depth(depth + 1)
        try:
            self._read_commands(self._nested(text), None, depth + 1)
        except (TooCostlyError, AmbiguousError):
            raise
        except UnreadableError:
            pass

    def _read_array(self, depth: int) -> None:
        """Read the values of an array up to their parenthesis."""
        self._budget.check_depth(depth + 1)
        start = self._at
        self._at += 1
        while True:
            self.skip_blanks(lines=True)
            if self.char == ")":
                self._at += 1
                return
            if not self.char:
                raise self.syntax_error(start, "is never closed")
            before = self._at
            self.read_word(depth + 1)
            if self._at == before:
                raise UnreadableError("an array has no end")

    # Texts that are expanded like a here-document

    def expand_again(self, text: str, depth: int) -> Word:
        """Return a text that was taken out as it is expanded, and read its substitutions."""
        self._budget.check_depth(depth + 1)
        self._budget.spend_text(len(text))
        with part_of_script():
            return self._nested(text).read_expanded(depth + 1)

    def read_expanded(self, depth: int) -> Word:
        """Return a whole text as a here-document expands it, and read its substitutions."""
        pieces: list[WordPart] = []
        while char := self.char:
            plain = self.take(signs.IN_DOCUMENT)
            if plain is not None:
                pieces.append(WordPart(plain))
            elif char == "\\":
                self._read_escape(pieces, "$`\\")
            elif char == "$":
                self._read_dollar(Word(pieces), depth, quoted=True)
            else:
                self._read_backticks(pieces, depth, quoted=True)
        return Word(pieces)

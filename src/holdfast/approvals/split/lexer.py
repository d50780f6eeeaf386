"""
Reading the words of a shell script: quotes, expansions, here-documents.

Commands inside of a word, such as `$(…)`, are read on the way. `reader` does that, because
it knows where a command begins; it hands its function for that to the lexer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.approvals.split.budget import Budget, TooCostlyError, UnreadableError
from holdfast.approvals.split.words import Word, WordPart, decode_ansi_c

__all__ = ["Document", "Lexer", "ReadCommand"]

_PLAIN_RUN = re.compile(r"[^ \t\n'\"\\$`<>|&;()]+")
_ANSI_C_TEXT = re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
_BACKTICK_RUN = re.compile(r"[^`\\]*")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_ALL_ARGUMENTS = re.compile(r'"\$(?:@|\{[^}]*@\})"')
# Lines joined by a backslash, and what comes after them.
_JOINED = re.compile(r"(?:\\\n)+(.?)")
_JOINED_NAME = re.compile(r"(?:\\\n)+[A-Za-z0-9_]")
_LONGER_SIGNS = frozenset(
    [
        "&&",
        "&>",
        "||",
        "|&",
        ";;",
        ";&",
        ";|",
        ";;&",
        "<<",
        "<<<",
        "<<-",
        "<>",
        "<&",
        "<(",
        ">>",
        ">|",
        ">&",
        ">(",
        "&>>",
        "((",
    ]
)
_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_IN_DOCUMENT = re.compile(r"[^\\$`]+")
_IN_DEFAULT = re.compile(r"[^'\"\\$`<>}]+")
_IN_ARITHMETIC = re.compile(r"[^'\"\\$`(){}\[\]<>]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_PARAMETER = r"!?(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(?:\[[^]]*\])?"
# ${name:-word}: the word that stands for a variable that is not set, or that is.
_DEFAULT = re.compile(_PARAMETER + r":?[-=+]")
# ${name#pattern} and its like: single quotes in the pattern are quotes, also in double ones.
_PATTERN_OPERATOR = re.compile(_PARAMETER + r"[#%/^,]")
# Characters that end the word in $[…] for a shell without that arithmetic.
_IN_NO_ARITHMETIC = re.compile(r"[;&|<>()#\n]")
# Variables whose value can be known. IFS is a blank, as it is at the start.
_KNOWN_VARIABLES = {"IFS": " ", "SHELL": "sh", "BASH": "bash", "0": "sh"}
_KNOWN_PARAMETER = re.compile(r"(IFS|SHELL|BASH|0)(?![A-Za-z0-9_])")


@dataclass(slots=True)
class ReadCommand:
    """One simple command, without its assignments and redirections."""

    words: list[Word] = field(default_factory=list)
    input_texts: list[str] = field(default_factory=list)
    """Here-documents and here-strings: what the command reads, if that can be seen."""


@dataclass(slots=True)
class Document:
    """A here-document whose text begins after the current line."""

    delimiter: str
    quoted: bool
    strip_tabs: bool
    command: ReadCommand


# Reads commands from a lexer up to a closing sign, so many levels deep.
ReadCommands = Callable[["Lexer", str | None, int], None]


class Lexer:
    """A position in a text, and what was found up to there."""

    def __init__(
        self,
        text: str,
        budget: Budget,
        found: list[ReadCommand],
        read_commands: ReadCommands,
        *,
        posix: bool,
    ) -> None:
        self._text = text
        self._at = 0
        self._budget = budget
        self._found = found
        self._read_commands = read_commands
        self._posix = posix
        # Positions where two parentheses turned out to be no arithmetic.
        self._subshells: set[int] = set()
        self.waiting = 0
        """Here-documents whose text has not come yet, of all lists that are being read."""

    # Positions in the text

    @property
    def position(self) -> int:
        """The number of characters that were read."""
        return self._at

    def text_since(self, position: int) -> str:
        """Return what was read since `position`."""
        return self._text[position : self._at]

    def go_back(self, position: int) -> None:
        """Read again from `position` on."""
        self._at = position

    @property
    def posix(self) -> bool:
        """The shell may be one that has no `[[` and no `((`."""
        return self._posix

    def check_depth(self, depth: int) -> None:
        """Raise if `depth` levels are too many."""
        self._budget.check_depth(depth)

    @property
    def char(self) -> str:
        """The next character, or an empty text at the end."""
        return self._text[self._at : self._at + 1]

    def looking_at(self, text: str) -> bool:
        """Return True if `text` comes next."""
        return self._text.startswith(text, self._at)

    def skip(self, count: int) -> None:
        """Go on by `count` characters."""
        self._at += count

    def take(self, pattern: re.Pattern[str]) -> str | None:
        """Read what matches `pattern` here, if anything does."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def skip_blanks(self, *, lines: bool = False) -> None:
        """Skip blanks, joined lines and a comment; with `lines` also ends of lines."""
        self._budget.spend_word()
        while True:
            self.take(_BLANKS)
            if self.char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            if not (lines and self.char == "\n"):
                return
            self._at += 1

    def emit(self, command: ReadCommand) -> None:
        """Keep a command that ends here."""
        if command.words or command.input_texts:
            self._budget.spend_command()
            self._found.append(command)

    def _nested(self, text: str) -> Lexer:
        """Return a lexer for a text that was found in this one."""
        return Lexer(text, self._budget, self._found, self._read_commands, posix=self._posix)

    # Words

    def read_word(self, depth: int) -> Word:
        """Read one word. It is empty and not quoted if none begins here."""
        self._budget.spend_word()
        word = Word()
        pieces = word.pieces
        while run := self.char:
            plain = self.take(_PLAIN_RUN)
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
                if not _ALL_ARGUMENTS.fullmatch(self._text, start, self._at):
                    word.quoted = True
            elif run == "$":
                self._read_dollar(word, depth, quoted=False)
            elif run == "`":
                self._read_backticks(pieces, depth, quoted=False)
            elif self._read_process(depth):
                pieces.append(WordPart("", unknown=True))
            elif run == "(" and word.begins_array:
                self._read_array(depth)
                pieces.append(WordPart("", unknown=True))
                if self.char and self.char not in " \t\n;&|<>()":
                    # zsh starts the next word here, without a blank.
                    raise UnreadableError("shells disagree about what follows an array")
            else:
                break
        return word

    def _read_backslash(self, word: Word) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if following == "\n":
            return
        # A backslash at the very end stands for itself.
        word.pieces.append(WordPart(following or "\\", quoted=True))

    def _until_quote(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise UnreadableError("a quote has no end")
        text = self._text[self._at + 1 : end]
        self._at = end + 1
        return text

    def _read_double_quoted(self, pieces: list[WordPart], depth: int) -> None:
        """Read up to the closing double quote, the opening one being read already."""
        while char := self.char:
            if char == '"':
                self._at += 1
                return
            self._read_part_of_quotes(pieces, depth)
        raise UnreadableError("a quote has no end")

    def _read_part_of_quotes(self, pieces: list[WordPart], depth: int) -> None:
        """Read one part of a text in double quotes: plain text, an escape or an expansion."""
        char = self.char
        plain = self.take(_IN_QUOTES)
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
        self._refuse_joined(_JOINED)
        char = self.char
        if char == "(":
            self._at += 1
            self.refuse_joined_sign("(")
            if not self._read_arithmetic(depth):
                self._read_nested(")", depth)
            pieces.append(WordPart("", unknown=True))
        elif char == "{":
            self._at += 1
            pieces.append(WordPart(self._read_parameter(depth, quoted=quoted), unknown=True))
        elif char == "[":
            self._at += 1
            start = self._at
            self._skip_balanced("]", depth)
            if self._posix and _IN_NO_ARITHMETIC.search(self._text, start, self._at):
                raise UnreadableError("shells disagree about $[")
            pieces.append(WordPart("", unknown=True))
        elif char == "'" and not quoted:
            word.quoted = True
            pieces.append(WordPart(self._read_ansi_c(), quoted=True))
        elif char == '"' and not quoted:
            word.quoted = True
            self._at += 1
            pieces.append(WordPart("", quoted=True))
            self._read_double_quoted(pieces, depth)
        elif (name := self.take(_NAME)) is not None:
            if name[0].isalpha() or name[0] == "_":
                self._refuse_joined(_JOINED_NAME)
            pieces.append(WordPart(_known_value(name, quoted=quoted), unknown=True))
        else:
            pieces.append(WordPart("$", quoted=True))

    def _refuse_joined(self, pattern: re.Pattern[str]) -> None:
        """Raise if a joined line comes next, and what is after it would belong to this."""
        if pattern.match(self._text, self._at) is not None:
            raise UnreadableError("a line is joined in the middle of a sign or an expansion")

    def refuse_joined_sign(self, sign: str) -> None:
        """Raise if `sign` was read and becomes another one by a joined line."""
        match = _JOINED.match(self._text, self._at)
        if match is not None and sign + match[1] in _LONGER_SIGNS:
            self._refuse_joined(_JOINED)

    def _read_ansi_c(self) -> str:
        match = _ANSI_C_TEXT.match(self._text, self._at)
        if match is None:
            raise UnreadableError("a quote has no end")
        # For a shell without $'…' it is a dollar and ordinary quotes: \' ends those.
        if self._posix and "'" in match[1]:
            raise UnreadableError("shells disagree about a quote after a dollar sign")
        self._at = match.end()
        return decode_ansi_c(match[1])

    def _read_nested(self, closer: str, depth: int) -> None:
        self._budget.check_depth(depth + 1)
        self._read_commands(self, closer, depth + 1)

    def _read_backticks(self, pieces: list[WordPart], depth: int, *, quoted: bool) -> None:
        """Read a substitution in backticks, in which backslashes are taken off once first."""
        self._at += 1
        inner: list[str] = []
        special = '$`\\"' if quoted else "$`\\"
        pattern = _BACKTICK_RUN
        while True:
            inner.append(self.take(pattern) or "")
            if not self.char:
                raise UnreadableError("a backtick has no end")
            if self.char == "`":
                break
            following = self._text[self._at + 1 : self._at + 2]
            kept = following and following in special
            inner.append(following if kept else "\\" + following)
            self._at += 2
        self._at += 1
        self._budget.check_depth(depth + 1)
        text = "".join(inner)
        self._budget.spend_text(len(text))
        self._read_commands(self._nested(text), None, depth + 1)
        pieces.append(WordPart("", unknown=True))

    def _read_parameter(self, depth: int, *, quoted: bool) -> str:
        """Read `${…}` after its brace, and return the word for a variable that is not set."""
        start = self._at
        if self.char and self.char in " \t\n|":
            # A substitution for ksh and bash 5.3, a mistake for others.
            raise UnreadableError("shells disagree about a brace after a dollar sign")
        default = _DEFAULT.match(self._text, start)
        if default is not None:
            self._at = default.end()
            return self._read_default(depth, quoted=quoted)
        quotes = not quoted or _PATTERN_OPERATOR.match(self._text, start) is not None
        self._skip_balanced("}", depth, single_quotes=quotes)
        if self._text.startswith("(", start):
            # Flags of zsh: one of them expands the value, whatever quotes it is in.
            self.expand_again(self._text[start : self._at - 1], depth)
        known = _KNOWN_PARAMETER.match(self._text, start)
        return "" if known is None else _known_value(known[1], quoted=quoted)

    def _read_default(self, depth: int, *, quoted: bool) -> str:
        """Read the word of `${name:-word}` and its brace, and return the word."""
        self._budget.check_depth(depth + 1)
        pieces: list[WordPart] = []
        while char := self.char:
            plain = self.take(_IN_DEFAULT)
            if plain is not None:
                pieces.append(WordPart(plain))
            elif char == "}":
                self._at += 1
                return "".join([piece.text for piece in pieces])
            elif char == '"':
                self._at += 1
                self._read_double_quoted(pieces, depth + 1)
            elif char == "'":
                text = self._until_quote()
                self._refuse_doubtful_quote(text, single_quotes=not quoted)
                pieces.append(WordPart(f"'{text}'" if quoted else text))
            elif char == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                self._read_escape(pieces, '$`"\\}' if quoted else following)
            elif char == "$":
                self._read_dollar(Word(pieces), depth + 1, quoted=quoted)
            elif char == "`":
                self._read_backticks(pieces, depth + 1, quoted=quoted)
            elif not self._read_process(depth):
                pieces.append(WordPart(char))
                self._at += 1
        raise UnreadableError("a bracket has no end")

    def _read_process(self, depth: int) -> bool:
        """Read a process substitution, if one begins here."""
        if self.char not in "<>" or not self._text.startswith("(", self._at + 1):
            return False
        self._at += 2
        self._read_nested(")", depth)
        return True

    def _refuse_doubtful_quote(self, text: str, *, single_quotes: bool) -> None:
        """Raise if what a single quote means matters: a letter for some shells, in quotes."""
        if not single_quotes and set('}"$`\\') & set(text):
            raise UnreadableError("shells disagree about a quote in an expansion")

    def _skip_balanced(self, closer: str, depth: int, *, single_quotes: bool = True) -> None:
        """Skip to `closer`, and read the commands of substitutions on the way."""
        self._budget.check_depth(depth + 1)
        closers = [closer]
        scratch: list[WordPart] = []
        pairs = {"(": ")", "[": "]"} if closer != "}" else {}
        while closers:
            char = self.char
            if not char:
                raise UnreadableError("a bracket has no end")
            if self.take(_IN_ARITHMETIC) is not None:
                continue
            if char == closers[-1]:
                closers.pop()
                self._at += 1
            elif char in pairs:
                self._budget.check_depth(depth + len(closers))
                closers.append(pairs[char])
                self._at += 1
            elif char == "\\":
                self._at += 2
            elif char == "'":
                self._refuse_doubtful_quote(self._until_quote(), single_quotes=single_quotes)
            elif char == '"':
                self._at += 1
                self._read_double_quoted(scratch, depth + 1)
            elif char == "$":
                self._read_dollar(Word(scratch), depth + 1, quoted=False)
            elif char == "`":
                self._read_backticks(scratch, depth + 1, quoted=False)
            elif closer != "}" or not self._read_process(depth + 1):
                self._at += 1
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
        except TooCostlyError:
            raise
        except UnreadableError:
            pass
        else:
            if self.char == ")":
                self._at += 1
                return True
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
            self._read_as_commands(self._text[start + 2 : self._at - 2], depth)
        return True

    def _read_as_commands(self, text: str, depth: int) -> None:
        """Read a text that is commands only for some shells; for those it may be wrong."""
        self._budget.spend_text(len(text))
        self._budget.check_depth(depth + 1)
        try:
            self._read_commands(self._nested(text), None, depth + 1)
        except TooCostlyError:
            raise
        except UnreadableError:
            pass

    def _read_array(self, depth: int) -> None:
        """Read the values of an array up to their parenthesis."""
        self._budget.check_depth(depth + 1)
        self._at += 1
        while True:
            self.skip_blanks(lines=True)
            if self.char == ")":
                self._at += 1
                return
            before = self._at
            self.read_word(depth + 1)
            if self._at == before:
                raise UnreadableError("an array has no end")

    # Here-documents

    def read_document(self, document: Document, depth: int, *, nested: bool) -> None:
        """Read the lines of a here-document that begins here; `nested`: in a substitution."""
        self.waiting -= 1
        lines = []
        while self._at < len(self._text):
            start = self._at
            line = self._take_line(joined=not document.quoted)
            if document.strip_tabs:
                line = line.lstrip("\t")
            if self._posix and "\n" in self._text[start : self._at - 1]:
                self._refuse_joined_delimiter(self._text[start : self._at], line, document)
            if line == document.delimiter:
                break
            # Some versions of bash end the document here, and some do not.
            if nested and line.startswith(document.delimiter) and ")" in line:
                raise UnreadableError("the end of a here-document is not clear")
            lines.append(line + "\n")
        text = "".join(lines)
        if not document.quoted:
            self._budget.spend_text(len(text))
            text = self._nested(text).read_expanded(depth)
        document.command.input_texts.append(text)

    def _refuse_joined_delimiter(self, text: str, line: str, document: Document) -> None:
        """Raise if joined lines end a here-document for some shells only."""
        lines = [line, *(part.rstrip("\\").lstrip("\t") for part in text.split("\n"))]
        if document.delimiter in lines:
            raise UnreadableError("shells disagree about the end of a here-document")

    def _take_line(self, *, joined: bool) -> str:
        """Read one line; with `joined`, also those that a backslash joins to it."""
        parts = []
        while True:
            end = self._text.find("\n", self._at)
            end = len(self._text) if end < 0 else end
            line = self._text[self._at : end]
            self._at = min(end + 1, len(self._text))
            backslashes = len(line) - len(line.rstrip("\\"))
            if not joined or backslashes % 2 == 0 or self._at == len(self._text):
                parts.append(line)
                return "".join(parts)
            parts.append(line[:-1])

    def expand_again(self, text: str, depth: int) -> None:
        """Read the substitutions of a text that was quoted; it may have none."""
        self._budget.check_depth(depth + 1)
        self._budget.spend_text(len(text))
        try:
            self._nested(text).read_expanded(depth + 1)
        except TooCostlyError:
            raise
        except UnreadableError:
            pass

    def read_expanded(self, depth: int) -> str:
        """Return a whole text as a here-document expands it, and read its substitutions."""
        pieces: list[WordPart] = []
        while char := self.char:
            plain = self.take(_IN_DOCUMENT)
            if plain is not None:
                pieces.append(WordPart(plain))
            elif char == "\\":
                self._read_escape(pieces, "$`\\")
            elif char == "$":
                self._read_dollar(Word(pieces), depth, quoted=True)
            else:
                self._read_backticks(pieces, depth, quoted=True)
        return Word(pieces).text


def _known_value(name: str, *, quoted: bool) -> str:
    """Return what a variable stands for if nothing sets it: nothing, for most."""
    # A blank in quotes separates no words.
    return "" if quoted and name == "IFS" else _KNOWN_VARIABLES.get(name, "")

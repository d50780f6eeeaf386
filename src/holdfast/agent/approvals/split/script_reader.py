"""
Reads a shell script to find the commands in it.

The reader knows how shells split text into words and where a command begins. It does not check
whether a script is correct or run anything: a command in a branch that is never taken counts like
any other. If bash and a POSIX shell read a text differently, both readings count. Text that cannot
be interpreted raises `UnreadableError`; commands before that position are kept, because a shell
runs them before it finds the error.
"""

from __future__ import annotations

import re

from holdfast.agent.approvals.split.budget import AmbiguousError, Budget, UnreadableError
from holdfast.agent.approvals.split.documents import read_document
from holdfast.agent.approvals.split.lexer import Arguments, Lexer
from holdfast.agent.approvals.split.read_command import Document, ReadCommand
from holdfast.agent.approvals.split.subscripts import CODE_IN_PATTERN, MEMBER
from holdfast.agent.approvals.split.words import Word, WordPart

__all__ = ["read_expanded", "read_script"]

# Words after which the next word is again the first of a command, without a separator.
_OPENERS = frozenset(
    ["if", "then", "elif", "else", "while", "until", "do", "{", "!", "fi", "done", "}"]
)
# Words that stand before a command of any kind, compound ones included.
_PREFIXES = frozenset(["time", "-p", "--", "!", "coproc"])
_COMPOUND = frozenset(
    ["if", "while", "until", "for", "select", "case", "{", "[[", "((", "function"]
)
# Words that stand before a command where it begins for some shells only.
_BEFORE_COMMAND = _PREFIXES | frozenset(["always", "nocorrect", "noglob"])
# Builtins whose arguments bash reads like assignments.
_ASSIGNING = frozenset(
    ["alias", "declare", "export", "local", "readonly", "typeset", "eval", "let"]
)

_REDIRECTION = re.compile(r"&>>?|<<<|<<-?|<>|<&|<|>>|>\||>&|>")
# A pattern of zsh; two redirections for others.
_NUMBERS = re.compile(r"<\d*-\d*>")
_FUNCTION_SIGN = re.compile(r"[ \t]*\([ \t]*\)")
# &! and &| are of zsh; for others, no command begins with them.
_SEPARATOR = re.compile(r";;&|;;|;&|;\||;|&&|&[!|]|\|\||\|&|\||&")
_DESCRIPTOR = re.compile(r"\d+|\{[A-Za-z_][A-Za-z0-9_]*\}")

# Aliases of bash and zsh, and the sign that begins a comment of zsh.
_READING_VARIABLE = re.compile(r"(BASH_ALIASES|[gs]?aliases|histchars|HISTCHARS)(\[|\+?=)")

# Positions in one command where it may have ended already.
_MAX_FORKS = 8


def read_script(
    text: str,
    budget: Budget,
    found: list[ReadCommand],
    *,
    posix: bool,
    arguments: Arguments = (),
) -> None:
    """
    Append every command of a script to `found`.

    Args:
        text: The script.
        budget: What reading may cost.
        found: Receives the commands, inner ones first.
        posix: The shell may be one that has no `[[` and no `((`.
        arguments: What `$0`, `$1` and so on stand for; without any, nothing is known of them.

    Raises:
        UnreadableError: The script could not be read to its end. `found` has what came before.
    """
    budget.spend_text(len(text))
    lexer = Lexer(text, budget, found, _read_commands, posix=posix, arguments=arguments)
    _read_commands(lexer, None, 0)


def read_expanded(text: str, budget: Budget, found: list[ReadCommand]) -> None:
    """Append the commands in the substitutions of a text, such as a here-document, to `found`."""
    budget.spend_text(len(text))
    Lexer(text, budget, found, _read_commands, posix=False).read_expanded(0)


def _read_commands(lexer: Lexer, closer: str | None, depth: int) -> None:
    """Read commands up to `closer`, which is read too, or up to the end of the text."""
    _CommandListReader(lexer, closer, depth).read()


class _CommandListReader:
    """A list of commands that is being read: of a script, or of one substitution."""

    def __init__(self, lexer: Lexer, closer: str | None, depth: int) -> None:
        self._lexer = lexer
        self._closer = closer
        self._depth = depth
        self._command = ReadCommand()
        # Where the list begins: behind the sign that opens it.
        self._start = lexer.position - 1
        # Open constructs: "(" for a subshell, "pattern" or "body" for a case.
        self._open: list[str] = []
        # Their positions.
        self._starts: list[int] = []
        self._documents: list[Document] = []
        # Word counts of the current command at points where it may already have ended.
        self._forks: list[int] = []
        # An assignment or a redirection of the current command was read.
        self._started = False

    def read(self) -> None:
        """Read up to the closer."""
        lexer = self._lexer
        try:
            while True:
                lexer.skip_blanks()
                if self._open and self._open[-1] == "pattern":
                    self._read_pattern()
                    continue
                char = lexer.char
                if not char:
                    return self._end_of_text()
                if char == ")" and not self._close():
                    return None
                if char == "\n":
                    self._end_of_line()
                elif char == "(":
                    self._open_parenthesis()
                elif char != ")" and not self._read_operator():
                    self._read_word()
        finally:
            self._next_command()

    @property
    def _level(self) -> int:
        return self._depth + len(self._open)

    def _next_command(self) -> None:
        command, self._command = self._command, ReadCommand()
        forks, self._forks = self._forks, []
        self._started = False
        self._lexer.emit(command)
        later = [command.words[fork:] for fork in forks]
        for words in (command.words, *later):
            later += _commands_of_braces(words)
        for words in later:
            self._emit_inner(words, command.input_texts)

    def _emit_inner(self, words: list[Word], texts: list[str]) -> None:
        """Keep a command that begins in the middle of another one for some shells."""
        start = 0
        for word in words:
            before = word.bare in _OPENERS or word.bare in _BEFORE_COMMAND
            if not before and not word.is_assignment:
                break
            start += 1
        words = words[start:]
        if words and (words[0].bare in _COMPOUND or words[0].bare in ("foreach", "repeat")):
            raise AmbiguousError("shells disagree about a brace before a reserved word")
        self._lexer.emit(ReadCommand(words, texts))

    def _fork(self) -> None:
        """Note that for some shells another command begins here."""
        if len(self._forks) == _MAX_FORKS:
            raise UnreadableError("a command has too many braces")
        self._forks.append(len(self._command.words))

    def _end_of_text(self) -> None:
        if self._closer is not None or self._open:
            start = self._starts[-1] if self._starts else self._start
            raise self._lexer.syntax_error(start, "is never closed")

    def _end_of_line(self) -> None:
        """Go on to the next line, behind the here-documents that begin there."""
        self._lexer.skip(1)
        documents, self._documents = self._documents, []
        if self._lexer.waiting > len(documents):
            raise AmbiguousError("a here-document begins inside of a substitution")
        for document in documents:
            nested = self._closer is not None
            read_document(self._lexer, document, self._level, nested=nested)
        self._next_command()

    def _close(self) -> bool:
        """Read a closing parenthesis; return False if it ends this list."""
        self._next_command()
        self._lexer.skip(1)
        if self._open:
            if self._open[-1] != "(":
                raise UnreadableError("a parenthesis is closed inside of a case")
            self._leave()
            return True
        if self._closer != ")":
            raise self._lexer.syntax_error(self._lexer.position - 1, "closes nothing")
        if self._documents:
            raise AmbiguousError("a here-document begins outside of its substitution")
        return False

    def _open_parenthesis(self) -> None:
        lexer = self._lexer
        words = self._command.words
        if words and words[-1].bare == "=" and lexer.text_since(lexer.position - 1) == "=":
            # A file with the output of commands for zsh; a mistake for others.
            raise AmbiguousError("shells disagree about a parenthesis after an equals sign")
        before = lexer.text_since(max(0, lexer.position - 2))
        behind_word = before == "\\\n" or before[-1:] not in " \t\n;&|("
        if behind_word and lexer.matches(CODE_IN_PATTERN):
            lexer.note_for_zsh("a pattern of zsh may run code")
        # A function: its name was no command. Without a name, zsh runs it at once.
        if len(words) <= 1 and lexer.take(_FUNCTION_SIGN) is not None:
            self._command = ReadCommand()
            return
        self._next_command()
        if lexer.looking_at("((") and lexer.read_arithmetic_command(self._level):
            return
        lexer.skip(1)
        lexer.refuse_joined_sign("(")
        self._enter("(", lexer.position - 1)

    def _enter(self, construct: str, position: int) -> None:
        self._open.append(construct)
        self._starts.append(position)
        self._lexer.check_depth(self._level)

    def _leave(self) -> None:
        self._open.pop()
        self._starts.pop()

    def _read_operator(self) -> bool:
        """Read a separator or a redirection, if one comes next."""
        lexer = self._lexer
        if lexer.char in "<>" and lexer.looking_at(lexer.char + "("):
            return False
        # A shell that does not know &> starts another command after the &. Where another sign
        # follows, it is the only one that can read this.
        if lexer.take(_NUMBERS) is not None:
            raise AmbiguousError("shells disagree about a range of numbers")
        redirection = None if lexer.posix and lexer.looking_at("&>&") else lexer.take(_REDIRECTION)
        if redirection is not None:
            lexer.refuse_joined_sign(redirection)
            if redirection.startswith("&") and lexer.posix:
                self._fork()
            self._read_redirection(redirection)
            return True
        separator = lexer.take(_SEPARATOR)
        if separator is None:
            return False
        lexer.refuse_joined_sign(separator)
        # A comment for zsh, a part of a word for others.
        if separator in ("&!", "&|") and lexer.char and lexer.char in "[({!#":
            raise AmbiguousError("shells disagree about a sign after &")
        self._next_command()
        if separator in (";;", ";&", ";;&", ";|") and self._open and self._open[-1] == "body":
            self._open[-1] = "pattern"
        return True

    def _read_redirection(self, sign: str) -> None:
        """Read the target of a redirection, which is not a word of the command."""
        lexer = self._lexer
        self._started = True
        lexer.skip_blanks()
        start = lexer.position
        doubtful = lexer.doubtful
        # Not every shell takes a sign in a delimiter for one.
        lexer.doubtful = doubtful or sign in ("<<", "<<-")
        target = lexer.read_word(self._level)
        lexer.doubtful = doubtful
        if target.bare == "!":
            raise AmbiguousError("shells disagree about a redirection to !")
        if "&" in sign and any(p.quoted and set("$`<>") & set(p.text) for p in target.pieces):
            raise AmbiguousError("bash expands the target of a redirection twice")
        if not target.pieces and not target.quoted:
            # zsh has signs that are longer, such as >&| and >>|.
            kind = AmbiguousError if lexer.char and lexer.char in "|&!" else UnreadableError
            raise kind("a redirection has no target")
        if sign in ("<<", "<<-"):
            # The delimiter is taken as it is written: nothing in it is expanded.
            if set("$`") & set(lexer.text_since(start)):
                raise AmbiguousError("the delimiter of a here-document has an expansion")
            if "\n" in target.text:
                raise AmbiguousError("shells disagree about a delimiter of several lines")
            quoted = target.quoted or any(piece.quoted for piece in target.pieces)
            document = Document(target.text, quoted, sign == "<<-", self._command)
            self._command.awaits_input = True
            self._documents.append(document)
            lexer.waiting += 1
        elif sign == "<<<":
            self._command.add_input(Word([*target.pieces, WordPart("\n")]))

    def _read_word(self) -> None:
        """Read a word, and what belongs to it if it is a reserved one."""
        lexer = self._lexer
        word = lexer.read_word(self._level)
        if not word.pieces and not word.quoted:
            # A joined line before an operator; anything else cannot be stepped over.
            if lexer.char and lexer.char not in "\n;&|<>() \t":
                raise UnreadableError(f"the character {lexer.char!r} was not expected")
            return
        words = self._command.words
        text = word.bare
        if not words or words[0].text in _ASSIGNING:
            if word.has_open_index:
                # bash reads on to the bracket, over blanks and ends of lines; others do not.
                raise AmbiguousError("shells disagree about an index with blanks")
            if word.has_quoted_index:
                raise AmbiguousError("an index is expanded once more")
            if _READING_VARIABLE.match(word.text) is not None:
                raise AmbiguousError("a variable changes how lines are read")
        if text and lexer.char in ("<", ">"):
            if not words and text[0] == "{" and text != "{":
                raise AmbiguousError("shells disagree about a brace before a redirection")
            if _DESCRIPTOR.fullmatch(text):
                return
        leading = all(part.bare in _PREFIXES for part in words) or _is_named_coproc(words)
        if self._started and leading and (text in _OPENERS or text in _COMPOUND):
            # Not reserved after an assignment or a redirection, except for zsh.
            lexer.doubtful = True
            words.append(word)
            self._fork()
            return
        if leading:
            if words and (text in _COMPOUND or text in _OPENERS):
                if _is_named_coproc(words):
                    lexer.note_for_zsh("shells disagree about the name of a coproc")
                self._command = ReadCommand(input_texts=self._command.input_texts)
                words = self._command.words
            if not words and not self._started and self._read_reserved(text):
                return
            if not words and word.is_assignment:
                self._started = True
                return
        words.append(word)
        # zsh ends a list at a brace also where no separator comes before it.
        if text in ("{", "}"):
            self._fork()

    def _read_reserved(self, text: str | None) -> bool:
        """Read the text after a reserved word; return False if `text` is not one."""
        if text in _OPENERS:
            return True
        if text == "case":
            self._read_case()
        elif text in ("for", "select", "foreach"):
            self._read_loop()
        elif text in ("function", "repeat"):
            # A name; for zsh a number, before a command of any kind.
            self._lexer.skip_blanks()
            self._lexer.read_word(self._level)
        elif text == "[[" and not self._lexer.posix:
            self._read_test()
        elif text == "esac" and self._open and self._open[-1] == "body":
            self._leave()
        else:
            return False
        return True

    def _read_case(self) -> None:
        lexer = self._lexer
        start = lexer.position - len("case")
        lexer.skip_blanks()
        lexer.read_word(self._level)
        lexer.skip_blanks(lines=True)
        if lexer.read_word(self._level).bare not in ("in", "{"):
            raise UnreadableError("a case has no patterns")
        self._enter("pattern", start)

    def _read_pattern(self) -> None:
        """Read the patterns of one branch of a case, or its end."""
        lexer = self._lexer
        lexer.skip_blanks(lines=True)
        if lexer.char == "(":
            lexer.skip(1)
        first = True
        depth = 0
        while True:
            lexer.skip_blanks(lines=True)
            char = lexer.char
            if not char:
                raise lexer.syntax_error(self._starts[-1], "is never closed")
            if char in "(|)":
                lexer.skip(1)
                depth += {"(": 1, ")": -1, "|": 0}[char]
                if depth < 0:
                    break
                continue
            before = lexer.position
            if lexer.read_word(self._level).bare == "esac" and first:
                self._leave()
                return
            if lexer.position == before:
                raise UnreadableError("a pattern of a case cannot be read")
            first = False
        self._open[-1] = "body"

    def _read_loop(self) -> None:
        """Read the variable of a loop and its values, which are no commands."""
        lexer = self._lexer
        lexer.skip_blanks()
        if lexer.looking_at("(("):
            if not lexer.read_arithmetic_command(self._level):
                raise AmbiguousError("shells disagree about two parentheses")
            return
        lexer.read_word(self._level)
        lexer.skip_blanks(lines=True)
        if not lexer.looking_at("in"):
            return
        before = lexer.position
        if lexer.read_word(self._level).bare != "in":
            lexer.go_back(before)
            return
        while True:
            lexer.skip_blanks()
            before = lexer.position
            lexer.read_word(self._level)
            if lexer.position == before:
                return

    def _read_test(self) -> None:
        """Read up to the `]]` that ends a test; its operators separate no commands."""
        lexer = self._lexer
        start = lexer.position - len("[[")
        empty = True
        while True:
            lexer.skip_blanks()
            char = lexer.char
            before = lexer.position
            word = lexer.read_word(self._level)
            if word.bare == "]]":
                # At an empty test bash gives up without an error.
                lexer.doubtful = lexer.doubtful or empty
                return
            empty = empty and char == "\n"
            if MEMBER.search(word.text) is not None:
                # Its index is expanded once more, whatever quotes it is in.
                lexer.expand_again(word.text, self._level)
            if lexer.position > before:
                continue
            if not char:
                raise lexer.syntax_error(start, "is never closed")
            if char == ";":
                raise UnreadableError("a test has no end")
            lexer.skip(1)


def _is_named_coproc(words: list[Word]) -> bool:
    """Return True for `coproc NAME`, which only a compound command can follow."""
    return len(words) == 2 and words[0].bare == "coproc"


def _commands_of_braces(words: list[Word]) -> list[list[Word]]:
    """
    Return the commands that zsh sees in the words of one, if these are others.

    For zsh a brace before the first word opens a list, and one behind a word closes it,
    without a blank between them.
    """
    commands: list[list[Word]] = [[]]
    changed = False
    for word in words:
        inner = word
        first = all(before.bare in _BEFORE_COMMAND for before in commands[-1])
        if first and (opened := word.without_opening_brace()) is not None:
            inner = opened
            changed = True
            if inner.bare == "":
                continue
        closed = inner.without_closing_brace()
        if closed is None:
            commands[-1].append(inner)
            continue
        changed = True
        if closed.pieces or closed.quoted:
            commands[-1].append(closed)
        commands.append([])
    return [command for command in commands if command] if changed else []

"""
Plain scripts: words and quoted text, joined by `&&`, `||`, `;`, `|` and ends of lines.

Only commands of a plain script can be allowed individually. So two parsers, the tree-sitter grammar
and Holdfast's own reader, must find the same commands. The grammar alone treats a carriage return
as a blank and splits words at a joined line, unlike bash.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from holdfast.agent.approvals.split.budget import Budget, TooCostlyError
from holdfast.base.errors import HoldfastError
from holdfast.base.late_import import late_module
from holdfast.base.version import install_command

if TYPE_CHECKING:
    import tree_sitter
    import tree_sitter_bash
    from tree_sitter import Node, Parser, Point
else:
    # Optional dependencies (extra `approvals`).
    tree_sitter = late_module("tree_sitter")
    tree_sitter_bash = late_module("tree_sitter_bash")

__all__ = ["SplittingUnavailable", "has_syntax_error", "plain_commands", "simple_commands"]

Commands = tuple[tuple[str, ...], ...]

# Commands in which no character means anything to a shell.
_SIMPLE = r"[A-Za-z_./][A-Za-z0-9_./:,@%+-]*+(?: ++[A-Za-z0-9_./:,@%+-]++)*+"
_SIMPLE_SCRIPT = re.compile(rf"{_SIMPLE}(?: *(?:&&|\|\||[;|]) *{_SIMPLE})*")
_JOINT = re.compile(r" *(?:&&|\|\||[;|]) *")
# First words that make something else of it, for the shell or for the grammar.
_NOT_SIMPLE = frozenset(
    [
        "if",
        "then",
        "elif",
        "else",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "in",
        "function",
        "select",
        "time",
        "coproc",
        "declare",
        "typeset",
        "export",
        "readonly",
        "local",
        "unset",
        "unsetenv",
        "repeat",
        "foreach",
        "end",
    ]
)

_KINDS = frozenset(
    [
        "program",
        "list",
        "pipeline",
        "command",
        "command_name",
        "word",
        "string",
        "string_content",
        "raw_string",
        "number",
        "concatenation",
    ]
)
_SIGNS = frozenset(["&&", "||", ";", "|", '"', "'"])
_MEANINGFUL = frozenset("{}*?[]\\~^#$`")
_ESCAPES = re.compile(r"\\[$`\"\\\n]")

# Bytes that the parser gets at once. It asks for more often enough to be stopped in time.
_CHUNK = 256

_local = threading.local()


class SplittingUnavailable(HoldfastError):
    """The packages that scripts are split with are not installed."""


def simple_commands(script: str) -> Commands | None:
    """
    Return the commands of a script of ordinary characters and joining signs, else None.

    They are those of `plain_commands`, which takes much longer to find them
    (`scripts/bench --without simple-scripts`).
    """
    if _SIMPLE_SCRIPT.fullmatch(script) is None:
        return None
    commands = tuple([tuple(part.split()) for part in _JOINT.split(script)])
    return None if any(words[0] in _NOT_SIMPLE for words in commands) else commands


def plain_commands(script: str, budget: Budget) -> Commands | None:
    """
    Return the commands of a plain script, or None if it is not plain.

    Raises:
        TooCostlyError: It takes too long to find out.
        SplittingUnavailable: The extra `approvals` is not installed.
    """
    source = script.encode()
    root = _parse(source, budget)
    if root.has_error:
        return None
    nodes = _command_nodes(root)
    if not nodes:
        return None
    commands = []
    for node in nodes:
        words = _words(node, source)
        if not words:
            return None
        commands.append(words)
    return tuple(commands)


def has_syntax_error(script: str, budget: Budget) -> bool:
    """
    Return True if the grammar finds a syntax error in a script.

    Raises:
        TooCostlyError: It takes too long to find out.
        SplittingUnavailable: The extra `approvals` is not installed.
    """
    return _parse(script.encode(), budget).has_error


def _parser() -> Parser:
    """Return the parser of this thread: one cannot be used by two at once."""
    parser: Parser | None = getattr(_local, "parser", None)
    if parser is None:
        try:
            parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
        except ImportError as error:
            raise SplittingUnavailable(
                "splitting scripts needs tree-sitter, the extra `approvals` of Holdfast:"
                f" {install_command('approvals')}"
            ) from error
        _local.parser = parser
    return parser


def _parse(source: bytes, budget: Budget) -> Node:
    """
    Return the root of the syntax tree.

    The grammar takes quadratic time for some scripts. The parser's own time limit crashes
    (tree-sitter 0.26), so the text ends early when the time is over.
    """
    late = False

    def read(offset: int, _: Point) -> bytes:
        nonlocal late
        late = late or budget.late
        return b"" if late else source[offset : offset + _CHUNK]

    began = time.thread_time()
    # Loads the extra for the first script, which must not count against its budget.
    parser = _parser()
    budget.forgive(time.thread_time() - began)
    tree = parser.parse(read)
    if late:
        raise TooCostlyError("it takes too long to read")
    return tree.root_node


def _command_nodes(root: Node) -> list[Node] | None:
    """Return the commands in their order, or None if anything else is in the tree."""
    found = []
    cursor = root.walk()
    while True:
        node = cursor.node
        assert node is not None, "a cursor that was just moved is on a node"
        kind = node.type
        if node.is_named:
            if kind not in _KINDS:
                return None
            if kind == "command":
                found.append(node)
        elif kind not in _SIGNS and kind.strip():
            return None
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return found


def _words(command: Node, source: bytes) -> tuple[str, ...] | None:
    words = []
    for number, child in enumerate(command.named_children):
        if number == 0:
            # A quoted name is nothing that a rule should have to expect.
            name = child.named_children if child.type == "command_name" else []
            text = _text(name[0], source) if len(name) == 1 and name[0].type == "word" else None
        else:
            text = _text(child, source)
        if text is None:
            return None
        words.append(text)
    return tuple(words)


def _text(node: Node, source: bytes) -> str | None:
    """Return the text of a word without its quotes, or None if it is not plain."""
    kind = node.type
    if kind == "concatenation":
        parts = [_part(child, source) for child in node.children]
        return None if None in parts else "".join([part for part in parts if part])
    return _part(node, source)


def _part(node: Node, source: bytes) -> str | None:
    text = source[node.start_byte : node.end_byte].decode()
    kind = node.type
    if kind in ("word", "number"):
        return None if text.startswith("=") or _MEANINGFUL & set(text) else text
    if kind == "raw_string":
        return text[1:-1]
    if kind == "string":
        expands = "$" in text or "`" in text or _ESCAPES.search(text)
        return None if expands else text[1:-1]
    return None

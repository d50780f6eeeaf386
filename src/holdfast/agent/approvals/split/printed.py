"""Texts printed by `echo`, `printf` and similar, as another command may read them."""

import re
import shlex
from collections.abc import Iterator, Sequence

from holdfast.agent.approvals.split.shell_arguments import SHELLS, base_name, read_shell_arguments
from holdfast.agent.approvals.split.words import UNKNOWN, decode_ansi_c

__all__ = ["printed_texts"]

_PRINTERS = frozenset(["echo", "print", "printf", "strftime", "syswrite", "yes"])
_FORMATTING = frozenset(["print", "printf"])

# First arguments that may be options and their values.
_MAX_OPTIONS = 4

# Most repetitions of a format for remaining arguments.
_MAX_ROUNDS = 64

_ESCAPED_QUOTE = re.compile(r"\\(['\"])")
# Escapes that only print of zsh has, among them a backslash that it drops, and a prompt.
_OF_ZSH = re.compile(r"\\[^abcefnrtvxuUE0-7\\'\"\n]|^-[A-Za-z]*P")
# A NUL, which most shells drop.
_NUL = re.compile(r"\\(?:0{1,4}(?![0-7])|(?:x0{1,2}|u0{1,4}|U0{1,8})(?![0-9A-Fa-f]))")
# What `find -printf`, `stat -c`, `date` and `seq -f` replace.
_ANY_DIRECTIVE = re.compile(r"%(?:%|[-+ #0_^':.\d]*(?:[ABCTDSHL]?[A-Za-z@+]))")
_FORMATS = {
    "strftime": re.compile(r"^-[a-z]*"),
    "stat": re.compile(r"^(?:-[A-Za-z]*c|--[a-z]+=)"),
    "date": re.compile(r"^\+"),
    "seq": re.compile(r"^(?:-[A-Za-z]*[fs]|--[a-z]+=)"),
}
_DIRECTIVE = re.compile(
    r"%(?:%|(?P<flags>[-+ #0']*)(?P<width>\*|\d{0,2})(?:\.(?P<most>\*|\d*))?(?:\([^)]*\))?[A-Za-z])"
)


def printed_texts(words: Sequence[str]) -> Iterator[str | None]:
    """
    Yield each text that a command may print, if it prints its arguments.

    None means a text that only the shell will know.
    """
    name = base_name(words[0])
    if name in SHELLS:
        # Its script may run one of its arguments, or print it.
        yield from read_shell_arguments(words).operands
    if name == "find":
        yield from _printed_by_find(words)
    elif name in _FORMATS:
        for word in words[1:]:
            yield from _with_format(_FORMATS[name].sub("", word, count=1))
    elif name in ("basename", "dirname"):
        yield from _parts_of_paths(name, words)
    if name not in _PRINTERS:
        return
    if base_name(words[0]) == "print" and any(map(_OF_ZSH.search, words[1:])):
        yield None
    for start in range(1, min(len(words), _MAX_OPTIONS + 1)):
        yield from _decoded(" ".join(words[start:]))
        if base_name(words[0]) in _FORMATTING and "%" in words[start]:
            yield from _decoded(_formatted(words[start], words[start + 1 :]))
        # The value of an option is skipped as well.
        if not any(word.startswith("-") for word in words[max(start - 1, 1) : start + 1]):
            return


def _parts_of_paths(name: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the parts of paths that `basename` and `dirname` print."""
    for path in words[1:]:
        directory, _, file_name = path.rstrip("/").rpartition("/")
        if name == "dirname":
            yield directory.rstrip("/")
        else:
            yield file_name
            yield from (file_name.removesuffix(suffix) for suffix in words[1:] if suffix)


def _printed_by_find(words: Sequence[str]) -> Iterator[str]:
    """Yield the formats of `find -printf`, each and together."""
    forms = []
    for number, word in enumerate(words[:-1]):
        if word in ("-printf", "-fprintf"):
            forms.append(words[min(number + 1 + (word == "-fprintf"), len(words) - 1)])
    for form in forms:
        yield from _with_format(form)
    if len(forms) > 1:
        yield from _with_format("".join(forms))


def _with_format(form: str) -> Iterator[str]:
    """Yield a format with its directives replaced by nothing, or by an unknown text."""
    for value in ("", UNKNOWN):
        for known in ({"%%": "%"}, {"%%": "%", "%t": "\t", "%n": "\n"}):
            printed = _ANY_DIRECTIVE.sub(lambda match: known.get(match[0], value), form)  # noqa: B023
            yield from _decoded(printed)


def _decoded(text: str) -> Iterator[str]:
    """Yield a text unchanged, and with its escapes decoded."""
    yield text
    if "\\\n" in text:
        yield text.replace("\\\n", "\n")
    if "\\" in text:
        # Text after \c is not printed.
        shown = text.replace(UNKNOWN, "${_}").partition("\\c")[0]
        yield decode_ansi_c(shown, printed=True)
        if _NUL.search(shown) is not None:
            # The end of an item, for `xargs -0` and its like.
            items = [decode_ansi_c(item, printed=True) for item in _NUL.split(shown)]
            yield "\n".join(items)
            # Signs of a shell mean nothing in an argument.
            yield " ".join(map(shlex.quote, items))
        if "\\'" in shown or '\\"' in shown:
            # Not all of them take a backslash off a quote.
            yield decode_ansi_c(_ESCAPED_QUOTE.sub(r"\\\\\1", shown), printed=True)


def _formatted(form: str, arguments: Sequence[str]) -> str:
    """Return the output of `printf` for a format and arguments, with blanks collapsed."""
    left = list(arguments)

    def number(text: str | None) -> int | None:
        if text == "*":
            text = left.pop(0) if left else ""
        return int(text) if text and text.isdecimal() and len(text) < 3 else None

    def filled(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        width, most = number(match["width"]) or 0, number(match["most"])
        value = left.pop(0) if left else ""
        if match[0].endswith("c"):
            most = 1
        # A point without digits means none at all.
        value = value[: 0 if match["most"] == "" else most]
        if len(value) >= width:
            return value
        return f"{value} " if "-" in match["flags"] else f" {value}"

    parts = []
    for _ in range(_MAX_ROUNDS):
        before = len(left)
        parts.append(_DIRECTIVE.sub(filled, form))
        if not left or len(left) == before:
            break
    return "".join(parts)

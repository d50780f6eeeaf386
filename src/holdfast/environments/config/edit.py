"""
Edits of `environments.toml` that leave the rest of the file unchanged.

Only whole tables are added and removed. The result is parsed before it replaces the old content.
The file is made readable only by its owner, since it may contain tokens.
"""

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from holdfast.base.dialect import Table, spell_value
from holdfast.base.errors import InvalidConfig
from holdfast.base.suggestions import did_you_mean, listed
from holdfast.base.system_text import system_text
from holdfast.base.token_file import overwrite, write_next_to
from holdfast.environments.config import config_file as config
from holdfast.environments.config.keys import FileKeys, Unfit, read_keys
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT, Entry, ServerUrl

__all__ = ["add", "remove"]

# Tokens that determine the nesting of a line: strings and comments, which may contain the others;
# brackets; line endings.
_PIECE: Final = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|"(?:\\.|[^"\\\n])*"'''
    r"""|'{3}.*?'{3,5}|'[^'\n]*'|#[^\n]*|[\[\]{}\n]""",
    re.DOTALL,
)
_HEADER: Final = re.compile(r"[ \t]*\[")
# A table inside an entry, such as `[environments.env]`.
_PART: Final = re.compile(r"""[ \t]*\[[ \t]*(environments|"environments"|'environments')[ \t]*\.""")
_DEFAULT: Final = re.compile(r"""[ \t]*(default|"default"|'default')[ \t]*=""")


def add(path: str | os.PathLike[str], entry: Entry, *, default: bool = False) -> None:
    """
    Add an environment, creating the file if necessary.

    Args:
        path: The file.
        entry: The environment.
        default: True to make it the default environment.

    Raises:
        InvalidConfig: The id is in use, or the entry or the file is invalid.
    """
    path = Path(path)
    old = config.read(path) if path.exists() else ""
    _tables(old, path)
    # Before anything is written.
    if any(known.id == entry.id for known in config.parse(old, path).entries):
        raise InvalidConfig(
            f"environment `{entry.id}` already exists in `{path}`",
            "choose another name, or remove it first",
        )
    # One blank line between tables, however the file ends.
    gap = "" if not old or old.endswith("\n\n") else "\n" if old.endswith("\n") else "\n\n"
    lines = [f"{key} = {spell_value(value)}" for key, value in _keys(entry).items()]
    new = "\n".join([f"{old}{gap}[[environments]]", *lines, ""])
    # Finds any fault of the entry, by itself or in combination with the others.
    config.parse(new, path)
    if default:
        new = _with_default(new, entry.id, path)
    _write(path, old, new)


def remove(path: str | os.PathLike[str], environment_id: str) -> None:
    """
    Remove an environment, and the `default` key if it names this one.

    Comments directly above its table are removed too, unless they begin the file.

    Raises:
        InvalidConfig: It is not in the file, or the file is invalid.
    """
    path = Path(path)
    # A missing file has no environments.
    old = config.read(path) if os.path.lexists(path) else ""
    tables = _tables(old, path)
    keys = read_keys(old)
    ids = [entry["id"] for entry in keys.get("environments", [])]
    if environment_id not in ids:
        raise InvalidConfig(
            f"environment `{environment_id}` is not in `{path}`"
            + did_you_mean(environment_id, ids),
            f"there: {listed(ids)}",
        )
    number = ids.index(environment_id)
    wanted = FileKeys(**keys)
    wanted["environments"] = [entry for entry in keys["environments"] if entry["id"] != ids[number]]
    lines = _lines(old)
    first, end = tables[number]
    gone = set(range(first, end))
    if wanted.get("default", "").strip() == environment_id:
        del wanted["default"]
        gone.update(_defaults(lines))
    new = "".join(line for at, line in enumerate(lines) if at not in gone)
    if end == len(lines):
        new = new.rstrip() + "\n" if new.strip() else ""
    # Check the line-based edit by parsing: the file must have exactly the wanted content.
    if not _reads_as(new, wanted):
        raise _by_hand(path)
    _write(path, old, new)


def _keys(entry: Entry) -> Table:
    """Return the keys of an entry, without defaults."""
    keys: Table = {"id": entry.id}
    transport = entry.transport
    if isinstance(transport, ServerUrl):
        keys["url"] = transport.url
        if transport.bearer_token is not None:
            keys["auth_bearer_token"] = transport.bearer_token
        if transport.connect_timeout != DEFAULT_TIMEOUT:
            keys["connect_timeout_sec"] = transport.connect_timeout
    else:
        keys["program"] = transport.program
        if transport.args:
            keys["args"] = list(transport.args)
        if transport.env:
            keys["env"] = dict(transport.env)
        if transport.cwd is not None:
            keys["cwd"] = transport.cwd
    if entry.initialize_timeout != DEFAULT_TIMEOUT:
        keys["initialize_timeout_sec"] = entry.initialize_timeout
    return keys


# -- positions in the text


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _tables(text: str, path: Path) -> list[tuple[int, int]]:
    """
    Return the first line of each environment and the line after its last.

    Raises:
        InvalidConfig: The file is invalid, or has inline tables.
    """
    entries = config.parse(text, path).entries
    lines = _lines(text)
    tops = [at for at in _headers(lines) if not _PART.match(lines[at])]
    # A valid file has no other top-level tables.
    tables = [_span(lines, header, after) for header, after in pairwise([*tops, len(lines)])]
    if len(tables) != len(entries):
        raise _by_hand(path)
    return tables


def _outermost(text: str) -> set[int]:
    """
    Return the numbers of the lines that do not begin within a value.

    The text is valid TOML. A line that looks like a header may still be part of a multi-line string
    or list.
    """
    found, line, depth = {0}, 0, 0
    for match in _PIECE.finditer(text):
        piece = match[0]
        depth += (piece in "[{") - (piece in "]}")
        line += piece.count("\n")
        if piece == "\n" and not depth:
            found.add(line)
    return found


def _headers(lines: Sequence[str]) -> list[int]:
    """Return the numbers of the lines with table headers."""
    outermost = _outermost("".join(lines))
    return [at for at in range(len(lines)) if at in outermost and _HEADER.match(lines[at])]


def _defaults(lines: Sequence[str]) -> list[int]:
    """Return the number of the line with the top-level key `default`, if there is one."""
    first = next(iter(_headers(lines)), len(lines))
    outermost = _outermost("".join(lines))
    return [at for at in range(first) if at in outermost and _DEFAULT.match(lines[at])]


def _with_default(text: str, environment_id: str, path: Path) -> str:
    """
    Return the text with another default: in place of the old one, else above the first table.

    Raises:
        InvalidConfig: The layout of the file prevents the edit.
    """
    lines = _lines(text)
    written = f"default = {spell_value(environment_id)}\n"
    found = _defaults(lines)
    if found:
        lines[found[0]] = written
    else:
        first = _headers(lines)[0]
        while first > 0 and _is_comment(lines[first - 1]):
            first -= 1
        lines.insert(first, written if _keys_above(lines, first) else written + "\n")
    new = "".join(lines)
    if config.parse(new, path).default != environment_id:
        raise _by_hand(path)
    return new


def _keys_above(lines: Sequence[str], at: int) -> bool:
    """Return True if the line above is a key, which needs no blank line."""
    return at > 0 and not _is_blank(lines[at - 1]) and not _is_comment(lines[at - 1])


def _span(lines: Sequence[str], header: int, after: int) -> tuple[int, int]:
    first = header
    while first > 0 and _is_comment(lines[first - 1]):
        first -= 1
    if first == 0:
        # A comment at the top belongs to the file, not to the table.
        first = header
    end = after
    while _is_blank(lines[end - 1]) or _is_comment(lines[end - 1]):
        end -= 1
    own = end
    while own < after and _is_comment(lines[own]):
        own += 1
    if own < after or after == len(lines):
        # Otherwise these comments belong to the next table.
        end = own
    while end < after and _is_blank(lines[end]):
        end += 1
    return first, end


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _is_blank(line: str) -> bool:
    return not line.strip()


# -- the new file


def _reads_as(text: str, wanted: FileKeys) -> bool:
    try:
        found = read_keys(text)
    except Unfit:
        return False
    found.setdefault("environments", [])
    return found == wanted


def _by_hand(path: Path) -> InvalidConfig:
    return InvalidConfig(
        f"`{path}` cannot be edited without losing some of its content",
        "edit it by hand, or write each environment as a separate table, `[[environments]]`",
        path=str(path),
    )


def _write(path: Path, old: str, new: str) -> None:
    try:
        # Resolved, so that a link stays a link.
        target = Path(os.path.realpath(path))
        if target.exists():
            _overwrite(target, old, new)
        else:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.replace(write_next_to(str(target), new), target)
    except OSError as error:
        raise InvalidConfig(
            f"failed to write environment config `{path}`: {system_text(error)}",
            errno=error.errno,
            path=str(path),
        ) from error


def _overwrite(path: Path, old: str, new: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_mode & 0o077:
            os.fchmod(file, 0o600)
        overwrite(file, old.encode(), new.encode())
    finally:
        os.close(file)

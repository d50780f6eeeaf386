"""
Changes `environments.toml` and leaves the rest of it as its author wrote it.

Only whole tables are added and taken out. What results is read again before it
replaces the file, all at once and for its owner's eyes only: it may hold tokens.
"""

import os
import re
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from holdfast.environments.config import file as config
from holdfast.environments.config.keys import FileKeys, Unfit, read_keys
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT, Entry, ServerUrl
from holdfast.errors import InvalidConfig
from holdfast.server.toml_text import Table, spell_value
from holdfast.suggestions import did_you_mean
from holdfast.system_text import system_text

__all__ = ["add", "remove"]

_HEADER: Final = re.compile(r"[ \t]*\[.*\][ \t]*(#.*)?")
# A table inside an entry, such as `[environments.env]`.
_PART: Final = re.compile(
    r"""[ \t]*\[[ \t]*(environments|"environments"|'environments')[ \t]*\..*"""
)
_DEFAULT: Final = re.compile(r"""[ \t]*(default|"default"|'default')[ \t]*=.*""")


def add(path: str | os.PathLike[str], entry: Entry, *, default: bool = False) -> None:
    """
    Write down one more environment, in a new file if there is none.

    Args:
        path: The file.
        entry: The environment.
        default: Make it the default, whichever was before.

    Raises:
        InvalidConfig: The id is taken, or the entry or the file cannot be used.
    """
    path = Path(path)
    old = config.read(path) if path.exists() else ""
    _tables(old, path)
    if any(known.id == entry.id for known in config.parse(old, path).entries):
        raise InvalidConfig(
            f"there is an environment `{entry.id}` in `{path}` already",
            "choose another name, or remove it first",
        )
    gap = "" if not old or old.endswith("\n\n") else "\n" if old.endswith("\n") else "\n\n"
    lines = [f"{key} = {spell_value(value)}" for key, value in _keys(entry).items()]
    new = "\n".join([f"{old}{gap}[[environments]]", *lines, ""])
    config.parse(new, path)  # whatever is wrong with the entry, alone or beside the others
    if default:
        new = _with_default(new, entry.id, path)
    _replace(path, new)


def remove(path: str | os.PathLike[str], environment_id: str) -> None:
    """
    Take out an environment, and what makes it the default if it is.

    Comments right above its table go with it, unless the file begins with them.

    Raises:
        InvalidConfig: It is not in the file, or the file cannot be used.
    """
    path = Path(path)
    old = config.read(path)
    tables = _tables(old, path)
    keys = read_keys(old)
    ids = [entry["id"] for entry in keys.get("environments", [])]
    if environment_id not in ids:
        there = ", ".join(f"`{name}`" for name in ids) or "nothing"
        raise InvalidConfig(
            f"environment `{environment_id}` is not in `{path}`"
            + did_you_mean(environment_id, ids),
            f"there: {there}",
        )
    number = ids.index(environment_id)
    wanted = FileKeys(**keys)
    wanted["environments"] = [entry for entry in keys["environments"] if entry["id"] != ids[number]]
    lines = _lines(old)
    first, end = tables[number]
    gone = set(range(first, end))
    if wanted.get("default", "").strip() == environment_id:
        del wanted["default"]
        gone.update(at for at in range(len(lines)) if _is_default(lines, at))
    new = "".join(line for at, line in enumerate(lines) if at not in gone)
    if end == len(lines):
        new = new.rstrip() + "\n" if new.strip() else ""
    if not _reads_as(new, wanted):
        raise _by_hand(path)
    _replace(path, new)


def _keys(entry: Entry) -> Table:
    """The keys of an entry, without those that say what holds anyway."""
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


# -- where things stand in a text


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _tables(text: str, path: Path) -> list[tuple[int, int]]:
    """
    The first line of each environment, and the one after its last.

    Raises:
        InvalidConfig: The file cannot be used, or has them written in another way.
    """
    entries = config.parse(text, path).entries
    lines = _lines(text)
    headers = [at for at in range(len(lines)) if _is_header(lines, at)]
    tops = [at for at in headers if not _PART.fullmatch(lines[at].rstrip())]
    # There are no other tables in a file that can be used.
    tables = [_span(lines, header, after) for header, after in pairwise([*tops, len(lines)])]
    if len(tables) != len(entries):
        raise _by_hand(path)
    return tables


def _is_header(lines: Sequence[str], at: int) -> bool:
    return bool(_HEADER.fullmatch(lines[at].rstrip())) and _is_outermost(lines, at)


def _is_default(lines: Sequence[str], at: int) -> bool:
    return (
        bool(_DEFAULT.fullmatch(lines[at].rstrip()))
        and _is_outermost(lines, at)
        and not any(_is_header(lines, above) for above in range(at))
    )


def _with_default(text: str, environment_id: str, path: Path) -> str:
    """
    The text with another default: in its place, or else above the first table.

    Raises:
        InvalidConfig: It is written in a way that cannot be changed.
    """
    lines = _lines(text)
    written = f"default = {spell_value(environment_id)}\n"
    places = [at for at in range(len(lines)) if _is_default(lines, at)]
    if places:
        lines[places[0]] = written
    else:
        first = next(at for at in range(len(lines)) if _is_header(lines, at))
        while first > 0 and _is_comment(lines[first - 1]):
            first -= 1
        lines.insert(first, written if _keys_above(lines, first) else written + "\n")
    new = "".join(lines)
    if config.parse(new, path).default != environment_id:
        raise _by_hand(path)
    return new


def _keys_above(lines: Sequence[str], at: int) -> bool:
    """Whether a line above, after blanks at most, is one of the same block."""
    return at > 0 and not _is_blank(lines[at - 1]) and not _is_comment(lines[at - 1])


def _is_outermost(lines: Sequence[str], at: int) -> bool:
    """Whether a line begins something new; within a text or a list what is above is no TOML."""
    try:
        tomllib.loads("".join(lines[:at]).removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError:
        return False
    return True


def _span(lines: Sequence[str], header: int, after: int) -> tuple[int, int]:
    first = header
    while first > 0 and _is_comment(lines[first - 1]):
        first -= 1
    if first == 0:
        first = header  # what a file begins with is about the file
    end = after
    while _is_blank(lines[end - 1]) or _is_comment(lines[end - 1]):
        end -= 1
    own = end
    while own < after and _is_comment(lines[own]):
        own += 1
    if own < after or after == len(lines):
        end = own  # else those comments are about the next table
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
        f"`{path}` is not written in a way that can be changed without losing some of it",
        "change it by hand, or write each environment as a table of its own, `[[environments]]`",
        path=str(path),
    )


def _replace(path: Path, text: str) -> None:
    target = Path(os.path.realpath(path))  # of a link, the file
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # For its owner only, as `tempfile` makes them.
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise InvalidConfig(
            f"failed to write environment config `{path}`: {system_text(error)}",
            errno=error.errno,
            path=str(path),
        ) from error

"""`holdfast token`: manages the tokens in the file of a server."""

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256

from holdfast.base.token_file import (
    DEFAULT_PRINCIPAL,
    BadTokenFile,
    NoToken,
    bad_token_file,
    check_size,
    name_fault,
    new_token,
    overwrite,
    parse_tokens,
    read_private,
    words_of,
    write_next_to,
)
from holdfast.front.cli.table import aligned

__all__ = ["token"]

# Start of a removed line.
_REMOVED = "# removed"


def token(operation: str, options: argparse.Namespace) -> int:
    """Run an operation and return the exit status."""
    try:
        return {"add": _add, "list": _list, "remove": _remove}[operation](options)
    except BadTokenFile as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1


def _add(options: argparse.Namespace) -> int:
    fault = name_fault(options.name)
    if fault is not None:
        print(f"holdfast: the name {options.name!r} {fault}", file=sys.stderr)
        return 1
    path, added = options.token_file, new_token()
    line = f"{options.name} {added}\n"
    with _editing(path):
        if os.path.lexists(path):
            text = read_private(path, edits=True)
            gap = "" if not text or text.endswith("\n") else "\n"
            _overwrite(path, text, f"{text}{gap}{line}")
        else:
            os.replace(write_next_to(path, line), path)
    # Without the name, which a client does not need in its file.
    print(added)
    _say_reload()
    return 0


def _list(options: argparse.Namespace) -> int:
    path = options.token_file
    try:
        tokens = parse_tokens(read_private(path, edits=True), path)
    except NoToken:
        tokens = []
    found = [(one.name, _fingerprint(one.token)) for one in tokens]
    if options.json:
        print(json.dumps([{"name": name, "fingerprint": mark} for name, mark in found]))
    else:
        print(*aligned(("NAME", "FINGERPRINT"), found), sep="\n")
    return 0


def _remove(options: argparse.Namespace) -> int:
    path, name, mark = options.token_file, options.name, options.fingerprint
    with _editing(path):
        text = read_private(path, edits=True)
        lines = text.splitlines(keepends=True)
        kept = [_blanked(line) if _holds(line, name, mark) else line for line in lines]
        _overwrite(path, text, "".join(kept))
    if kept == lines:
        which = "" if mark is None else f" with the fingerprint {mark}"
        print(f"holdfast: no token of `{name}`{which} in {path}", file=sys.stderr)
        return 1
    _say_reload()
    if not any(map(words_of, kept)):
        print("holdfast: the file has no more tokens: all clients will be refused", file=sys.stderr)
    return 0


def _say_reload() -> None:
    print("holdfast: a running server reloads the file at SIGHUP", file=sys.stderr)


def _fingerprint(text: str) -> str:
    """Return an identifier of a token for lists, which does not reveal the token."""
    return sha256(text.encode()).hexdigest()[:8]


def _holds(line: str, name: str, mark: str | None) -> bool:
    """Return True if a line has a token with this name and, if given, this fingerprint."""
    words = words_of(line)
    if not words or (words[0] if len(words) > 1 else DEFAULT_PRINCIPAL) != name:
        return False
    return mark in (None, _fingerprint(words[-1]))


def _blanked(line: str) -> str:
    """Return a comment of the same length."""
    content = line.splitlines()[0]
    # A line with a token is ASCII, so characters are bytes.
    return _REMOVED.ljust(len(content))[: len(content)] + line[len(content) :]


@contextmanager
def _editing(path: str) -> Iterator[None]:
    """
    Prevent other calls from editing a file during a block.

    Raises:
        BadTokenFile: The block failed with a system error.
    """
    try:
        # Lock the directory, since the file may not exist.
        lock = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise bad_token_file(path, error.strerror or str(error), error.errno) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise bad_token_file(path, error.strerror or str(error), error.errno) from error
    finally:
        os.close(lock)


def _overwrite(path: str, old: str, new: str) -> None:
    """
    Overwrite the old content. Remaining tokens do not move, so that concurrent readers find them.

    Raises:
        BadTokenFile: The new content would be invalid; nothing is written.
        OSError: A system error; the file is unchanged.
    """
    data = new.encode()
    check_size(path, len(data))
    with suppress(NoToken):
        parse_tokens(new, path)
    file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        overwrite(file, old.encode(), data)
    finally:
        os.close(file)

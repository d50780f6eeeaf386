"""`holdfast token`: the tokens in the file of a server."""

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256

from holdfast.cli.table import aligned
from holdfast.token_file import (
    DEFAULT_PRINCIPAL,
    BadTokenFile,
    bad_token_file,
    name_fault,
    new_token,
    parse_tokens,
    read_private,
    read_tokens,
    words_of,
    write_beside,
)

__all__ = ["token"]


def token(operation: str, options: argparse.Namespace) -> int:
    """Do one operation and return the exit status."""
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
    added = new_token()
    with _editing(options.token_file) as lines:
        lines.append(f"{options.name} {added}")
    # Without the name, which a client does not need in its own file.
    print(added)
    _say_reload()
    return 0


def _list(options: argparse.Namespace) -> int:
    found = [(one.name, _fingerprint(one.token)) for one in read_tokens(options.token_file)]
    if options.json:
        print(json.dumps([{"name": name, "fingerprint": mark} for name, mark in found]))
    else:
        print(*aligned(("NAME", "FINGERPRINT"), found), sep="\n")
    return 0


def _remove(options: argparse.Namespace) -> int:
    path, name, mark = options.token_file, options.name, options.fingerprint
    # A missing file, or one without a token, has its own error.
    read_tokens(path)
    with _editing(path) as lines:
        # Comments and empty lines have no token, and stay.
        kept = [line for line in lines if not _holds(line, name, mark)]
        removed = len(lines) - len(kept)
        if removed and not any(map(words_of, kept)):
            raise bad_token_file(
                path,
                "without its last token the server would keep the old ones; add another first, or"
                " stop the server",
            )
        lines[:] = kept
    if not removed:
        which = "" if mark is None else f" with the fingerprint {mark}"
        print(f"holdfast: there is no token of `{name}`{which} in {path}", file=sys.stderr)
        return 1
    _say_reload()
    return 0


def _say_reload() -> None:
    print("holdfast: a running server reads the file again at SIGHUP", file=sys.stderr)


def _fingerprint(text: str) -> str:
    """Return what identifies a token in lists; the token cannot be found from it."""
    return sha256(text.encode()).hexdigest()[:8]


def _holds(line: str, name: str, mark: str | None) -> bool:
    """Return True if a line has a token of this name, and it is the one that is meant."""
    words = words_of(line)
    if not words or (words[0] if len(words) > 1 else DEFAULT_PRINCIPAL) != name:
        return False
    return mark in (None, _fingerprint(words[-1]))


@contextmanager
def _editing(path: str) -> Iterator[list[str]]:
    """
    Lock a file, yield its lines, and replace it by what they are then; make it if it is missing.

    Raises:
        BadTokenFile: The file cannot be used before or after the change; it is as it was.
    """
    try:
        # The directory, since the file is replaced.
        lock = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise bad_token_file(path, error.strerror or str(error), error.errno) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = read_private(path).splitlines() if os.path.lexists(path) else []
        before = list(lines)
        yield lines
        if lines != before:
            text = "".join(f"{line}\n" for line in lines)
            # As the server will read it.
            parse_tokens(text, path)
            _replace(path, text)
    except OSError as error:
        raise bad_token_file(path, error.strerror or str(error), error.errno) from error
    finally:
        os.close(lock)


def _replace(path: str, text: str) -> None:
    beside = write_beside(path, text)
    try:
        with suppress(FileNotFoundError):
            # Root may edit the file of a server that runs as another user.
            owner = os.stat(path, follow_symlinks=False)
            os.chown(beside, owner.st_uid, owner.st_gid)
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise

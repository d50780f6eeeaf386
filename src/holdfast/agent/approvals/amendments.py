"""
Amendments: rules created from answers to questions, and stored in a file.

A question may propose to allow a prefix of the command from now on. Only the proposed prefix or a
narrower one is stored, in `rules/default.rules` of the home of Holdfast.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from holdfast.agent.approvals.rules import PrefixRule, Ruling
from holdfast.agent.approvals.starlark import MAX_FILE_BYTES
from holdfast.base.errors import InvalidParams, OperationFailed

__all__ = [
    "BANNED_PREFIXES",
    "DEFAULT_FILE",
    "amendment_rule",
    "answered_prefix",
    "is_banned",
    "rule_line",
    "store_rule",
]

DEFAULT_FILE: Final = "default.rules"
"""The file for amendments, in the directory `rules` of the home."""

# Seconds to wait for other writers.
_LOCK_SECONDS: Final = 5.0

# Seconds between attempts to get the lock.
_LOCK_POLL: Final = 0.01


def _banned_prefixes() -> Iterator[tuple[str, ...]]:
    shells = ("bash", "sh", "zsh", "dash", "fish", "ksh")
    flags: dict[tuple[str, ...], tuple[str, ...]] = {
        (*shells, *(f"/bin/{shell}" for shell in shells)): ("-c", "-lc"),
        ("cmd", "cmd.exe"): ("/c", "/C", "/k", "/K"),
        ("powershell", "powershell.exe", "pwsh", "pwsh.exe"): (
            *("-Command", "-command", "-c"),
            *("-EncodedCommand", "-File"),
        ),
        ("python", "python3", "pythonw", "pypy", "pypy3"): ("-", "-c"),
        ("py", "pyw"): ("-", "-c", "-3"),
        ("perl", "ruby", "lua", "julia", "Rscript", "osascript"): ("-e",),
        ("node", "nodejs", "bun"): ("-e", "--eval"),
        ("deno",): ("eval",),
        ("php",): ("-r",),
        ("env", "git", "rm", "sudo"): (),
    }
    for programs, options in flags.items():
        for program in programs:
            yield (program,)
            yield from ((program, option) for option in options)
    yield from ((manager, "run") for manager in ("npm", "pnpm", "yarn", "bun"))


BANNED_PREFIXES: Final = frozenset(_banned_prefixes())
"""
Prefixes that allow nearly anything: shells, interpreters, and programs that run other programs.

Only the exact prefix is banned: `git` is, `git status` is not.
"""


def is_banned(prefix: Sequence[str]) -> bool:
    """Return True if a prefix is too broad to propose, regardless of its program's path."""
    words = tuple(prefix)
    if words in BANNED_PREFIXES:
        return True
    return bool(words) and (words[0].rpartition("/")[2], *words[1:]) in BANNED_PREFIXES


def answered_prefix(
    proposed: Sequence[str] | None, answered: Sequence[str], *, broader: bool = False
) -> tuple[str, ...]:
    """
    Return the prefix to store for an answer.

    Args:
        proposed: The prefix of the question.
        answered: The prefix of the answer.
        broader: True to also accept a prefix that was not proposed.

    Raises:
        InvalidParams: The prefix is empty, was not proposed, or allows more than proposed.
    """
    answer = tuple(answered)
    if not answer or not _is_storable(answer):
        raise InvalidParams(f"a rule cannot be made from the prefix {list(answer)!r}")
    if broader:
        return answer
    if proposed is None:
        raise InvalidParams(f"no rule was proposed, so {list(answer)!r} is not stored")
    if answer[: len(proposed)] != tuple(proposed):
        raise InvalidParams(
            f"the prefix {list(answer)!r} allows more than the proposed {list(proposed)!r}"
        )
    return answer


def _is_storable(prefix: Sequence[str]) -> bool:
    """Return True if a rules file can contain the words, which excludes lone surrogates."""
    try:
        "".join(prefix).encode()
    except UnicodeEncodeError:
        return False
    return bool(prefix) and all("\0" not in word for word in prefix)


def amendment_rule(
    prefix: Sequence[str], *, outside_sandbox: bool = False, source: str | None = None
) -> PrefixRule:
    """Return the rule that allows a prefix."""
    return PrefixRule(
        pattern=tuple((word,) for word in prefix),
        ruling=Ruling.ALLOW,
        outside_sandbox=outside_sandbox,
        source=source,
    )


def rule_line(prefix: Sequence[str], *, outside_sandbox: bool = False) -> str:
    """Return the line of a rules file that allows a prefix, without a newline."""
    words = ", ".join(json.dumps(word, ensure_ascii=False) for word in prefix)
    sandbox = ', sandbox="none"' if outside_sandbox else ""
    return f'prefix_rule(pattern=[{words}], decision="allow"{sandbox})'


def store_rule(home: Path, prefix: Sequence[str], *, outside_sandbox: bool = False) -> bool:
    """
    Append the rule that allows a prefix to the default file, unless the file contains it.

    A lock on the file excludes other writers. The call may block for some seconds.

    Returns:
        False if the file already contains the rule.

    Raises:
        InvalidParams: The prefix cannot be written to a rules file.
        OperationFailed: The file cannot be written, and is unchanged.
    """
    if not _is_storable(prefix):
        raise InvalidParams(f"a rule cannot be made from the prefix {list(prefix)!r}")
    line = rule_line(prefix, outside_sandbox=outside_sandbox).encode()
    path = home / "rules" / DEFAULT_FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path) as descriptor:
            return _append(descriptor, line)
    except OSError as error:
        reason = "is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise OperationFailed(
            f"cannot store a rule in {path}: {reason}", errno=error.errno, path=str(path)
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open the file for appending and lock it, for the duration of the context."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        errno.ETIMEDOUT, f"locked by another program for {_LOCK_SECONDS:g} s"
                    ) from error
            time.sleep(_LOCK_POLL)
        yield descriptor
    finally:
        os.close(descriptor)


def _append(descriptor: int, line: bytes) -> bool:
    size = os.fstat(descriptor).st_size
    if size + len(line) + 2 > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"the file would be larger than {MAX_FILE_BYTES} bytes")
    text = os.pread(descriptor, size, 0)
    if line in (existing.strip() for existing in text.splitlines()):
        return False
    separator = b"\n" if text and not text.endswith(b"\n") else b""
    data = separator + line + b"\n"
    try:
        written = os.write(descriptor, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        # Undo a partial write, which would make the whole file invalid.
        os.ftruncate(descriptor, size)
        raise
    return True

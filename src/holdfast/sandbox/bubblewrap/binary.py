"""
The program that builds sandboxes: where it is, and whether it can be trusted.

It runs outside of the sandbox, so it is looked for in the server's own `PATH`,
once, and never in anything that came with a request [sandbox.launcher].
"""

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.sandbox.policy.exhausted import raise_exhausted

__all__ = ["NEEDED", "Launcher", "find_launcher", "note_launchers"]

NEEDED = frozenset(
    {"--args", "--as-pid-1", "--die-with-parent", "--file", "--new-session", "--perms"}
)
"""Options without which it is too old to use."""

_FIXED_PLACES = ("/usr/bin/bwrap", "/bin/bwrap")
"""Where it is looked for beside the `PATH`."""

_ROOT = 0

_HELP_LIMIT = 5.0
"""Seconds that it may take to print its options."""


class Launcher(msgspec.Struct, frozen=True):
    """A bubblewrap that can be used."""

    path: str
    version: str
    options: frozenset[str]
    """Everything it lists, such as `--disable-userns`."""


_noted: frozenset[str] | None = None


def note_launchers() -> None:
    """
    Let only those count from now on that are there by now.

    For a server that is about to start its first command, which could make another.
    """
    global _noted
    _noted = _present(os.environ)


def _present(environ: Mapping[str, str]) -> frozenset[str]:
    folders = [f for f in environ.get("PATH", "").split(":") if f.startswith("/")]
    paths = dict.fromkeys([*(os.path.join(f, "bwrap") for f in folders), *_FIXED_PLACES])
    return frozenset(os.path.realpath(path) for path in paths if os.access(path, os.X_OK))


def find_launcher(environ: Mapping[str, str] | None = None) -> Launcher | str:
    """
    The first bubblewrap that can be trusted and is new enough, or why there is none.

    Those that belong to root come first: a command may be allowed to write to
    places of the user, and must not be able to replace it.
    """
    found = _present(os.environ if environ is None else environ)
    if _noted is not None:
        found &= _noted
    refused: list[str] = []
    for path in sorted(found, key=_belongs_to_user):
        fault = _fault(path)
        if fault is None:
            launcher = _ask(path)
            if isinstance(launcher, Launcher):
                return launcher
            fault = launcher
        refused.append(f"{path} {fault}")
    if refused:
        return "; ".join(refused)
    if _noted is not None:
        return "bubblewrap was not installed when the server started: install version 0.5 or newer"
    return "bubblewrap is not installed: install version 0.5 or newer"


def _belongs_to_user(path: str) -> bool:
    return os.stat(path).st_uid != _ROOT


def _fault(path: str) -> str | None:
    """Why the file cannot be trusted: somebody else could replace it."""
    trusted = (_ROOT, os.geteuid())
    file = Path(path)
    for place in (file, *file.parents):
        status = place.stat()
        if status.st_uid not in trusted:
            return f"is not used: {place} belongs to another user"
        # In a folder such as /tmp everybody makes files, but nobody replaces another's.
        shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not shared:
            return f"is not used: others may write to {place}"
    return None


def _ask(path: str) -> Launcher | str:
    try:
        help_text = _output(path, "--help")
        version = _output(path, "--version").strip().rpartition(" ")[2]
    except (OSError, subprocess.SubprocessError) as error:
        raise_exhausted(error)
        return f"cannot be run: {error}"
    options = frozenset(word for word in help_text.split() if word.startswith("--"))
    missing = sorted(NEEDED - options)
    if missing:
        return f"{version} is too old: install 0.5 or newer (it lacks {', '.join(missing)})"
    return Launcher(path, version, options)


def _output(path: str, option: str) -> str:
    done = subprocess.run(
        [path, option],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={},
        timeout=_HELP_LIMIT,
        check=False,
        text=True,
    )
    return done.stdout

"""
Finds the bubblewrap binary (`bwrap`) and checks that it can be trusted.

Bubblewrap runs outside the sandbox. So it is searched for once in the server's own `PATH`, and
never in a path that came with a request [sandbox.launcher].
"""

import os
import stat
import subprocess
from collections.abc import Iterator, Mapping

import msgspec

from holdfast.engine.linux.search_path import candidates
from holdfast.engine.sandbox.policy.exhausted import raise_exhausted

__all__ = ["NEEDED", "Launcher", "find_launcher", "note_launchers"]

NEEDED = frozenset({"--args", "--as-pid-1", "--file", "--new-session", "--perms"})
"""Required options; a bubblewrap without one of them is too old."""

# Paths to try in addition to the `PATH`, which may be empty in a service.
_FIXED_PATHS = ("/usr/bin/bwrap", "/bin/bwrap")

_ROOT = 0

# Seconds for `bwrap --help`, which takes a few milliseconds.
_HELP_LIMIT = 5.0


class Launcher(msgspec.Struct, frozen=True):
    """A usable bubblewrap binary."""

    path: str
    version: str
    options: frozenset[str]
    """All options in its help text, such as `--disable-userns`."""


# Binaries that existed when `note_launchers` was called; None before that.
_noted: frozenset[str] | None = None


def note_launchers() -> None:
    """
    From now on, accept only binaries that exist now.

    Call this before the first command is started: a command could install another `bwrap` in a
    directory of the `PATH`.
    """
    global _noted
    _noted = _present(os.environ)


def _present(environ: Mapping[str, str]) -> frozenset[str]:
    # Relative directories depend on the working directory, which a client may choose.
    listed = [path for path in candidates("bwrap", environ.get("PATH")) if path.startswith("/")]
    paths = dict.fromkeys([*listed, *_FIXED_PATHS])
    return frozenset(os.path.realpath(path) for path in paths if os.access(path, os.X_OK))


def find_launcher(environ: Mapping[str, str] | None = None) -> Launcher | str:
    """
    Return the first bubblewrap that is trusted and new enough, or the reason why there is none.

    Binaries that belong to root come first, and of those the ones at their usual path: a command
    that may write to the user's files could create the others.
    """
    found = _present(os.environ if environ is None else environ)
    if _noted is not None:
        found &= _noted
    refused: list[str] = []
    usual = frozenset(map(os.path.realpath, _FIXED_PATHS))
    for path in sorted(found, key=lambda path: (_belongs_to_user(path), path not in usual, path)):
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
    """Return the reason why another user could replace the file, or None."""
    trusted = (_ROOT, os.geteuid())
    # A user who may write to a directory above could replace the whole path.
    for name in _with_parents(path):
        status = os.stat(name)
        if status.st_uid not in trusted:
            return f"is not used: {name} belongs to another user"
        # In a sticky directory such as /tmp, users cannot replace files of others.
        shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not shared:
            return f"is not used: others may write to {name}"
    return None


def _with_parents(path: str) -> Iterator[str]:
    """Yield a path and all directories above it."""
    yield path
    while (above := os.path.dirname(path)) != path:
        yield above
        path = above


def _ask(path: str) -> Launcher | str:
    try:
        help_text = _output(path, "--help")
        version = _output(path, "--version").strip().rpartition(" ")[2]
    except (OSError, subprocess.SubprocessError) as error:
        raise_exhausted(error)
        return f"cannot be run: {error}"
    # Not by the version: the help text lists the options of this very build.
    options = frozenset(word for word in help_text.split() if word.startswith("--"))
    if not options:
        # As in a container without a `/proc`, where it ends before it reads its options.
        return f"cannot be run: {help_text.strip() or 'it prints no help'}"
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

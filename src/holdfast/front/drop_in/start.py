"""
Starts the server of `holdfast-sh`, one per user.

The launcher runs this if no server listens. If many launchers do so at once, a file lock makes the
others wait while one of them starts the server.
"""

import fcntl
import os
import pwd
import resource
import select
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.front.drop_in.shell_paths import ShellPaths, make_private

__all__ = ["ensure_server", "server_listens"]

# Seconds for a new server to listen, even on a busy machine.
_START_LIMIT = 20.0

# Variables that the server inherits from its first caller. None of them may affect the shells of
# other callers.
_KEPT = ("LANG", "LC_ALL", "PATH", "TZ", "HOLDFAST_SH_IDLE")

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def server_listens(path: Path) -> bool:
    """Return True if a server listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


def ensure_server(paths: ShellPaths, environ: Mapping[str, str]) -> None:
    """
    Start a server unless one listens; return when it listens.

    Raises:
        OSError: The lock file cannot be opened.
        UnusableShellFolder: The directory of the lock is not private.
        TimeoutError: The server does not listen in time.
    """
    # systemd removes a runtime directory with the last session of its user.
    make_private(paths.lock.parent)
    lock = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if server_listens(paths.socket):
            return
        ready, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_server(paths, environ, theirs)
        os.close(theirs)
        os.waitpid(pid, 0)
        _wait(ready)
    finally:
        os.close(lock)


def _wait(ready: int) -> None:
    """Wait for the byte that a server writes when it listens."""
    with open(ready, "rb", buffering=0) as file:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        if not poll.poll(_START_LIMIT * 1000):
            raise TimeoutError(f"it does not listen within {_START_LIMIT:.0f} seconds")
        if not file.read(1):
            raise OSError("it ended at once; see its log")


def _become_server(paths: ShellPaths, environ: Mapping[str, str], ready: int) -> None:
    """Execute the server in a forked child, in a separate session; never returns."""
    try:
        os.setsid()
        # A second fork: a session leader could acquire a controlling terminal.
        if os.fork():
            os._exit(0)
        os.chdir("/")
        os.umask(0o077)
        nothing = os.open(os.devnull, os.O_RDWR)
        log = os.open(paths.lock.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        ready = os.dup(ready) if ready < 3 else ready
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(log, 2)
        os.set_inheritable(ready, True)
        for fd in _open_descriptors():
            if fd > 2 and fd != ready:
                with suppress(OSError):
                    os.close(fd)
        env = {name: environ[name] for name in _KEPT if name in environ}
        env.setdefault("PATH", _DEFAULT_PATH)
        # From the user database, since the first caller may have another HOME. Without an
        # entry there, the server has none.
        with suppress(KeyError):
            env["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
        # Each caller in a sandbox needs dozens of descriptors.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        command = [sys.executable, "-EP", "-m", "holdfast.front.drop_in", "serve"]
        command += map(os.fspath, (paths.launcher, paths.socket, paths.lock))
        command.append(str(ready))
        os.execve(sys.executable, command, env)  # noqa: S606 - no shell is wanted
    finally:
        os._exit(1)


def _open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]

"""
Starts `holdfast` commands from a process that has imported everything already.

Half of what the tests cost was Python importing the same modules a thousand times. `HOLDFAST`
is a command like any other: whoever runs it gets a process of its own with that process's
descriptors, folder, variables, limits and exit status. Only the imports are shared. Where
something else matters (another user, the pid itself), `COLD` starts a fresh
interpreter; the launcher does so by itself where it can tell. `DRIVER` starts the program
behind which the library is compared with recorded behaviour in the same way, and `PROGRAM` any
file of Python.
"""

import atexit
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = [
    "COLD",
    "DRIVER",
    "HOLDFAST",
    "PROGRAM",
    "folder_of_commands",
    "is_warm_server",
    "noted_times",
    "pid_behind",
    "start_warm_server",
]

COLD = [sys.executable, "-m", "holdfast.front.cli"]
"""The command line in a fresh interpreter."""

# A killed run leaves its folder behind, and pids come again.
_FOLDER = Path(tempfile.gettempdir(), f"holdfast-warm-{os.getpid()}-{secrets.token_hex(4)}")
_SOCKET = _FOLDER / "s"
_TIMES = _FOLDER / "times"

_LAUNCH = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launch.py")), str(_SOCKET)]

HOLDFAST = [*_LAUNCH, "holdfast.front.cli"]
"""The command line in a process that has imported it already."""

DRIVER = [*_LAUNCH, "tests.real.unified_driver"]
"""That program, in such a process."""

PROGRAM = [*_LAUNCH, "program"]
"""
Runs a file of Python in such a process, with warnings as errors.

It is followed by the file and its arguments.
"""

_server: subprocess.Popen[bytes] | None = None


def start_warm_server() -> None:
    """Start the process that the others are forked from; harmless a second time."""
    global _server
    if _server is None:
        _FOLDER.mkdir(mode=0o700)
        program = str(Path(__file__).with_name("server.py"))
        # It ends with its stdin, so it never outlives the tests.
        _server = subprocess.Popen([sys.executable, program, str(_SOCKET)], stdin=subprocess.PIPE)
        atexit.register(_stop)


def folder_of_commands(folder: Path) -> Path:
    """Make a folder for `PATH` in which `holdfast` is a warm one, below another folder."""
    commands = folder / "commands"
    commands.mkdir()
    program = commands / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(HOLDFAST)} "$@"\n')
    program.chmod(0o755)
    return commands


def is_warm_server(pid: int) -> bool:
    """Return True for the pid of that process, which is not left behind by a test."""
    return _server is not None and pid == _server.pid


def pid_behind(pid: int) -> int:
    """Return the pid of the process that a launcher stands for; of any other, its own."""
    try:
        # Empty for a moment, before the pid is written in one piece.
        return int((_FOLDER / str(pid)).read_text() or pid)
    except FileNotFoundError:
        return pid


def noted_times() -> list[tuple[str, float]]:
    """Return the processor time of each process that has ended, with the test it belongs to."""
    if not _TIMES.exists():
        return []
    lines = (line.split("\t") for line in _TIMES.read_text().splitlines())
    return [(test, float(seconds)) for test, seconds in lines]


def _stop() -> None:
    assert _server is not None  # it was started
    assert _server.stdin is not None
    _server.stdin.close()
    _server.wait(10)
    _SOCKET.unlink(missing_ok=True)
    _TIMES.unlink(missing_ok=True)
    _FOLDER.rmdir()

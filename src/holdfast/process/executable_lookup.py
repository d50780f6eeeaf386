"""
Which file a start executes and where: lookups on pipes and on a terminal.

The two differ as they do in the real server, down to the texts [start.program.*]:
clients show them to a model.
"""

import errno
import os
import pwd
import stat
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.errors import SpawnFailed
from holdfast.system_text import system_text

__all__ = ["DEFAULT_PATH", "Launch", "pipe_launch", "terminal_folder", "terminal_launch"]

DEFAULT_PATH = "/bin:/usr/bin"
"""Where the system looks for a program when a child has no `PATH`."""

_ABSOLUTE_FAULTS = {
    errno.ENOENT: "it doesn't exist on the filesystem (ENOENT: No such file or directory)",
    errno.EISDIR: "it is a directory",
    errno.EACCES: "it is not executable (EACCES: Permission denied)",
}
_RELATIVE_FAULTS = {
    errno.ENOENT: "it does not exist",
    errno.EISDIR: "it is a directory",
    errno.EACCES: "it is not executable",
}
"""What is said of a program on a terminal; of an absolute one only if it is an `arg0`."""


class Launch(msgspec.Struct, frozen=True):
    """What is handed to the kernel."""

    program: str
    argv: list[str]
    cwd: str


def pipe_launch(argv: Sequence[str], arg0: str | None, cwd: str, env: Mapping[str, str]) -> Launch:
    """
    The rules on pipes: as `execvp` in the child's folder and with its `PATH`.

    Raises:
        SpawnFailed: There is no such program. Its `path` is `cwd` if that is at fault.
    """
    program = argv[0]
    if not program:
        raise SpawnFailed("missing program for pipe spawn", program="")
    seen = [program if arg0 is None else arg0, *argv[1:]]
    if "/" in program or "\0" in program:
        return Launch(program, seen, cwd)  # the kernel, or the start, finds the fault
    refused = errno.ENOENT
    for folder in env.get("PATH", DEFAULT_PATH).split(":"):
        # Executed as it is written, from the child's folder: a script sees it as `$0`.
        candidate = os.path.join(folder, program)
        fault = _executable_fault(os.path.join(cwd, candidate))
        if not fault:
            return Launch(candidate, seen, cwd)
        if fault != errno.ENOENT:
            refused = errno.EACCES
    # A missing folder is the more useful thing to say, and what the kernel would find first.
    _check_folder(cwd, program)
    raise SpawnFailed(system_text(refused), errno=refused, program=program)


def terminal_launch(
    argv: Sequence[str], arg0: str | None, cwd: str, env: Mapping[str, str]
) -> Launch:
    """
    The rules on a terminal, where `arg0` names the program itself.

    A folder that is missing is replaced by the user's home.

    Raises:
        SpawnFailed: There is no such program.
    """
    if not argv[0]:
        raise SpawnFailed("missing program for PTY spawn", program="")
    program = argv[0] if arg0 is None else arg0
    cwd = terminal_folder(cwd, env)
    if program.startswith("/"):
        found = program if arg0 is None else _checked(program, _ABSOLUTE_FAULTS)
    elif program in (".", "..") or program.startswith(("./", "../")):
        found = _checked(os.path.join(cwd, program), _RELATIVE_FAULTS)
    else:
        found = _in_path(program, cwd, env)
    return Launch(found, [program, *argv[1:]], cwd)


def terminal_folder(cwd: str, env: Mapping[str, str]) -> str:
    """The folder on a terminal: the user's home where it is missing."""
    if os.path.isdir(cwd):
        return cwd
    home = env.get("HOME")  # an empty one is a folder that is missing
    return _home_of_user() if home is None else home


def _checked(program: str, faults: Mapping[int, str]) -> str:
    fault = _executable_fault(program)
    if fault:
        raise SpawnFailed(
            f"Unable to spawn {program} because {faults[fault]}", errno=fault, program=program
        )
    return program


def _in_path(program: str, cwd: str, env: Mapping[str, str]) -> str:
    path = env.get("PATH")
    if path is None:
        raise SpawnFailed(
            f"Unable to spawn {program} because:\nUnable to resolve the PATH",
            errno=errno.ENOENT,
            program=program,
        )
    refused = errno.ENOENT
    found = [f"Unable to spawn {program} because:"]
    for folder in path.split(":"):
        candidate = os.path.join(cwd, folder, program)
        fault = _executable_fault(candidate)
        if not fault:
            return candidate
        if fault != errno.ENOENT:
            refused = errno.EACCES  # as on pipes: something is there, and cannot be executed
        if fault == errno.EISDIR:
            found.append(f"{candidate} exists but is a directory.")
        elif fault == errno.EACCES:
            found.append(f"{candidate} exists but is not executable.")
    found.append(f'No viable candidates found in PATH "{path}"')
    raise SpawnFailed("\n".join(found), errno=refused, program=program)


def _executable_fault(candidate: str) -> int:
    """0 for a file that may be executed, else what is in the way."""
    try:
        mode = os.stat(candidate).st_mode
    except (OSError, ValueError):
        return errno.ENOENT
    if stat.S_ISDIR(mode):
        return errno.EISDIR
    return 0 if os.access(candidate, os.X_OK) else errno.EACCES


def _check_folder(cwd: str, program: str) -> None:
    try:
        mode = os.stat(cwd).st_mode
    except OSError as error:
        fault = error.errno or errno.ENOENT
    else:
        if stat.S_ISDIR(mode):
            return
        fault = errno.ENOTDIR
    raise SpawnFailed(system_text(fault), errno=fault, path=cwd, program=program)


def _home_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"

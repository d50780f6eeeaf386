"""
Lookup of the executable and the working directory of a start, on pipes and on a terminal.

The two differ, down to the error texts [start.program.*], which clients show to a model.
"""

import errno
import os
import pwd
import stat
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.base.dialect import texts
from holdfast.base.errors import SpawnFailed
from holdfast.base.system_text import system_text
from holdfast.engine.linux.search_path import candidates

__all__ = ["Launch", "pipe_launch", "terminal_folder", "terminal_launch"]


class Launch(msgspec.Struct, frozen=True):
    """Arguments of an `execve`: the file, its argv, and the directory to start it in."""

    program: str
    argv: list[str]
    cwd: str


def pipe_launch(argv: Sequence[str], arg0: str | None, cwd: str, env: Mapping[str, str]) -> Launch:
    """
    Look up the program of a start on pipes, as `execvp` does with the child's cwd and `PATH`.

    Raises:
        SpawnFailed: No such program. Its `path` is `cwd` if that directory is at fault.
    """
    program = argv[0]
    if not program:
        raise SpawnFailed(texts.no_program("pipe"), program="")
    seen = [program if arg0 is None else arg0, *argv[1:]]
    if "/" in program or "\0" in program:
        # No lookup: the spawn itself reports a missing file or a NUL.
        return Launch(program, seen, cwd)
    # As `execvp`: EACCES wins over ENOENT if a candidate was there but could not be executed.
    refused = errno.ENOENT
    for candidate in candidates(program, env.get("PATH")):
        fault = _executable_fault(os.path.join(cwd, candidate))
        if not fault:
            return Launch(candidate, seen, cwd)
        if fault != errno.ENOENT:
            refused = errno.EACCES
    # A missing cwd comes first: it is the more useful error, and the one that the kernel would
    # report.
    _check_folder(cwd, program)
    raise SpawnFailed(system_text(refused), errno=refused, program=program)


def terminal_launch(
    argv: Sequence[str], arg0: str | None, cwd: str, env: Mapping[str, str]
) -> Launch:
    """
    Look up the program of a start on a terminal, where `arg0` names the file to execute.

    The user's home replaces a missing working directory.

    Raises:
        SpawnFailed: No such program.
    """
    # Checked even if `arg0` replaces it [start.program.empty].
    if not argv[0]:
        raise SpawnFailed(texts.no_program("PTY"), program="")
    program = argv[0] if arg0 is None else arg0
    cwd = terminal_folder(cwd, env)
    if program.startswith("/"):
        # Checked only if it comes from `arg0`.
        found = program if arg0 is None else _checked(program, absolute=True)
    elif program in (".", "..") or program.startswith(("./", "../")):
        found = _checked(os.path.join(cwd, program), absolute=False)
    else:
        found = _in_path(program, cwd, env)
    return Launch(found, [program, *argv[1:]], cwd)


def terminal_folder(cwd: str, env: Mapping[str, str]) -> str:
    """Return the working directory on a terminal: `cwd`, or the user's home if it is missing."""
    if os.path.isdir(cwd):
        return cwd
    # Only a missing HOME is replaced. With an empty one the spawn fails: no such directory.
    home = env.get("HOME")
    return _home_of_user() if home is None else home


def _checked(program: str, *, absolute: bool) -> str:
    fault = _executable_fault(program)
    if fault:
        faults = {
            errno.ENOENT: texts.MISSING_ABSOLUTE if absolute else texts.MISSING_FILE,
            errno.EISDIR: texts.IS_DIRECTORY,
            errno.EACCES: texts.NOT_EXECUTABLE_ABSOLUTE if absolute else texts.NOT_EXECUTABLE,
        }
        raise SpawnFailed(
            f"{texts.NOT_SPAWNED}{program} because {faults[fault]}", errno=fault, program=program
        )
    return program


def _in_path(program: str, cwd: str, env: Mapping[str, str]) -> str:
    path = env.get("PATH")
    if path is None:
        raise SpawnFailed(
            f"{texts.NOT_SPAWNED}{program} because:\n{texts.NO_PATH}",
            errno=errno.ENOENT,
            program=program,
        )
    refused = errno.ENOENT
    found = [f"{texts.NOT_SPAWNED}{program} because:"]
    for candidate in (os.path.join(cwd, one) for one in candidates(program, path)):
        fault = _executable_fault(candidate)
        if not fault:
            return candidate
        if fault != errno.ENOENT:
            # As on pipes: a file was found, but it cannot be executed.
            refused = errno.EACCES
        if fault == errno.EISDIR:
            found.append(f"{candidate} {texts.FOUND_DIRECTORY}")
        elif fault == errno.EACCES:
            found.append(f"{candidate} {texts.FOUND_NOT_EXECUTABLE}")
    found.append(f'{texts.NOT_IN_PATH} "{path}"')
    raise SpawnFailed("\n".join(found), errno=refused, program=program)


def _executable_fault(candidate: str) -> int:
    """Return 0 for a file that may be executed, else ENOENT, EISDIR or EACCES."""
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

"""
The command `holdfast-sh`: writes the launcher if it is missing, and executes it.

Agents should call the launcher itself, which starts without Python. `holdfast-sh --launcher`
prints its path.
"""

import os
import platform
import sys
import tempfile

from holdfast.front.drop_in.launcher import make_launcher
from holdfast.front.drop_in.shell_paths import ShellPaths, UnusableShellFolder, find_shell_paths

__all__ = ["main", "write_launcher"]

# The exit status of a shell for a program that cannot be executed.
_CANNOT_RUN = 126


def write_launcher(paths: ShellPaths) -> None:
    """
    Write the launcher, unless the file is up to date.

    Raises:
        OSError: The file cannot be written.
        KeyError: The architecture is not supported.
        ValueError: The path of the socket is too long.
    """
    starter = [sys.executable, "-EP", "-m", "holdfast.front.drop_in", "ensure"]
    starter += list(map(os.fspath, (paths.launcher, paths.socket, paths.lock)))
    content = make_launcher(
        platform.machine(), socket_path=os.fspath(paths.socket), starter=starter
    )
    try:
        if paths.launcher.read_bytes() == content and os.access(paths.launcher, os.X_OK):
            return
    except OSError:
        pass
    # By a rename: a running launcher cannot be written to (ETXTBSY).
    fd, name = tempfile.mkstemp(dir=paths.launcher.parent)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o700)
        os.replace(name, paths.launcher)
    except BaseException:
        os.unlink(name)
        raise


def main() -> int:
    """Run `holdfast-sh`; returns an exit status only if the launcher cannot be executed."""
    try:
        paths = find_shell_paths(os.environ)
        write_launcher(paths)
    except KeyError:
        print(f"holdfast-sh: not made for {platform.machine()}", file=sys.stderr)
        return _CANNOT_RUN
    except (UnusableShellFolder, OSError, ValueError) as error:
        print(f"holdfast-sh: {error}", file=sys.stderr)
        return _CANNOT_RUN
    if sys.argv[1:] == ["--launcher"]:
        print(paths.launcher)
        return 0
    try:
        os.execv(paths.launcher, sys.argv)  # noqa: S606 - it is the shell
    except OSError as error:
        print(f"holdfast-sh: {paths.launcher}: {error.strerror}", file=sys.stderr)
        return _CANNOT_RUN

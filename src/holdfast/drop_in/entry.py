"""
The command `holdfast-sh`: writes the launcher if it is missing, and executes it.

Agents should call the launcher itself, which starts without Python. `holdfast-sh --launcher`
prints its path.
"""

import os
import platform
import sys
import tempfile

from holdfast.drop_in.launcher import make_launcher
from holdfast.drop_in.places import Places, UnusablePlace, find_places

__all__ = ["main", "write_launcher"]

# The exit status of a shell for a program that cannot be executed.
_CANNOT_RUN = 126


def write_launcher(places: Places) -> None:
    """
    Write the launcher, unless the file is up to date.

    Raises:
        OSError: The file cannot be written.
        KeyError: The architecture is not supported.
        ValueError: The path of the socket is too long.
    """
    starter = [sys.executable, "-EP", "-m", "holdfast.drop_in", "ensure"]
    starter += list(map(os.fspath, (places.launcher, places.socket, places.lock)))
    content = make_launcher(
        platform.machine(), socket_path=os.fspath(places.socket), starter=starter
    )
    try:
        if places.launcher.read_bytes() == content and os.access(places.launcher, os.X_OK):
            return
    except OSError:
        pass
    # By a rename: a running launcher cannot be written to (ETXTBSY).
    fd, name = tempfile.mkstemp(dir=places.launcher.parent)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o700)
        os.replace(name, places.launcher)
    except BaseException:
        os.unlink(name)
        raise


def main() -> int:
    """Run `holdfast-sh`; returns an exit status only if the launcher cannot be executed."""
    try:
        places = find_places(os.environ)
        write_launcher(places)
    except KeyError:
        print(f"holdfast-sh: not made for {platform.machine()}", file=sys.stderr)
        return _CANNOT_RUN
    except (UnusablePlace, OSError, ValueError) as error:
        print(f"holdfast-sh: {error}", file=sys.stderr)
        return _CANNOT_RUN
    if sys.argv[1:] == ["--launcher"]:
        print(places.launcher)
        return 0
    try:
        os.execv(places.launcher, sys.argv)  # noqa: S606 - it is the shell
    except OSError as error:
        print(f"holdfast-sh: {places.launcher}: {error.strerror}", file=sys.stderr)
        return _CANNOT_RUN

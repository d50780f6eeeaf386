"""
The command `holdfast-sh`: makes the launcher where it is missing, and becomes it.

An agent had better call the launcher itself, which starts without Python:
`holdfast-sh --launcher` prints its path.
"""

import os
import platform
import sys
import tempfile

from holdfast.drop_in.places import Places, UnusablePlace, find_places

__all__ = ["main", "write_launcher"]

_CANNOT_RUN = 126


def write_launcher(places: Places) -> None:
    """
    Make the launcher, unless it is there already as it has to be.

    Raises:
        OSError: It cannot be written.
        KeyError: There is none for this processor.
        ValueError: The path of the socket is too long.
    """
    from holdfast.drop_in.launcher import make_launcher

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
    # One that runs is not overwritten: the new file takes its name.
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
    """Run `holdfast-sh`; returns only if it cannot be run."""
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

"""
Devices of our own, for the sandboxes of a server that owns those of the machine.

Bubblewrap puts the machine's `/dev/null` and a few others into each sandbox. They have to be
on a writable mount there, since a read-only one of it lets no device be opened. Whoever owns
them can then change their mode and times, for the whole machine: that is root, whose commands
have no privileges but still its name. So root's sandboxes get devices that belong to nobody
inside, made once in a folder that only root can enter.
"""

import os
import stat
from contextlib import suppress

__all__ = ["DEVICES", "make_devices", "may_make_devices", "need_devices", "remove_devices"]

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""What bubblewrap takes from the machine."""

_FOLDER = ".holdfast-"
"""How the name of the folder begins; the pid of its maker follows."""

_NOBODY = 65534

_CAP_MKNOD = 27


def need_devices(dev: str = "/dev") -> bool:
    """Whether a command of this user could change what is told of the machine's devices."""
    for name in DEVICES:
        with suppress(OSError):  # it is not there, and so not in a sandbox either
            path = f"{dev}/{name}"
            writable = not os.statvfs(path).f_flag & os.ST_RDONLY
            if writable and os.stat(path).st_uid == os.geteuid():
                return True
    return False


def may_make_devices(dev: str = "/dev", status: str = "/proc/self/status") -> bool:
    """Whether this process has the privilege for it, and a place."""
    with suppress(OSError, ValueError), open(status, encoding="ascii") as file:
        for line in file:
            if line.startswith("CapEff:"):
                capable = int(line.split()[1], 16) >> _CAP_MKNOD & 1
                nowhere = os.statvfs(dev).f_flag & (os.ST_RDONLY | os.ST_NODEV)
                return bool(capable and not nowhere)
    return False


def make_devices(dev: str = "/dev") -> str:
    """
    Make them, and return their folder; what was left by others who were killed is removed.

    Raises:
        OSError: The kernel refused.
    """
    _remove_stale(dev)
    folder = _folder(dev, os.getpid())
    remove_devices(os.getpid(), dev)  # of another process, which had the same number
    os.mkdir(folder, 0o700)
    try:
        for name in DEVICES:
            path = f"{folder}/{name}"
            known = os.stat(f"{dev}/{name}")
            os.mknod(path, stat.S_IFCHR | 0o600, known.st_rdev)
            os.chown(path, _NOBODY, _NOBODY)
            os.chmod(path, 0o666)
    except BaseException:
        remove_devices(os.getpid(), dev)
        raise
    return folder


def remove_devices(pid: int, dev: str = "/dev") -> None:
    """Remove those that a process has made, if it has."""
    folder = _folder(dev, pid)
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(folder).st_mode):
            for name in DEVICES:
                with suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{name}")
            os.rmdir(folder)


def _remove_stale(dev: str) -> None:
    for name in os.listdir(dev):
        pid = name.removeprefix(_FOLDER)
        if name != pid and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            remove_devices(int(pid), dev)


def _folder(dev: str, pid: int) -> str:
    return f"{dev}/{_FOLDER}{pid}"

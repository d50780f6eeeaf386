"""
A mount that never answers, as that of a network file system whose server is gone.

It is one of FUSE without anybody behind it: every call on it waits, until the process that made
it has ended. Run it in a mount namespace of its own, so that nothing else meets it:

    python dead_mount.py FOLDER
"""

import ctypes
import os
import shutil
import subprocess
import sys
from functools import cache

MOUNTED = b"mounted\n"
"""Line that this program prints when the mount is there."""

OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
"""Before a command: what it mounts is seen by itself and its children only."""


@cache
def can_mount() -> bool:
    """Return True if this user may mount something in a namespace of its own."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or shutil.which("unshare") is None:
        return False
    return os.geteuid() == 0 and subprocess.run([*OWN_MOUNTS, "true"], check=False).returncode == 0


def mount(folder: str) -> int:
    """Mount it; returns the descriptor that keeps it."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"dead", folder.encode(), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount", folder)
    return device


if __name__ == "__main__":
    mount(sys.argv[1])
    os.write(1, MOUNTED)
    os.read(0, 1)

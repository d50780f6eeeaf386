"""
What this machine can enforce, found out by trying it.

A profile is enforced wholly or refused: nothing runs weaker than it was asked to.
So the ladder is short. It says which rung works here, what even that leaves open,
and what to change where none does.
"""

import ctypes
import os
import platform
import subprocess
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from holdfast.sandbox.launcher import Launcher, find_launcher
from holdfast.sandbox.seccomp import MACHINES, filter_program

__all__ = ["Ladder", "Rung", "climb", "landlock_abi"]

_PROBE_LIMIT = 10.0
"""Seconds that a trial may take."""

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION = 1

_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
)


class Rung(StrEnum):
    """How far a command can be isolated here."""

    FULL = "full"
    """Namespaces, mounts and a filter on system calls."""
    WITHOUT_PROC = "withoutProc"
    """The same, but with an empty `/proc`: a new one cannot be mounted here."""
    NONE = "none"
    """Not at all: whatever asks for isolation is refused."""


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """Which rung works, why no higher one does, and what is open even so."""

    rung: Rung
    launcher: Launcher | None = None
    landlock_abi: int = 0
    """0 if the kernel has no Landlock. It is not used yet."""
    problem: str | None = None
    """Why it is not the highest rung, and what to change."""
    gaps: tuple[str, ...] = ()
    """What a sandbox on this rung does not stop."""


def climb(environ: Mapping[str, str] | None = None) -> Ladder:
    """Find out what works; takes some hundredths of a second."""
    abi = landlock_abi()
    if platform.machine() not in MACHINES:
        problem = f"no filter of system calls is known for {platform.machine()}"
        return Ladder(rung=Rung.NONE, landlock_abi=abi, problem=problem)
    launcher = find_launcher(environ)
    if not isinstance(launcher, Launcher):
        return Ladder(rung=Rung.NONE, landlock_abi=abi, problem=launcher)
    complaint = _try(launcher, "--proc", "/proc")
    if complaint is None:
        return Ladder(rung=Rung.FULL, launcher=launcher, landlock_abi=abi, gaps=_gaps())
    if "proc" in complaint and _try(launcher, "--tmpfs", "/proc") is None:
        return Ladder(
            rung=Rung.WITHOUT_PROC,
            launcher=launcher,
            landlock_abi=abi,
            problem=f"{complaint}; a container needs an unmasked /proc for more",
            gaps=(*_gaps(), "programs that need /proc may fail: it is empty"),
        )
    problem = f"{complaint}; {_advice(complaint, Path('/proc'))}"
    return Ladder(rung=Rung.NONE, launcher=launcher, landlock_abi=abi, problem=problem)


def landlock_abi() -> int:
    """The version of Landlock in this kernel; 0 if it has none or it is off."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)))


def _try(launcher: Launcher, *proc: str) -> str | None:
    """Run the launcher in a sandbox of its own; what it complains of, if it does."""
    program = filter_program("restricted", platform.machine())
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    try:
        os.write(fd, program)
        os.lseek(fd, 0, os.SEEK_SET)
        arguments = ["--seccomp", str(fd), "--die-with-parent", "--ro-bind", "/", "/"]
        arguments += ["--dev", "/dev", *_NAMESPACES, *proc, "--cap-drop", "ALL"]
        if "--disable-userns" in launcher.options:
            arguments.append("--disable-userns")
        done = subprocess.run(
            [launcher.path, *arguments, "--", launcher.path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[fd],
            env={},
            cwd="/",
            timeout=_PROBE_LIMIT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        os.close(fd)
    if done.returncode == 0:
        return None
    return done.stderr.decode("utf-8", "replace").strip() or f"bwrap: status {done.returncode}"


def _gaps() -> tuple[str, ...]:
    gaps = [
        "existing FIFOs that can be seen can be written to (Landlock is not applied)",
        "with the network enabled, sockets of other programs that can be seen can be used",
        "files that come to match a denied pattern after the start can be read",
        "hard links inside a writable folder reach the protected file behind them",
    ]
    if os.geteuid() == 0:
        gaps.append("the server runs as root: run it as an ordinary user")
    return tuple(gaps)


def _advice(complaint: str, proc: Path) -> str:
    """What most likely keeps a user from making namespaces, by what the kernel tells."""
    if _setting(proc, "user/max_user_namespaces") == "0":
        return "user namespaces are switched off: set the sysctl user.max_user_namespaces above 0"
    if "ENOSPC" in complaint:
        return (
            "there are too many namespaces, or too many inside of each other: raise the sysctl"
            " user.max_user_namespaces, or do not run the server in a sandbox itself"
        )
    if _setting(proc, "kernel/unprivileged_userns_clone") == "0":
        return "set the sysctl kernel.unprivileged_userns_clone to 1"
    if _setting(proc, "kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor restricts user namespaces: install its profile for bwrap, or set the"
            " sysctl kernel.apparmor_restrict_unprivileged_userns to 0"
        )
    try:
        status = (proc / "self/status").read_text()
    except OSError:
        status = ""
    if "\nSeccomp:\t2" in status:
        return (
            "a container's filter seems to forbid namespaces: start it with"
            " `--security-opt seccomp=unconfined` or a filter that allows them"
            " (and `--security-opt systempaths=unconfined` for /proc)"
        )
    return "user namespaces cannot be made here"


def _setting(proc: Path, name: str) -> str | None:
    try:
        return (proc / "sys" / name).read_text().strip()
    except OSError:
        return None

"""
Probes which isolation this machine supports, by building a sandbox.

A profile is enforced wholly or refused: no command runs with less isolation than requested. So
there are three levels only. The result names the level, its gaps, and what to change to get a
higher one.
"""

import fcntl
import os
import platform
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from holdfast.engine.linux.device_nodes import may_make_devices, need_devices
from holdfast.engine.linux.memory_files import data_file
from holdfast.engine.linux.mount_namespace import MountNamespace, mounts_are_private
from holdfast.engine.linux.syscall_numbers import MACHINES
from holdfast.engine.sandbox.bubblewrap.binary import Launcher, find_launcher
from holdfast.engine.sandbox.bubblewrap.filter import filter_program
from holdfast.engine.sandbox.bubblewrap.gaps import machine_gaps
from holdfast.engine.sandbox.bubblewrap.init_program import (
    END_SIZE,
    INIT_PATH,
    ended,
    make_init_program,
)
from holdfast.engine.sandbox.bubblewrap.landlock import landlock_abi, ruleset
from holdfast.engine.sandbox.enforcer import IsolationLevel, SandboxSupport
from holdfast.engine.sandbox.policy.exhausted import raise_exhausted
from holdfast.engine.sandbox.policy.policy import Policy

__all__ = ["BubblewrapSupport", "probe_support", "writable_settings"]

# Seconds for one trial, which takes some hundredths of a second.
_PROBE_LIMIT = 10.0

# The init program uses the descriptors below this for itself.
_LOWEST_FD = 10

# All namespaces of a sandbox without network.
_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
)

# A new procfs, or an empty directory where a container's masked `/proc` forbids one.
_PROC = ("--proc", "/proc")
_NO_PROC = ("--tmpfs", "/proc")


class BubblewrapSupport(SandboxSupport, frozen=True, kw_only=True):
    """Isolation that bubblewrap can build here; `gaps.policy_gaps` has the gaps of a profile."""

    launcher: Launcher | None = None
    landlock_abi: int = 0
    """Landlock ABI that is applied; 0 if the kernel has no Landlock, or it does not work."""
    listens: bool = False
    """True if seccomp notifications report attempts to reach the network."""
    settings: tuple[str, ...] = ()
    """Paths in `/proc`, besides `/proc/sys`, with which this user could change the machine."""
    own_devices: bool = False
    """True if sandboxes need separate device nodes, and these can be created."""
    own_mounts: bool = False
    """True if sandboxes can be started in a private mount namespace, as root can."""
    read_only_proc: bool = False
    """True if all of `/proc` has to be read-only, since its files belong to this user."""


class _Trial(NamedTuple):
    """Features of a sandbox to try."""

    launcher: Launcher
    proc: tuple[str, str] = _PROC
    landlock_abi: int = 0
    listens: bool = False


def probe_support(environ: Mapping[str, str] | None = None) -> BubblewrapSupport:
    """
    Return the isolation that works here; takes some hundredths of a second.

    Raises:
        OSError: This process has no descriptor or no memory left.
    """
    # Try everything first: that works on most machines, so that one trial is enough.
    if platform.machine() not in MACHINES:
        problem = f"no filter of system calls is known for {platform.machine()}"
        return BubblewrapSupport(isolation=IsolationLevel.NONE, problem=problem)
    launcher = find_launcher(environ)
    if not isinstance(launcher, Launcher):
        return BubblewrapSupport(isolation=IsolationLevel.NONE, problem=launcher)
    best = _Trial(launcher, landlock_abi=landlock_abi(), listens=True)
    if _try(best) is None:
        return _supported(IsolationLevel.FULL, best)
    plain = _Trial(launcher)
    complaint = _try(plain)
    if complaint is None:
        return _supported(IsolationLevel.FULL, _improved(plain, best))
    without = plain._replace(proc=_NO_PROC)
    # If this works, mounting `/proc` failed, and `complaint` says why.
    if _try(without) is None:
        return _supported(
            IsolationLevel.WITHOUT_PROC,
            _improved(without, best),
            f"{complaint}; a container needs an unmasked /proc for more",
        )
    problem = f"{complaint}; {_advice(complaint, Path('/proc'))}"
    return BubblewrapSupport(isolation=IsolationLevel.NONE, launcher=launcher, problem=problem)


def _improved(trial: _Trial, best: _Trial) -> _Trial:
    """Return the trial with Landlock and notifications added, each if it works."""
    if _try(better := trial._replace(landlock_abi=best.landlock_abi)) is None:
        trial = better
    if _try(better := trial._replace(listens=True)) is None:
        trial = better
    return trial


def _supported(
    isolation: IsolationLevel, trial: _Trial, problem: str | None = None
) -> BubblewrapSupport:
    root = os.geteuid() == 0
    own_mounts = root and _may_make_namespace()
    gaps = machine_gaps(
        trial.landlock_abi,
        root=root,
        shared_mounts=not own_mounts and not mounts_are_private(),
    )
    if isolation is IsolationLevel.WITHOUT_PROC:
        gaps = (*gaps, "programs that need /proc may fail: it is empty")
    # Only root needs separate nodes, and root in a container may not create them.
    own_devices = need_devices() and may_make_devices()
    if need_devices() and not own_devices:
        gaps = (*gaps, "the mode and times of the machine's /dev/null and alike can be changed")
    return BubblewrapSupport(
        isolation=isolation,
        enforced_by=f"bubblewrap {trial.launcher.version}",
        launcher=trial.launcher,
        landlock_abi=trial.landlock_abi,
        listens=trial.listens,
        settings=() if _owns_settings() else writable_settings(),
        own_devices=own_devices,
        own_mounts=own_mounts,
        read_only_proc=_owns_settings(),
        problem=problem,
        gaps=gaps,
    )


def _may_make_namespace() -> bool:
    """Try to make a mount namespace and return True on success: root in a container may not."""
    try:
        MountNamespace()
    except OSError as error:
        raise_exhausted(error)
        return False
    return True


def _try(trial: _Trial) -> str | None:
    """Run `bwrap --version` in a sandbox; return None on success, or the error text."""
    machine, launcher = platform.machine(), trial.launcher
    with ExitStack() as stack:
        # SOCK_SEQPACKET keeps messages apart, as for a real command.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(ours.close)
        stack.callback(theirs.close)
        # Moved up, out of the range that the init program uses for itself.
        report = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
        stack.callback(os.close, report)
        this_process = os.pidfd_open(os.getpid())
        stack.callback(os.close, this_process)
        owner = fcntl.fcntl(this_process, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
        stack.callback(os.close, owner)
        init_program = make_init_program(
            machine,
            program=launcher.path,
            argv=[launcher.path, "--version"],
            report=report,
            owner=owner,
            filter_program=filter_program("restricted", machine, notifies=trial.listens),
            listen=trial.listens,
            landlock=ruleset(Policy(full_write=False), trial.landlock_abi),
        )
        file = data_file(init_program)
        stack.callback(os.close, file)
        # Nearly the options of a command, since any of them may fail here.
        arguments = ["--as-pid-1", *_NAMESPACES, "--cap-drop", "ALL"]
        arguments += ["--ro-bind", "/", "/", "--dev", "/dev", *trial.proc]
        arguments += ["--perms", "0500", "--file", str(file), INIT_PATH]
        if "--disable-userns" in launcher.options:
            arguments.append("--disable-userns")
        try:
            done = subprocess.run(
                [launcher.path, *arguments, "--", INIT_PATH],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=[file, report, owner],
                # The server's environment must not affect the result.
                env={},
                cwd="/",
                timeout=_PROBE_LIMIT,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            # A lack of descriptors says nothing about the machine, and is not remembered.
            raise_exhausted(error)
            return str(error)
        # Not by bubblewrap's exit status: a subreaper in this process may have reaped it.
        if _ended_well(ours):
            return None
    return done.stderr.decode("utf-8", "replace").strip() or f"bwrap: status {done.returncode}"


def _ended_well(report: socket.socket) -> bool:
    """Return True if the last message of PID 1 is that its command exited with status 0."""
    # bubblewrap has exited, so all messages are in the socket.
    report.setblocking(False)
    last = b""
    with suppress(BlockingIOError, ConnectionResetError):
        while said := report.recv(END_SIZE):
            last = said
    return len(last) == END_SIZE and ended(last) == (os.CLD_EXITED, 0)


def _advice(complaint: str, proc: Path) -> str:
    """Return the most likely reason why namespaces cannot be made, by the kernel's settings."""
    # From the most certain reason to the most likely one.
    if _setting(proc, "user/max_user_namespaces") == "0":
        return "user namespaces are switched off: set the sysctl user.max_user_namespaces above 0"
    # The kernel reports its limits on namespaces, number and depth, as ENOSPC.
    if "ENOSPC" in complaint:
        return (
            "there are too many namespaces, or they are nested too deeply: raise the sysctl"
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
    # 2 is SECCOMP_MODE_FILTER: this process runs under a filter, as in Docker.
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


# Entries of `/proc` that bubblewrap makes read-only in every sandbox, and `pressure`, which is
# writable for everybody: a write only asks for notifications.
_COVERED = frozenset({"sys", "sysrq-trigger", "irq", "bus", "pressure"})


def writable_settings(proc: str = "/proc") -> tuple[str, ...]:
    """
    Return the entries of `/proc` with files that this user may write, without capabilities.

    Which entries exist depends on the build of the kernel; as a rule all belong to root.
    """
    try:
        names = sorted(os.listdir(proc))
    except OSError:
        # No `/proc` is mounted.
        return ()
    found: list[str] = []
    for name in names:
        path = f"{proc}/{name}"
        # Processes have their own rules, and links such as `self` lead to them.
        if name.isdigit() or name in _COVERED or os.path.islink(path):
            continue
        if any(map(_is_writable, _files_below(path))):
            found.append(path)
    return tuple(found)


def _owns_settings(proc: str = "/proc") -> bool:
    """
    Return True if the kernel's files in `/proc` belong to this user, as they do to root.

    Their owner may change their modes, and a change in one `/proc` shows in all of them.
    """
    try:
        return os.stat(f"{proc}/version").st_uid == os.geteuid()
    except OSError:
        return False


def _is_writable(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        # It belonged to a process that has ended.
        return False
    # By the mode, not by `access`: root's capabilities are gone inside of a sandbox.
    mine = status.st_uid == os.geteuid() and status.st_mode & stat.S_IWUSR
    return bool(mine or status.st_mode & stat.S_IWOTH)


def _files_below(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
    for folder, _, names in os.walk(path):
        yield from (f"{folder}/{name}" for name in names)

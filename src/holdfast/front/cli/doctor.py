"""`holdfast doctor`: shows what this machine has and can enforce, and what to change."""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from holdfast.base.errors import InvalidConfig
from holdfast.base.version import __version__
from holdfast.engine.linux.syscall_numbers import MACHINES
from holdfast.engine.process.limits.cgroup_discovery import CgroupLocation, find_cgroup_location
from holdfast.engine.sandbox.bubblewrap.landlock import OLDEST_ABI
from holdfast.engine.sandbox.bubblewrap.support import BubblewrapSupport, probe_support
from holdfast.engine.sandbox.enforcer import IsolationLevel
from holdfast.environments.config.config_file import FILE_NAME
from holdfast.environments.config.home import holdfast_home
from holdfast.environments.config.providers import FileProvider
from holdfast.front.cli.exit_status import text_with_advice
from holdfast.front.cli.table import aligned

__all__ = ["Finding", "doctor", "findings"]

# `missing` is optional, `failed` should be fixed.
Standing: TypeAlias = Literal["ok", "warning", "missing", "failed"]

# Seconds for ssh to print its version.
_SSH_LIMIT = 5.0

# Names for the cgroup controllers.
_LIMITED = {"memory": "memory", "pids": "processes"}


class Finding(NamedTuple):
    """Result of a check."""

    name: str
    standing: Standing
    detail: str


def doctor(options: argparse.Namespace) -> int:
    """Run and print all checks; return 1 if no sandbox can be enforced."""
    # First, since the probe of the sandbox leaves processes in this cgroup for a moment.
    location = find_cgroup_location(os.getpid())
    support = probe_support()
    found = list(findings(support, location))
    enforceable = support.isolation is not IsolationLevel.NONE
    if options.json:
        facts = {
            "version": __version__,
            "findings": [one._asdict() for one in found],
            "sandbox": {
                "enforceable": enforceable,
                "isolation": support.isolation.value,
                "problem": support.problem,
                "gaps": list(support.gaps),
            },
        }
        print(json.dumps(facts, indent=2))
    else:
        print("\n".join(aligned(["CHECK", "STATE", "DETAIL"], found)))
    return 0 if enforceable else 1


def findings(support: BubblewrapSupport, location: CgroupLocation) -> Iterator[Finding]:
    """Yield the results of all checks, and the gaps that a working sandbox leaves."""
    yield Finding("holdfast", "ok", __version__)
    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield _platform()
    yield from _isolation(support)
    yield _cgroup(location)
    yield _ssh()
    yield _uvloop()
    yield from _home(holdfast_home(os.environ))


def _platform() -> Finding:
    known = sys.platform == "linux" and platform.machine() in MACHINES
    detail = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if not known:
        detail += f": sandboxes need Linux on {' or '.join(sorted(MACHINES))}"
    return Finding("platform", "ok" if known else "failed", detail)


def _isolation(support: BubblewrapSupport) -> Iterator[Finding]:
    launcher, works = support.launcher, support.isolation is not IsolationLevel.NONE
    problem = support.problem or ""
    if launcher is None:
        yield Finding("bubblewrap", "failed", _with_remedy(problem))
    else:
        yield Finding("bubblewrap", "ok", f"{launcher.version}, {launcher.path}")
    if works:
        yield Finding("user namespaces", "ok", "can be created")
        tell = "can" if support.listens else "cannot"
        yield Finding("seccomp", "ok", f"filters work, and {tell} report network attempts")
    elif launcher is not None:
        yield Finding("user namespaces", "failed", problem)
    if not works and not Path("/proc/sys/kernel/seccomp/actions_avail").exists():
        yield Finding("seccomp", "failed", "this kernel has no filters for system calls")
    if support.landlock_abi >= OLDEST_ABI:
        yield Finding("landlock", "ok", f"ABI {support.landlock_abi}, applied")
    else:
        yield Finding("landlock", "missing", "not in this kernel, off, or older than ABI 2")
    if support.isolation is IsolationLevel.FULL:
        yield Finding("sandbox", "ok", f"profiles are enforced, isolation {support.isolation}")
    elif works:
        yield Finding("sandbox", "warning", f"isolation {support.isolation}: {problem}")
    else:
        yield Finding("sandbox", "failed", "no profile can be enforced: each is refused")
    for gap in support.gaps:
        # Shown even if all is well: users should know what a sandbox does not stop.
        yield Finding("not stopped", "warning", gap)


def _with_remedy(problem: str) -> str:
    # apt-get means Debian or Ubuntu, whose package name is known.
    if "not installed" in problem and shutil.which("apt-get"):
        return f"{problem} (apt-get install bubblewrap)"
    return problem


def _cgroup(location: CgroupLocation) -> Finding:
    """Check which limits apply to a whole command of a server started like this."""
    names = [_LIMITED[name] for name in location.controllers]
    if not names:
        detail = f"limits hold for each process separately: {location.problem}; {location.advice}"
        return Finding("cgroup", "missing", detail)
    detail = f"{' and '.join(names)} can be limited for a whole command, in {location.folder}"
    if location.problem:
        return Finding("cgroup", "warning", f"{detail}; {location.problem}; {location.advice}")
    return Finding("cgroup", "ok", detail)


def _ssh() -> Finding:
    path = shutil.which("ssh")
    if path is None:
        return Finding("ssh", "missing", "no client: ssh:// hosts cannot be reached")
    try:
        done = subprocess.run(
            [path, "-V"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SSH_LIMIT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("ssh", "warning", f"{path} cannot be run: {error}")
    return Finding("ssh", "ok", f"{(done.stderr or done.stdout).strip()}, {path}")


def _uvloop() -> Finding:
    try:
        return Finding("uvloop", "ok", importlib.metadata.version("uvloop"))
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "uvloop", "ok", "not installed: asyncio's event loop is used, which is slightly slower"
        )


def _home(home: Path) -> Iterator[Finding]:
    if not home.exists():
        yield Finding("home", "ok", f"{home}, created when first needed")
        return
    if not os.access(home, os.R_OK | os.X_OK):
        yield Finding("home", "failed", f"{home} cannot be read")
        return
    yield Finding("home", "ok", str(home))
    path = home / FILE_NAME
    if not path.exists():
        yield Finding(FILE_NAME, "ok", "does not exist: this machine is the only environment")
        return
    try:
        names = FileProvider(path).snapshot().ids
    except InvalidConfig as error:
        yield Finding(FILE_NAME, "failed", text_with_advice(error))
    else:
        yield Finding(FILE_NAME, "ok", f"{len(names)} environments: {', '.join(names)}")

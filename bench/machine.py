"""Facts that figures depend on: machine and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["facts"]

_PACKAGES = ("holdfast-exec", "picows", "uvloop", "msgspec", "pybase64")
_PEERS = ("swe-rex", "openai-agents")
_PRINT_VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def facts(codex: Sequence[str] | None, peers: str | None) -> dict[str, str]:
    """
    Describe this machine and what is measured on it.

    Args:
        codex: The argv that prints the version of the real server, or None without one.
        peers: The interpreter that has the packages of Holdfast's peers, or None.
    """
    found = {
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1024**3:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["codex"] = _version(codex) if codex is not None else "not given"
    if peers is not None:
        for package in _PEERS:
            found[package] = _version([peers, "-c", _PRINT_VERSION, package])
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(argv: Sequence[str]) -> str:
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return ended.stdout.strip()

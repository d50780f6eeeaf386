"""
The versions of the real Codex that are here, and which test runs with which.

`CODEX_BINS` names the programs, separated by colons; `scripts/test` sets it. Without it,
`CODEX_BIN` names the only one. Tests whose subject is the real Codex run with every version, by a
parameter. Others, to which it is one server of several, run with one version: the same in every
run, and another for the next test.
"""

import os
import subprocess
import zlib

import pytest

__all__ = ["VERSIONS", "choose", "chosen", "codex", "each_version"]


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


# Asked for once: tests of a module may replace the variables of this process.
_PROGRAMS = {
    _version(program): program
    for program in (os.environ.get("CODEX_BINS") or os.environ.get("CODEX_BIN", "")).split(":")
    if program
}

VERSIONS = tuple(_PROGRAMS)
"""The versions that are here, the one that Holdfast follows first."""

_chosen = VERSIONS[0] if VERSIONS else ""


def choose(item: pytest.Item) -> None:
    """Choose the version of a test: the one among its parameters, or the one whose turn it is."""
    global _chosen
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = [value for value in values if value in VERSIONS]
    _chosen = named[0] if named else VERSIONS[zlib.crc32(item.name.encode()) % len(VERSIONS)]


def codex(version: str | None = None) -> str:
    """Return the program of a version, by default of the one that the current test runs with."""
    return _PROGRAMS[version or _chosen]


def chosen() -> str:
    """Return the version that the current test runs with."""
    return _chosen


def each_version() -> list[object]:
    """Return parameters for a fixture that is a real Codex: one for each version."""
    return [pytest.param(version, marks=pytest.mark.real) for version in VERSIONS or ("codex",)]

"""
The first command on a host: starts the right `holdfast`, or reports why it cannot.

It is a script for `sh`, so that it runs without Python, and is passed as one argument. The user
may have any shell; all agree on text in single quotes. The script therefore contains no single
quotes, newlines or exclamation marks.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.environments.ssh.address import PRIVATE_FOLDER
from holdfast.wire.transports.handover import MARK

__all__ = [
    "MARK",
    "Gone",
    "Missing",
    "Once",
    "ProgramReady",
    "Report",
    "ServerKept",
    "launch_line",
    "read_report",
    "removal_line",
]

# A path that every shell takes literally.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._-]+")

_TOKEN = re.compile(r"[0-9a-f]+")

_ABOUT = (
    "import sys, sysconfig; v = sys.version_info;"
    ' print("%d.%d.%d" % v[:3], sysconfig.get_config_var("SOABI"), sep="\\t");'
    " sys.exit(v < (3, 11))"
)

_LAUNCH = """
d="$HOME/{folder}/{version}/bin/holdfast";
if [ -x "$d" ]; then p=$d;
else p=$(command -v holdfast 2>/dev/null);
if [ "$("${{p:-false}}" --version 2>/dev/null)" = "holdfast {version}" ]; then :; else p=; fi;
fi;
if [ -n "$p" ]; then printf "\\n{mark}ready\\t%s\\n" "$p"; {run} fi;
old=;
for n in python3 python3.11 python3.12 python3.13 python3.14 python3.15; do
p=$(command -v $n 2>/dev/null) || continue;
if a=$("$p" -I -c "{about}" 2>/dev/null); then
printf "\\n{mark}missing\\t%s\\t%s\\t%s\\t%s\\n" "$(uname -sm)" "$HOME" "$p" "$a"; exit 3;
fi;
if [ -z "$old" ]; then old="$p is $("$p" --version 2>&1)"; fi;
done;
printf "\\n{mark}missing\\t%s\\t%s\\t\\t%s\\n" "$(uname -sm)" "$HOME" "$old"; exit 3
"""

_RUN = 'exec "$p" "$@";'

# An older `holdfast` without `--keep` exits with status 2 before it reads anything.
_RUN_KEPT = """
"$p" "$@" --keep; s=$?;
if [ $s -ne 2 ]; then exit $s; fi;
printf "\\n{mark}once\\n"; exec "$p" "$@";
"""

_REMOVE = """
d="$HOME/{folder}";
if [ -d "$d" ]; then rm -rf "$d" && rmdir "$HOME/{parent}" 2>/dev/null;
if [ -d "$d" ]; then exit 1; fi; printf "\\n{mark}removed\\t%s\\n" "$d";
else printf "\\n{mark}nothing\\t%s\\n" "$d"; fi
"""


@dataclass(frozen=True, slots=True)
class ProgramReady:
    """Report that the program has started."""

    program: str
    """Path of the program."""


@dataclass(frozen=True, slots=True)
class ServerKept:
    """Report that the server outlives the connection."""

    folder: str
    """Directory in which the next connection can find the server."""
    token: str
    """Token that the next connection must send first."""


@dataclass(frozen=True, slots=True)
class Once:
    """Report that the server ends with the connection, being too old to outlive it."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Report that the server of the previous connection cannot be reached."""

    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Report that the host lacks `holdfast` in the requested version."""

    system: str
    """Operating system and machine type."""
    home: str
    """Home of the user on the host."""
    python: str | None
    """Path of a Python that is new enough, or None."""
    about: str
    """Version of that Python; without one, a description of the Python that was found."""
    soabi: str | None = None
    """Its ABI tag for extension modules."""


Report: TypeAlias = ProgramReady | Missing | ServerKept | Once | Gone
"""A line from the host about the server there."""


def launch_line(version: str, arguments: Sequence[str], *, keep: bool = False) -> str:
    """
    Return the command line that starts a `holdfast` of this version with these arguments.

    Args:
        version: The required version, exactly.
        arguments: Of `holdfast`.
        keep: True to make the server outlive the connection, if its version can.
    """
    script = _LAUNCH.format(
        run=_RUN_KEPT.format(mark=MARK) if keep else _RUN,
        folder=PRIVATE_FOLDER,
        version=version,
        mark=MARK,
        about=_ABOUT.replace("\\", "\\\\").replace('"', '\\"'),
    )
    # The second `sh` is `$0` of the script.
    return shlex.join(["sh", "-c", _one_line(script), "sh", *arguments])


def removal_line() -> str:
    """Return the command line that removes everything installed for this user."""
    parent = PRIVATE_FOLDER.rpartition("/")[0]
    script = _REMOVE.format(folder=PRIVATE_FOLDER, parent=parent, mark=MARK)
    return shlex.join(["sh", "-c", _one_line(script)])


def read_report(line: str) -> Report | None:
    """Parse the rest of a line after the mark; None if malformed."""
    match line.removeprefix(MARK).split("\t"):
        case ["ready", program]:
            return ProgramReady(program)
        case ["kept", folder, token] if _PLAIN_PATH.fullmatch(folder) and _TOKEN.fullmatch(token):
            return ServerKept(folder, token)
        case ["once"]:
            return Once()
        case ["gone", why]:
            return Gone(why)
        case ["missing", system, home, "", about]:
            return Missing(system, home, None, about)
        case ["missing", system, home, python, version, soabi]:
            return Missing(system, home, python, version, soabi)
    return None


def _one_line(script: str) -> str:
    return " ".join(script.split("\n")).strip()

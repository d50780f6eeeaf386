"""
What is asked of a host first: start the right `holdfast`, or tell what there is instead.

It is a script for `sh`, so that it runs where there is no Python, and it travels as
one argument: the shell of a user may be any, and all of them agree on text in single
quotes. So there are no single quotes in it, no newlines and no exclamation marks.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.environments.ssh.address import PRIVATE_FOLDER
from holdfast.transports.handover import MARK

__all__ = [
    "MARK",
    "Gone",
    "Kept",
    "Missing",
    "Once",
    "Ready",
    "Report",
    "launch_line",
    "read_report",
    "removal_line",
]

# A path that means the same to every shell.
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

# An older `holdfast` does not know the option, and ends with status 2 before it reads anything.
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
class Ready:
    """It has started."""

    program: str
    """Which one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Its server outlives the connection."""

    folder: str
    """The folder in which the next connection finds the server."""
    token: str
    """The token that the next connection has to send first."""


@dataclass(frozen=True, slots=True)
class Once:
    """Its server ends with the connection, since it is too old for more."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The server that was started before cannot be reached."""

    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """There is none of the version that is wanted."""

    system: str
    """Kind of system and of processor."""
    home: str
    """Of the user there."""
    python: str | None
    """One that is new enough, if there is any."""
    about: str
    """The version of that one; else what is there instead, if anything."""
    soabi: str | None = None
    """What modules it can load that are not written in Python."""


Report: TypeAlias = Ready | Missing | Kept | Once | Gone
"""One line of a host about the server there."""


def launch_line(version: str, arguments: Sequence[str], *, keep: bool = False) -> str:
    """
    Return the command line that starts a `holdfast` of this version with these arguments.

    Args:
        version: The only one that will do.
        arguments: Of `holdfast`.
        keep: Add the option that has the server outlive the connection, if it is known there.
    """
    script = _LAUNCH.format(
        run=_RUN_KEPT.format(mark=MARK) if keep else _RUN,
        folder=PRIVATE_FOLDER,
        version=version,
        mark=MARK,
        about=_ABOUT.replace("\\", "\\\\").replace('"', '\\"'),
    )
    return shlex.join(["sh", "-c", _one_line(script), "sh", *arguments])


def removal_line() -> str:
    """The command line that takes away everything that was installed for this user."""
    parent = PRIVATE_FOLDER.rpartition("/")[0]
    script = _REMOVE.format(folder=PRIVATE_FOLDER, parent=parent, mark=MARK)
    return shlex.join(["sh", "-c", _one_line(script)])


def read_report(line: str) -> Report | None:
    """Return what the line after the mark says; None if it is not as it should be."""
    match line.removeprefix(MARK).split("\t"):
        case ["ready", program]:
            return Ready(program)
        case ["kept", folder, token] if _PLAIN_PATH.fullmatch(folder) and _TOKEN.fullmatch(token):
            return Kept(folder, token)
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

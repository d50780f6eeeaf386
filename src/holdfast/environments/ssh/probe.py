"""
What is asked of a host first: start the right `holdfast`, or tell what there is instead.

It is a script for `sh`, so that it runs where there is no Python, and it travels as
one argument: the shell of a user may be any, and all of them agree on text in single
quotes. So there are no single quotes in it, no newlines and no exclamation marks.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.environments.ssh.address import PRIVATE_FOLDER

__all__ = ["MARK", "Missing", "Ready", "launch_line", "read_report", "removal_line"]

MARK = "@holdfast "
"""Begins the one line that is for us; start-up files of a shell may print others before it."""

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
if [ -n "$p" ]; then printf "\\n{mark}ready\\t%s\\n" "$p"; exec "$p" "$@"; fi;
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


def launch_line(version: str, arguments: Sequence[str]) -> str:
    """The command line that starts a `holdfast` of this version with these arguments."""
    script = _LAUNCH.format(
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


def read_report(line: str) -> Ready | Missing | None:
    """What the line after the mark says; nothing if it is not as it should be."""
    match line.removeprefix(MARK).split("\t"):
        case ["ready", program]:
            return Ready(program)
        case ["missing", system, home, "", about]:
            return Missing(system, home, None, about)
        case ["missing", system, home, python, version, soabi]:
            return Missing(system, home, python, version, soabi)
    return None


def _one_line(script: str) -> str:
    return " ".join(script.split("\n")).strip()

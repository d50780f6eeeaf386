"""
Lines of the audit log: one type for each kind of event.

Fields that are None are left out. The caller bounds every text of a client by `clip`.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.wire.log_event import clip

__all__ = [
    "AuditLine",
    "CallLine",
    "CommandLine",
    "DenialLine",
    "ExitLine",
    "FileLine",
    "LostLine",
    "RefusalLine",
    "ReloadLine",
    "SessionLine",
    "bounded",
]


class AuditLine(
    msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", tag_field="event"
):
    """One line, without its time; `event` is the tag of its type."""


class LostLine(AuditLine, kw_only=True, tag="lost"):
    """Lines before this one could not be written."""

    count: int
    reason: str


class RefusalLine(AuditLine, kw_only=True, tag="refused"):
    """A client was not let in."""

    address: str
    status: int
    reason: str
    skipped: int = 0
    """Refusals since the line before, which have none of their own."""


class ReloadLine(AuditLine, kw_only=True, tag="reload"):
    """The files of the server were read again."""

    changed: Sequence[str]
    restart: Sequence[str]
    """Options that changed in the config file, and need a restart."""
    problems: Sequence[str]


class _OfSession(AuditLine, kw_only=True):
    """A line about a session; it begins with whose it is."""

    principal: str
    session: str


class SessionLine(_OfSession, kw_only=True, tag="session"):
    """A session was opened, resumed or ended."""

    state: Literal["opened", "resumed", "ended"]
    peer: str | None = None
    client: str | None = None
    """The name that the client gave itself."""
    reason: str | None = None
    killed: int | None = None
    """The number of processes that ended with it."""


class CommandLine(_OfSession, kw_only=True, tag="command"):
    """A command was started, or could not be."""

    process: str
    pid: int | None = None
    argv: Sequence[str]
    argv_count: int | None = None
    """The number of arguments, if not all are shown."""
    arg0: str | None = None
    cwd: str
    tty: bool
    sandbox: str | None = None
    network: str
    error: str | None = None


class ExitLine(_OfSession, kw_only=True, tag="exit"):
    """A command ended."""

    process: str
    pid: int | None = None
    verdict: str
    exit_code: int | None = None
    signal: int | None = None
    limit: str | None = None
    denied: str | None = None
    seconds: float
    output_bytes: int


class DenialLine(_OfSession, kw_only=True, tag="network"):
    """A sandbox denied a command the network."""

    decision: str
    process: str
    pid: int | None = None
    program: str | None = None
    family: str | None = None
    kind: str | None = None


class CallLine(_OfSession, kw_only=True, tag="network"):
    """The server made an HTTP call for a client, or refused to."""

    decision: str
    method: str
    target: str
    status: int | None = None
    error: str | None = None


class FileLine(_OfSession, kw_only=True, tag="file"):
    """A client wrote, made, copied or removed a file, or opened one to write it."""

    operation: str
    path: str
    source: str | None = None
    bytes: int | None = None
    sandboxed: bool
    error: str | None = None


# Characters of one argument or path; longer ones are cut.
_LONGEST_TEXT = 1024

# Arguments of one command that are shown; further ones are only counted.
_MOST_ARGUMENTS = 64

# Characters of all arguments of one command together.
_MOST_COMMAND = 16 << 10


def bounded(argv: Sequence[str]) -> tuple[Sequence[str], int, int | None]:
    """Return the arguments that fit into a line, their size, and their number if cut."""
    # The usual case is quick: nothing is cut, and nothing is copied.
    size = sum(map(len, argv))
    if size <= _LONGEST_TEXT and len(argv) <= _MOST_ARGUMENTS:
        return argv, size, None
    shown: list[str] = []
    room = _MOST_COMMAND
    for argument in argv[:_MOST_ARGUMENTS]:
        text = clip(argument, _LONGEST_TEXT)
        if len(text) > room:
            break
        room -= len(text)
        shown.append(text)
    return shown, _MOST_COMMAND - room, len(argv)

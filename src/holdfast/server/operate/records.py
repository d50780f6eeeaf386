"""
Records of events on a server, one type per kind.

The audit log has each record as a line with all its fields. The log has some records as messages
with some of the fields. The caller bounds all texts of a client with `clip`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from holdfast.wire.log_event import LogEvent, clip

if TYPE_CHECKING:
    from holdfast.server.operate.audit import AuditLog

__all__ = [
    "CallRecord",
    "CommandRecord",
    "DenialRecord",
    "ExitRecord",
    "FileRecord",
    "LostRecord",
    "Record",
    "Records",
    "RefusalRecord",
    "ReloadRecord",
    "SessionRecord",
    "bounded",
]

logger = logging.getLogger(__name__)


class Record(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", tag_field="event"):
    """An event on a server, without its time; in the audit log, `event` is the tag of its type."""

    shown: ClassVar[tuple[str, ...]] = ()
    """Fields of the message in the log; empty if only the audit log has the record."""

    @property
    def text(self) -> str:
        """Text of the message in the log."""
        return ""

    def message(self, more: Mapping[str, str]) -> LogEvent:
        """Return the message for the log; `more` has additional fields."""
        event = LogEvent(self.text)
        for name in self.shown:
            value = more[name] if name in more else getattr(self, name)
            # The audit log allows longer paths and arguments.
            event.fields[name] = clip(value) if type(value) is str else value
        return event


class LostRecord(Record, kw_only=True, tag="lost"):
    """Lines before this one could not be written."""

    count: int
    reason: str


class RefusalRecord(Record, kw_only=True, tag="refused"):
    """A client was refused."""

    address: str
    status: int
    reason: str
    skipped: int = 0
    """Refusals since the previous line that have no line."""


class ReloadRecord(Record, kw_only=True, tag="reload"):
    """The files of the server were reloaded."""

    changed: Sequence[str]
    restart: Sequence[str]
    """Options changed in the config file that need a restart."""
    problems: Sequence[str]


class _OfSession(Record, kw_only=True):
    """A record about a session, which begins with its owner."""

    principal: str
    session: str


class SessionRecord(_OfSession, kw_only=True, tag="session"):
    """A session was opened, resumed or ended."""

    shown = ("session", "peer", "client", "reason", "killed", "principal")

    state: Literal["opened", "resumed", "ended"]
    peer: str | None = None
    client: str | None = None
    """The client's name for itself."""
    reason: str | None = None
    killed: int | None = None
    """Number of processes that ended with it."""

    @property
    def text(self) -> str:
        return f"session {self.state}"


class CommandRecord(_OfSession, kw_only=True, tag="command"):
    """A command was started, or failed to start."""

    shown = ("process", "program", "cwd", "sandbox", "pid", "reason", "session", "principal")

    process: str
    pid: int | None = None
    argv: Sequence[str]
    argv_count: int | None = None
    """Number of arguments, if not all are shown."""
    arg0: str | None = None
    cwd: str
    tty: bool
    sandbox: str | None = None
    network: str
    error: str | None = None

    @property
    def text(self) -> str:
        return "process started" if self.error is None else "process not started"

    @property
    def program(self) -> str:
        return self.argv[0] if self.argv else ""

    @property
    def reason(self) -> str | None:
        return self.error


class ExitRecord(_OfSession, kw_only=True, tag="exit"):
    """A command ended."""

    shown = (
        "process",
        "program",
        "verdict",
        "exit_code",
        "signal",
        "limit",
        "denied",
        "seconds",
        "output_bytes",
        "pid",
        "session",
    )

    process: str
    pid: int | None = None
    verdict: str
    exit_code: int | None = None
    signal: int | None = None
    limit: str | None = None
    denied: str | None = None
    seconds: float
    output_bytes: int

    @property
    def text(self) -> str:
        return "process ended"


class DenialRecord(_OfSession, kw_only=True, tag="network"):
    """A sandbox denied a command network access."""

    decision: str
    process: str
    pid: int | None = None
    program: str | None = None
    family: str | None = None
    kind: str | None = None


class CallRecord(_OfSession, kw_only=True, tag="network"):
    """The server made or refused an HTTP call for a client."""

    decision: str
    method: str
    target: str
    status: int | None = None
    error: str | None = None


class FileRecord(_OfSession, kw_only=True, tag="file"):
    """A client wrote, created, copied or removed a file, or opened one for writing."""

    operation: str
    path: str
    source: str | None = None
    bytes: int | None = None
    sandboxed: bool
    error: str | None = None


class Records:
    """Adds records to the log and the audit log of a server."""

    direct: ClassVar[Callable[[float, str, Record, Mapping[str, str]], None] | None] = None
    """
    Takes time, logger, record and the argument of `Record.message`, to be written by a thread.

    Set by a server that writes its own log: a `LogRecord` per process would cost too much.
    """

    def __init__(self, audit: "AuditLog | None" = None) -> None:
        self.audit = audit

    @property
    def are_wanted(self) -> bool:
        """True if either log takes records of commands."""
        return self.audit is not None or logger.isEnabledFor(logging.INFO)

    def add(
        self,
        record: Record,
        *,
        at: float | None = None,
        size: int = 0,
        **more: str,
    ) -> None:
        """
        Add a record to both logs.

        Args:
            record: What happened.
            at: Unix time of the event; now by default.
            size: Characters of fields that can be long, such as a command line.
            more: Additional fields of the message.
        """
        at = time() if at is None else at
        if record.shown and logger.isEnabledFor(logging.INFO):
            direct = Records.direct
            if direct is None:
                logger.info(record.message(more))
            else:
                direct(at, __name__, record, more)
        if self.audit is not None:
            self.audit.write(record, size, at=at)


# Maximum characters of an argument or path; longer ones are cut.
_LONGEST_TEXT = 1024

# Maximum arguments of a command that are shown; further ones are only counted.
_MOST_ARGUMENTS = 64

# Maximum characters of all arguments of a command.
_MOST_COMMAND = 16 << 10


def bounded(argv: Sequence[str]) -> tuple[Sequence[str], int, int | None]:
    """Return the arguments that fit into a line, their size, and their number if cut."""
    # The usual case: nothing to cut or copy.
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

"""
Records of what happens on a server: one type for each kind of event.

The audit log has a record as a line with all of its fields. The log has some of them as a message
with some of the fields. The caller bounds every text of a client by `clip`.
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
    """An event of a server, without its time; in the audit log, `event` is the tag of its type."""

    shown: ClassVar[tuple[str, ...]] = ()
    """Fields of the message in the log; empty for what only the audit log has."""

    @property
    def text(self) -> str:
        """The words of the message in the log."""
        return ""

    def message(self, more: Mapping[str, str]) -> LogEvent:
        """Return the message in the log; `more` has the fields that the record does not have."""
        event = LogEvent(self.text)
        for name in self.shown:
            value = more[name] if name in more else getattr(self, name)
            # Paths and arguments are longer in the audit log.
            event.fields[name] = clip(value) if type(value) is str else value
        return event


class LostRecord(Record, kw_only=True, tag="lost"):
    """Lines before this one could not be written."""

    count: int
    reason: str


class RefusalRecord(Record, kw_only=True, tag="refused"):
    """A client was not let in."""

    address: str
    status: int
    reason: str
    skipped: int = 0
    """Refusals since the line before, which have none of their own."""


class ReloadRecord(Record, kw_only=True, tag="reload"):
    """The files of the server were read again."""

    changed: Sequence[str]
    restart: Sequence[str]
    """Options that changed in the config file, and need a restart."""
    problems: Sequence[str]


class _OfSession(Record, kw_only=True):
    """A record about a session; it begins with whose it is."""

    principal: str
    session: str


class SessionRecord(_OfSession, kw_only=True, tag="session"):
    """A session was opened, resumed or ended."""

    shown = ("session", "peer", "client", "reason", "killed", "principal")

    state: Literal["opened", "resumed", "ended"]
    peer: str | None = None
    client: str | None = None
    """The name that the client gave itself."""
    reason: str | None = None
    killed: int | None = None
    """The number of processes that ended with it."""

    @property
    def text(self) -> str:
        return f"session {self.state}"


class CommandRecord(_OfSession, kw_only=True, tag="command"):
    """A command was started, or could not be."""

    shown = ("process", "program", "cwd", "sandbox", "pid", "reason", "session", "principal")

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
    """A sandbox denied a command the network."""

    decision: str
    process: str
    pid: int | None = None
    program: str | None = None
    family: str | None = None
    kind: str | None = None


class CallRecord(_OfSession, kw_only=True, tag="network"):
    """The server made an HTTP call for a client, or refused to."""

    decision: str
    method: str
    target: str
    status: int | None = None
    error: str | None = None


class FileRecord(_OfSession, kw_only=True, tag="file"):
    """A client wrote, made, copied or removed a file, or opened one to write it."""

    operation: str
    path: str
    source: str | None = None
    bytes: int | None = None
    sandboxed: bool
    error: str | None = None


class Records:
    """The log and the audit log of a server, for what both may have."""

    direct: ClassVar[Callable[[float, str, Record, Mapping[str, str]], None] | None] = None
    """
    Takes time, logger and record, with what `Record.message` takes, for another thread to write.

    A server that writes its own log sets it: a `LogRecord` for each process would cost too much.
    """

    def __init__(self, audit: "AuditLog | None" = None) -> None:
        self.audit = audit

    @property
    def are_wanted(self) -> bool:
        """True if a record of a command has somewhere to go."""
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
            at: When, in seconds since 1970; now by default.
            size: Characters of fields that can be long, such as a command line.
            more: Fields of the message that the record does not have.
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

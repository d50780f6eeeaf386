"""`process/*`: starting, watching and ending processes (docs/protocol.md#process)."""

import signal as signals
from enum import StrEnum
from typing import Any, Literal, get_args

from msgspec import UNSET, UnsetType

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.limits import LARGEST_LIMIT, LIMITS
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext
from holdfast.wire.protocol.wire_types import U64, U64_MAX, Base64, Wire

__all__ = [
    "AckParams",
    "CloseStdinParams",
    "ClosedEvent",
    "EndMarkedParams",
    "EndMarkedResponse",
    "Enforcement",
    "EnvInherit",
    "EnvPolicy",
    "ExitedEvent",
    "HoldParams",
    "ListResponse",
    "NetworkAttempt",
    "OutputChunk",
    "OutputEvent",
    "OutputStream",
    "ProcessLimits",
    "ProcessSummary",
    "ReadParams",
    "ReadResponse",
    "ResizeParams",
    "ShellSnapshotParams",
    "ShellSnapshotShell",
    "SignalParams",
    "StartMetadata",
    "StartParams",
    "StartResponse",
    "StreamEndedEvent",
    "StreamsAtEnd",
    "TerminalSize",
    "TerminateParams",
    "TerminateResponse",
    "ThreadId",
    "WriteIds",
    "WriteParams",
    "WriteResponse",
    "WriteStatus",
    "check_after_seq",
    "check_input",
    "check_read",
    "check_streams",
    "signal_number",
]

OutputStream = Literal["stdout", "stderr", "pty"]
StreamsAtEnd = Literal["close", "keep"]
"""Treatment of the output streams by `terminate`; see `TerminateParams.streams`."""
EnvInherit = Literal["core", "all", "none"]


class ThreadId(str):
    """A UUID in its usual form: lower case, with dashes."""

    # Without this every id would have a `__dict__`.
    __slots__ = ()


class EnvPolicy(Wire, frozen=True, kw_only=True):
    """Selection of the server's variables that a child inherits; all members are required."""

    inherit: EnvInherit
    ignore_default_excludes: bool
    exclude: list[str]
    set: dict[str, str]
    include_only: list[str]


class StartMetadata(Wire, frozen=True, kw_only=True):
    """The caller of a command; becomes two variables of the child."""

    thread_id: ThreadId | None = None
    tool_call_id: str | None = None


class ShellSnapshotShell(Wire, frozen=True, kw_only=True):
    name: str
    path: str


class ShellSnapshotParams(Wire, frozen=True, kw_only=True):
    """A request to source the shell's profile once and to reuse the result."""

    scope_id: str
    shell: ShellSnapshotShell


class TerminalSize(Wire, frozen=True, kw_only=True):
    """Size of a terminal in characters. An extension of Holdfast."""

    rows: U64 = 24
    cols: U64 = 80

    def __post_init__(self) -> None:
        if not (0 < self.rows <= 0xFFFF and 0 < self.cols <= 0xFFFF):
            raise ValueError("terminal size must be between 1 and 65535 rows and columns")


class ProcessLimits(Wire, frozen=True, kw_only=True):
    """Resource limits of a command; None means unlimited. An extension of Holdfast."""

    memory_bytes: U64 | None = None
    """
    Memory of all its processes together, at least 4 MiB; the kernel kills them beyond it.

    Needs a cgroup that is delegated to the server; without one the start is refused.
    """
    address_space_bytes: U64 | None = None
    """Address space of each process: an allocation beyond it fails."""
    cpu_seconds: U64 | None = None
    """Processor time of each process; the kernel kills a process beyond it."""
    processes: U64 | None = None
    """
    Maximum number of processes and threads; starting more fails.

    With a delegated cgroup, the server counts those of the command. Otherwise the kernel counts
    those of the user: in a sandbox only those inside, else all. Root is then not limited.
    """
    open_files: U64 | None = None
    """Open files of each process; at least 16, which a shell needs."""
    output_bytes: U64 | None = None
    """Bytes of output after which it is killed."""
    wall_time_ms: U64 | None = None
    """Milliseconds after which it is killed."""

    def __post_init__(self) -> None:
        for limit in LIMITS:
            value = getattr(self, limit.field)
            if value is None or limit.least <= value <= LARGEST_LIMIT:
                continue
            if 0 < value < limit.least:
                raise ValueError(f"{limit.wire_name} must be at least {limit.least}")
            raise ValueError(f"{limit.wire_name} must be between 1 and {LARGEST_LIMIT}")


class StartParams(Wire, frozen=True, kw_only=True):
    """One process to start."""

    process_id: str
    """The client's own handle; any string, unique within the session."""
    argv: list[str]
    cwd: PathUri
    env: dict[str, str]
    tty: bool
    pipe_stdin: bool = False
    arg0: str | None = None
    env_policy: EnvPolicy | None = None
    metadata: StartMetadata | None = None
    sandbox: SandboxContext | None = None
    enforce_managed_network: bool = False
    managed_network: dict[str, Any] | None = None
    network_proxy: dict[str, Any] | None = None
    shell_snapshot: ShellSnapshotParams | None = None
    terminal_size: TerminalSize | None = None
    """Only with `tty`; by default 24 by 80. An extension of Holdfast."""
    limits: ProcessLimits | None = None
    """An extension of Holdfast."""
    unset: list[str] | UnsetType = UNSET
    """
    Exact names of variables that the child does not get, whatever else sets them.

    An extension of Holdfast, applied last: `envPolicy.exclude` takes patterns and ignores case,
    and `env` overrides it.
    """

    def __post_init__(self) -> None:
        # An invalid name could set another variable, or end the list early.
        for name in () if self.unset is UNSET else self.unset:
            if not name or "=" in name or "\0" in name:
                raise ValueError(
                    f"unset has {name!r}, which is no name of a variable:"
                    " it must not be empty or contain `=` or NUL"
                )


class Enforcement(Wire, frozen=True, kw_only=True):
    """The enforced layers of a sandbox. An extension of Holdfast."""

    isolation: str
    """Level of isolation: `full`, or `withoutProc` where no new `/proc` can be mounted."""
    gaps: tuple[str, ...] = ()
    """Known gaps, for people to read."""


class StartResponse(Wire, frozen=True, kw_only=True):
    process_id: str
    sandbox_type: str = "none"
    enforcement: Enforcement | UnsetType = UNSET
    """Set only if a layer was applied, and only by a Holdfast server."""
    pid: int | UnsetType = UNSET
    """The pid on the server's machine. Only sent by a Holdfast server to a Holdfast client."""


class ReadParams(Wire, frozen=True, kw_only=True):
    process_id: str
    after_seq: U64 | None = None
    max_bytes: U64 | None = None
    wait_ms: U64 | None = None

    def __post_init__(self) -> None:
        for value in (self.after_seq, self.max_bytes, self.wait_ms):
            if value is not None and value > U64_MAX:
                raise ValueError("invalid number")


class OutputChunk(Wire, frozen=True, kw_only=True):
    """Bytes one process wrote, in the order in which the server read them."""

    seq: int
    """Shared by output, exit and close events; starts at 1 and never repeats."""

    stream: OutputStream
    chunk: bytes
    """Raw bytes; base64 on the wire."""


class ReadResponse(Wire, frozen=True, kw_only=True):
    """The retained output after a number, and the state of the process."""

    chunks: list[OutputChunk]
    next_seq: int
    exited: bool
    exit_code: int | None
    closed: bool
    failure: str | None = None
    """Always null on the wire."""
    sandbox_denied: bool | None = False
    exit: "ExitedEvent | UnsetType" = UNSET
    """The exit as it was notified, if any. Only between two Holdfasts."""


class WriteParams(Wire, frozen=True, kw_only=True):
    process_id: str
    chunk: Base64
    write_id: str


class WriteStatus(StrEnum):
    """The outcome of a write; these are results, not errors."""

    ACCEPTED = "accepted"
    UNKNOWN_PROCESS = "unknownProcess"
    STDIN_CLOSED = "stdinClosed"
    STARTING = "starting"


class WriteResponse(Wire, frozen=True, kw_only=True):
    status: WriteStatus


class SignalParams(Wire, frozen=True, kw_only=True):
    process_id: str
    signal: str
    """`interrupt`, or (an extension of Holdfast) a name such as `SIGTERM`."""


class TerminateParams(Wire, frozen=True, kw_only=True, omit_defaults=True):
    process_id: str
    tree: bool = False
    """Also kill descendants in other process groups. An extension of Holdfast."""
    left: bool = False
    """Also kill what an exited process left in its group. An extension of Holdfast."""
    streams: StreamsAtEnd = "close"
    """
    `close` ends the output once the pipes are empty, whatever process still has them open; `keep`
    reads on until their end. An extension of Holdfast.
    """


class TerminateResponse(Wire, frozen=True, kw_only=True):
    running: bool


class OutputEvent(Wire, frozen=True, kw_only=True):
    process_id: str
    seq: int
    stream: OutputStream
    chunk: bytes


class NetworkAttempt(Wire, frozen=True, kw_only=True):
    """A network call that a sandbox refused. An extension of Holdfast."""

    program: str
    """The program that made it, truncated by the kernel; empty if unknown."""
    family: str
    """`IPv4` or `IPv6`."""
    kind: str
    """The type of the socket: `stream`, `datagram`, `raw` or `other`."""

    def __str__(self) -> str:
        who = self.program or "it"
        return f"{who} asked for an {self.family} {self.kind} socket"


class ExitedEvent(Wire, frozen=True, kw_only=True):
    process_id: str
    seq: int
    exit_code: int
    sandbox_denied: bool | None = None
    """Missing only from a server older than the member."""
    denied_because: str | UnsetType = UNSET
    """The reason why a file of the server itself is read-only. An extension of Holdfast."""
    limit: str | UnsetType = UNSET
    """The kind of limit that ended it. An extension of Holdfast."""
    detail: str | UnsetType = UNSET
    """A text for people in addition to the reason. An extension of Holdfast."""
    reason: str | UnsetType = UNSET
    """The cause of the end, in one word. Only between two Holdfasts."""
    signal: int | UnsetType = UNSET
    """The signal that killed it, if one did. Only between two Holdfasts."""
    network_attempts: list[NetworkAttempt] | UnsetType = UNSET
    """Network calls that its sandbox refused. An extension of Holdfast."""


class ClosedEvent(Wire, frozen=True, kw_only=True):
    process_id: str
    seq: int
    left: bool | UnsetType = UNSET
    """False if no process of its group is left. Only between two Holdfasts."""


class StreamEndedEvent(Wire, frozen=True, kw_only=True):
    """One stream has ended. An extension of Holdfast, sent to Holdfast clients only."""

    process_id: str
    stream: OutputStream
    seq: int
    """The number of the last event before it; it has no number itself."""


class EndMarkedParams(Wire, frozen=True, kw_only=True):
    """
    Params of `process/endMarked`, which kills what commands left behind. An extension of Holdfast.

    It finds processes whose variable `HOLDFAST_INVOCATION_ID` has the mark that the client set
    at the start.
    """

    mark: str
    """16 hex digits for all commands of a client; followed by `-N` for one command."""


class EndMarkedResponse(Wire, frozen=True, kw_only=True):
    killed: int
    """The number of processes."""


class HoldParams(Wire, frozen=True, kw_only=True):
    """
    Params of `process/hold`, which pauses or resumes the reading of a process's output.

    An extension of Holdfast. A paused process blocks in `write`. Repeating the current state
    changes nothing.
    """

    process_id: str
    held: bool


class AckParams(Wire, frozen=True, kw_only=True):
    """
    Params of `process/ack`: the client has all events up to this number.

    An extension of Holdfast. Until then the server retains them, even beyond its usual limits.
    """

    process_id: str
    seq: U64


class ResizeParams(Wire, frozen=True, kw_only=True):
    """An extension of Holdfast."""

    process_id: str
    rows: U64
    cols: U64

    def __post_init__(self) -> None:
        # Only checks the bounds.
        TerminalSize(rows=self.rows, cols=self.cols)


class CloseStdinParams(Wire, frozen=True, kw_only=True):
    """An extension of Holdfast."""

    process_id: str


class WaitingForParams(Wire, frozen=True, kw_only=True):
    """An extension of Holdfast."""

    process_id: str


class WaitingForResponse(Wire, frozen=True, kw_only=True):
    """The input that a process waits for, as the kernel shows it."""

    # `line`, `password`, `key`, `none` or `unknown`.
    waiting_for: str


class ProcessSummary(Wire, frozen=True, kw_only=True):
    """One line of `process/list`."""

    process_id: str
    pid: int
    """0 if the server does not know it."""
    argv: list[str]
    tty: bool
    running: bool
    closed: bool
    exit_code: int | None
    reason: str | None
    """The cause of the end: `exited`, `signaled`, `terminated`, `sessionExpired`, …"""
    next_seq: int
    sandbox_type: str = "none"
    enforcement: Enforcement | UnsetType = UNSET


class ListResponse(Wire, frozen=True, kw_only=True):
    """An extension of Holdfast: the processes of this session, oldest first."""

    processes: list[ProcessSummary]


# -- checks of arguments, shared by all implementations of ExecProcess


_STREAMS_AT_END = get_args(StreamsAtEnd)

# Digits of a caller's id that moves the counter. A process never gets 10**18 writes, and `int()`
# of a longer text would take quadratic time.
_LONGEST_NUMBER = 18


def check_streams(streams: str) -> None:
    """
    Refuse an unknown value of a termination's `streams`.

    Raises:
        InvalidParams: The message names the value.
    """
    if streams not in _STREAMS_AT_END:
        raise InvalidParams(f"unknown variant `{streams}`, expected `close` or `keep`")


def check_after_seq(after_seq: int) -> None:
    """
    Refuse a negative sequence number.

    Raises:
        InvalidParams: The number is below zero.
    """
    if after_seq < 0:
        raise InvalidParams(f"after_seq is {after_seq}, expected 0 or more")


def check_read(after_seq: int, max_bytes: int | None, wait: float) -> None:
    """
    Refuse negative arguments of a read.

    Raises:
        InvalidParams: An argument is below zero, or `wait` is not a number.
    """
    check_after_seq(after_seq)
    if max_bytes is not None and max_bytes < 0:
        raise InvalidParams(f"max_bytes is {max_bytes}, expected 0 or more")
    # Not `wait < 0`, which NaN would pass.
    if not wait >= 0:
        raise InvalidParams(f"wait is {wait}, expected seconds, 0 or more")


def check_input(data: bytes, write_id: str | None) -> bytes:
    """
    Return an immutable copy of the bytes of a write.

    Raises:
        TypeError: `data` is not bytes-like; a `str`, for instance.
        InvalidParams: The id is empty.
    """
    if write_id == "":
        raise InvalidParams(texts.WRITE_ID_EMPTY)
    if type(data) is bytes:
        return data
    # A queued write must not change when the caller reuses its buffer.
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"input is {type(data).__name__}, expected bytes")


def signal_number(name: str) -> int:
    """
    Return the number of a signal, given the protocol's `interrupt` or a name such as `SIGTERM`.

    Raises:
        InvalidParams: No signal has that name.
    """
    if name == "interrupt":
        return signals.SIGINT
    # Our extension. The protocol's names are lower case, so the two can never collide.
    if name.startswith("SIG") and name in signals.Signals.__members__:
        return signals.Signals[name]
    raise InvalidParams(texts.unknown_signal(name))


class WriteIds:
    """Generator of write ids for one process: "1", "2", … but none that a caller has used."""

    def __init__(self) -> None:
        self._last = 0

    def give(self, write_id: str | None) -> str:
        """Return the caller's own id, or a fresh one if that is None."""
        if write_id is None:
            self._last += 1
            return str(self._last)
        if len(write_id) <= _LONGEST_NUMBER and write_id.isascii() and write_id.isdecimal():
            self._last = max(self._last, int(write_id))
        return write_id

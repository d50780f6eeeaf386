"""
The table of all limits of a command: `LIMITS`, one row per limit.

Parsing, bounds, options of the command line, settings of `holdfast-sh`, messages and the table in
`docs/reference/limits.md` follow from it. Three classes repeat the names for type checkers:
`LimitKind`, `ProcessLimits` and `Limits`. A test compares all of them.

The module is part of every command line and of every guardian, so it loads nothing but `enum`.
"""

from enum import StrEnum

__all__ = ["LARGEST_LIMIT", "LIMITS", "Limit", "LimitKind", "LimitUnit", "limit_of"]

LARGEST_LIMIT = (1 << 63) - 1
"""The largest rlimit; above it the kernel sees RLIM_INFINITY."""


class LimitKind(StrEnum):
    """The limit that ended a command, by its name on the wire."""

    OPEN_FILES = "openFiles"
    ADDRESS_SPACE = "addressSpace"
    """Address space of one of its processes."""
    PROCESSES = "processes"
    MEMORY = "memory"
    """Memory of all its processes together."""
    CPU_TIME = "cpuTime"
    """Processor time of one of its processes."""
    OUTPUT = "output"
    """Bytes written to stdout and stderr together."""
    WALL_TIME = "wallTime"
    OTHER = "other"
    """A newer server named a limit that this version does not know."""


class LimitUnit(StrEnum):
    """The unit of a limit on the wire; people write sizes and times with other units."""

    BYTES = "bytes"
    COUNT = "count"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"


class Limit:
    """
    One row of the table.

    Three columns decide what enforces a limit. With a `controller` it is the cgroup of the command,
    and where there is none, its `rlimit` as a substitute. With an `rlimit` alone it is the kernel,
    for each process. Without either, it is the watchdog of the process.
    """

    __slots__ = (
        "about",
        "above",
        "beyond",
        "controller",
        "field",
        "kind",
        "least",
        "messages",
        "option",
        "rlimit",
        "signal",
        "unit",
        "verdict",
    )

    def __init__(
        self,
        kind: LimitKind,
        *,
        field: str,
        option: str,
        unit: LimitUnit,
        about: str,
        beyond: str,
        verdict: str,
        least: int = 1,
        rlimit: str | None = None,
        above: int = 0,
        signal: str | None = None,
        controller: str | None = None,
        messages: tuple[bytes, ...] = (),
    ) -> None:
        self.kind = kind
        """Name in the verdict of a process."""
        self.field = field
        """Attribute of `ProcessLimits`; in camel case, the member on the wire."""
        self.option = option
        """Option of the command line."""
        self.unit = unit
        self.about = about
        """The limited amount, for people."""
        self.beyond = beyond
        """Effect of exceeding it, for people."""
        self.verdict = verdict
        """Text of the verdict of a process that reached it; `{}` is the limit."""
        self.least = least
        """Smallest value: with less, no command could run."""
        self.rlimit = rlimit
        """Name in the module `resource`, if the kernel limits each process."""
        self.above = above
        """Distance from the soft to the hard rlimit."""
        self.signal = signal
        """Signal with which the kernel kills a process, and which identifies the limit."""
        self.controller = controller
        """Controller of the cgroup that limits all processes together."""
        self.messages = messages
        """Usual error messages, in lower case: the kernel reports the limit only to programs."""

    @property
    def name(self) -> str:
        """Name of the argument of `Limits`, and of the setting of `holdfast-sh`."""
        return self.kind.name.lower()

    @property
    def wire_name(self) -> str:
        """Name of the member of `limits` in `process/start`."""
        first, *others = self.field.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def is_kernel_enforced(self) -> bool:
        """True if the limit has to be set before the command runs."""
        return self.rlimit is not None or self.controller is not None

    @property
    def needs_cgroup(self) -> bool:
        """True if it can be enforced only by a cgroup."""
        return self.controller is not None and self.rlimit is None

    def exceeded(self, value: float) -> str:
        """Return the text of the verdict of a process that reached this limit, in wire units."""
        # Seconds are easier to read.
        milliseconds = self.unit is LimitUnit.MILLISECONDS
        return self.verdict.format(f"{value / 1000:g}" if milliseconds else value)


LIMITS = (
    Limit(
        LimitKind.OPEN_FILES,
        field="open_files",
        option="--limit-files",
        unit=LimitUnit.COUNT,
        about="open files of each process",
        beyond="`open` fails",
        verdict="ran into its limit of {} open files",
        # What a shell needs to start.
        least=16,
        rlimit="RLIMIT_NOFILE",
        messages=(b"too many open files",),
    ),
    Limit(
        LimitKind.ADDRESS_SPACE,
        field="address_space_bytes",
        option="--limit-address-space",
        unit=LimitUnit.BYTES,
        about="address space of each process",
        beyond="allocations fail",
        verdict="ran into its limit of {} bytes of address space",
        rlimit="RLIMIT_AS",
        messages=(b"cannot allocate memory", b"memoryerror", b"out of memory", b"bad_alloc"),
    ),
    Limit(
        LimitKind.PROCESSES,
        field="processes",
        option="--limit-processes",
        unit=LimitUnit.COUNT,
        about="processes and threads",
        beyond="`fork` fails",
        verdict="ran into its limit of {} processes",
        rlimit="RLIMIT_NPROC",
        controller="pids",
        messages=(b"resource temporarily unavailable", b"can't start new thread", b"cannot fork"),
    ),
    Limit(
        LimitKind.MEMORY,
        field="memory_bytes",
        option="--limit-memory",
        unit=LimitUnit.BYTES,
        about="memory of all processes together",
        beyond="all of them are killed",
        verdict="used more than {} bytes of memory",
        # What a shell needs to start.
        least=4 << 20,
        controller="memory",
    ),
    Limit(
        LimitKind.CPU_TIME,
        field="cpu_seconds",
        option="--limit-cpu",
        unit=LimitUnit.SECONDS,
        about="processor time of each process",
        beyond="that process is killed",
        verdict="used more than {} seconds of processor time",
        rlimit="RLIMIT_CPU",
        # The kernel sends SIGXCPU at the soft limit, and SIGKILL at the hard one.
        above=1,
        signal="SIGXCPU",
    ),
    Limit(
        LimitKind.OUTPUT,
        field="output_bytes",
        option="--limit-output",
        unit=LimitUnit.BYTES,
        about="output, both streams together",
        beyond="the command is killed",
        verdict="wrote more than {} bytes",
    ),
    Limit(
        LimitKind.WALL_TIME,
        field="wall_time_ms",
        option="--limit-time",
        unit=LimitUnit.MILLISECONDS,
        about="run time",
        beyond="the command is killed",
        verdict="ran for more than {} seconds",
    ),
)
"""
All limits. Beyond the first three, calls of the command fail; the others end it.

If the output of a command hints at several limits, the first one is reported.
"""

_BY_KIND = {limit.kind: limit for limit in LIMITS}


def limit_of(kind: LimitKind) -> Limit:
    """Return the row of a limit; call this with any kind but `OTHER`."""
    return _BY_KIND[kind]

"""What a command may use, in the units of people."""

from dataclasses import dataclass, fields

from holdfast.errors import InvalidParams
from holdfast.protocol.process import ProcessLimits

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What a command may use at most; what is not given is not limited.

    At the last four it is ended and the verdict's reason is `LIMIT`. The first three
    make single calls of it fail; if it then fails itself and says why, as most programs
    do ("Too many open files"), the reason is `LIMIT` too.
    """

    memory: int | None = None
    """Bytes of address space of each of its processes: an allocation beyond it fails."""
    processes: int | None = None
    """
    How many there may be, threads too; the start of one more fails.

    Those of the command count, where it can have a cgroup of its own. Where not, in a
    sandbox those inside count, otherwise all of the user, and those of root never do.
    """
    open_files: int | None = None
    """Of each of its processes, at least 16."""
    total_memory: int | None = None
    """
    Bytes of memory of all its processes together, which are killed at it; at least 4 MiB.

    Needs a cgroup of its own for the command. Where it cannot have one, the start is
    refused with what to change (`InvalidParams`, from a server `RemoteError`).
    """
    cpu_time: int | None = None
    """Seconds of processor time of each of its processes, which is killed at it."""
    output: int | None = None
    """Bytes that it may write, to both streams together."""
    wall_time: float | None = None
    """Seconds, kept where the command runs: also if nobody waits for it any more."""

    def on_wire(self) -> ProcessLimits | None:
        """
        As the protocol has them; `None` if there are none.

        Raises:
            InvalidParams: One of them is no limit.
            TypeError: One of them is no number.
        """
        if self == _NONE:
            return None
        self._check()
        wall = self.wall_time
        try:
            return ProcessLimits(
                memory_bytes=self.total_memory,
                address_space_bytes=self.memory,
                cpu_seconds=self.cpu_time,
                processes=self.processes,
                open_files=self.open_files,
                output_bytes=self.output,
                wall_time_ms=None if wall is None else int(-(-wall * 1000 // 1)),
            )
        except (ValueError, OverflowError) as error:
            raise InvalidParams(str(error)) from None

    def _check(self) -> None:
        """Look at each limit by the name it has here; the protocol has other names."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            kind = int | float if field.name == "wall_time" else int
            if not isinstance(value, kind) or isinstance(value, bool):
                what = "a number" if field.name == "wall_time" else "a whole number"
                raise TypeError(f"limit {field.name} is {what}, not {value!r}")
            if not value > 0:
                raise InvalidParams(f"limit {field.name} must be more than 0, not {value}")


_NONE = Limits()

"""Resource limits of a command, in units that people write."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from holdfast.base.errors import InvalidParams
from holdfast.base.units import parse_seconds, parse_size
from holdfast.wire.protocol.limits import LARGEST_LIMIT, LIMITS, Limit, LimitUnit
from holdfast.wire.protocol.process import ProcessLimits

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    Resource limits of a command; None means unlimited.

    Sizes are bytes, or a text with a unit such as `"10K"` or `"2G"`. Times are seconds, or a
    text such as `"500ms"` or `"1m"`.

    The last four end the command with reason `LIMIT`. The first three make single system calls
    fail. If the command then fails and says why ("Too many open files"), the reason is `LIMIT`
    too.
    """

    open_files: int | None = None
    """Of each of its processes, at least 16."""
    address_space: int | str | None = None
    """Bytes of address space of each of its processes: an allocation beyond it fails."""
    processes: int | None = None
    """
    Maximum number of processes and threads; starting one more fails.

    If the command can have a cgroup of its own, only its own count. Otherwise, in a sandbox,
    those inside count. Without either, all of the user count, and root is not limited.
    """
    memory: int | str | None = None
    """
    Bytes of memory of all its processes together, at least 4 MiB; the kernel kills them beyond
    it.

    Needs a cgroup of its own. Where none can be made, the start is refused with advice
    (`InvalidParams`, from a server `RemoteError`).
    """
    cpu_time: int | str | None = None
    """Seconds of processor time of each of its processes; the kernel kills a process beyond it."""
    output: int | str | None = None
    """Bytes that it may write to stdout and stderr together."""
    wall_time: float | str | None = None
    """Seconds until it is killed, measured where it runs, even if nobody waits for it."""

    def on_wire(self) -> ProcessLimits | None:
        """
        Return the limits as the protocol has them; None if there are none.

        Raises:
            InvalidParams: One of them is no valid limit.
            TypeError: One of them is no number.
        """
        if self == _NONE:
            return None
        given = [(limit, getattr(self, limit.name)) for limit in LIMITS]
        return ProcessLimits(
            **{limit.field: _amount(limit, value) for limit, value in given if value is not None}
        )


def _amount(limit: Limit, value: object) -> int:
    """Return one limit in the unit of the wire, rounded up; errors use its Python name."""
    name, parse = limit.name, _PARSERS.get(limit.unit)
    amount: float
    if isinstance(value, str) and parse is not None:
        try:
            # A text has a unit, such as `512M`.
            amount = parse(value)
        except ValueError as error:
            raise InvalidParams(f"limit {name}: {error}") from None
    else:
        fraction = limit.unit is LimitUnit.MILLISECONDS
        if not isinstance(value, int | float if fraction else int) or isinstance(value, bool):
            what = "a number" if fraction else "a whole number"
            raise TypeError(f"limit {name} is {what}, not {value!r}")
        amount = value
    # Also refuses NaN, which is neither above nor below 0.
    if not amount > 0:
        raise InvalidParams(f"limit {name} must be more than 0, not {value}")
    if limit.unit is LimitUnit.MILLISECONDS:
        amount *= 1000
    # Before the rounding: infinity has no whole number.
    if amount > LARGEST_LIMIT:
        raise InvalidParams(f"limit {name} is too large: {value}")
    if amount < limit.least:
        raise InvalidParams(f"limit {name} must be at least {limit.least}")
    return ceil(amount)


_PARSERS: dict[LimitUnit, Callable[[str], float]] = {
    LimitUnit.BYTES: parse_size,
    LimitUnit.SECONDS: parse_seconds,
    LimitUnit.MILLISECONDS: parse_seconds,
}

_NONE = Limits()

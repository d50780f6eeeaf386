"""Resource limits of a command, in human-readable units."""

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
    Resource limits of a command; None is unlimited.

    Sizes are bytes, or a string with a unit such as `"10K"` or `"2G"`. Times are seconds, or a
    string such as `"500ms"` or `"1m"`.

    The last four end the command with reason `LIMIT`. The first three make system calls fail; if
    the command then fails with a matching error ("Too many open files"), the reason is also
    `LIMIT`.
    """

    open_files: int | None = None
    """Open files of each of its processes, at least 16."""
    address_space: int | str | None = None
    """Bytes of address space of each of its processes: an allocation beyond it fails."""
    processes: int | None = None
    """
    Maximum number of processes and threads; starting one more fails.

    If the command can have its own cgroup, only its own processes count. Otherwise, in a
    sandbox, those in the sandbox count. Without either, all processes of the user count, and
    root is not limited.
    """
    memory: int | str | None = None
    """
    Bytes of memory of all its processes together, at least 4 MiB, beyond which the kernel kills
    them.

    Needs a separate cgroup. Where none can be created, the start is refused with advice
    (`InvalidParams`, from a server `RemoteError`).
    """
    cpu_time: int | str | None = None
    """Seconds of CPU time of each of its processes, beyond which the kernel kills the process."""
    output: int | str | None = None
    """Bytes written to stdout and stderr together."""
    wall_time: float | str | None = None
    """Seconds until it is killed, measured on its machine, even if no caller waits for it."""

    def on_wire(self) -> ProcessLimits | None:
        """
        Return the limits in the form of the protocol, or None if nothing is limited.

        Raises:
            InvalidParams: One of them is not a valid limit.
            TypeError: One of them is not a number.
        """
        if self == _NONE:
            return None
        given = [(limit, getattr(self, limit.name)) for limit in LIMITS]
        return ProcessLimits(
            **{limit.field: _amount(limit, value) for limit, value in given if value is not None}
        )


def _amount(limit: Limit, value: object) -> int:
    """Return a limit in the unit of the wire, rounded up; errors use its Python name."""
    name, parse = limit.name, _PARSERS.get(limit.unit)
    amount: float
    if isinstance(value, str) and parse is not None:
        try:
            # A string has a unit, such as `512M`.
            amount = parse(value)
        except ValueError as error:
            raise InvalidParams(f"limit {name}: {error}") from None
    else:
        fraction = limit.unit is LimitUnit.MILLISECONDS
        if not isinstance(value, int | float if fraction else int) or isinstance(value, bool):
            what = "a number" if fraction else "a whole number"
            raise TypeError(f"limit {name} is {what}, not {value!r}")
        amount = value
    # Written this way to refuse NaN, too.
    if not amount > 0:
        raise InvalidParams(f"limit {name} must be more than 0, not {value}")
    if limit.unit is LimitUnit.MILLISECONDS:
        amount *= 1000
    # Before rounding: infinity cannot be rounded.
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

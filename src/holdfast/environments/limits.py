"""Resource limits of a command, in units that people write."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from holdfast.errors import InvalidParams
from holdfast.protocol.process import ProcessLimits
from holdfast.units import parse_seconds, parse_size

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

    address_space: int | str | None = None
    """Bytes of address space of each of its processes: an allocation beyond it fails."""
    processes: int | None = None
    """
    Maximum number of processes and threads; starting one more fails.

    If the command can have a cgroup of its own, only its own count. Otherwise, in a sandbox,
    those inside count. Without either, all of the user count, and root is not limited.
    """
    open_files: int | None = None
    """Of each of its processes, at least 16."""
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
        wall = self._amount("wall_time", parse_seconds)
        cpu = self._amount("cpu_time", parse_seconds)
        try:
            return ProcessLimits(
                memory_bytes=_whole(self._amount("memory", parse_size)),
                address_space_bytes=_whole(self._amount("address_space", parse_size)),
                cpu_seconds=_whole(cpu),
                processes=_whole(self._amount("processes")),
                open_files=_whole(self._amount("open_files")),
                output_bytes=_whole(self._amount("output", parse_size)),
                wall_time_ms=_whole(None if wall is None else wall * 1000),
            )
        except (ValueError, OverflowError) as error:
            text = str(error)
            for wire, name in _BY_WIRE_NAME.items():
                text = text.replace(wire, f"limit {name}")
            raise InvalidParams(text) from None

    def _amount(self, name: str, parse: Callable[[str], float] | None = None) -> float | None:
        """Return one limit as a number; errors use its Python name."""
        value = getattr(self, name)
        if value is None:
            return None
        if isinstance(value, str) and parse is not None:
            try:
                # A text has a unit, such as `512M`.
                amount = parse(value)
            except ValueError as error:
                raise InvalidParams(f"limit {name}: {error}") from None
        else:
            kind = int | float if name == "wall_time" else int
            if not isinstance(value, kind) or isinstance(value, bool):
                what = "a number" if name == "wall_time" else "a whole number"
                raise TypeError(f"limit {name} is {what}, not {value!r}")
            amount = value
        # Also refuses NaN, which is neither above nor below 0.
        if not amount > 0:
            raise InvalidParams(f"limit {name} must be more than 0, not {value}")
        return amount


def _whole(amount: float | None) -> int | None:
    """Return the amount rounded up."""
    return None if amount is None else ceil(amount)


_NONE = Limits()

# Limits with a minimum: errors of the wire type use the wire's names, users know the Python ones.
_BY_WIRE_NAME = {"openFiles": "open_files", "memoryBytes": "memory"}

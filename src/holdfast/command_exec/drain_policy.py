"""Time limits for the output of an exited command [command-exec.end.*]."""

from dataclasses import dataclass

from holdfast.environments.commands.arguments import seconds
from holdfast.errors import InvalidParams

__all__ = ["CODEX_0_166_0", "DrainPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPolicy:
    """
    Time limits after an exit; each stream is drained on its own.

    A stream is drained until its end or its cap. Otherwise it is given up after `quiet` seconds
    without a byte, and at the latest `limit` seconds after the exit. Bytes that are ready then
    are still taken, up to `last_pass` pieces.
    """

    quiet: float | None = 0.05
    """Seconds of silence of a stream; each late byte starts them again. None for no window."""
    limit: float = 2.0
    """Seconds after the exit."""
    last_pass: int = 256
    """Pieces that are taken after the limit, if they are ready."""

    def __post_init__(self) -> None:
        if self.quiet is not None:
            seconds(self.quiet, "quiet")
        seconds(self.limit, "limit")
        _check_pieces(self.last_pass)


def _check_pieces(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"last_pass is a number of pieces, not {value!r}")
    if value < 0:
        raise InvalidParams(f"last_pass must not be negative, but is {value}")


CODEX_0_166_0 = DrainPolicy(quiet=None)
"""The policy of Codex 0.166.0: a silent holder of the output costs the full limit."""

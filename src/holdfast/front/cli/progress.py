"""A progress bar for long transfers, on a terminal only."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO

__all__ = ["Progress", "human_size"]

# Seconds before anything is drawn: most transfers are over by then.
_PATIENCE = 0.5

# Seconds between two updates.
_INTERVAL = 0.1

_WIDTH = 24


class Progress:
    """
    Progress of a transfer, drawn on stderr if that is a terminal.

    A context manager; at its end the line is erased.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        *,
        start: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            label: The name of the transfer.
            total: Its size in bytes, if known.
            start: Bytes that were there before.
            stream: The stream to draw on.
            clock: Returns the time.
        """
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._label = label
        self._total = total
        self._start = start
        self._done = start
        self._clock = clock
        self._began = clock()
        self._next = self._began + _PATIENCE
        self._drawn = False

    def advance(self, size: int) -> None:
        """Add `size` transferred bytes."""
        self._done += size
        now = self._clock()
        if self._shown and now >= self._next:
            self._next = now + _INTERVAL
            self._draw(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            # Return to the start of the line and erase it.
            self._write("\r\x1b[K")

    def _draw(self, now: float) -> None:
        self._drawn = True
        speed = (self._done - self._start) / max(now - self._began, 1e-9)
        parts = [human_size(self._done)]
        if self._total:
            share = min(self._done / self._total, 1.0)
            bar = "█" * int(share * _WIDTH)
            parts = [f"{bar:░<{_WIDTH}} {share:4.0%}", f"{parts[0]} of {human_size(self._total)}"]
        parts.append(f"{human_size(int(speed))}/s")
        if self._total and speed > 0:
            left = int(max(self._total - self._done, 0) / speed)
            parts.append(f"{left // 60}:{left % 60:02} left")
        self._write("\r\x1b[K" + f"{self._label}  {'  '.join(parts)}"[: _columns()])

    def _write(self, text: str) -> None:
        # A terminal that is gone is no reason to fail the transfer.
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def human_size(size: int) -> str:
    """Return a size in a unit for people."""
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns - 1
    except OSError:
        return 79

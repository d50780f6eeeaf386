"""The way of a fake process's events, from where it runs to this side."""

from collections import deque

from holdfast.engine.process.io.log import OutputLog
from holdfast.events import ProcessEvent
from holdfast.testing.fake_line import FakeLine
from holdfast.wire.protocol.process import OutputChunk

__all__ = ["Transit"]


class Transit:
    """
    The log where a process runs, and its copy on this side; the difference is under way.

    For a local process both are always equal.
    """

    def __init__(self, line: FakeLine) -> None:
        self.there = OutputLog()
        self.here = OutputLog()
        self.size = 0
        """Bytes of output that are under way."""
        self._line = line
        self._under_way: deque[ProcessEvent] = deque()
        # Events that may still arrive while they are delayed; None if they are not.
        self._let_through: int | None = None

    def delay(self) -> None:
        """
        Keep events under way until `arrive`.

        Raises:
            RuntimeError: The process is local, where nothing is ever under way.
        """
        self._line.need("delay")
        self._let_through = 0

    def arrive(self, count: int | None) -> None:
        """Let the next events through that are delayed; None for all from now on."""
        self._let_through = None if count is None else (self._let_through or 0) + count

    def send(self, event: ProcessEvent) -> None:
        """Record an event where the process runs; `deliver` brings it here."""
        self.there.record(event)
        self._under_way.append(event)
        self.size += _size(event)

    def deliver(self) -> None:
        """Bring here what may arrive."""
        # In order: an event that is delayed delays those behind it.
        while self._under_way and self._line.carries and self._let_through != 0:
            event = self._under_way.popleft()
            self.size -= _size(event)
            if self._let_through is not None:
                self._let_through -= 1
            self.here.record(event)


def _size(event: ProcessEvent) -> int:
    return len(event.chunk) if type(event) is OutputChunk else 0

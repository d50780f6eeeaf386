"""
Reorder buffer for the events of one process [client.order].

No I/O. Events are ordered by their numbers alone. They may arrive in any order, twice, or, after a
lost connection, only in the answer to a read.
"""

from holdfast.base.errors import RemoteProtocolError
from holdfast.events import Closed, Exited, Gap, LogEntry
from holdfast.wire.protocol.process import OutputChunk, ReadResponse

__all__ = ["MAX_EVENTS", "MAX_EVENT_BYTES", "Reorder"]

MAX_EVENTS = 256
"""Most events that may wait for a missing one."""

MAX_EVENT_BYTES = 1 << 20
"""Most bytes of output in them, and in any single event."""

# Factor by which both limits grow while the answer to a read is on its way. A resumed server sends
# current events at once; a busy process fills the connection before the answer arrives.
_WHILE_RECOVERING = 32


class Reorder:
    """Reorder buffer: takes events as they arrive and returns them in order."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the last event that was returned, or that bypassed this buffer in order."""
        self.waiting: dict[int, LogEntry] = {}
        """Events that arrived before a missing one, by number."""
        self._bytes = 0
        self._exit_known = False
        # 1, or `_WHILE_RECOVERING` between `interrupted` and `catch_up`.
        self._room = 1

    def add(self, event: LogEntry) -> list[LogEntry]:
        """
        Add an event and return those that are now in order; duplicates are ignored.

        Raises:
            RemoteProtocolError: Too much waits for an event that does not arrive.
        """
        size = len(event.chunk) if type(event) is OutputChunk else 0
        if size > MAX_EVENT_BYTES:
            raise RemoteProtocolError(f"process event exceeds {MAX_EVENT_BYTES} bytes")
        # The answer to a read may have contained it already.
        if event.seq <= self.last or event.seq in self.waiting:
            return []
        if type(event) is Exited:
            self._exit_known = True
        if event.seq == self.last + 1:
            # Always accepted, however much waits after it: it empties the buffer.
            self.last += 1
            return [event, *self._due()]
        if len(self.waiting) >= MAX_EVENTS * self._room:
            raise RemoteProtocolError(f"process event reorder buffer exceeds {MAX_EVENTS} entries")
        if self._bytes + size > MAX_EVENT_BYTES * self._room:
            raise RemoteProtocolError(
                f"process event reorder buffer exceeds {MAX_EVENT_BYTES} bytes"
            )
        self.waiting[event.seq] = event
        self._bytes += size
        return []

    def interrupted(self) -> None:
        """Enlarge the limits: events are missing until `catch_up` brings them."""
        self._room = _WHILE_RECOVERING

    def catch_up(
        self, answer: ReadResponse, exited: Exited | None, *, gaps: bool
    ) -> list[LogEntry | Gap]:
        """
        Process the answer to a read after `last`, and return the missed events.

        Args:
            answer: The events that the server retained.
            exited: The exit, if the answer has one; number 0 if the server does not number it.
            gaps: Return a `Gap` for events that the server no longer has.

        Raises:
            RemoteProtocolError: Events are lost, and `gaps` is False.
        """
        self._room = 1
        # An event that arrived separately is identical, so it stays.
        for chunk in answer.chunks:
            if chunk.seq > self.last:
                self.waiting.setdefault(chunk.seq, chunk)
        through = answer.next_seq - 1
        # The close has no event of its own in an answer; its number is the last one.
        if answer.closed and through > self.last:
            self.waiting[through] = Closed(through)
        if exited is not None and exited.seq > self.last:
            self._exit_known = True
            self.waiting[exited.seq] = exited
        missing = self._missing(through)
        # The base protocol does not number the exit in an answer. Output has numbers and the close
        # comes last, so the exit has the last number that is missing.
        if missing and exited is not None and not self._exit_known:
            gap = missing.pop()
            self._exit_known = True
            self.waiting[gap.last_seq] = Exited(gap.last_seq, exited.verdict)
            if gap.first_seq < gap.last_seq:
                missing.append(Gap(gap.first_seq, gap.last_seq - 1))
        if missing and not gaps:
            raise RemoteProtocolError(
                f"process events are no longer retained while recovering through sequence {through}"
            )
        due: list[LogEntry | Gap] = []
        for gap in missing:
            # Events before the gap are returned before it.
            due += self._due()
            due.append(gap)
            self.last = gap.last_seq
        due += self._due()
        # Counted again: the answer has added chunks without counting them.
        self._bytes = sum(
            len(event.chunk) for event in self.waiting.values() if type(event) is OutputChunk
        )
        return due

    def _missing(self, through: int) -> list[Gap]:
        """Return the ranges of numbers up to `through` that are neither published nor waiting."""
        missing: list[Gap] = []
        last = self.last
        for seq in sorted(seq for seq in self.waiting if seq <= through):
            if seq > last + 1:
                missing.append(Gap(last + 1, seq - 1))
            last = seq
        if through > last:
            missing.append(Gap(last + 1, through))
        return missing

    def _due(self) -> list[LogEntry]:
        due: list[LogEntry] = []
        while self.waiting and (event := self.waiting.pop(self.last + 1, None)) is not None:
            self.last += 1
            if type(event) is OutputChunk:
                self._bytes -= len(event.chunk)
            due.append(event)
        return due

"""
Delivery of one process's events to the client that owns it [output.notifications].

A Holdfast client acknowledges the events it has. Until then they are kept, so that a lost
connection loses nothing. Once too many are unacknowledged, the output of the process is not read.
Another client acknowledges nothing: its events are sent once, and kept within the log's limits.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET

from holdfast.engine.process.io.log import MAX_RETAINED_BYTES, LogListener
from holdfast.engine.process.logged import LoggedProcess
from holdfast.events import Gap, Reason, StreamEnded, Verdict
from holdfast.server.principals import Usage
from holdfast.wire.protocol.methods import PROCESS_CLOSED, PROCESS_EXITED, PROCESS_STREAM_ENDED
from holdfast.wire.protocol.process import (
    ClosedEvent,
    ExitedEvent,
    OutputChunk,
    StreamEndedEvent,
)
from holdfast.wire.rpc.encode import encode_notification, encode_output, output_prefix
from holdfast.wire.transports.transport import Credential

__all__ = ["DETACHED", "UNDER_WAY", "Delivery", "DeliveryLimit", "Owner", "exited_event"]


class DeliveryLimit:
    """Limit of unacknowledged output, beyond which a process's output is not read."""

    __slots__ = ("max_bytes", "max_events")

    def __init__(self, max_bytes: int, max_events: int) -> None:
        self.max_bytes = max_bytes
        self.max_events = max_events

    def exceeded(self, size: int, events: int) -> bool:
        return size > self.max_bytes or events > self.max_events

    def half_free(self, size: int, events: int) -> bool:
        return size <= self.max_bytes // 2 and events <= self.max_events // 2


# Limit with a connection: 4 MiB keep a line with 100 ms of delay busy at 40 MB/s.
#
# More would only fill the buffers in front of a slow reader.
UNDER_WAY = DeliveryLimit(4 << 20, 16_384)

# Limit without a connection: as much as the log keeps for any client.
DETACHED = DeliveryLimit(MAX_RETAINED_BYTES, 16_384)


class Owner(Protocol):
    """The connection a session is attached to."""

    @property
    def paused(self) -> bool:
        """True while the client reads too slowly."""

    @property
    def acknowledges(self) -> bool:
        """True for a Holdfast client, which sends `process/ack`."""

    @property
    def credential(self) -> Credential:
        """The principal and the secret of the client."""

    @property
    def usage(self) -> Usage:
        """Usage and limits of its principal."""

    def send(self, message: bytes) -> None:
        """Send an encoded message."""

    def send_parts(self, parts: Sequence[bytes]) -> None:
        """Send an encoded message that is in parts."""

    def abandon(self, reason: str) -> None:
        """End the connection at once."""


class Delivery(LogListener):
    """Sender of one process's events to its client."""

    def __init__(self, process: LoggedProcess, owner: Owner | None, *, acknowledged: bool) -> None:
        """
        Args:
            process: Must not have any event yet.
            owner: The connection; None if it was lost while the process was started.
            acknowledged: True if the client of the session acknowledges events.
        """
        self._process = process
        self._process_id = process.process_id
        self._prefix = output_prefix(process.process_id)
        # The connection to notify. None without one, and after a resume until the client has
        # read the events it missed: later ones would only have to wait at the client.
        self._owner: Owner | None = None
        self._resuming: Owner | None = None
        self._acknowledged = acknowledged
        # Number and size of each unacknowledged chunk, the oldest first.
        self._unacknowledged: deque[tuple[int, int]] = deque()
        self._unacknowledged_bytes = 0
        self._limit = DETACHED if owner is None else UNDER_WAY
        self._holding = False
        if self._acknowledged:
            # Nothing is evicted that the client has not acknowledged.
            process.log.pin(0)
        if owner is not None:
            self._owner = owner
            self.owner_paused(owner.paused)
        process.log.subscribe(self)

    def end(self) -> None:
        """Stop listening to a process that is forgotten."""
        self._process.log.unsubscribe(self)

    # -- connections

    def attach(self, owner: Owner) -> None:
        """Send events to a connection that resumed the session."""
        self._limit = UNDER_WAY
        if owner.acknowledges and self._acknowledged:
            # The client reads the missed events first; then `caught_up` sets the owner.
            self._resuming = owner
        else:
            self._stop_acknowledging()
            self._owner = owner
        self.owner_paused(owner.paused)

    def detach(self) -> None:
        """Keep events instead of sending them: the connection is gone."""
        self._owner = self._resuming = None
        # The pause was that of the lost connection; the limit below takes its place.
        self.owner_paused(False)
        if self._acknowledged:
            self._limit = DETACHED
            self._hold_if_needed()

    def caught_up(self, after_seq: int) -> None:
        """Send new events again: the client has all up to a number and was sent the rest."""
        if self._resuming is not None:
            self._owner, self._resuming = self._resuming, None
            self.acknowledge(after_seq)

    def owner_paused(self, paused: bool) -> None:
        """Stop reading the output of a process whose client does not read, or read again."""
        if paused:
            self._process.log.hold("connection")
        else:
            self._process.log.release("connection")

    def hold(self, held: bool) -> None:
        """Stop reading the output of a process at its client's request, or read again."""
        if held:
            self._process.log.hold("client")
        else:
            self._process.log.release("client")

    # -- acknowledgements

    def acknowledge(self, seq: int) -> None:
        """Release the events up to a number, which the client has."""
        waiting = self._unacknowledged
        while waiting and waiting[0][0] <= seq:
            self._unacknowledged_bytes -= waiting.popleft()[1]
        if not self._acknowledged:
            return
        self._process.log.pin(seq)
        # At half of the limit, not just below it: to stop and resume the reading has its cost.
        if self._holding and self._limit.half_free(self._unacknowledged_bytes, len(waiting)):
            self._holding = False
            self._process.log.release("delivery")

    def _hold_if_needed(self) -> None:
        if not self._holding and self._limit.exceeded(
            self._unacknowledged_bytes, len(self._unacknowledged)
        ):
            self._holding = True
            self._process.log.hold("delivery")

    def _stop_acknowledging(self) -> None:
        """Drop all acknowledgement state: the session has a client without our extensions now."""
        self._acknowledged = False
        self._unacknowledged.clear()
        self._unacknowledged_bytes = 0
        self._holding = False
        # Such a client never asks to hold or release, so all holds end here.
        self._process.log.pin(None)
        self._process.log.release("delivery")
        self._process.log.release("client")

    # -- LogListener

    def output(self, chunk: OutputChunk) -> None:
        owner = self._owner
        if owner is not None:
            owner.send_parts(encode_output(self._prefix, chunk.seq, chunk.stream, chunk.chunk))
        if self._acknowledged:
            size = len(chunk.chunk)
            self._unacknowledged.append((chunk.seq, size))
            self._unacknowledged_bytes += size
            self._hold_if_needed()

    def stream_ended(self, event: StreamEnded) -> None:
        if self._owner is not None and self._acknowledged:
            event_params = StreamEndedEvent(
                process_id=self._process_id, stream=event.stream, seq=event.seq
            )
            self._owner.send(encode_notification(PROCESS_STREAM_ENDED.name, event_params))

    def exited(self, seq: int, verdict: Verdict) -> None:
        if self._owner is not None:
            event = exited_event(self._process_id, seq, verdict, complete=self._acknowledged)
            self._owner.send(encode_notification(PROCESS_EXITED.name, event))

    def closed(self, seq: int) -> None:
        if self._owner is not None:
            left = self._process.left_something if self._acknowledged else UNSET
            event = ClosedEvent(process_id=self._process_id, seq=seq, left=left)
            self._owner.send(encode_notification(PROCESS_CLOSED.name, event))

    def gap(self, gap: Gap) -> None:
        # Clients wait for a missing number: on the wire only `process/read` may skip one.
        raise AssertionError("the log of a served process has every number")


def exited_event(process_id: str, seq: int, verdict: Verdict, *, complete: bool) -> ExitedEvent:
    """Return an exit as it is notified; `complete` adds what only Holdfast clients read."""
    by_limit = verdict.reason is Reason.LIMIT
    return ExitedEvent(
        process_id=process_id,
        seq=seq,
        exit_code=-1 if verdict.exit_code is None else verdict.exit_code,
        sandbox_denied=verdict.denial is not None,
        denied_because=UNSET if verdict.denial is None else verdict.denial.reason or UNSET,
        limit=UNSET if verdict.limit is None else verdict.limit.value,
        detail=(verdict.detail or UNSET) if complete or by_limit else UNSET,
        reason=verdict.reason.value if complete else UNSET,
        signal=UNSET if verdict.signal is None or not complete else verdict.signal,
        network_attempts=list(verdict.network_attempts) or UNSET,
    )

"""
Delivers the events of a process to the client that owns it [output.notifications].

A Holdfast client acknowledges events. Until then they are kept, so that a lost connection loses
nothing. While too many are unacknowledged, the output of the process is not read. Other clients do
not acknowledge: their events are sent once, and kept within the log's limits.
"""

from collections import deque
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
from holdfast.wire.rpc.encode import encode_notification, output_prefix
from holdfast.wire.transports.transport import Credential

__all__ = ["DETACHED", "UNDER_WAY", "Delivery", "DeliveryLimit", "Owner", "exited_event"]


class DeliveryLimit:
    """Limit of unacknowledged output, above which the output of a process is not read."""

    __slots__ = ("max_bytes", "max_events")

    def __init__(self, max_bytes: int, max_events: int) -> None:
        self.max_bytes = max_bytes
        self.max_events = max_events

    def exceeded(self, size: int, events: int) -> bool:
        return size > self.max_bytes or events > self.max_events

    def half_free(self, size: int, events: int) -> bool:
        return size <= self.max_bytes // 2 and events <= self.max_events // 2


# Limit with a connection: 4 MiB keep a connection with 100 ms of latency busy at 40 MB/s. More
# would only fill the buffers of a slow reader.
UNDER_WAY = DeliveryLimit(4 << 20, 16_384)

# Limit without a connection: as much as the log retains for any client.
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
        """Principal and secret of the client."""

    @property
    def usage(self) -> Usage:
        """Usage and limits of its principal."""

    def send(self, message: bytes) -> None:
        """Send an encoded message."""

    def send_output(self, prefix: bytes, chunk: OutputChunk) -> None:
        """Send a `process/output` that begins with the `output_prefix` of its process."""

    def abandon(self, reason: str) -> None:
        """End the connection at once."""


class Delivery(LogListener):
    """Sends the events of a process to its client."""

    def __init__(self, process: LoggedProcess, owner: Owner | None, *, acknowledged: bool) -> None:
        """
        Args:
            process: A process without any event yet.
            owner: The connection; None if it was lost while the process was being started.
            acknowledged: True if the client of the session acknowledges events.
        """
        self._process = process
        self._process_id = process.process_id
        self._prefix = output_prefix(process.process_id)
        # The connection to notify. None without one and, after a resume, until the client has
        # read the events it missed: later ones would only wait at the client.
        self._owner: Owner | None = None
        self._resuming: Owner | None = None
        self._acknowledged = acknowledged
        # Number and size of each unacknowledged chunk, oldest first.
        self._unacknowledged: deque[tuple[int, int]] = deque()
        self._unacknowledged_bytes = 0
        self._limit = DETACHED if owner is None else UNDER_WAY
        self._holding = False
        if self._acknowledged:
            # Only acknowledged output may be evicted.
            process.log.pin(0)
        if owner is not None:
            self._owner = owner
            self.owner_paused(owner.paused)
        process.log.subscribe(self)

    def end(self) -> None:
        """Stop listening to a process that is being forgotten."""
        self._process.log.unsubscribe(self)

    # -- connections

    def attach(self, owner: Owner) -> None:
        """Send events to a connection that has resumed the session."""
        self._limit = UNDER_WAY
        if owner.acknowledges and self._acknowledged:
            # The client first reads the missed events; then `caught_up` sets the owner.
            self._resuming = owner
        else:
            self._stop_acknowledging()
            self._owner = owner
        self.owner_paused(owner.paused)

    def detach(self) -> None:
        """Keep events instead of sending them: the connection was lost."""
        self._owner = self._resuming = None
        # End the pause of the lost connection; the limit below replaces it.
        self.owner_paused(False)
        if self._acknowledged:
            self._limit = DETACHED
            self._hold_if_needed()

    def caught_up(self, after_seq: int) -> None:
        """Send new events again: the client has those up to a number, and the rest was sent."""
        if self._resuming is not None:
            self._owner, self._resuming = self._resuming, None
            self.acknowledge(after_seq)

    def owner_paused(self, paused: bool) -> None:
        """Stop or resume reading the output, as the client stops or resumes reading."""
        if paused:
            self._process.log.hold("connection")
        else:
            self._process.log.release("connection")

    def hold(self, held: bool) -> None:
        """Stop or resume reading the output at the client's request."""
        if held:
            self._process.log.hold("client")
        else:
            self._process.log.release("client")

    # -- acknowledgements

    def acknowledge(self, seq: int) -> None:
        """Release the events up to a number, which the client has received."""
        waiting = self._unacknowledged
        while waiting and waiting[0][0] <= seq:
            self._unacknowledged_bytes -= waiting.popleft()[1]
        if not self._acknowledged:
            return
        self._process.log.pin(seq)
        # At half of the limit, not just below it, since stopping and resuming has a cost.
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
        """Drop acknowledgement state: the new client of the session does not acknowledge."""
        self._acknowledged = False
        self._unacknowledged.clear()
        self._unacknowledged_bytes = 0
        self._holding = False
        # Such a client never releases a hold, so end all holds here.
        self._process.log.pin(None)
        self._process.log.release("delivery")
        self._process.log.release("client")

    # -- LogListener

    def output(self, chunk: OutputChunk) -> None:
        owner = self._owner
        if owner is not None:
            owner.send_output(self._prefix, chunk)
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
        # Clients wait for missing numbers: on the wire only `process/read` may skip them.
        raise AssertionError("the log of a served process has every number")


def exited_event(process_id: str, seq: int, verdict: Verdict, *, complete: bool) -> ExitedEvent:
    """Return the notification of an exit; `complete` adds fields for Holdfast clients."""
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

"""
Dispatches the requests of a connection [dispatch.*].

Requests that need no wait are answered at once, in the order of arrival. A request that has to wait
runs as a task, so that it does not block those after it. With a limit of one concurrent request the
order is strict.

A client may send a thousand requests at once. After `TURN` seconds the rest is left for the next
iteration of the event loop, so that other clients are served in between.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from holdfast.backends import Later
from holdfast.base.dialect import limits
from holdfast.base.errors import MalformedMessage, OperationFailed
from holdfast.base.tasks import was_cancelled
from holdfast.server.principals import Usage
from holdfast.telemetry import RequestRecord, Telemetry
from holdfast.wire.connection import Connection
from holdfast.wire.log_event import LogEvent, clip
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.envelope import Request
from holdfast.wire.rpc.large_params import DecodedParams
from holdfast.wire.rpc.router import Route, Router, error_of
from holdfast.wire.rpc.server_kind import EXEC_SERVER, ServerKind

__all__ = ["MAX_QUEUED", "AnswerAfter", "Dispatcher", "Outlasting"]

logger = logging.getLogger(__name__)

C = TypeVar("C")
R = TypeVar("R")
V = TypeVar("V")

# Maximum queued messages; with more, the connection is not read.
MAX_QUEUED = limits.QUEUED_REQUESTS

# Maximum bytes of waiting requests, two of the largest; with more, the connection is not read.
MAX_WAITING_BYTES = 128 << 20

# Seconds that one connection may use the event loop before others have their turn.
TURN = 0.008

# Maximum seconds between requests of one read: a longer gap means that others had their turn. A
# callback in each iteration of the event loop would cost as much as a small request.
_GAP = 0.0002


class AnswerAfter(Awaitable[R], Generic[V, R]):
    """
    Waits for another awaitable and converts its result to the response.

    For a handler whose work has to end as soon as the connection is lost. Cancelling its task is
    not enough: a task that has not begun neither cancels a future nor closes a coroutine.
    """

    def __init__(self, work: Awaitable[V], answer: Callable[[V], R]) -> None:
        self._work = work
        self._answer = answer

    def __await__(self) -> Generator[object, None, R]:
        return self._answer((yield from self._work.__await__()))

    def cancel(self) -> None:
        """Cancel the work if that is possible before it begins; harmless if it is done."""
        if isinstance(self._work, Later):
            self._work.cancel()

    def close(self) -> None:
        """Close a coroutine that is no longer awaited, and perhaps never was."""
        if isinstance(self._work, Coroutine):
            self._work.close()


class Outlasting(Awaitable[R]):
    """
    Continues when the connection is lost, without a response.

    For a request whose effect the client expects to find when it reconnects.
    """

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, R]],
        keep: Callable[[asyncio.Task[None]], None],
    ) -> None:
        """
        Args:
            make: Returns the coroutine; called when it is awaited.
            keep: Called with the task of the request when the connection is lost, to take over
                the task.
        """
        self._make = make
        self._has_begun = False
        self._keep = keep

    def __await__(self) -> Generator[object, None, R]:
        self._has_begun = True
        return self._make().__await__()

    def drop(self, task: asyncio.Task[None]) -> None:
        """Let the task of the request continue, unless it has not begun and had no effect yet."""
        if self._has_begun:
            self._keep(task)
        else:
            task.cancel()


class _Wait:
    """A request that waits for its handler and occupies a slot."""

    __slots__ = ("record", "request", "size", "waiting")

    def __init__(
        self, request: Request, waiting: Awaitable[Any], record: RequestRecord | None
    ) -> None:
        self.request = request
        self.waiting = waiting
        self.record = record
        self.size = _size(request)
        """Bytes of its params, which stay in memory until the response."""


class Dispatcher(Generic[C]):
    """Runs the requests of a connection."""

    def __init__(
        self,
        connection: Connection,
        router: Router[C],
        context: C,
        *,
        limit: int,
        tasks: asyncio.TaskGroup,
        admit: Callable[[Route[C]], None],
        telemetry: Telemetry | None,
        server_kind: ServerKind = EXEC_SERVER,
        usage: Usage | None = None,
    ) -> None:
        """
        Args:
            connection: Sends the responses.
            router: The methods to serve.
            context: First argument of every handler.
            limit: Maximum number of waiting requests; 1 keeps the order strict.
            tasks: Owns the tasks of requests that wait.
            admit: Raises if the handshake does not allow the route yet.
            telemetry: Records every request.
            server_kind: Differences between the exec-server and the app-server.
            usage: Usage and limits of the peer's principal.
        """
        self._usage = usage
        self._connection = connection
        self._router = router
        self._context = context
        self._limit = limit
        self._task_group = tasks
        self._admit = admit
        self._telemetry = telemetry
        self._server_kind = server_kind
        # A server that refuses requests at the limit never queues them, so order does not matter.
        self._strict = limit == 1 and server_kind.overload() is None
        self._loop = asyncio.get_running_loop()
        self._running: dict[_Wait, asyncio.Task[None]] = {}
        self._queue: deque[tuple[Request | MalformedMessage, float]] = deque()
        self._reading = True
        self._waiting_bytes = 0
        # True once responses are pointless; see `drop`.
        self._is_dropped = False
        # Messages that arrived after the end of a turn, in order.
        self._later: deque[Request | MalformedMessage] = deque()
        self._turn_end = 0.0
        # Time at which the last request was run or begun.
        self._ran_until = 0.0
        self.takes_turns = False
        """True after the handshake. Before that, a notification must not overtake a request."""
        self._log_requests = logger.isEnabledFor(logging.DEBUG)
        self.wants_error_data = False
        """True if errors are sent with `data`; only for Holdfast clients."""

    def request(self, request: Request) -> None:
        """Run a request now, or queue it."""
        # Before the handshake is complete, requests must keep their order with notifications,
        # which cannot be postponed.
        if self.takes_turns:
            if self._later:
                self._leave_for_later(request)
                return
            now = monotonic()
            if now - self._ran_until > _GAP:
                self._turn_end = now + TURN
            elif now > self._turn_end:
                self._leave_for_later(request)
                return
            if not self._queue and len(self._running) < self._limit:
                self._run(request, None)
            else:
                self._run_or_queue(request)
            self._ran_until = monotonic()
        else:
            self._run_or_queue(request)

    def _run_or_queue(self, request: Request) -> None:
        if not self._queue and len(self._running) < self._limit:
            self._run(request, None)
        elif self._strict or self._needs_a_slot(request.method):
            overload = self._server_kind.overload()
            if overload is None:
                self._enqueue(request)
            else:
                self._fail(request, overload)
        else:
            self._run(request, None)

    def malformed(self, error: MalformedMessage) -> None:
        """Report a message that could not be parsed; with strict order, after earlier ones."""
        if self._later:
            self._leave_for_later(error)
        elif self._strict and (self._queue or self._running):
            self._enqueue(error)
        else:
            self._report(error)

    # -- turns

    def _leave_for_later(self, message: Request | MalformedMessage) -> None:
        if not self._later:
            self._begin_turn()
        self._later.append(message)
        if len(self._later) == MAX_QUEUED:
            self._connection.hold_receiving("turn")

    def _begin_turn(self) -> None:
        # Not at once: others have their turn first.
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Run the postponed messages, now that others have had their turn."""
        if self._connection.is_choked:
            # The client does not read: responses would fill the memory.
            self._connection.call_when_read(self._begin_turn)
            return
        self._turn_end = monotonic() + TURN
        while self._later:
            message = self._later.popleft()
            if isinstance(message, Request):
                self._run_or_queue(message)
            elif self._strict and (self._queue or self._running):
                self._enqueue(message)
            else:
                self._report(message)
            if monotonic() > self._turn_end or self._connection.is_choked:
                break
        if self._later:
            self._begin_turn()
        # Messages that arrive in this iteration of the loop belong to the turn that ended here.
        self._ran_until = monotonic()
        if len(self._later) < MAX_QUEUED:
            self._connection.release_receiving("turn")

    def drop(self) -> None:
        """Cancel all requests: the connection was lost."""
        self._later.clear()
        for message, queued in self._queue:
            if self._telemetry is not None and isinstance(message, Request):
                record = self._telemetry.request(message.method, message.trace, queued)
                record.finish("disconnected")
        self._queue.clear()
        # Still counts running requests; `_done` subtracts them when they end.
        self._waiting_bytes = sum(wait.size for wait in self._running)
        self._is_dropped = True
        for wait, task in self._running.items():
            if isinstance(wait.waiting, Outlasting):
                wait.waiting.drop(task)
                continue
            task.cancel()
            # Now, not when the task runs; see `AnswerAfter`.
            if isinstance(wait.waiting, AnswerAfter):
                wait.waiting.cancel()

    # -- internals

    def _needs_a_slot(self, method: str) -> bool:
        # An unknown method is refused at once, without a slot.
        return method not in self._server_kind.control and method in self._router

    def _run(self, request: Request, queued: float | None) -> None:
        if self._telemetry is None:
            self._start(request, None)
        else:
            record = self._telemetry.request(request.method, request.trace, queued)
            with record:
                self._start(request, record)

    def _start(self, request: Request, record: RequestRecord | None) -> None:
        connection = self._connection
        usage = self._usage
        if self._log_requests:
            peer = clip(connection.transport.label)
            logger.debug(LogEvent("request", method=clip(request.method), peer=peer))
        try:
            route = self._router.find(request.method)
            # Bad params are reported before a missing handshake [envelope.params.before-state].
            params = route.decode(request.params)
            self._admit(route)
            if usage is not None:
                usage.totals.requests += 1
                if usage.requests and request.method not in self._server_kind.control:
                    usage.check("requests")
            result = route.handler(self._context, params)
            # On the path of every request; `isinstance(result, Awaitable)` takes three times as
            # long.
            if not hasattr(result, "__await__"):
                # Within the `try`: a backend may return an object that cannot be encoded, which
                # must not affect later requests.
                connection.reply(request.id, result)
                if record is not None:
                    record.finish("success")
                return
        except Exception as error:  # noqa: BLE001 - the border where errors become answers
            self._fail(request, error)
            if record is not None:
                record.finish("error")
            return
        wait = _Wait(request, result, record)
        task = self._task_group.create_task(self._finish(wait))
        self._running[wait] = task
        self._count_bytes(wait.size)
        if usage is not None:
            usage.requests += 1
        task.add_done_callback(partial(self._done, wait))

    async def _finish(self, wait: _Wait) -> None:
        request = wait.request
        try:
            result = await wait.waiting
            # Before the response: a client that receives it may rely on the free slot.
            self._leave(wait)
            if not self._is_dropped:
                # While others wait, their responses often follow in the same iteration.
                self._connection.reply(request.id, result, alone=not self._running)
            outcome = "success"
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            # The backend awaited a task that it had cancelled. The client still waits.
            self._finish_failed(wait, OperationFailed("the backend cancelled the call"))
            outcome = "error"
        except Exception as error:  # noqa: BLE001 - the border where errors become answers
            self._finish_failed(wait, error)
            outcome = "error"
        if wait.record is not None:
            wait.record.finish(outcome)

    def _finish_failed(self, wait: _Wait, error: Exception) -> None:
        self._leave(wait)
        if not self._is_dropped:
            self._fail(wait.request, error)

    def _leave(self, wait: _Wait) -> None:
        """Free the slot of a request, if it still has one."""
        if self._running.pop(wait, None) is not None:
            self._count_bytes(-wait.size)
            if self._usage is not None:
                self._usage.requests -= 1

    def _count_bytes(self, size: int) -> None:
        """Count waiting bytes, and stop reading from a client that has too many."""
        self._waiting_bytes += size
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self._connection.hold_receiving("bytes")
        elif size < 0:
            self._connection.release_receiving("bytes")

    def _fail(self, request: Request, error: Exception) -> None:
        code, text, data = error_of(error, request.method)
        self._connection.fail(request.id, code, text, data if self.wants_error_data else None)

    def _done(self, wait: _Wait, _: asyncio.Task[None]) -> None:
        # A request that still has its slot was cancelled.
        if wait in self._running:
            self._leave(wait)
            # If that was before its first step, the coroutine was never awaited, and Python
            # would warn about it.
            if isinstance(wait.waiting, Coroutine | AnswerAfter):
                wait.waiting.close()
            if wait.record is not None:
                wait.record.finish("disconnected")
        while self._queue and len(self._running) < self._limit:
            message, queued = self._queue.popleft()
            if isinstance(message, Request):
                self._count_bytes(-_size(message))
                self._run(message, queued)
            else:
                self._report(message)
        # At half, not just below the limit, since stopping and resuming has a cost.
        if not self._reading and len(self._queue) < MAX_QUEUED // 2:
            self._reading = True
            self._connection.release_receiving("queue")

    def _report(self, error: MalformedMessage) -> None:
        transport = self._connection.transport
        text = self._server_kind.parse_failure(error, transport.kind, transport.label)
        if text is not None:
            self._connection.fail(codes.UNPARSED_ID, codes.INVALID_REQUEST, text)

    def _enqueue(self, message: Request | MalformedMessage) -> None:
        now = 0.0 if self._telemetry is None else self._telemetry.now()
        self._queue.append((message, now))
        if isinstance(message, Request):
            self._count_bytes(_size(message))
        if self._reading and len(self._queue) >= MAX_QUEUED:
            self._reading = False
            self._connection.hold_receiving("queue")


def _size(request: Request) -> int:
    """Estimate the bytes of text in a request, down to three levels of nesting."""
    params = request.params
    if type(params) is DecodedParams:
        return params.size
    if type(params) is not dict:
        return _text_in(params, 3)
    # Fast path for nearly all params, a few strings: runs for every request that waits.
    size = 0
    for value in params.values():
        if type(value) is str:
            size += len(value)
        elif type(value) is dict or type(value) is list:
            size += _text_in(value, 2)
    return size


def _text_in(value: object, depth: int) -> int:
    if isinstance(value, str):
        return len(value)
    if depth and isinstance(value, dict):
        return sum(_text_in(part, depth - 1) for part in value.values())
    if depth and isinstance(value, list):
        return sum(_text_in(part, depth - 1) for part in value)
    return 0

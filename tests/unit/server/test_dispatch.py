"""Requests that run now, wait, or step aside."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.base.errors import InvalidRequest, MalformedMessage
from holdfast.server import dispatch
from holdfast.server.dispatch import MAX_QUEUED, Dispatcher
from holdfast.wire.connection import Connection
from holdfast.wire.protocol.envelope import Notification, Request
from holdfast.wire.protocol.handshake import EnvironmentStatus
from holdfast.wire.protocol.wire_types import Empty, Method
from holdfast.wire.rpc.router import Route, Router
from holdfast.wire.rpc.server_kind import EXEC_SERVER
from tests.unit.fakes import FakeTransport

WAIT = Method("wait", Empty, Empty)
QUICK = Method("quick", Empty, Empty)
BREAK = Method("break", Empty, Empty)
BREAK_LATER = Method("break/later", Empty, Empty)
STATUS = Method("environment/status", Empty, EnvironmentStatus)
UNFIT = Method("unfit", Empty, EnvironmentStatus)


class Nobody:
    """Hears nothing."""

    def request(self, request: Request) -> None: ...

    def notification(self, notification: Notification) -> None: ...

    def malformed(self, error: MalformedMessage) -> None: ...

    def lost(self, reason: str) -> None: ...

    def pause_sending(self) -> None: ...

    def resume_sending(self) -> None: ...


class Desk:
    """A dispatcher, the requests that wait in it, and what it answered."""

    def __init__(self, tasks: asyncio.TaskGroup, limit: int, kind: str, label: str) -> None:
        self.transport = FakeTransport(kind=kind, label=label)
        self.waiting: list[asyncio.Future[Empty]] = []
        self.cancelled = 0
        self.admitted = True
        router: Router[Desk] = Router()
        router.add(WAIT, Desk.wait)
        router.add(QUICK, Desk.quick)
        router.add(BREAK, Desk.break_now)
        router.add(BREAK_LATER, Desk.break_later)
        router.add(STATUS, Desk.status)
        router.add(UNFIT, Desk.unfit)
        self.connection = Connection(self.transport, Nobody())
        self.dispatcher = Dispatcher(
            self.connection,
            router,
            self,
            limit=limit,
            tasks=tasks,
            admit=self.admit,
            telemetry=None,
        )

    def admit(self, route: Route["Desk"]) -> None:
        if not self.admitted:
            raise InvalidRequest(f"not yet: {route.name}")

    # -- handlers

    def wait(self, params: Empty) -> Awaitable[Empty]:
        future: asyncio.Future[Empty] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return self._wait(future)

    async def _wait(self, future: asyncio.Future[Empty]) -> Empty:
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def quick(self, params: Empty) -> Empty:
        return params

    def status(self, params: Empty) -> EnvironmentStatus:
        return EnvironmentStatus(status="ready")

    def unfit(self, params: Empty) -> EnvironmentStatus:
        return EnvironmentStatus(status="a lone \udcff")

    def break_now(self, params: Empty) -> Empty:
        raise KeyError("secret")

    def break_later(self, params: Empty) -> Awaitable[Empty]:
        return self._break_later()

    async def _break_later(self) -> Empty:
        await asyncio.sleep(0)
        raise InvalidRequest("too late")

    # -- by hand

    def ask(self, *requests: tuple[int, str]) -> None:
        for request_id, method in requests:
            self.dispatcher.request(Request(request_id, method))

    def finish(self, index: int = 0) -> None:
        """Let a request that waits have its answer."""
        self.waiting.pop(index).set_result(Empty())

    @property
    def answered(self) -> list[object]:
        """The ids that were answered, in order."""
        return [message["id"] for message in self.transport.messages]

    async def settled(self) -> None:
        """Let everything that can happen at once happen."""
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def desk_of(
    limit: int, kind: str = "memory", label: str = "exec-server memory"
) -> AsyncIterator[Desk]:
    async with asyncio.TaskGroup() as tasks:
        desk = Desk(tasks, limit, kind, label)
        yield desk
        desk.dispatcher.drop()


@pytest.fixture
async def strict() -> AsyncIterator[Desk]:
    async with desk_of(1) as desk:
        yield desk


@pytest.fixture
async def free() -> AsyncIterator[Desk]:
    async with desk_of(2) as desk:
        yield desk


# Answers.


async def test_what_can_be_answered_is_answered_at_once(free: Desk) -> None:
    free.ask((1, "quick"), (2, "environment/status"))
    assert free.transport.answers == {1: {}, 2: {"status": "ready"}}


async def test_what_waits_is_answered_when_it_is_done(free: Desk) -> None:
    free.ask((1, "wait"))
    await free.settled()
    assert free.answered == []
    free.finish()
    assert await free.transport.answer(1) == {}


async def test_an_answer_is_sent_alone_if_no_other_request_waits(free: Desk) -> None:
    free.ask((1, "wait"), (2, "wait"))
    await free.settled()
    free.finish()
    await free.transport.answer(1)
    assert free.transport.sent_alone == []
    free.finish()
    await free.transport.answer(2)
    assert free.transport.sent_alone == [b'{"id":2,"result":{}}']


@pytest.mark.requirement("envelope.codes", "envelope.unknown-method")
async def test_a_failure_is_an_answer(free: Desk, caplog: pytest.LogCaptureFixture) -> None:
    free.ask((1, "break"), (2, "break/later"), (3, "nope"))
    free.dispatcher.request(Request(4, "quick", [1]))
    assert await free.transport.answer(2) == (-32600, "too late")
    assert free.transport.answers[1] == (-32603, "internal error")
    assert free.transport.answers[3] == (-32601, "exec-server stub does not implement `nope` yet")
    assert free.transport.answers[4] == (-32602, "invalid type: sequence, expected unit")
    assert [record.getMessage() for record in caplog.records] == ["break failed"]


@pytest.mark.requirement("envelope.malformed.reply", "envelope.malformed.prefix")
@pytest.mark.parametrize(
    ("kind", "label", "prefix"),
    [
        ("stdio", "exec-server stdio", "JSON-RPC message from exec-server stdio"),
        (
            "unix",
            "exec-server unix of websocket users",
            "JSON-RPC message from exec-server unix of websocket users",
        ),
        (
            "websocket",
            "exec-server websocket 127.0.0.1:5",
            "websocket JSON-RPC message from exec-server websocket 127.0.0.1:5",
        ),
    ],
)
async def test_what_cannot_be_read_is_reported_with_where_it_came_from(
    kind: str, label: str, prefix: str
) -> None:
    async with desk_of(2, kind, label) as desk:
        desk.dispatcher.malformed(MalformedMessage("why"))
    assert desk.transport.answers == {-1: (-32600, f"failed to parse {prefix}: why")}


async def test_only_a_client_that_wants_it_gets_an_error_as_data(free: Desk) -> None:
    free.admitted = False
    free.ask((1, "quick"))
    free.dispatcher.wants_error_data = True
    free.ask((2, "quick"), (3, "nope"))
    first, *others = (message["error"] for message in free.transport.messages)
    assert first == {"code": -32600, "message": "not yet: quick"}
    assert [error["data"] for error in others] == [
        {"kind": "invalidRequest"},
        {"kind": "methodNotFound"},
    ]


async def test_an_answer_that_was_waited_for_has_data_too(free: Desk) -> None:
    free.dispatcher.wants_error_data = True
    free.ask((1, "break/later"), (2, "break"))
    await free.transport.answer(1)
    errors = {message["id"]: message["error"] for message in free.transport.messages}
    assert errors[1]["data"] == {"kind": "invalidRequest"}
    # What was not foreseen is nobody's business but the log's.
    assert errors[2] == {"code": -32603, "message": "internal error"}


# One at a time.


@pytest.mark.requirement("dispatch.strict")
async def test_with_a_limit_of_one_nothing_overtakes_anything(strict: Desk) -> None:
    strict.ask((1, "wait"), (2, "environment/status"), (3, "nope"), (4, "wait"), (5, "quick"))
    await strict.settled()
    assert strict.answered == []
    strict.finish()
    await strict.transport.answer(3)
    assert strict.answered == [1, 2, 3]
    strict.finish()
    await strict.transport.answer(5)
    assert strict.answered == [1, 2, 3, 4, 5]


@pytest.mark.requirement("envelope.malformed.order")
async def test_with_a_limit_of_one_a_report_waits_its_turn(strict: Desk) -> None:
    strict.dispatcher.malformed(MalformedMessage("idle"))
    assert strict.answered == [-1]
    strict.ask((1, "wait"))
    strict.dispatcher.malformed(MalformedMessage("busy"))
    strict.ask((2, "quick"))
    assert strict.answered == [-1]
    strict.finish()
    await strict.transport.answer(2)
    assert strict.answered == [-1, 1, -1, 2]


# Several at once.


@pytest.mark.requirement("dispatch.concurrent")
async def test_replies_come_in_the_order_of_completion(free: Desk) -> None:
    free.ask((1, "wait"), (2, "wait"), (3, "quick"))
    assert free.answered == []  # two slots are taken
    free.finish(1)
    await free.transport.answer(3)
    assert free.answered == [2, 3]
    free.finish()
    await free.transport.answer(1)


@pytest.mark.requirement("dispatch.concurrent", "security.others.requests")
async def test_no_more_run_at_once_than_the_limit_says(free: Desk) -> None:
    free.ask(*((n, "wait") for n in range(5)))
    await free.settled()
    assert len(free.waiting) == 2
    free.finish()
    await free.transport.answer(0)
    await free.settled()
    assert len(free.waiting) == 2


@pytest.mark.requirement("dispatch.control", "dispatch.at-once", "envelope.malformed.order")
async def test_control_and_what_needs_no_place_do_not_wait_for_one(free: Desk) -> None:
    free.ask((1, "wait"), (2, "wait"), (3, "wait"), (4, "environment/status"), (5, "nope"))
    free.dispatcher.malformed(MalformedMessage("why"))
    assert free.answered == [4, 5, -1]


@pytest.mark.requirement("dispatch.control")
def test_control_is_what_ends_or_asks_after_the_others() -> None:
    ends = {"process/hold", "process/signal", "process/terminate", "fs/close"}
    asks = {"environment/info", "environment/status"}
    assert ends | asks == EXEC_SERVER.control


async def test_requests_that_wait_for_a_place_keep_their_order(free: Desk) -> None:
    free.ask((1, "wait"), (2, "wait"), (3, "quick"), (4, "quick"))
    free.finish()
    await free.transport.answer(4)
    assert free.answered == [1, 3, 4]
    free.ask((5, "quick"))
    assert free.answered == [1, 3, 4, 5]


# Too many.


@pytest.mark.requirement("limits.queue")
async def test_128_messages_may_wait_and_then_no_more_is_read(strict: Desk) -> None:
    assert MAX_QUEUED == 128
    strict.ask((0, "wait"))
    for number in range(1, MAX_QUEUED):
        strict.ask((number, "quick"))
    assert strict.transport.calls == []
    strict.ask((MAX_QUEUED, "quick"))
    assert strict.transport.calls == ["pause"]
    strict.ask((MAX_QUEUED + 1, "quick"))  # one that was under way
    assert strict.transport.calls == ["pause"]
    strict.finish()
    await strict.transport.answer(MAX_QUEUED + 1)
    assert strict.transport.calls == ["pause", "resume"]
    assert strict.answered == list(range(MAX_QUEUED + 2))


async def test_reading_goes_on_once_half_of_the_queue_is_empty(strict: Desk) -> None:
    for number in range(MAX_QUEUED + 1):
        strict.ask((number, "wait"))
    done = 0
    while strict.transport.calls == ["pause"]:
        strict.finish()
        await strict.transport.answer(done)
        await strict.settled()
        done += 1
    assert done == MAX_QUEUED // 2 + 1


# The end.


@pytest.mark.requirement("dispatch.lost")
async def test_when_the_connection_is_gone_nothing_is_answered(strict: Desk) -> None:
    strict.ask((1, "wait"), (2, "quick"))
    await strict.settled()
    strict.dispatcher.drop()
    await strict.settled()
    assert strict.cancelled == 1
    assert strict.answered == []


@pytest.mark.requirement("dispatch.lost")
async def test_a_request_may_be_dropped_before_it_began_to_wait(free: Desk) -> None:
    free.ask((1, "wait"))
    free.dispatcher.drop()
    await free.settled()
    assert free.answered == []
    assert free.cancelled == 0


# What is recorded.


class Record:
    """One request, as telemetry sees it."""

    def __init__(self, log: list[tuple[str, object]], method: str) -> None:
        self._log = log
        self._method = method

    def __enter__(self) -> object:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def finish(self, result: str) -> None:
        self._log.append((self._method, result))


async def test_every_request_is_recorded_once_with_its_outcome() -> None:
    log: list[tuple[str, object]] = []

    class Watcher:
        def now(self) -> float:
            return 1.0

        def request(self, method: str, trace: object, queued: float | None) -> Record:
            log.append((method, queued))
            return Record(log, method)

    async with desk_of(1) as desk:
        watcher: Any = Watcher()
        desk.dispatcher._telemetry = watcher
        desk.ask((1, "quick"), (2, "break"), (3, "wait"), (4, "quick"))
        await desk.settled()
        desk.finish()
        await desk.transport.answer(4)
        desk.ask((5, "wait"), (6, "quick"))
    assert log == [
        ("quick", None),
        ("quick", "success"),
        ("break", None),
        ("break", "error"),
        ("wait", None),
        ("wait", "success"),
        ("quick", 1.0),
        ("quick", "success"),
        ("wait", None),
        ("quick", 1.0),
        ("quick", "disconnected"),
        ("wait", "disconnected"),
    ]


# -- turns


@pytest.mark.requirement("dispatch.turns", "security.others.turns")
async def test_who_asks_for_much_at_once_lets_others_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "TURN", 0.0)
    async with desk_of(limit=1024) as busy, desk_of(limit=1024) as other:
        busy.dispatcher.takes_turns = True
        busy.ask(*[(number, "quick") for number in range(1000)])
        busy.dispatcher.malformed(MalformedMessage("no JSON"))
        assert busy.answered == [0]
        assert busy.transport.calls == ["pause"]
        other.ask((1, "quick"))
        assert other.answered == [1]
        await busy.settled()
        assert 1 < len(busy.answered) < 1000
        async with asyncio.timeout(5):
            while len(busy.answered) < 1001:  # noqa: ASYNC110 - one turn after the other
                await asyncio.sleep(0)
        assert busy.answered == [*range(1000), -1]
        assert busy.transport.calls == ["pause", "resume"]


async def test_a_result_that_cannot_be_encoded_is_an_error_and_holds_up_nobody(
    free: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "TURN", -1.0)  # each has a turn of its own
    monkeypatch.setattr(dispatch, "_GAP", 3600.0)
    free.dispatcher.takes_turns = True
    free.ask((1, "quick"), (2, "unfit"), (3, "quick"), (4, "quick"))
    await free.transport.answer(4)
    assert list(free.transport.answers) == [1, 2, 3, 4]
    refusal = free.transport.answers[2]
    assert isinstance(refusal, tuple)
    assert refusal[0] == -32603


async def test_what_was_left_for_later_waits_for_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "TURN", 0.0)
    monkeypatch.setattr("holdfast.wire.connection.MAX_UNREAD", 100)
    async with desk_of(limit=1024) as desk:
        desk.dispatcher.takes_turns = True
        desk.connection.pause_sending()
        desk.ask(*[(number, "quick") for number in range(30)])
        async with asyncio.timeout(5):
            while not desk.connection.is_choked:  # noqa: ASYNC110 - one turn after the other
                await asyncio.sleep(0)
        before = len(desk.answered)
        await desk.settled()
        assert len(desk.answered) == before < 30
        desk.connection.resume_sending()
        await desk.transport.answer(29)
        assert desk.answered == [*range(30)]


async def test_what_was_left_for_later_goes_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "TURN", 0.0)
    async with desk_of(limit=1024) as desk:
        desk.dispatcher.takes_turns = True
        desk.ask(*[(number, "quick") for number in range(10)])
        desk.dispatcher.drop()
        await desk.settled()
        assert desk.answered == [0]


@pytest.mark.requirement("security.others.requests")
async def test_a_client_with_too_many_bytes_waiting_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "MAX_WAITING_BYTES", 1000)
    async with desk_of(limit=1) as desk:
        large = {"text": "x" * 600, "more": {"list": ["y" * 300]}}
        for number, params in enumerate((None, large, large)):
            desk.dispatcher.request(Request(number, "quick" if params else "wait", params))
        assert desk.transport.calls == ["pause"]
        desk.finish()
        await desk.settled()
        assert desk.transport.calls == ["pause", "resume"]

"""Sessions: what they push, and how they outlive a connection."""

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.base.errors import InvalidRequest, SessionAttached, UnknownProcess
from holdfast.engine.process.io.log import MAX_RETAINED_BYTES
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Reason
from holdfast.server.delivery import DETACHED, UNDER_WAY
from holdfast.server.operate.records import Records
from holdfast.server.principals import Principals
from holdfast.server.sessions import Session, Sessions
from holdfast.wire.protocol.process import OutputChunk
from holdfast.wire.rpc.encode import encode_output
from holdfast.wire.transports.transport import Credential
from tests.unit.engine.process.starting import (
    LIMIT,
    closed,
    eventually,
    launch,
    program,
    shell,
    written,
)


class Owner:
    """A connection that keeps what it is sent."""

    credential = Credential("somebody")
    usage = Principals()["somebody"]

    def __init__(self, *, paused: bool = False, acknowledges: bool = False) -> None:
        self.paused = paused
        self.acknowledges = acknowledges
        self.abandoned: Callable[[], None] | None = None
        """What happens when it is abandoned."""
        self.messages: list[dict[str, Any]] = []

    def send(self, message: bytes) -> None:
        self.messages.append(json.loads(message))

    def send_output(self, prefix: bytes, chunk: OutputChunk) -> None:
        self.send(b"".join(encode_output(prefix, chunk.seq, chunk.stream, chunk.chunk)))

    def abandon(self, reason: str) -> None:
        assert self.abandoned is not None, reason
        self.abandoned()

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.messages]


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    sessions = Sessions(ProcessRegistry, records=Records())
    yield sessions
    await sessions.end_all(Reason.SERVER_STOPPING, grace=LIMIT)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def session(sessions: Sessions, owner: Owner) -> Session:
    return sessions.open(owner)


# What is pushed.


@pytest.mark.requirement("output.slow-client")
async def test_a_client_that_does_not_read_holds_its_processes(
    session: Session, owner: Owner
) -> None:
    first = launch(session.processes, shell("read x; echo out", pipe_stdin=True))
    owner.paused = True
    session.owner_paused(True)
    second = launch(session.processes, shell("echo out", process_id="q"))
    await first.write(b"\n", "1")
    for process in (first, second):
        assert not process.log.closed
    assert owner.methods.count("process/output") == 0
    owner.paused = False
    session.owner_paused(False)
    await closed(first)
    await closed(second)
    assert owner.methods.count("process/output") == 2


@pytest.mark.requirement("output.detached-not-blocked")
async def test_a_client_that_went_away_holds_nobody(sessions: Sessions, session: Session) -> None:
    session.owner_paused(True)
    process = launch(session.processes, shell("echo out"))
    sessions.detach(session)
    await closed(process)


async def test_a_client_that_does_not_read_when_it_resumes_holds_its_processes(
    sessions: Sessions, session: Session
) -> None:
    process = launch(session.processes, shell("read x; echo out; read x", pipe_stdin=True))
    sessions.detach(session)
    slow = Owner(paused=True)
    sessions.resume(session.id, slow)
    await process.write(b"\n", "1")
    await asyncio.sleep(0)
    assert slow.messages == []
    session.owner_paused(False)
    await written(process, b"out")


# A client that acknowledges.


FLOOD = "head -c 50000000 /dev/zero"


@pytest.mark.requirement("extension.ack")
async def test_what_is_not_acknowledged_is_kept_and_holds_the_process(sessions: Sessions) -> None:
    owner = Owner(acknowledges=True)
    session = sessions.open(owner)
    process = launch(session.processes, shell(FLOOD))
    await eventually(lambda: process.log.is_held)
    kept = process.log.read()
    assert kept.chunks[0].seq == 1
    size = sum(len(chunk.chunk) for chunk in kept.chunks)
    assert UNDER_WAY.max_bytes < size <= UNDER_WAY.max_bytes + (1 << 16)
    session.acknowledge("p", kept.next_seq - 1)
    assert not process.log.is_held
    assert process.log.retained_bytes <= MAX_RETAINED_BYTES
    await process.terminate()
    await closed(process)


@pytest.mark.requirement("extension.hold-detached")
async def test_a_detached_session_holds_what_fills_its_log_until_it_is_resumed(
    sessions: Sessions,
) -> None:
    session = sessions.open(Owner(acknowledges=True))
    process = launch(session.processes, shell(f"read x; {FLOOD}", pipe_stdin=True))
    sessions.detach(session)
    await process.write(b"\n", "1")
    await eventually(lambda: process.log.is_held)
    size = process.log.retained_bytes
    assert DETACHED.max_bytes < size <= DETACHED.max_bytes + (1 << 16)
    successor = Owner(acknowledges=True)
    sessions.resume(session.id, successor)
    # Nothing is sent before the client has read what it missed: that would overtake it.
    missed = process.log.read()
    session.acknowledge("p", 0)
    assert successor.messages == []
    session.caught_up("p", 0)
    session.acknowledge("p", missed.next_seq - 1)
    await eventually(lambda: bool(successor.messages))
    assert successor.messages[0]["params"]["seq"] == missed.next_seq
    await process.terminate()
    await closed(process)


@pytest.mark.requirement("extension.hold-detached")
async def test_a_process_that_ends_while_nobody_is_there_is_kept_as_long_as_its_session() -> None:
    sessions = Sessions(lambda: ProcessRegistry(retention=0.01), records=Records())
    session = sessions.open(Owner(acknowledges=True))
    process = launch(session.processes, shell("echo out"))
    sessions.detach(session)
    await closed(process)
    await asyncio.sleep(0.05)  # longer than it would be kept
    assert session.processes.find("p") is process
    sessions.resume(session.id, Owner(acknowledges=True))
    assert session.processes.find("p") is process
    await eventually(lambda: session.processes.find("p") is None)
    await sessions.end_all(Reason.SERVER_STOPPING, grace=LIMIT)


@pytest.mark.requirement("extension.take-over")
async def test_a_client_that_acknowledges_takes_its_session_over(sessions: Sessions) -> None:
    first = Owner(acknowledges=True)
    session = sessions.open(first)
    first.abandoned = lambda: sessions.detach(session)
    with pytest.raises(SessionAttached):  # a Codex client does not
        sessions.resume(session.id, Owner())
    second = Owner(acknowledges=True)
    assert sessions.resume(session.id, second) is session
    assert session.owner is second


async def test_a_codex_client_that_resumes_the_session_is_sent_everything_at_once(
    sessions: Sessions,
) -> None:
    session = sessions.open(Owner(acknowledges=True))
    process = launch(session.processes, shell("read x; echo out", pipe_stdin=True))
    session.hold("p", True)
    sessions.detach(session)
    plain = Owner()
    sessions.resume(session.id, plain)
    assert not process.log.is_held
    await process.write(b"\n", "1")
    await closed(process)
    assert plain.methods == ["process/output", "process/exited", "process/closed"]


@pytest.mark.requirement("extension.hold")
async def test_a_client_holds_one_process_and_no_other(sessions: Sessions) -> None:
    owner = Owner(acknowledges=True)
    session = sessions.open(owner)
    held = launch(session.processes, shell("read x; yes held", process_id="held", pipe_stdin=True))
    session.hold("held", True)
    session.hold("held", True)  # twice is no more than once
    await held.write(b"\n", "1")
    other = launch(session.processes, shell("echo other", process_id="other"))
    await closed(other)
    assert {message["params"]["processId"] for message in owner.messages} == {"other"}
    session.hold("held", False)
    await eventually(lambda: owner.messages[-1]["params"]["processId"] == "held")
    with pytest.raises(UnknownProcess, match="unknown process id nobody"):
        session.hold("nobody", True)
    await held.terminate()
    await closed(held)


# The end.


@pytest.mark.virtual_time
@pytest.mark.requirement("session.expiry", "session.resume.resets-the-clock")
async def test_a_session_is_kept_for_80_seconds() -> None:
    sessions = Sessions(ProcessRegistry, records=Records())
    session = sessions.open(Owner())
    for _ in range(2):
        sessions.detach(session)
        await asyncio.sleep(79)
        assert sessions.resume(session.id, Owner()) is session
    sessions.detach(session)
    await asyncio.sleep(81)
    with pytest.raises(InvalidRequest, match="unknown session id"):
        sessions.resume(session.id, Owner())


@pytest.mark.requirement("security.session.silent")
@pytest.mark.virtual_time
async def test_the_session_of_a_silent_client_is_kept_for_300_seconds() -> None:
    sessions = Sessions(ProcessRegistry, records=Records())
    session = sessions.open(Owner())
    sessions.detach(session, silent=True)
    await asyncio.sleep(299)
    assert sessions.resume(session.id, Owner()) is session
    sessions.detach(session, silent=True)
    await asyncio.sleep(301)
    with pytest.raises(InvalidRequest, match="unknown session id"):
        sessions.resume(session.id, Owner())


async def test_all_sessions_can_be_ended_at_once(sessions: Sessions) -> None:
    attached, detached = sessions.open(Owner()), sessions.open(Owner())
    processes = [
        launch(session.processes, program("/bin/cat", pipe_stdin=True))
        for session in (attached, detached)
    ]
    sessions.detach(detached)
    await sessions.end_all(Reason.SERVER_STOPPING, grace=LIMIT)
    assert len(sessions) == 0
    for process in processes:
        assert process.log.closed
        assert process.log.verdict is not None
        assert process.log.verdict.reason is Reason.SERVER_STOPPING


async def test_a_connection_that_ends_after_its_session_changes_nothing(
    sessions: Sessions, session: Session
) -> None:
    sessions.end(session, Reason.SERVER_STOPPING)
    sessions.detach(session)
    assert session.owner is None
    assert len(sessions) == 0
    assert sessions._timers == {}


async def test_nothing_is_kept_of_a_process_that_is_forgotten() -> None:
    sessions = Sessions(lambda: ProcessRegistry(retention=0.0), records=Records())
    session = sessions.open(Owner(acknowledges=True))
    logs = []

    async def run(process_id: str) -> None:
        process = launch(session.processes, shell("echo hi", process_id=process_id))
        logs.append(weakref.ref(process.log))
        await closed(process)

    for number in range(3):
        await run(str(number))
    await eventually(lambda: len(session.processes) == 0)
    gc.collect()
    assert [log() for log in logs] == [None, None, None]
    session.acknowledge("0", 1)  # late, and harmless
    await sessions.end_all(Reason.SERVER_STOPPING, grace=LIMIT)


@pytest.mark.virtual_time
async def test_a_connection_that_breaks_again_and_again_does_not_keep_what_has_ended() -> None:
    sessions = Sessions(lambda: ProcessRegistry(retention=30.0), records=Records())
    session = sessions.open(Owner(acknowledges=True))
    seen, unseen = (
        launch(session.processes, shell("echo hi", process_id=name)) for name in ("seen", "unseen")
    )
    while not (seen.log.closed and unseen.log.closed):  # noqa: ASYNC110 - see below
        await asyncio.sleep(0)  # without a timer: this clock would jump to it
    session.acknowledge("seen", seen.log.next_seq - 1)
    for _ in range(29):
        sessions.detach(session)
        await asyncio.sleep(20)  # without a connection nothing is forgotten
        sessions.resume(session.id, Owner(acknowledges=True))
        await asyncio.sleep(1)
    assert {process.process_id for process in session.processes} == {"seen", "unseen"}
    sessions.detach(session)
    sessions.resume(session.id, Owner(acknowledges=True))
    await asyncio.sleep(2)
    # What was not acknowledged stays for a moment after a resume.
    assert [process.process_id for process in session.processes] == ["unseen"]
    await asyncio.sleep(4)
    assert len(session.processes) == 0
    await sessions.end_all(Reason.SERVER_STOPPING, grace=LIMIT)

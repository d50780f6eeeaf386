"""Sessions: what they push, and how they outlive a connection."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast.errors import InvalidRequest, SessionAttached
from holdfast.events import Reason
from holdfast.process.table import LocalProcesses
from holdfast.server.sessions import EXPIRY, Session, Sessions
from tests.unit.process.starting import LIMIT, closed, eventually, launch, program, shell, written


class Owner:
    """A connection that keeps what it is sent."""

    def __init__(self, *, paused: bool = False) -> None:
        self.paused = paused
        self.messages: list[dict[str, Any]] = []

    def send(self, message: bytes) -> None:
        self.messages.append(json.loads(message))

    def send_parts(self, parts: Sequence[bytes]) -> None:
        self.send(b"".join(parts))

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.messages]


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    sessions = Sessions(LocalProcesses)
    yield sessions
    await sessions.end_all(Reason.SERVER_STOPPING, grace=LIMIT)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def session(sessions: Sessions, owner: Owner) -> Session:
    return sessions.open(owner)


# Opening.


@pytest.mark.requirement("session.initialize")
async def test_each_session_has_a_random_id_of_its_own(sessions: Sessions) -> None:
    ids = {sessions.open(Owner()).id for _ in range(50)}
    assert len(ids) == len(sessions) == 50
    uuid4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert all(re.fullmatch(uuid4, identity) for identity in ids)


@pytest.mark.requirement("session.scope")
async def test_sessions_do_not_see_each_others_processes(sessions: Sessions) -> None:
    one, other = sessions.open(Owner()), sessions.open(Owner())
    process = launch(one.processes, program("/bin/cat", pipe_stdin=True))
    assert other.processes.find("p") is None
    launch(other.processes, program("/bin/cat", pipe_stdin=True))
    assert len(sessions.processes()) == 2
    assert process in sessions.processes()


# What is pushed.


@pytest.mark.requirement("output.notifications", "output.seq", "output.sandbox-denied")
async def test_everything_that_happens_to_a_process_is_told(session: Session, owner: Owner) -> None:
    process = launch(session.processes, shell("echo hi; exit 3", process_id="ü"))
    await closed(process)
    assert owner.messages == [
        {
            "method": "process/output",
            "params": {"processId": "ü", "seq": 1, "stream": "stdout", "chunk": "aGkK"},
        },
        {
            "method": "process/exited",
            "params": {"processId": "ü", "seq": 2, "exitCode": 3, "sandboxDenied": False},
        },
        {"method": "process/closed", "params": {"processId": "ü", "seq": 3}},
    ]


@pytest.mark.requirement("session.detached.goes-on", "session.resume.new-events")
async def test_what_happens_without_a_connection_is_kept_and_not_told(
    sessions: Sessions, session: Session, owner: Owner
) -> None:
    script = "read x; echo $x; read x; echo $x; read x"
    process = launch(session.processes, shell(script, pipe_stdin=True))
    sessions.detach(session)
    process.write(b"one\n", "1")
    await written(process, b"one\n")
    assert owner.messages == []
    successor = Owner()
    assert sessions.resume(session.id, successor) is session
    process.write(b"two\n", "2")
    await written(process, b"two\n")
    assert [message["params"]["seq"] for message in successor.messages] == [2]
    assert len(process.log.read().chunks) == 2


@pytest.mark.requirement("output.slow-client")
async def test_a_client_that_does_not_read_holds_its_processes(
    session: Session, owner: Owner
) -> None:
    first = launch(session.processes, shell("read x; echo out", pipe_stdin=True))
    owner.paused = True
    session.owner_paused(True)
    second = launch(session.processes, shell("echo out", process_id="q"))
    first.write(b"\n", "1")
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
    process.hold_output(session)
    sessions.detach(session)
    await closed(process)


async def test_a_client_that_does_not_read_when_it_resumes_holds_its_processes(
    sessions: Sessions, session: Session
) -> None:
    process = launch(session.processes, shell("read x; echo out; read x", pipe_stdin=True))
    sessions.detach(session)
    slow = Owner(paused=True)
    sessions.resume(session.id, slow)
    process.write(b"\n", "1")
    await asyncio.sleep(0)
    assert slow.messages == []
    session.owner_paused(False)
    await written(process, b"out")


# Coming back.


@pytest.mark.requirement("session.resume")
async def test_a_session_can_be_resumed_any_number_of_times(
    sessions: Sessions, session: Session
) -> None:
    for _ in range(3):
        sessions.detach(session)
        assert session.owner is None
        successor = Owner()
        assert sessions.resume(session.id, successor) is session
        assert session.owner is successor


@pytest.mark.requirement("session.resume.attached")
async def test_a_session_with_a_connection_is_not_taken_over(
    sessions: Sessions, session: Session, owner: Owner
) -> None:
    with pytest.raises(SessionAttached) as caught:
        sessions.resume(session.id, Owner())
    assert str(caught.value) == (f"session {session.id} is already attached to another connection")
    assert session.owner is owner


@pytest.mark.requirement("session.resume.unknown")
@pytest.mark.parametrize("session_id", ["", "nope"])
async def test_an_unknown_session_cannot_be_resumed(sessions: Sessions, session_id: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sessions.resume(session_id, Owner())
    assert str(caught.value) == f"unknown session id {session_id}"


# The end.


@pytest.mark.requirement("session.expiry")
async def test_a_session_nobody_comes_back_to_ends_with_its_processes() -> None:
    sessions = Sessions(LocalProcesses, expiry=0.0)
    session = sessions.open(Owner())
    process = launch(session.processes, shell("trap '' HUP TERM; sleep 60 & wait"))
    sessions.detach(session)
    verdict = await closed(process)
    assert verdict.reason is Reason.SESSION_EXPIRED
    with pytest.raises(InvalidRequest, match="unknown session id"):
        sessions.resume(session.id, Owner())
    assert len(sessions) == 0


@pytest.mark.requirement("session.expiry")
def test_a_session_is_kept_for_30_seconds() -> None:
    assert EXPIRY == 30.0


@pytest.mark.requirement("session.resume.resets-the-clock")
async def test_a_session_that_was_resumed_does_not_end() -> None:
    sessions = Sessions(LocalProcesses, expiry=0.01)
    kept, left = sessions.open(Owner()), sessions.open(Owner())
    sessions.detach(kept)
    sessions.detach(left)
    sessions.resume(kept.id, Owner())
    await eventually(lambda: len(sessions) == 1)
    sessions.detach(kept)
    assert sessions.resume(kept.id, Owner()) is kept
    sessions.end(kept, Reason.SERVER_STOPPING)


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

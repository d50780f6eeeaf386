"""After a lost connection the session is resumed; callers notice a delay, or hear the reason."""

import asyncio
import base64
from collections.abc import Callable
from typing import NoReturn

import pytest

from holdfast.base.errors import (
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    HoldfastError,
    RemoteError,
    ServerGone,
)
from holdfast.client import recovery
from holdfast.client.client import ExecServerClient
from holdfast.client.reorder import MAX_EVENTS
from holdfast.events import Closed, Exited, Gap, LimitKind, Reason, Verdict
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.testing.scripted import SESSION_ID, Answer
from holdfast.wire.protocol.envelope import Request
from holdfast.wire.protocol.process import OutputChunk
from holdfast.wire.transports.transport import Receiver, Transport
from tests.unit.client.script import (
    all_events,
    meanwhile,
    nothing_missed,
    param,
    read_result,
    settled,
    start_params,
    started,
)

LOST = "exec-server transport disconnected: connection closed"


def chunk(seq: int, data: bytes) -> dict[str, object]:
    return {"seq": seq, "stream": "stdout", "chunk": base64.b64encode(data).decode()}


@pytest.mark.requirement("client.recovery.resumes", "client.recovery.in-flight")
async def test_the_session_is_resumed_and_waiting_calls_go_on(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    peer.cut()
    await peer.until(lambda: peer.lost_reason is not None)
    async with meanwhile(client.info()) as asking:
        again = await server.peer(1)
        await again.notified("initialized")
        assert again.requests("initialize")[0].params == {
            "clientName": "holdfast",
            "resumeSessionId": SESSION_ID,
            "acknowledges": True,
        }
        request = await again.take("environment/info")
        again.reply(request, {"shell": {"name": "sh", "path": "/bin/sh"}})
    assert (await asking).shell.name == "sh"
    assert request.id == 2  # numbers begin anew with each connection


@pytest.mark.requirement("client.recovery.in-flight", "client.recovery.others-fail")
async def test_calls_in_flight_fail(client: ExecServerClient, peer: ScriptedPeer) -> None:
    process = await started(client, peer)
    async with (
        meanwhile(client.info()) as asking,
        meanwhile(process.signal("interrupt")) as signalling,
        meanwhile(process.resize(2, 3)) as resizing,
    ):
        for method in ("environment/info", "process/signal", "process/resize"):
            await peer.take(method)
        peer.cut()
        for call in (asking, signalling, resizing):
            with pytest.raises(ConnectionLost) as caught:
                await call
            assert str(caught.value) == "exec-server transport disconnected"


async def test_the_status_does_not_wait_for_recovery(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    del server.answers["initialize"]
    peer.cut()
    await server.peer(1)
    with pytest.raises(ConnectionLost) as caught:
        await client.status()
    assert str(caught.value) == "exec-server environment is recovering"


@pytest.mark.requirement("client.recovery.retryable")
async def test_a_server_that_cannot_be_reached_is_tried_again(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    server.refusing = 3
    peer.cut()
    await works(client, await server.peer(1))
    assert server.refused == 3


@pytest.mark.parametrize("final", [ServerGone, ConnectRefused])
async def test_a_server_that_is_gone_or_refuses_is_not_tried_again(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    final: type[ConnectFailed],
) -> None:
    process = await started(client, peer)
    attempts = 0

    async def open_nothing(accept: object) -> Transport:
        nonlocal attempts
        attempts += 1
        raise final("it is no more")

    monkeypatch.setattr(server, "open", open_nothing)
    peer.cut()
    with pytest.raises(ConnectionLost, match=r"failed to resume .*: it is no more"):
        await process.wait()
    assert attempts == 1


async def test_a_target_may_want_more_time_between_attempts(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("holdfast.client.recovery.asyncio.sleep", sleep)
    monkeypatch.setattr(server, "retry_interval", 7.0)
    server.refusing = 2
    peer.cut()
    await server.peer(1)
    assert slept == [7.0, 7.0]


@pytest.mark.requirement("client.recovery.retryable")
async def test_a_session_that_is_still_attached_is_tried_again(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    plain = server.answers["initialize"]

    def attached(peer: ScriptedPeer, request: Request) -> None:
        if len(server.peers) == 4:
            server.answers["initialize"] = plain
        peer.fail(request, -32010, f"session {SESSION_ID} is already attached")

    server.answers["initialize"] = attached
    peer.cut()
    await works(client, await server.peer(4))
    assert len(server.peers) == 5


@pytest.mark.requirement("client.recovery.retryable")
async def test_a_connection_that_breaks_again_is_tried_again(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    peer.cut()
    second = await server.peer(1)
    await second.take("process/read")
    second.cut()
    third = await server.peer(2)
    third.reply(await third.take("process/read"), read_result(next_seq=3, exit_code=0, closed=True))
    assert (await process.wait()).ok


@pytest.mark.requirement("client.recovery.gives-up", "client.recovery.retryable", "client.texts")
async def test_an_unknown_session_ends_it_for_all(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    peer.output("p1", 1, b"before")
    await settled()
    server.answers["initialize"] = lambda peer, request: peer.fail(
        request, -32600, f"unknown session id {SESSION_ID}"
    )
    text = (
        f"{LOST}; failed to resume exec-server session: exec-server rejected request (-32600):"
        f" unknown session id {SESSION_ID}"
    )
    peer.cut()
    stream = process.events()
    assert await anext(stream) == OutputChunk(seq=1, stream="stdout", chunk=b"before")
    for waiting in (anext(stream), process.wait(), client.start(start_params("p2"))):
        with pytest.raises(ConnectionLost) as caught:
            await waiting
        assert str(caught.value) == text
    with pytest.raises(ConnectionLost) as caught:
        await client.status()
    assert str(caught.value) == text
    assert len(server.peers) == 2


@pytest.mark.requirement("client.recovery.read-repeated", "client.recovery.gives-up")
async def test_a_read_after_the_end_of_all_hope_tells_the_reason(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    server.answers["initialize"] = lambda peer, request: peer.fail(request, -32600, "gone")
    async with meanwhile(process.read(after_seq=4, wait=60.0)) as reading:
        await peer.take("process/read")
        peer.cut()
        with pytest.raises(ConnectionLost) as caught:
            await reading
    assert str(caught.value) == (
        f"{LOST}; failed to resume exec-server session: exec-server rejected request (-32600): gone"
    )
    with pytest.raises(ConnectionLost):
        await process.write(b"x")
    with pytest.raises(ConnectionLost):
        await process.terminate()


@pytest.mark.requirement("client.unexpected-session", "client.texts")
async def test_another_session_than_the_remembered_one_is_an_error(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    server.answers["initialize"] = lambda peer, request: peer.reply(request, {"sessionId": "new"})
    peer.cut()
    with pytest.raises(ConnectionLost) as caught:
        await process.wait()
    assert str(caught.value) == (
        f"{LOST}; failed to resume exec-server session:"
        " exec-server protocol error: exec-server initialized an unexpected session ID"
    )
    again = await server.peer(1)
    await again.until(lambda: again.lost_reason is not None)


@pytest.mark.requirement("client.recovery.resumes", "client.recovery.gives-up", "client.texts")
async def test_recovery_has_an_end(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert recovery.RECOVERY_LIMIT == 45.0
    monkeypatch.setattr(recovery, "RECOVERY_LIMIT", 0.01)
    process = await started(client, peer)
    del server.answers["initialize"]
    peer.cut()
    with pytest.raises(ConnectionLost) as caught:
        await process.wait()
    assert str(caught.value) == (
        f"{LOST}; failed to resume exec-server session: recovery timed out after 0.01s"
    )


@pytest.mark.requirement("client.recovery.gives-up")
async def test_recovery_has_an_end_also_after_an_attempt_that_broke_in_the_middle(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "RECOVERY_LIMIT", 0.1)
    process = await started(client, peer)
    peer.cut()
    second = await server.peer(1)
    await second.take("process/read")
    del server.answers["initialize"]
    second.cut()
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionLost, match=r"recovery timed out after 0\.1s"):
            await process.wait()


async def test_why_the_last_attempt_failed_is_the_cause(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text is Codex's, and has no room for it."""
    monkeypatch.setattr(recovery, "RECOVERY_LIMIT", 0.05)
    refused = ConnectFailed("Host key verification failed.")

    async def refuse(accept: object) -> NoReturn:
        raise refused

    process = await started(client, peer)
    monkeypatch.setattr(server, "open", refuse)
    peer.cut()
    with pytest.raises(ConnectionLost) as caught:
        await process.wait()
    timed_out = caught.value.__cause__
    assert timed_out is not None
    assert timed_out.__cause__ is refused


async def test_a_target_that_serves_once_is_not_connected_again(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    server.can_reconnect = False
    process = await started(client, peer)
    peer.cut()
    with pytest.raises(ConnectionLost) as caught:
        await process.wait()
    assert str(caught.value) == LOST
    assert len(server.peers) == 1


@pytest.mark.requirement("client.recovery.reads", "client.recovery.missing-exit")
async def test_what_was_missed_is_fetched_with_one_read(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    peer.output("p1", 1, b"one")
    await settled()
    peer.cut()
    again = await server.peer(1)
    request = await again.take("process/read")
    assert request.params == {"processId": "p1", "afterSeq": 1, "maxBytes": None, "waitMs": 0}
    # What happens now is told at once, and may overtake the answer.
    again.output("p1", 5, b"five")
    again.output("p1", 3, b"three")
    missed = [chunk(2, b"two"), chunk(3, b"three")]
    again.reply(request, read_result(next_seq=5, chunks=missed, exit_code=4))
    again.closed("p1", 6)
    events = await all_events(process)
    assert [event.seq for event in events] == [1, 2, 3, 4, 5, 6]
    assert b"".join(e.chunk for e in events if isinstance(e, OutputChunk)) == b"onetwothreefive"
    assert isinstance(events[3], Exited)
    assert events[3].verdict.exit_code == 4
    assert events[5] == Closed(6)
    assert len(again.requests("process/read")) == 1


@pytest.mark.requirement("client.recovery.evicted", "client.texts")
async def test_a_process_whose_output_is_gone_fails_and_is_terminated(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process, other = await started(client, peer), await started(client, peer, "p2")
    peer.cut()
    again = await server.peer(1)
    for _ in range(2):
        request = await again.take("process/read")
        late = read_result(next_seq=9, chunks=[chunk(8, b"x")])
        none = read_result(next_seq=1)
        again.reply(request, late if param(request, "processId") == "p1" else none)
    ending = await again.take("process/terminate")
    assert ending.params == {"processId": "p1"}
    again.reply(ending, {"running": True})
    with pytest.raises(HoldfastError) as caught:
        await process.wait()
    assert str(caught.value) == (
        "failed to recover process p1: exec-server protocol error:"
        " process events are no longer retained while recovering through sequence 8"
    )
    again.exited("p2", 1)
    again.closed("p2", 2)
    assert (await other.wait()).ok


async def test_a_process_that_the_server_forgot_fails(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    peer.cut()
    again = await server.peer(1)
    again.fail(await again.take("process/read"), -32600, "unknown process id p1")
    again.reply(await again.take("process/terminate"), {"running": False})
    with pytest.raises(HoldfastError) as caught:
        await process.wait()
    assert str(caught.value) == (
        "failed to recover process p1: exec-server rejected request (-32600): unknown process id p1"
    )
    await works(client, again)


@pytest.mark.requirement("client.recovery.start")
async def test_a_start_that_never_arrived_is_made_again(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    async with meanwhile(client.start(start_params())) as starting:
        await peer.take("process/start")
        peer.cut()
        # The connection breaks again while the server is asked.
        second = await server.peer(1)
        await second.take("process/write")
        second.cut()
        third = await server.peer(2)
        probe = await third.take("process/write")
        assert (param(probe, "processId"), param(probe, "chunk")) == ("p1", "")
        third.reply(probe, {"status": "unknownProcess"})
        third.reply(await third.take("process/start"), {"processId": "p1"})
    process = await starting
    assert second.requests("process/start") == []
    third.exited("p1", 1)
    third.closed("p1", 2)
    assert (await process.wait()).ok


@pytest.mark.requirement("client.recovery.start")
@pytest.mark.parametrize("answer", ["accepted", "stdinClosed", "refused", "starting"])
async def test_a_start_that_ran_is_found_by_its_id_and_not_made_again(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer, answer: str
) -> None:
    async with meanwhile(client.start(start_params())) as starting:
        await peer.take("process/start")
        peer.cut()
        again = await server.peer(1)
        probe = await again.take("process/write")
        if answer == "refused":
            again.fail(probe, -32603, "failed to write to process stdin")
        else:
            again.reply(probe, {"status": answer})
        if answer == "starting":
            again.reply(await again.take("process/write"), {"status": "accepted"})
        missed = [chunk(1, b"all of it")]
        read = read_result(next_seq=4, chunks=missed, exit_code=0, closed=True)
        again.reply(await again.take("process/read"), read)
    process = await starting
    assert again.requests("process/start") == []
    assert [event.seq for event in await all_events(process)] == [1, 2, 3]


@pytest.mark.requirement("client.start.abandoned")
async def test_a_start_that_was_cut_and_given_up_is_terminated(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    async with meanwhile(client.start(start_params())) as starting:
        await peer.take("process/start")
        peer.cut()
        second = await server.peer(1)
        await second.take("process/write")
        starting.cancel()
        await settled()
        second.cut()
        third = await server.peer(2)
        ending = await third.take("process/terminate")
        assert ending.params == {"processId": "p1"}
        third.reply(ending, {"running": True})
    await works(client, third)
    assert third.requests("process/start") == []


@pytest.mark.requirement("client.recovery.gives-up")
async def test_a_start_whose_session_is_lost_fails_with_the_reason(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    async with meanwhile(client.start(start_params())) as starting:
        await peer.take("process/start")
        server.answers["initialize"] = lambda peer, request: peer.fail(request, -32600, "gone")
        peer.cut()
        with pytest.raises(ConnectionLost, match="failed to resume exec-server session"):
            await starting


async def test_output_that_is_gone_is_a_gap_for_a_reader_that_takes_gaps(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    stream = process.events(gaps=True)
    peer.output("p1", 1, b"one")
    await settled()
    peer.cut()
    again = await server.peer(1)
    read = read_result(next_seq=9, chunks=[chunk(8, b"eight")])
    again.reply(await again.take("process/read"), read)
    again.exited("p1", 9)
    again.closed("p1", 10)
    assert [event async for event in stream] == [
        OutputChunk(seq=1, stream="stdout", chunk=b"one"),
        Gap(2, 7),
        OutputChunk(seq=8, stream="stdout", chunk=b"eight"),
        Exited(9, Verdict(reason=Reason.EXITED, exit_code=0)),
        Closed(10),
    ]
    assert (await process.wait()).ok
    assert again.requests("process/terminate") == []


@pytest.mark.requirement("extension.exit-complete")
async def test_an_exit_that_was_missed_is_told_in_full_where_the_server_can(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    peer.cut()
    again = await server.peer(1)
    read = read_result(next_seq=4, chunks=[chunk(2, b"late")], exit_code=137, closed=True)
    exit_event = {"processId": "p1", "seq": 1, "exitCode": 137, "limit": "wallTime"}
    read["exit"] = {**exit_event, "detail": "ran for too long", "reason": "limit"}
    again.reply(await again.take("process/read"), read)
    events = await all_events(process)
    assert [type(event) for event in events] == [Exited, OutputChunk, Closed]
    verdict = await process.wait()
    assert (verdict.reason, verdict.limit) == (Reason.LIMIT, LimitKind.WALL_TIME)


@pytest.mark.requirement("client.recovery.write-repeated")
async def test_writes_are_repeated_with_their_ids_and_in_their_order(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    server.answers["process/read"] = nothing_missed
    async with (
        meanwhile(process.write(b"a")) as first,
        meanwhile(process.write(b"b")) as second,
    ):
        lost = [await peer.take("process/write") for _ in range(2)]
        peer.reply(lost[1], {"status": "accepted"})  # the other answer is lost
        await second
        peer.cut()
        async with meanwhile(process.write(b"c")) as third:  # made before the first one is back
            again = await server.peer(1)
            repeated = [await again.take("process/write") for _ in range(2)]
            assert repeated[0].params == lost[0].params
            assert [param(request, "writeId") for request in repeated] == ["1", "3"]
            for request in repeated:
                again.reply(request, {"status": "accepted"})
    assert (await first, await third) == ("accepted", "accepted")


@pytest.mark.requirement("client.recovery.read-repeated")
async def test_a_read_is_repeated(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    async with meanwhile(process.read(after_seq=0, wait=30.0)) as reading:
        await peer.take("process/read")
        peer.cut()
        again = await server.peer(1)
        again.reply(await again.take("process/read"), read_result(next_seq=1))
        repeated = await again.take("process/read")
        assert param(repeated, "waitMs") == 500  # Codex waits no longer in one read
        again.reply(repeated, read_result(next_seq=2, chunks=[chunk(1, b"x")]))
    assert [found.chunk for found in (await reading).chunks] == [b"x"]


@pytest.mark.requirement("client.recovery.terminate")
async def test_a_terminate_whose_answer_is_lost_is_made_again_and_nobody_waits(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    server.answers["process/read"] = nothing_missed
    async with meanwhile(process.terminate()) as ending:
        await peer.take("process/terminate")
        peer.cut()
        assert await ending is True  # as far as is known here
        again = await server.peer(1)
        again.reply(await again.take("process/terminate"), {"running": False})


async def test_more_processes_than_places_for_calls_are_recovered(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    server.answers["process/start"] = lambda peer, request: peer.reply(
        request, {"processId": param(request, "processId")}
    )
    processes = [await client.start(start_params(f"p{number}")) for number in range(1100)]
    server.answers["process/read"] = lambda peer, request: peer.reply(
        request, read_result(next_seq=3, exit_code=0, closed=True)
    )
    peer.cut()
    for process in processes:
        assert (await process.wait()).ok


async def test_a_slow_reader_is_waited_for_on_the_new_connection_too(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    server.answers["process/read"] = nothing_missed
    stream = process.events()
    for seq in range(1, 33):
        peer.output("p1", seq, bytes(128 << 10))
    await peer.until(lambda: peer.sending_paused)
    peer.cut()
    again = await server.peer(1)
    await works(client, again)
    request = again.requests("process/read")[0]
    seq = int(str(param(request, "afterSeq")))
    for number in range(seq + 1, seq + 33):
        again.output("p1", number, bytes(128 << 10))
    await again.until(lambda: again.sending_paused)
    assert [(await anext(stream)).seq for _ in range(seq + 32)] == list(range(1, seq + 33))
    await again.until(lambda: not again.sending_paused)


async def test_a_fault_of_our_own_does_not_make_callers_wait_for_ever(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = await started(client, peer)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(server, "open", fail)
    peer.cut()
    with pytest.raises(ConnectionLost, match="failed to resume exec-server session: oops"):
        await process.wait()
    assert "recovery failed" in caplog.text


async def test_a_refusal_after_recovery_is_the_callers(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    peer.cut()
    async with meanwhile(client.list_processes()) as listing:
        again = await server.peer(1)
        again.fail(await again.take("process/list"), -32603, "no")
        with pytest.raises(RemoteError, match="no"):
            await listing


async def works(client: ExecServerClient, peer: ScriptedPeer) -> None:
    """Calls are answered over this connection."""
    async with meanwhile(client.list_processes()) as listing:
        peer.reply(await peer.take("process/list"), {"processes": []})
    assert await listing == []


async def test_a_cancellation_that_nobody_asked_for_does_not_end_the_recovery(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    server.answers["process/read"] = nothing_missed
    plain, strays = server.open, 2

    async def open_badly(accept: Callable[[Transport], Receiver]) -> Transport:
        nonlocal strays
        if strays:
            strays -= 1
            raise asyncio.CancelledError
        return await plain(accept)

    server.open = open_badly  # type: ignore[method-assign]
    peer.cut()
    again = await server.peer(1)
    await works(client, again)
    again.exited("p1", 1)
    again.closed("p1", 2)
    assert (await process.wait()).ok
    assert strays == 0


async def test_a_process_that_cannot_be_followed_nor_ended_takes_no_other_with_it(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    peer.cut()
    again = await server.peer(1)
    again.fail(await again.take("process/read"), -32600, "unknown process id p1")
    refusal = "failed to signal process: Operation not permitted (os error 1)"
    again.fail(await again.take("process/terminate"), -32603, refusal)
    with pytest.raises(HoldfastError, match="failed to recover process p1"):
        await process.wait()
    await works(client, again)


@pytest.mark.requirement("client.start.abandoned")
async def test_a_start_that_the_server_never_ends_fails_alone(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "STARTING_LIMIT", 0.05)
    monkeypatch.setattr(recovery, "RETRY_INTERVAL", 0.01)
    server.answers["process/write"] = replies({"status": "starting"})
    server.answers["process/terminate"] = replies({"running": True})
    async with meanwhile(client.start(start_params())) as starting:
        await peer.take("process/start")
        peer.cut()
        with pytest.raises(HoldfastError, match="p1: its start was cut off and cannot be ended"):
            await starting
    await works(client, await server.peer(1))


@pytest.mark.requirement("client.start.abandoned")
async def test_a_start_that_hangs_on_the_server_is_called_off_and_made_again(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "STARTING_LIMIT", 0.05)
    monkeypatch.setattr(recovery, "RETRY_INTERVAL", 0.01)
    server.answers["process/write"] = replies({"status": "starting"})
    async with meanwhile(client.start(start_params())) as starting:
        await peer.take("process/start")
        peer.cut()
        again = await server.peer(1)
        ending = await again.take("process/terminate")
        assert ending.params == {"processId": "p1"}
        server.answers["process/write"] = replies({"status": "unknownProcess"})
        again.reply(ending, {"running": True})
        again.reply(await again.take("process/start"), {"processId": "p1"})
    assert (await starting).process_id == "p1"


def replies(result: object) -> Answer:
    """Return a standing answer."""
    return lambda peer, request: peer.reply(request, result)


@pytest.mark.virtual_time
async def test_a_connection_that_brought_something_and_broke_is_a_new_loss(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    processes = [await started(client, peer, name) for name in ("p1", "p2")]
    peer.cut()
    for number in range(1, 5):  # longer than the limit of one loss, in all
        again = await server.peer(number)
        request = await again.take("process/read")
        await asyncio.sleep(0.5 * recovery.RECOVERY_LIMIT)
        nothing_missed(again, request)
        await settled()
        again.cut()
    server.answers["process/read"] = nothing_missed
    again = await server.peer(5)
    await works(client, again)
    for process in processes:
        again.exited(process.process_id, 1)
        again.closed(process.process_id, 2)
        assert (await process.wait()).ok


async def test_events_overtake_the_answer_also_after_an_attempt_that_broke_in_the_middle(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process, _ = await started(client, peer), await started(client, peer, "p2")
    peer.cut()
    again = await server.peer(1)
    request = await again.take("process/read")
    assert param(request, "processId") == "p1"
    nothing_missed(again, request)  # p1 is up to date, and p2 is not
    await settled()
    again.cut()
    again = await server.peer(2)
    requests = [await again.take("process/read") for _ in range(2)]
    many = 2 * MAX_EVENTS
    for seq in range(2, many):
        again.output("p1", seq, b"x")
    for request in requests:
        missed = [chunk(1, b"x")] if param(request, "processId") == "p1" else []
        again.reply(request, read_result(next_seq=1 + len(missed), chunks=missed))
    again.exited("p1", many)
    again.closed("p1", many + 1)
    events = await all_events(process)
    assert [event.seq for event in events] == list(range(1, many + 2))

"""One process of a server, behind the seam."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from holdfast.base.errors import (
    ConnectionLost,
    HoldfastError,
    InvalidParams,
    InvalidRequest,
    RemoteError,
    RemoteProtocolError,
    Unsupported,
)
from holdfast.client import missing
from holdfast.client import remote_process as process_module
from holdfast.client.client import ExecServerClient
from holdfast.client.client_connection import MAX_CALLS
from holdfast.client.remote_stdin import MAX_BACKLOG_BYTES
from holdfast.client.target import MemoryTarget
from holdfast.events import (
    UNKNOWN_DENIAL,
    Closed,
    DenialKind,
    Exited,
    LimitKind,
    Reason,
    StreamEnded,
    WaitingFor,
)
from holdfast.server.app import Server
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.testing.scripted import SESSION_ID
from holdfast.wire.protocol.envelope import Notification, Request
from holdfast.wire.protocol.process import OutputChunk, WriteStatus
from tests.unit.client.script import (
    all_events,
    cut_off,
    meanwhile,
    nothing_missed,
    param,
    read_result,
    resume,
    settled,
    start_params,
    started,
)


@pytest.mark.requirement("client.order")
async def test_events_in_reverse_come_out_in_order(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    peer.closed("p1", 12)
    peer.exited("p1", 11, 5)
    for seq in range(10, 0, -1):
        peer.output("p1", seq, b"%d," % seq)
    events = await all_events(process)
    data = b"".join(event.chunk for event in events if isinstance(event, OutputChunk))
    assert data == b"1,2,3,4,5,6,7,8,9,10,"
    assert isinstance(events[10], Exited)
    assert events[11] == Closed(12)
    assert (await process.wait()).exit_code == 5


def chunk(seq: int, text: str) -> dict[str, object]:
    return {"seq": seq, "stream": "stdout", "chunk": b64encode(text.encode()).decode()}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "HOLE_LIMIT", 0.01)


@pytest.mark.requirement("client.missing")
@pytest.mark.usefixtures("impatient")
async def test_an_event_that_does_not_arrive_is_asked_for(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    peer.output("p1", 1, b"one")
    peer.closed("p1", 4)
    async with meanwhile(process.wait()) as waiting:
        read = await peer.take("process/read")
        assert param(read, "afterSeq") == 1
        # The exit comes meanwhile, and is in the answer as well.
        peer.exited("p1", 3, 7)
        answer = read_result(next_seq=5, chunks=[chunk(2, "two")], exit_code=7, closed=True)
        peer.reply(read, answer)
    assert waiting.result().exit_code == 7
    events = await all_events(process)
    assert [event.seq for event in events] == [1, 2, 3, 4]


@pytest.mark.requirement("client.missing")
@pytest.mark.usefixtures("impatient")
async def test_a_close_that_does_not_arrive_is_asked_for(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    """Nothing follows it, so that only the answer to a read shows that it exists."""
    process = await started(client, peer)
    peer.exited("p1", 1, 7)
    done = read_result(next_seq=3, exit_code=7, closed=True)
    async with meanwhile(process.read()) as reading:
        peer.reply(await peer.take("process/read"), done)
    assert reading.result().closed
    async with meanwhile(process.wait()) as waiting:
        peer.reply(await peer.take("process/read"), done)
    assert waiting.result().exit_code == 7


@pytest.mark.requirement("client.missing")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("answer", ["nothing", "error", "none"])
async def test_a_process_fails_if_an_event_cannot_be_had(
    client: ExecServerClient, peer: ScriptedPeer, answer: str
) -> None:
    process = await started(client, peer)
    peer.output("p1", 2, b"two")
    async with meanwhile(process.wait()) as waiting:
        read = await peer.take("process/read")
        if answer == "nothing":
            peer.reply(read, read_result(next_seq=1))
        elif answer == "error":
            peer.fail(read, -32600, "no")
    with pytest.raises(RemoteProtocolError, match="process event 1 has not arrived"):
        waiting.result()
    assert param(await peer.take("process/terminate"), "processId") == "p1"


async def test_the_mirror_has_the_numbers_of_the_server() -> None:
    """Whatever way an event takes, it is at the same number on both sides."""
    script = "for n in 1 2 3; do echo $n; echo $n >&2; done; read line; echo end"
    async with (
        Server() as server,
        await ExecServerClient.connect(MemoryTarget(server.accept)) as client,
    ):
        params = start_params(pipe_stdin=True)
        process = await client.start(replace(params, argv=["/bin/sh", "-c", script]))
        events = process.events()
        mirrored: list[OutputChunk] = []
        while sum(len(chunk.chunk) for chunk in mirrored) < 12:
            event = await anext(events)
            assert isinstance(event, OutputChunk)
            mirrored.append(event)
        # It has not exited, so the server is asked.
        answer = await process.read()
        assert answer.chunks == mirrored
        assert answer.next_seq == mirrored[-1].seq + 1 == process.last_seq + 1
        await process.write(b"\n")
        rest = [event.seq async for event in events]
        assert rest == list(range(answer.next_seq, answer.next_seq + len(rest)))
        (summary,) = await client.list_processes()
        assert summary.closed


@pytest.mark.parametrize("kind", ["output", "exited"])
async def test_a_number_that_the_mirror_does_not_expect_fails_the_process(
    client: ExecServerClient, peer: ScriptedPeer, kind: str
) -> None:
    process = await started(client, peer)
    peer.output("p1", 1, b"1")
    await anext(process.events())
    process._log.next_seq = 7
    if kind == "output":
        peer.output("p1", 2, b"2")
    else:
        peer.exited("p1", 2, 0)
    with pytest.raises(
        RemoteProtocolError, match=r"^process event 2 arrived where 7 was expected$"
    ):
        await process.wait()
    assert param(await peer.take("process/terminate"), "processId") == "p1"
    peer.output("p1", 3, b"3")  # nobody listens any more
    await settled()
    assert process.last_seq <= 2


@pytest.mark.requirement("client.order")
async def test_events_that_come_twice_count_once(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    for _ in range(2):
        peer.output("p1", 1, b"a")
        peer.exited("p1", 2, 0)
    peer.output("p1", 1, b"other")
    for _ in range(2):
        peer.closed("p1", 3)
    assert [event.seq for event in await all_events(process)] == [1, 2, 3]


@pytest.mark.requirement("client.reorder-limit", "client.texts")
@pytest.mark.parametrize(
    ("count", "size", "text"),
    [
        (257, 1, "process event reorder buffer exceeds 256 entries"),
        (5, 256 << 10, "process event reorder buffer exceeds 1048576 bytes"),
        (1, (1 << 20) + 1, "process event exceeds 1048576 bytes"),
    ],
)
async def test_a_process_whose_order_cannot_be_restored_fails_and_is_terminated(
    client: ExecServerClient, peer: ScriptedPeer, count: int, size: int, text: str
) -> None:
    process, other = await started(client, peer), await started(client, peer, "p2")
    for seq in range(2, count + 2):
        peer.output("p1", seq, bytes(size))
    peer.reply(await peer.take("process/terminate"), {"running": True})
    for waiting in (process.wait(), anext(process.events())):
        with pytest.raises(HoldfastError) as caught:
            await waiting
        assert str(caught.value) == text
    peer.exited("p1", 1)  # what still comes of it is of no interest
    peer.exited("p2", 1)
    peer.closed("p2", 2)
    assert (await other.wait()).ok  # nothing else is disturbed


async def test_an_exit_that_cannot_be_placed_fails_the_process(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    for seq in range(2, 258):
        peer.output("p1", seq, b"x")
    peer.exited("p1", 258)
    with pytest.raises(HoldfastError, match="exceeds 256 entries"):
        await process.wait()


@pytest.mark.requirement("client.replay")
async def test_every_reader_gets_everything_also_after_the_close(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    early = process.events()
    peer.output("p1", 1, b"a")
    assert (await anext(early)).seq == 1
    late = process.events()
    peer.exited("p1", 2)
    peer.closed("p1", 3)
    await process.wait()
    assert [event.seq async for event in early] == [2, 3]
    assert [event.seq async for event in late] == [1, 2, 3]
    assert [event.seq for event in await all_events(process)] == [1, 2, 3]


@pytest.mark.requirement("client.write-ids")
async def test_writes_are_numbered_from_one_for_each_process(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    server.answers["process/write"] = lambda peer, request: peer.reply(
        request, {"status": "accepted"}
    )
    first, second = await started(client, peer), await started(client, peer, "p2")
    for process in (first, first, second):
        assert await process.write(b"hi") is WriteStatus.ACCEPTED
    await first.write(b"", "mine")
    ids = [(param(r, "processId"), param(r, "writeId")) for r in peer.requests("process/write")]
    assert ids == [("p1", "1"), ("p1", "2"), ("p2", "1"), ("p1", "mine")]
    assert param(peer.requests("process/write")[0], "chunk") == "aGk="


@pytest.mark.parametrize("status", list(WriteStatus))
async def test_the_status_of_a_write_is_passed_on(
    client: ExecServerClient, peer: ScriptedPeer, status: WriteStatus
) -> None:
    process = await started(client, peer)
    async with meanwhile(process.write(b"x")) as writing:
        peer.reply(await peer.take("process/write"), {"status": status.value})
    assert await writing is status


async def test_a_write_to_a_terminated_process_says_so(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    async with meanwhile(process.write(b"x")) as writing:
        peer.fail(await peer.take("process/write"), -32603, "failed to write to process stdin")
        assert await writing is WriteStatus.STDIN_CLOSED


async def test_another_refusal_of_a_write_stays_what_it_is(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    async with meanwhile(process.write(b"x")) as writing:
        peer.fail(await peer.take("process/write"), -32602, "no such thing")
        with pytest.raises(InvalidParams, match="no such thing") as caught:
            await writing
    assert isinstance(caught.value.__cause__, RemoteError)


@pytest.mark.requirement("client.lost-line.write")
async def test_a_write_does_not_wait_for_a_lost_line_and_arrives_in_its_order(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    again = await cut_off(peer, server)
    async with asyncio.timeout(5):
        for data in (b"a", b"b"):
            assert await process.write(data) is WriteStatus.ACCEPTED
    await resume(again, client)
    for write_id in ("1", "2"):
        request = await again.take("process/write")
        assert param(request, "writeId") == write_id
        again.reply(request, {"status": "accepted"})
    async with meanwhile(process.write(b"c")) as third:
        again.reply(await again.take("process/write"), {"status": "accepted"})
    assert await third is WriteStatus.ACCEPTED


@pytest.mark.requirement("client.lost-line.write")
async def test_what_is_written_while_a_line_is_lost_is_bounded(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    again = await cut_off(peer, server)
    async with asyncio.timeout(5):
        await process.write(bytes(MAX_BACKLOG_BYTES))
    async with meanwhile(process.write(b"one too many")) as waiting:
        await settled()
        assert not waiting.done()
        await resume(again, client)
        for _ in range(2):
            again.reply(await again.take("process/write"), {"status": "accepted"})
    assert await waiting is WriteStatus.ACCEPTED


@pytest.mark.requirement("client.lost-line.terminate")
async def test_a_terminate_does_not_wait_for_a_lost_line_either(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    again = await cut_off(peer, server)
    async with asyncio.timeout(5):
        assert await process.terminate(tree=True) is True
    await resume(again, client)
    ending = await again.take("process/terminate")
    assert ending.params == {"processId": "p1", "tree": True}
    again.reply(ending, {"running": True})
    again.exited("p1", 1, 137)
    again.closed("p1", 2)
    assert (await process.wait()).reason is Reason.TERMINATED


@pytest.mark.requirement("client.recovery.terminate")
@pytest.mark.parametrize("given_up", [False, True])
async def test_a_termination_gets_past_a_write_that_a_codex_server_waits_for(
    client: ExecServerClient,
    peer: ScriptedPeer,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    given_up: bool,
) -> None:
    monkeypatch.setattr(process_module, "_STUCK_LIMIT", 0.01)
    server.answers["process/read"] = nothing_missed
    process = await started(client, peer)
    async with meanwhile(process.write(b"x")) as writing:
        await peer.take("process/write")
        if given_up:
            writing.cancel()
        async with meanwhile(process.terminate()) as ending:
            again = await server.peer(1)
            assert await ending is True
            again.reply(await again.take("process/terminate"), {"running": True})
        if not given_up:
            assert await writing is WriteStatus.STDIN_CLOSED
    assert again.requests("process/write") == []


async def test_a_termination_may_take_its_time_if_nothing_was_written(
    client: ExecServerClient, peer: ScriptedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_STUCK_LIMIT", 0.01)
    process = await started(client, peer)
    async with meanwhile(process.write(b"x")) as writing:
        peer.reply(await peer.take("process/write"), {"status": "accepted"})
        await writing
    async with meanwhile(process.terminate()) as ending:
        request = await peer.take("process/terminate")
        await asyncio.sleep(0.05)
        peer.reply(request, {"running": True})
    assert await ending is True
    assert peer.lost_reason is None


async def test_the_exit_is_known_before_the_close_and_before_any_reader(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    before = process.verdict
    peer.output("p1", 1, b"a")
    peer.exited("p1", 2, 3)
    async with asyncio.timeout(5):
        verdict = await process.exited()
    assert (before, verdict.exit_code, verdict) == (None, 3, process.verdict)
    peer.closed("p1", 3)
    assert [event.seq for event in await all_events(process)] == [1, 2, 3]


async def test_a_closed_process_is_read_from_the_copy_on_this_side(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    peer.output("p1", 1, b"a")
    peer.exited("p1", 2)
    peer.closed("p1", 3)
    await process.wait()
    await client.aclose()
    answer = await process.read()
    assert ([chunk.chunk for chunk in answer.chunks], answer.next_seq) == ([b"a"], 4)
    assert (answer.exited, answer.exit_code, answer.closed) == (True, 0, True)
    assert (await process.read(after_seq=7)).chunks == []
    assert peer.requests("process/read") == []


async def test_an_unknown_word_for_the_streams_is_refused_here(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    with pytest.raises(InvalidParams, match="unknown variant `drop`, expected `close` or `keep`"):
        await process.terminate(streams="drop")  # type: ignore[arg-type]
    assert peer.requests("process/terminate") == []


def capable(peer: ScriptedPeer, request: Request) -> None:
    """Answer `initialize` as a Holdfast server does."""
    info = {
        "shell": {"name": "sh", "path": "/bin/sh"},
        "capabilities": {"processHold": True, "processAck": True, "processWaitingFor": True},
    }
    peer.reply(request, {"sessionId": SESSION_ID, "environmentInfo": info})


@pytest.fixture
async def capable_client(server: ScriptedServer) -> AsyncIterator[ExecServerClient]:
    server.answers["initialize"] = capable
    async with await ExecServerClient.connect(server) as client:
        yield client


@pytest.mark.requirement("extension.hold")
async def test_a_slow_reader_holds_its_own_process_where_the_server_can(
    server: ScriptedServer, capable_client: ExecServerClient
) -> None:
    peer = server.peers[-1]
    process = await started(capable_client, peer)
    stream = process.events()
    for seq in range(1, 19):
        peer.output("p1", seq, bytes(64 << 10))
    holding = await peer.take("process/hold")
    assert holding.params == {"processId": "p1", "held": True}
    peer.reply(holding, {})
    assert not peer.sending_paused
    for _ in range(18):
        await anext(stream)
    releasing = await peer.take("process/hold")
    assert releasing.params == {"processId": "p1", "held": False}
    peer.reply(releasing, {})


@pytest.mark.requirement("extension.ack")
async def test_output_is_acknowledged_and_again_after_a_resume(
    server: ScriptedServer, capable_client: ExecServerClient
) -> None:
    peer = server.peers[-1]
    process = await started(capable_client, peer)
    stream = process.events()
    for seq in range(1, 6):
        peer.output("p1", seq, bytes(64 << 10))
        await anext(stream)
    acked = await peer.notified("process/ack")
    assert acked.params == {"processId": "p1", "seq": 4}
    peer.cut()
    again = await server.peer(1)
    again.reply(await again.take("process/read"), read_result(next_seq=6))
    assert (await again.notified("process/ack")).params == {"processId": "p1", "seq": 5}


@pytest.mark.requirement("extension.ack")
async def test_the_output_of_several_closed_processes_is_acknowledged_together(
    server: ScriptedServer, capable_client: ExecServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.remote_backend._ACK_CLOSED", 2600)
    peer = server.peers[-1]
    for number, size in enumerate((1000, 0, 1000)):
        process_id = f"p{number}"
        process = await started(capable_client, peer, process_id)
        if size:
            peer.output(process_id, 1, bytes(size))
        peer.exited(process_id, 1 + bool(size), 0)
        peer.closed(process_id, 2 + bool(size))
        await process.wait()
        assert acknowledged(peer) == []
    process = await started(capable_client, peer, "last")
    peer.output("last", 1, b"x")
    peer.exited("last", 2, 0)
    peer.closed("last", 3)
    await process.wait()
    await peer.notified("process/ack")
    # Of `p1` there was nothing to keep.
    expected = [{"processId": process_id, "seq": 3} for process_id in ("p0", "p2", "last")]
    assert acknowledged(peer) == expected


@pytest.mark.requirement("extension.ack")
async def test_the_output_of_what_was_closed_during_a_cut_is_acknowledged_after_it(
    server: ScriptedServer, capable_client: ExecServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.remote_backend._ACK_CLOSED", 4)
    process = await started(capable_client, server.peers[-1])
    server.peers[-1].cut()
    again = await server.peer(1)
    missed = [{"seq": 1, "stream": "stdout", "chunk": "bGF0ZQ=="}]
    read = read_result(next_seq=4, chunks=missed, exit_code=0, closed=True)
    again.reply(await again.take("process/read"), read)
    await process.wait()
    assert (await again.notified("process/ack")).params == {"processId": "p1", "seq": 3}


def acknowledged(peer: ScriptedPeer) -> list[object]:
    notifications = (said for said in peer.messages if isinstance(said, Notification))
    return [one.params for one in notifications if one.method == "process/ack"]


@pytest.mark.both_loops
@pytest.mark.requirement("limits.closed-output")
async def test_a_client_of_many_short_commands_is_never_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its server keeps no more of their output than it may, since all is acknowledged."""
    monkeypatch.setattr("holdfast.engine.process.process_table.MAX_OUTPUT", 8 << 20)
    argv = ["head", "-c", "200000", "/dev/zero"]
    async with (
        Server() as server,
        await ExecServerClient.connect(MemoryTarget(server.accept)) as client,
    ):
        for number in range(60):
            process = await client.start(replace(start_params(f"p{number}"), argv=argv))
            assert (await process.wait()).exit_code == 0


async def test_no_codex_server_is_sent_an_acknowledgement(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    stream = process.events()
    for seq in range(1, 9):
        peer.output("p1", seq, bytes(64 << 10))
        await anext(stream)
    assert [type(said) for said in peer.messages if isinstance(said, Notification)] == [
        Notification
    ]


async def test_the_end_of_a_stream_comes_after_what_was_written_to_it(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    for _ in range(2):  # once is enough
        peer.notify("process/streamEnded", {"processId": "p1", "stream": "stdout", "seq": 1})
    peer.output("p1", 1, b"a")
    peer.output("p1", 2, b"b", "stderr")
    peer.exited("p1", 3)
    peer.closed("p1", 4)
    async with asyncio.timeout(5):
        events = [event async for event in process.events(stream_ends=True)]
    assert [type(event) for event in events] == [
        OutputChunk,
        StreamEnded,
        OutputChunk,
        Exited,
        Closed,
    ]


@pytest.mark.requirement("extension.exit-complete")
async def test_a_complete_exit_is_believed(client: ExecServerClient, peer: ScriptedPeer) -> None:
    process = await started(client, peer)
    exited = {"processId": "p1", "seq": 1, "exitCode": 143, "reason": "signaled", "signal": 15}
    peer.notify("process/exited", exited)
    peer.closed("p1", 2)
    verdict = await process.wait()
    assert (verdict.reason, verdict.signal, str(verdict)) == (
        Reason.SIGNALED,
        15,
        "killed by SIGTERM",
    )


async def test_calls_carry_what_they_were_given(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    for method in ("signal", "resize", "closeStdin"):
        server.answers[f"process/{method}"] = lambda peer, request: peer.reply(request, {})
    await process.signal("interrupt")
    await process.resize(30, 100)
    await process.close_stdin()
    sent = {said.method: said.params for said in peer.messages[-3:] if isinstance(said, Request)}
    assert sent == {
        "process/signal": {"processId": "p1", "signal": "interrupt"},
        "process/resize": {"processId": "p1", "rows": 30, "cols": 100},
        "process/closeStdin": {"processId": "p1"},
    }


async def test_input_after_a_termination_is_not_sent(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    """A Codex server may accept it, and nobody would read it."""
    process = await started(client, peer)
    server.answers["process/terminate"] = lambda peer, request: peer.reply(
        request, {"running": True}
    )
    server.answers["process/write"] = lambda peer, request: peer.reply(
        request, {"status": "accepted"}
    )
    assert await process.terminate()
    assert await process.write(b"x") is WriteStatus.STDIN_CLOSED
    methods = [said.method for said in peer.messages if isinstance(said, Request)]
    assert methods[-1] == "process/terminate"


async def test_the_name_of_a_signal_is_unsupported_where_servers_know_but_one(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    server.answers["process/signal"] = lambda peer, request: peer.fail(
        request, -32602, "unknown variant `SIGHUP`, expected `interrupt`"
    )
    with pytest.raises(Unsupported, match="expected `interrupt`"):
        await process.signal("SIGHUP")
    with pytest.raises(InvalidParams) as caught:
        await process.signal("interrupt")
    assert isinstance(caught.value.__cause__, RemoteError)


async def test_readers_get_what_came_before_the_end(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    stream = process.events()
    peer.output("p1", 1, b"a")
    await settled()
    await client.aclose()
    async with asyncio.timeout(5):
        assert (await anext(stream)).seq == 1
        with pytest.raises(ConnectionLost):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):  # once is enough
            await anext(stream)


async def test_what_was_denied_is_found_in_what_the_process_wrote(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    # The exit may come before the output that explains it.
    exited = {"processId": "p1", "seq": 2, "exitCode": 1, "sandboxDenied": True}
    peer.notify("process/exited", exited)
    peer.output("p1", 1, b"touch: cannot touch '/etc/x': Read-only file system\n", "stderr")
    peer.closed("p1", 3)
    denial = (await process.wait()).denial
    assert denial is not None
    assert (denial.kind, denial.path) == (DenialKind.READ_ONLY_FILE_SYSTEM, "/etc/x")


async def test_a_denial_that_nothing_explains_is_told_all_the_same(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    exited = {"processId": "p1", "seq": 1, "exitCode": 1, "sandboxDenied": True}
    peer.notify("process/exited", exited)
    peer.closed("p1", 2)
    assert (await process.wait()).denial == UNKNOWN_DENIAL


async def test_an_exit_by_a_limit_names_it(client: ExecServerClient, peer: ScriptedPeer) -> None:
    process = await started(client, peer)
    exited = {"processId": "p1", "seq": 1, "exitCode": 137}
    exited |= {"limit": "output", "detail": "wrote too much"}
    peer.notify("process/exited", exited)
    peer.closed("p1", 2)
    verdict = await process.wait()
    assert (verdict.reason, verdict.limit) == (Reason.LIMIT, LimitKind.OUTPUT)
    assert str(verdict) == "wrote too much"
    assert verdict.exit_code == 137


@pytest.mark.parametrize("again", ["exit", "end"])
async def test_a_process_that_ends_twice_fails_and_harms_no_other(
    client: ExecServerClient, peer: ScriptedPeer, again: str
) -> None:
    process, other = await started(client, peer), await started(client, peer, "p2")
    if again == "exit":
        peer.exited("p1", 1)
        peer.exited("p1", 2)
    else:
        peer.output("p1", 3, b"after the end")
        peer.closed("p1", 2)
        peer.output("p1", 1, b"no exit came")
    peer.reply(await peer.take("process/terminate"), {"running": False})
    with pytest.raises(RemoteProtocolError):
        await process.wait()
    peer.exited("p2", 1)
    peer.closed("p2", 2)
    assert (await other.wait()).ok


@pytest.mark.requirement("extension.hold")
async def test_a_hold_that_is_refused_holds_the_connection_instead(
    server: ScriptedServer, capable_client: ExecServerClient
) -> None:
    peer = server.peers[-1]
    process = await started(capable_client, peer)
    stream = process.events()
    for seq in range(1, 19):
        peer.output("p1", seq, bytes(64 << 10))
    peer.fail(await peer.take("process/hold"), -32603, "not today")
    await settled()
    seq = 19
    while not peer.sending_paused:  # else it would go on for ever
        peer.output("p1", seq, bytes(64 << 10))
        seq += 1
        await settled(1)
        assert seq < 1000
    for _ in range(1, seq):
        await anext(stream)
    await peer.until(lambda: not peer.sending_paused)


@pytest.mark.requirement("extension.hold", "client.pending-limit")
async def test_holds_share_the_last_place_and_do_not_cost_the_connection(
    server: ScriptedServer, capable_client: ExecServerClient
) -> None:
    peer = server.peers[-1]
    ids = ("p1", "p2")
    streams = [(await started(capable_client, peer, name)).events() for name in ids]
    calls = [asyncio.ensure_future(capable_client.status()) for _ in range(MAX_CALLS)]
    await settled()
    for seq in range(1, 19):
        for name in ids:
            peer.output(name, seq, bytes(64 << 10))
    for name in ids:
        holding = await peer.take("process/hold")
        assert holding.params == {"processId": name, "held": True}
        await settled()
        assert peer.requests("process/hold")[-1] is holding  # the other one waits
        peer.reply(holding, {})
    for stream in streams:
        stream.close()
    for _ in ids:
        peer.reply(await peer.take("process/hold"), {})
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert server.peers == [peer]


# -- waiting for input


@pytest.mark.requirement("extension.waiting-for")
async def test_a_server_without_the_extension_is_not_asked(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    assert await process.waiting_for() is WaitingFor.UNKNOWN
    assert peer.requests("process/waitingFor") == []


@pytest.mark.parametrize(
    ("word", "expected"),
    [("line", WaitingFor.LINE), ("none", WaitingFor.NONE), ("news", WaitingFor.UNKNOWN)],
)
async def test_a_word_that_is_not_known_means_nothing(
    server: ScriptedServer, capable_client: ExecServerClient, word: str, expected: WaitingFor
) -> None:
    peer = server.peers[-1]
    process = await started(capable_client, peer)
    asking = asyncio.ensure_future(process.waiting_for())
    asked = await peer.take("process/waitingFor")
    assert asked.params == {"processId": "p1"}
    peer.reply(asked, {"waitingFor": word})
    assert await asking is expected


async def test_a_server_that_forgot_a_process_refuses(
    server: ScriptedServer, capable_client: ExecServerClient
) -> None:
    peer = server.peers[-1]
    process = await started(capable_client, peer)
    asking = asyncio.ensure_future(process.waiting_for())
    peer.fail(await peer.take("process/waitingFor"), -32600, "unknown process id p1")
    with pytest.raises(InvalidRequest, match="unknown process id p1"):
        await asking


@pytest.mark.requirement("extension.close-left")
@pytest.mark.parametrize("left", [None, True, False])
async def test_only_a_group_that_is_known_to_be_empty_is_not_asked_for(
    client: ExecServerClient, peer: ScriptedPeer, left: bool | None
) -> None:
    process = await started(client, peer)
    peer.exited("p1", 1)
    extra = {} if left is None else {"left": left}
    peer.notify("process/closed", {"processId": "p1", "seq": 2, **extra})
    await process.wait()
    if left is False:
        assert await process.terminate(left=True) is False  # nobody answers
        return
    async with meanwhile(process.terminate(left=True)) as ending:
        peer.reply(await peer.take("process/terminate"), {"running": True})
        assert await ending is True

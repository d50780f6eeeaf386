"""One process of a server, behind the seam."""

import asyncio

import pytest

from holdfast.client.client import ExecServerClient
from holdfast.errors import ConnectionLost, HoldfastError, RemoteError, StdinClosed, Unsupported
from holdfast.events import UNKNOWN_DENIAL, Closed, DenialKind, Exited, Reason
from holdfast.protocol.envelope import Request
from holdfast.protocol.process import OutputChunk, WriteStatus
from holdfast.testing import ScriptedPeer, ScriptedServer
from tests.unit.client.script import all_events, meanwhile, param, settled, started


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
        with pytest.raises(StdinClosed, match="failed to write to process stdin"):
            await writing


async def test_another_refusal_of_a_write_stays_what_it_is(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    async with meanwhile(process.write(b"x", "")) as writing:
        peer.fail(await peer.take("process/write"), -32602, "writeId must not be empty")
        with pytest.raises(RemoteError, match="writeId must not be empty"):
            await writing


async def test_a_write_that_is_called_off_lets_the_next_one_go(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    del server.answers["initialize"]
    peer.cut()
    await server.peer(1)
    async with meanwhile(process.write(b"a")) as first, meanwhile(process.write(b"b")) as second:
        await settled()
        first.cancel()
        await settled()
        again = await server.peer(1)
        again.reply(await again.take("initialize"), {"sessionId": client.session_id})
        nothing = {"chunks": [], "nextSeq": 1, "exited": False, "exitCode": None, "closed": False}
        again.reply(await again.take("process/read"), nothing)
        request = await again.take("process/write")
        assert param(request, "writeId") == "2"
        again.reply(request, {"status": "accepted"})
    assert await second is WriteStatus.ACCEPTED


async def test_calls_carry_what_they_were_given(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    for method in ("signal", "resize", "closeStdin"):
        server.answers[f"process/{method}"] = lambda peer, request: peer.reply(request, {})
    await process.signal("interrupt")
    await process.resize(30, 100)
    await process.close_stdin()
    sent = {said.method: said.params for said in peer.heard[-3:] if isinstance(said, Request)}
    assert sent == {
        "process/signal": {"processId": "p1", "signal": "interrupt"},
        "process/resize": {"processId": "p1", "rows": 30, "cols": 100},
        "process/closeStdin": {"processId": "p1"},
    }


async def test_the_name_of_a_signal_is_unsupported_where_servers_know_but_one(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    process = await started(client, peer)
    server.answers["process/signal"] = lambda peer, request: peer.fail(
        request, -32602, "unknown variant `SIGHUP`, expected `interrupt`"
    )
    with pytest.raises(Unsupported, match="expected `interrupt`"):
        await process.signal("SIGHUP")
    with pytest.raises(RemoteError) as caught:
        await process.signal("interrupt")
    assert not isinstance(caught.value, Unsupported)


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
    exited = {"processId": "p1", "seq": 1, "exitCode": 137, "limit": "wrote too much"}
    peer.notify("process/exited", exited)
    peer.closed("p1", 2)
    verdict = await process.wait()
    assert (verdict.reason, str(verdict)) == (Reason.LIMIT, "wrote too much")
    assert verdict.exit_code == 137

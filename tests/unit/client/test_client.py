"""The client as a whole: opening and closing a session, and starting processes."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.base.errors import (
    ConnectFailed,
    ConnectionLost,
    DuplicateProcess,
    RemoteError,
    RemoteProtocolError,
    SpawnFailed,
    Unsupported,
)
from holdfast.client import client_session as session_module
from holdfast.client.client import ExecServerClient
from holdfast.events import Exited, Reason
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.testing.scripted import SESSION_ID
from holdfast.wire.protocol.envelope import Request
from holdfast.wire.protocol.fs import FileContent, WriteFileParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import ProcessLimits
from tests.unit.client.script import all_events, cut_off, meanwhile, settled, start_params, started


async def test_a_session_is_opened_and_the_machine_is_known(client: ExecServerClient) -> None:
    assert client.session_id == SESSION_ID
    assert client.environment is not None
    assert client.environment.shell.path == "/bin/sh"


@pytest.mark.requirement("client.environment-info")
async def test_the_machine_is_asked_about_only_if_the_handshake_was_silent(
    server: ScriptedServer,
) -> None:
    server.answers["initialize"] = lambda peer, request: peer.reply(request, {"sessionId": "s"})
    async with meanwhile(ExecServerClient.connect(server)) as connecting:
        peer = await server.peer(0)
        request = await peer.take("environment/info")
        assert request.params in (None, {})
        peer.reply(request, {"shell": {"name": "zsh", "path": "/bin/zsh"}})
    async with await connecting as client:
        assert client.environment is not None
        assert client.environment.shell.name == "zsh"


async def test_a_server_that_was_told_enough_is_not_asked(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    await settled()
    assert peer.requests("environment/info") == []


async def test_a_refused_handshake_is_an_error_and_leaves_nothing_open(
    server: ScriptedServer,
) -> None:
    server.answers["initialize"] = lambda peer, request: peer.fail(request, -32600, "not you")
    with pytest.raises(RemoteError) as caught:
        await ExecServerClient.connect(server)
    assert str(caught.value) == "exec-server rejected request (-32600): not you"
    await server.peers[0].until(lambda: server.peers[0].lost_reason is not None)


@pytest.mark.requirement("client.timeouts", "client.texts")
async def test_a_silent_server_is_given_up_after_the_time_for_the_handshake(
    server: ScriptedServer,
) -> None:
    del server.answers["initialize"]
    with pytest.raises(ConnectFailed) as caught:
        await ExecServerClient.connect(server, initialize_timeout=0.01)
    assert str(caught.value) == "timed out waiting for exec-server initialize handshake after 10ms"
    await server.peers[0].until(lambda: server.peers[0].lost_reason is not None)


@pytest.mark.requirement("client.timeouts", "client.texts")
@pytest.mark.parametrize(
    ("method", "limit"), [("info", "_INFO_TIMEOUT"), ("status", "_STATUS_TIMEOUT")]
)
async def test_questions_about_the_server_have_a_deadline(
    client: ExecServerClient, monkeypatch: pytest.MonkeyPatch, method: str, limit: str
) -> None:
    assert getattr(session_module, limit) == {"info": 30.0, "status": 10.0}[method]
    monkeypatch.setattr(session_module, limit, 0.01)
    with pytest.raises(RemoteProtocolError) as caught:
        await getattr(client, method)()
    assert str(caught.value) == (
        "exec-server protocol error: timed out waiting for exec-server"
        f" `environment/{method}` response after 0.01s"
    )


@pytest.mark.requirement("client.start.registered-first")
async def test_a_process_may_be_over_before_the_answer_to_its_start(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.start(start_params())) as starting:
        request = await peer.take("process/start")
        peer.exited("p1", 1, 7)
        peer.closed("p1", 2)
        peer.reply(request, {"processId": "p1"})
    process = await starting
    verdict = await process.wait()
    assert (verdict.reason, verdict.exit_code) == (Reason.EXITED, 7)
    assert [event.seq for event in await all_events(process)] == [1, 2]


@pytest.mark.requirement("client.start.registered-first")
async def test_an_id_in_use_is_refused_without_asking(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    await started(client, peer)
    with pytest.raises(DuplicateProcess) as caught:
        await client.start(start_params())
    assert str(caught.value) == (
        "exec-server protocol error: session already registered for process p1"
    )
    assert len(peer.requests("process/start")) == 1


@pytest.mark.requirement("client.start.registered-first")
async def test_an_id_is_in_use_until_its_close_is_published(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    peer.closed("p1", 3)  # came first: two events are still missing
    peer.output("p1", 1, b"x")
    await settled()
    with pytest.raises(DuplicateProcess, match="already registered"):
        await client.start(start_params())
    peer.exited("p1", 2, 0)
    await process.wait()
    assert (await started(client, peer)) is not process


async def test_a_refused_start_leaves_the_id_free(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.start(start_params())) as starting:
        peer.fail(await peer.take("process/start"), -32603, "No such file or directory")
        with pytest.raises(SpawnFailed, match="No such file or directory") as caught:
            await starting
    assert isinstance(caught.value.__cause__, RemoteError)
    assert caught.value.__cause__.code == -32603
    await started(client, peer)


@pytest.mark.requirement("client.start.abandoned")
async def test_a_start_whose_caller_went_away_is_terminated(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.start(start_params())) as starting:
        request = await peer.take("process/start")
        starting.cancel()
        ending = await peer.take("process/terminate")
        assert ending.params == {"processId": "p1"}
        peer.reply(request, {"processId": "p1"})  # too late, and harmless
        peer.reply(ending, {"running": True})
    await started(client, peer)


async def test_an_unknown_method_is_reported_as_unsupported(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.list_processes()) as listing:
        peer.fail(await peer.take("process/list"), -32601, "no such method")
        with pytest.raises(Unsupported):
            await listing


async def test_closing_fails_what_waits(client: ExecServerClient, peer: ScriptedPeer) -> None:
    process = await started(client, peer)
    async with meanwhile(client.status()) as asking, meanwhile(process.wait()) as waiting:
        await peer.take("environment/status")
        await client.aclose()
        with pytest.raises(ConnectionLost, match="disconnected"):
            await asking
        with pytest.raises(ConnectionLost, match="exec-server transport closed"):
            await waiting
    with pytest.raises(ConnectionLost, match="exec-server transport closed"):
        await client.start(start_params("p2"))
    await client.aclose()  # again is harmless
    await peer.until(lambda: peer.lost_reason is not None)


async def test_closing_while_recovering_fails_what_waits(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    del server.answers["initialize"]
    peer.cut()
    async with meanwhile(client.list_processes()) as listing:
        await (await server.peer(1)).take("initialize")
        await client.aclose()
        with pytest.raises(ConnectionLost, match="exec-server transport closed"):
            await listing


async def test_a_connection_that_ends_right_after_the_handshake_is_recovered(
    server: ScriptedServer,
) -> None:
    plain = server.answers["initialize"]

    def answer_and_leave(peer: ScriptedPeer, request: Request) -> None:
        plain(peer, request)
        server.answers["initialize"] = plain
        peer.transport.close()

    server.answers["initialize"] = answer_and_leave
    async with await ExecServerClient.connect(server) as client:
        async with meanwhile(client.list_processes()) as listing:
            again = await server.peer(1)
            again.reply(await again.take("process/list"), {"processes": []})
        assert await listing == []


async def test_a_terminated_process_says_so(client: ExecServerClient, peer: ScriptedPeer) -> None:
    process = await started(client, peer)
    async with meanwhile(process.terminate()) as ending:
        peer.reply(await peer.take("process/terminate"), {"running": True})
    assert await ending
    peer.exited("p1", 1, 137)
    peer.closed("p1", 2)
    exited = (await all_events(process))[0]
    assert isinstance(exited, Exited)
    assert exited.verdict.reason is Reason.TERMINATED


async def test_the_connection_waits_for_a_slow_reader_and_goes_on_when_it_reads(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    stream = process.events()
    seq = send_much(peer, 1)
    await peer.until(lambda: peer.sending_paused)
    peer.exited("p1", seq, 0)
    peer.closed("p1", seq + 1)
    async with asyncio.timeout(5):
        assert [event.seq async for event in stream] == list(range(1, seq + 2))
    assert not peer.sending_paused


async def test_a_slow_reader_that_asks_something_gets_its_answer(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    stream = process.events()
    seq = send_much(peer, 1)
    await peer.until(lambda: peer.sending_paused)
    # The answer is behind all that output, which the asker does not read meanwhile.
    async with meanwhile(process.write(b"x")) as writing:
        peer.reply(await peer.take("process/write"), {"status": "accepted"})
    assert (await writing).value == "accepted"
    async with meanwhile(process.read(wait=0.01)) as reading:
        request = await peer.take("process/read")
        result = {"chunks": [], "nextSeq": seq, "exited": False, "exitCode": None, "closed": False}
        peer.reply(request, result)
    assert (await reading).next_seq == seq
    seq = send_much(peer, seq)
    await peer.until(lambda: peer.sending_paused)  # afterwards it has to wait again
    stream.close()


async def test_a_slow_reader_that_is_dropped_holds_nobody_up(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    stream = process.events()
    send_much(peer, 1)
    await peer.until(lambda: peer.sending_paused)
    del stream
    await peer.until(lambda: not peer.sending_paused)


async def test_output_that_nobody_asked_for_does_not_hold_the_connection(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    seq = send_much(peer, 1)
    peer.exited("p1", seq, 0)
    peer.closed("p1", seq + 1)
    async with asyncio.timeout(5):
        assert (await process.wait()).ok


def send_much(peer: ScriptedPeer, seq: int) -> int:
    """More than a client and a transport hold together; returns the next number."""
    for _ in range(64):
        peer.output("p1", seq, bytes(128 << 10))
        seq += 1
    return seq


async def test_limits_are_not_sent_to_a_server_that_would_ignore_them(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    limits = ProcessLimits(wall_time_ms=1)
    with pytest.raises(Unsupported, match="cannot limit"):
        await client.start(start_params(limits=limits))
    await started(client, peer)  # the id is free


@pytest.mark.requirement("client.start.abandoned")
async def test_an_id_whose_start_was_given_up_can_be_used_again_at_once(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    async with meanwhile(client.start(start_params())) as starting:
        await peer.take("process/start")
        again = await cut_off(peer, server)
        shaking = await again.take("initialize")
        starting.cancel()
        await settled()
    async with meanwhile(client.start(start_params())) as starting:
        again.reply(shaking, {"sessionId": SESSION_ID})
        ending = await again.take("process/terminate")
        assert again.requests("process/start") == []  # else it would be the one to be ended
        again.reply(ending, {"running": False})
        again.reply(await again.take("process/start"), {"processId": "p1"})
    assert (await starting).process_id == "p1"


@pytest.mark.requirement("client.start.abandoned")
async def test_a_start_that_was_never_sent_is_not_terminated(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    again = await cut_off(peer, server)
    shaking = await again.take("initialize")
    async with meanwhile(client.start(start_params())) as starting:
        await settled()
        starting.cancel()
    again.reply(shaking, {"sessionId": SESSION_ID})
    await started(client, again)
    assert again.requests("process/terminate") == []


@pytest.mark.requirement("client.start.abandoned")
async def test_output_of_a_start_that_was_given_up_does_not_hold_the_connection(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    other = await started(client, peer, "p2")
    async with meanwhile(client.start(start_params())) as starting:
        await peer.take("process/start")
        for seq in range(1, 19):
            peer.output("p1", seq, bytes(64 << 10))
        await settled()
        starting.cancel()
        peer.reply(await peer.take("process/terminate"), {"running": True})
        await settled()
        peer.exited("p2", 1)
        peer.closed("p2", 2)
        assert (await other.wait()).ok


async def test_a_close_that_is_cancelled_closes_all_the_same(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    going_on = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await going_on.wait()

    client._session.start_task(stubborn())
    await settled()
    async with meanwhile(process.wait()) as waiting:
        async with meanwhile(client.aclose()) as closing:
            await settled()
            closing.cancel()
        with pytest.raises(ConnectionLost, match="exec-server transport closed"):
            await waiting
    await peer.until(lambda: peer.lost_reason is not None)
    going_on.set()
    await settled()


@pytest.mark.requirement("client.start.abandoned")
async def test_a_start_that_is_given_up_with_its_client_is_terminated_too(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async def use() -> None:
        async with client:
            await client.start(start_params())

    async with meanwhile(use()) as using:
        await peer.take("process/start")
        using.cancel()
        ending = await peer.take("process/terminate")
    assert ending.params == {"processId": "p1"}


@pytest.mark.both_loops
async def test_a_client_that_is_closed_has_let_go_of_its_connection(tmp_path: Path) -> None:
    """Also if a server does not read: nothing is left for the end of the loop to complain of."""
    path = str(tmp_path / "s")
    served: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        request = json.loads(await reader.readline())
        shell = {"name": "sh", "path": "/bin/sh"}
        result = {"sessionId": "s", "environmentInfo": {"shell": shell}}
        writer.write(json.dumps({"id": request["id"], "result": result}).encode() + b"\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    async with await asyncio.start_unix_server(serve, path):
        client = await ExecServerClient.connect(f"unix://{path}")
        writing = asyncio.create_task(
            client.files.write_file(
                WriteFileParams(PathUri.parse("file:///x"), data_base64=FileContent(BIG))
            )
        )
        await settled()
        async with asyncio.timeout(10):
            await client.aclose()
        with pytest.raises(ConnectionLost):
            await writing
        for writer in served:
            writer.transport.abort()


BIG = bytes(4 << 20)
"""More than a socket takes from one side that the other does not read."""

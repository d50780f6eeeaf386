"""One connection of a client: what it answers, what it ignores, what makes it hang up."""

import asyncio
import base64
import json
from typing import Any

import pytest

from holdfast.base.errors import ConnectionLost, RemoteProtocolError
from holdfast.client.client import ExecServerClient
from holdfast.client.client_connection import MAX_CALLS
from holdfast.events import Closed, Exited
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.wire.protocol.envelope import ErrorReply, Notification, Reply
from holdfast.wire.protocol.process import OutputChunk
from tests.unit.client.script import all_events, meanwhile, nothing_missed, settled, started


@pytest.mark.requirement("client.pipelining", "client.request-ids")
async def test_calls_are_pipelined_and_answers_found_by_their_ids(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.status()) as first, meanwhile(client.status()) as second:
        requests = [await peer.take("environment/status") for _ in range(2)]
        assert [request.id for request in requests] == [2, 3]  # 1 was the handshake
        peer.reply(requests[1], {"status": "second"})
        peer.reply(requests[0], {"status": "first"})
    assert ((await first).status, (await second).status) == ("first", "second")


@pytest.mark.requirement("client.late-reply")
async def test_an_answer_that_came_before_the_end_still_counts(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.status()) as asking:
        peer.reply(await peer.take("environment/status"), {"status": "ready"})
        peer.transport.close()
    assert (await asking).status == "ready"


@pytest.mark.requirement("client.pending-limit")
async def test_the_call_after_the_last_place_is_refused_and_cleaning_up_has_one_more(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    process = await started(client, peer)
    calls = [asyncio.ensure_future(client.status()) for _ in range(MAX_CALLS)]
    await settled()
    with pytest.raises(RemoteProtocolError) as caught:
        await client.status()
    assert str(caught.value) == "exec-server has reached its limit of 1024 pending requests"

    async with meanwhile(process.terminate()) as ending:
        peer.reply(await peer.take("process/terminate"), {"running": True})
    assert await ending
    for _ in calls:
        peer.reply(await peer.take("environment/status"), {"status": "ready"})
    assert {answer.status for answer in await asyncio.gather(*calls)} == {"ready"}


@pytest.mark.requirement("client.pending-limit")
async def test_calls_that_were_given_up_have_their_places_until_they_are_answered(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    """A server that waits for a process which does not read would stop to read itself."""
    process = await started(client, peer)
    writes = [asyncio.ensure_future(process.write(b"x")) for _ in range(MAX_CALLS)]
    await settled()
    for write in writes:
        write.cancel()
    await asyncio.gather(*writes, return_exceptions=True)
    with pytest.raises(RemoteProtocolError, match="limit of 1024 pending requests"):
        await client.status()
    async with meanwhile(process.terminate()) as ending:
        peer.reply(await peer.take("process/terminate"), {"running": True})
    assert await ending
    for _ in writes:
        request = await peer.take("process/write")
        peer.fail(request, -32603, "failed to write to process stdin")
    await is_ready(client, peer)


@pytest.mark.requirement("client.pending-limit")
async def test_with_no_place_left_to_clean_up_the_connection_is_given_up(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    first, second = await started(client, peer), await started(client, peer, "p2")
    server.answers["process/read"] = nothing_missed
    calls = [asyncio.ensure_future(client.status()) for _ in range(MAX_CALLS)]
    async with meanwhile(first.terminate()) as one:
        await peer.take("process/terminate")  # has the slot, and is not answered
        async with meanwhile(second.terminate()) as two:
            again = await server.peer(1)
            for _ in range(2):  # both are asked again on the new connection
                again.reply(await again.take("process/terminate"), {"running": True})
    assert (await one, await two) == (True, True)
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(failed, ConnectionLost)


@pytest.mark.requirement("client.unknown-notification")
async def test_unknown_notifications_are_ignored(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    peer.notify("process/dreamt", {"of": "sheep"})
    peer.notify("network/policyDecision", "not even an object")
    await is_ready(client, peer)


@pytest.mark.requirement("client.unknown-notification")
@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"method": "process/output", "params": {"seq": 1}}, id="output"),
        pytest.param(
            b'{"method":"process/output","params":{"processId":"p1","seq":1,"stream":"stdout",'
            b'"chunk":"not base64!"}}',
            id="base64",
        ),
        pytest.param({"method": "process/exited", "params": {"processId": "p1"}}, id="exited"),
        pytest.param({"method": "process/closed", "params": None}, id="closed"),
    ],
)
async def test_bad_params_of_a_known_notification_end_the_connection(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer, message: object
) -> None:
    peer.say(message)
    await peer.until(lambda: peer.lost_reason is not None)
    await is_ready(client, await server.peer(1))


@pytest.mark.requirement("client.malformed", "client.limits")
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"{", id="cut off"),
        pytest.param(b"[]", id="a batch"),
        pytest.param(b'{"method":"m","method":"m"}', id="a key twice"),
        pytest.param(b'{"method":"m","params":' + b"[" * 128 + b"]" * 128 + b"}", id="deep"),
        pytest.param(b'{"method":"m","params":[' + b"0," * 262144 + b"0]}", id="many values"),
    ],
)
async def test_a_malformed_message_ends_the_connection_and_recovery_follows(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer, message: bytes
) -> None:
    peer.say(message)
    await peer.until(lambda: peer.lost_reason is not None)
    await is_ready(client, await server.peer(1))


async def test_an_answer_to_what_was_never_asked_ends_the_connection(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    peer.reply(77, {})
    await peer.until(lambda: peer.lost_reason is not None)
    await is_ready(client, await server.peer(1))


@pytest.mark.requirement("client.server-request")
async def test_requests_of_the_server_are_refused(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    peer.ask("q", "moon/phase")
    await peer.until(lambda: isinstance(peer.messages[-1], ErrorReply))
    reply = peer.messages[-1]
    assert isinstance(reply, ErrorReply)
    assert reply.id == "q"
    assert (reply.error.code, reply.error.message) == (
        -32601,
        "exec-server client does not implement `moon/phase` yet",
    )


async def test_what_a_process_may_reach_is_denied_since_nothing_was_allowed(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    request = {"protocol": "http", "host": "example.com", "port": 80}
    peer.ask(1, "network/policyRequest", {"processId": "p1", "request": request})
    await peer.until(lambda: isinstance(peer.messages[-1], Reply))
    assert peer.messages[-1] == Reply(
        id=1, result={"decision": {"type": "deny", "reason": "not_allowed"}}
    )


@pytest.mark.requirement("client.transport-closed-error")
async def test_a_server_that_says_its_transport_is_closed_has_lost_it(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    async with meanwhile(client.list_processes()) as listing:
        peer.fail(await peer.take("process/list"), -32000, "JSON-RPC transport closed")
        again = await server.peer(1)
        again.reply(await again.take("process/list"), {"processes": []})
    assert await listing == []
    assert peer.lost_reason is not None


async def test_an_answer_of_the_wrong_type_fails_the_call_alone(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.status()) as asking:
        peer.reply(await peer.take("environment/status"), {"status": 5})
        with pytest.raises(RemoteProtocolError, match="failed to serialize or deserialize"):
            await asking
    await is_ready(client, peer)


def as_sent(**order: Any) -> bytes:
    """An output notification with its members in the order given."""
    return json.dumps({"method": "process/output", "params": order}).encode()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            b'{"method":"process/output","params":{"processId":"p1","seq":1,"stream":"stderr",'
            b'"chunk":"aGk="}}',
            id="as servers write it",
        ),
        pytest.param(
            as_sent(chunk="aGk=", stream="stderr", seq=1, processId="p1"), id="another order"
        ),
        pytest.param(
            b'{"params":{"processId":"p1","seq":1,"stream":"stderr","chunk":"aGk="},'
            b'"method":"process/output"}',
            id="params first",
        ),
        pytest.param(
            b'{"method":"process/output","params":{"processId":"p1","seq":1,"new":{"chunk":"no"},'
            b'"stream":"stderr","chunk":"aGk="}}',
            id="more members",
        ),
    ],
)
async def test_output_is_understood_however_it_is_written(
    client: ExecServerClient, peer: ScriptedPeer, message: bytes
) -> None:
    process = await started(client, peer)
    peer.say(message)
    peer.exited("p1", 2, 0)
    peer.closed("p1", 3)
    chunk, exited, closed = await all_events(process)
    assert chunk == OutputChunk(seq=1, stream="stderr", chunk=b"hi")
    assert isinstance(exited, Exited)
    assert closed == Closed(3)


async def test_output_under_a_very_long_id_takes_the_slower_way(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    name = "p" * 4000
    process = await started(client, peer, name)
    peer.output(name, 1, b"\x00\xff")
    peer.exited(name, 2)
    peer.closed(name, 3)
    assert (await all_events(process))[0] == OutputChunk(seq=1, stream="stdout", chunk=b"\x00\xff")
    assert base64.b64encode(b"\x00\xff") == b"AP8="


async def test_events_of_unknown_processes_are_ignored(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    peer.output("nobody", 1, b"?")
    peer.exited("nobody", 2)
    peer.closed("nobody", 3)
    await is_ready(client, peer)


@pytest.mark.requirement("client.initialize")
async def test_the_handshake_names_the_client_and_is_confirmed(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    await peer.notified("initialized")
    request, notification = peer.messages
    assert request == peer.requests("initialize")[0]
    assert request.params == {
        "clientName": "holdfast",
        "resumeSessionId": None,
        "acknowledges": True,
    }
    assert notification == Notification(method="initialized", params={})


async def is_ready(client: ExecServerClient, peer: ScriptedPeer) -> None:
    """The connection is fit for use."""
    async with meanwhile(client.info()) as asking:
        request = await peer.take("environment/info")
        peer.reply(request, {"shell": {"name": "sh", "path": "/bin/sh"}})
    assert (await asking).shell.name == "sh"

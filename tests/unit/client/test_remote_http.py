"""HTTP calls of a server that says what the test tells it to."""

import asyncio
import base64

import pytest

from holdfast.base.errors import ConnectionLost, OperationFailed, RemoteProtocolError
from holdfast.client import remote_http as http
from holdfast.client.client import ExecServerClient
from holdfast.client.remote_http import RemoteHttpBody
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.wire.protocol.http import HttpRequestParams, HttpResponse
from tests.unit.client.script import meanwhile, param, settled

CALL = HttpRequestParams(method="GET", url="http://x/", request_id="mine", stream_response=True)
ANSWER = {"status": 200, "headers": [{"name": "a", "value": "b"}], "bodyBase64": ""}


def delta(peer: ScriptedPeer, request_id: str, seq: int, data: bytes = b"", **more: object) -> None:
    text = base64.b64encode(data).decode()
    params = {"requestId": request_id, "seq": seq, "deltaBase64": text, "done": False}
    peer.notify("http/request/bodyDelta", {**params, "error": None, **more})


async def streaming(client: ExecServerClient, peer: ScriptedPeer) -> tuple[RemoteHttpBody, str]:
    """A body whose headers are here, and its id on the wire."""
    async with meanwhile(client.http.stream(CALL)) as asking:
        request = await peer.take("http/request")
        peer.reply(request, ANSWER)
    _, body = asking.result()
    return body, str(param(request, "requestId"))


async def read(body: RemoteHttpBody) -> bytes:
    async with asyncio.timeout(5):
        return b"".join([piece async for piece in body])


async def test_a_call_is_not_streamed_unless_asked_for(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.http.request(CALL)) as asking:
        request = await peer.take("http/request")
        peer.reply(request, {**ANSWER, "bodyBase64": base64.b64encode(b"body").decode()})
    assert param(request, "streamResponse") is False
    assert param(request, "requestId") == "mine"
    assert isinstance(asking.result(), HttpResponse)
    assert asking.result().body_base64 == b"body"


async def test_a_call_is_never_repeated(client: ExecServerClient, peer: ScriptedPeer) -> None:
    async with meanwhile(client.http.request(CALL)) as asking:
        await peer.take("http/request")
        peer.cut()
    assert isinstance(asking.exception(), ConnectionLost)


async def test_streams_have_ids_of_our_own(client: ExecServerClient, peer: ScriptedPeer) -> None:
    first, first_id = await streaming(client, peer)
    second, second_id = await streaming(client, peer)
    assert (first_id, second_id) == ("http-1", "http-2")
    delta(peer, second_id, 1, b"second")
    delta(peer, first_id, 1, b"first")
    delta(peer, first_id, 2, done=True)
    delta(peer, second_id, 2, b" part")
    delta(peer, second_id, 3, done=True)
    assert await read(first) == b"first"
    assert await read(second) == b"second part"


async def test_pieces_may_come_with_the_answer(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.http.stream(CALL)) as asking:
        peer.reply(await peer.take("http/request"), ANSWER)
        delta(peer, "http-1", 1, b"early")
        delta(peer, "http-1", 2, done=True)
    response, body = asking.result()
    assert response.status == 200
    assert await read(body) == b"early"


async def test_an_error_comes_after_what_was_read(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    body, request_id = await streaming(client, peer)
    delta(peer, request_id, 1, b"part")
    delta(peer, request_id, 2, done=True, error="error decoding response body")
    pieces = aiter(body)
    assert await anext(pieces) == b"part"
    with pytest.raises(OperationFailed, match=r"^error decoding response body"):
        await anext(pieces)


@pytest.mark.parametrize("seq", [1, 3])
async def test_a_gap_or_a_repeat_fails_that_stream_alone(
    client: ExecServerClient, peer: ScriptedPeer, seq: int
) -> None:
    broken, broken_id = await streaming(client, peer)
    whole, whole_id = await streaming(client, peer)
    delta(peer, broken_id, 1, b"a")
    delta(peer, broken_id, seq, b"b")
    delta(peer, whole_id, 1, b"whole")
    delta(peer, whole_id, 2, done=True)
    with pytest.raises(RemoteProtocolError, match=f"received seq {seq}, expected 2"):
        await read(broken)
    assert await read(whole) == b"whole"


async def test_a_piece_over_the_limit_fails_the_stream(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    body, request_id = await streaming(client, peer)
    delta(peer, request_id, 1, b"x" * (http.MAX_DELTA + 1))
    with pytest.raises(RemoteProtocolError, match="limit is 1048576"):
        await read(body)


async def test_a_slow_reader_makes_the_server_wait(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    body, request_id = await streaming(client, peer)
    total = 0
    for seq in range(1, 30):
        delta(peer, request_id, seq, b"x" * http.MAX_DELTA)
        total += http.MAX_DELTA
        await settled()
    delta(peer, request_id, 30, done=True)
    await peer.until(lambda: peer.sending_paused)
    assert len(await read(body)) == total


async def test_too_many_pieces_fail_the_stream(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    body, request_id = await streaming(client, peer)
    # While a call waits for its answer, the connection is read whatever happens.
    async with meanwhile(client.status()) as asking:
        request = await peer.take("environment/status")
        for seq in range(1, http.MAX_QUEUED + 2):
            delta(peer, request_id, seq, b"x")
        await settled()
        peer.reply(request, {"status": "ready"})
    assert asking.exception() is None
    with pytest.raises(RemoteProtocolError, match="not read fast enough"):
        await read(body)


async def test_a_stream_ends_with_its_connection(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    body, request_id = await streaming(client, peer)
    delta(peer, request_id, 1, b"part")
    await settled()
    peer.cut()
    pieces = aiter(body)
    assert await anext(pieces) == b"part"
    with pytest.raises(ConnectionLost):
        await anext(pieces)


async def test_what_nobody_reads_is_thrown_away(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    body, request_id = await streaming(client, peer)
    await body.aclose()
    delta(peer, request_id, 1, b"x")
    delta(peer, "http-77", 1, b"x")
    await settled()
    assert await read(body) == b""
    assert len(server.peers) == 1
    assert peer.lost_reason is None


async def test_a_delta_that_is_none_ends_the_connection(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    peer.notify("http/request/bodyDelta", {"requestId": 5})
    await peer.until(lambda: peer.lost_reason is not None)

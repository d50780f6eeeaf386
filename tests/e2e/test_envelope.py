"""Frames and messages, good and bad, as one connection sees them [envelope.*]."""

import json
import re
from contextlib import suppress

import pytest

from tests.e2e.in_process import serving_here
from tests.e2e.wire import (
    BINARY,
    CLOSE,
    CONTINUATION,
    INITIALIZE,
    INITIALIZED,
    PING,
    PONG,
    TEXT,
    Client,
    Ended,
    ServerProcess,
    connect,
    frame,
    frames,
    resume,
    start_params,
)

MIB = 1 << 20
STATUS = {"id": 7, "method": "environment/status"}
READY = {"id": 7, "result": {"status": "ready"}}


def _padded(size: int) -> str:
    """A request of exactly so many bytes."""
    text = json.dumps({**STATUS, "pad": ""})
    return text[:-2] + "x" * (size - len(text)) + '"}'


async def _malformed(client: Client, text: str | bytes) -> str:
    """Send what cannot be read, and return the detail of the answer."""
    await client.send_raw(text)
    reply = await client.receive()
    assert reply["id"] == -1
    assert reply["error"]["code"] == -32600
    host, port = client.socket.local_address[:2]
    prefix = (
        f"failed to parse websocket JSON-RPC message from exec-server websocket {host}:{port}: "
    )
    message = reply["error"]["message"]
    assert message.startswith(prefix)
    assert await client.is_ready()
    return str(message.removeprefix(prefix))


# -- frames


@pytest.mark.requirement("ws.binary")
async def test_binary_frames_are_read_and_answered_with_text(client: Client) -> None:
    await client.send_raw(json.dumps(STATUS).encode())
    answer = await client.socket.recv()
    assert isinstance(answer, str)
    assert json.loads(answer) == READY


@pytest.mark.requirement("ws.fragments")
async def test_a_message_may_come_in_fragments(client: Client) -> None:
    text = json.dumps(STATUS)
    await client.send_raw(list(text))
    assert await client.receive() == READY
    await client.send_raw([letter.encode() for letter in text])
    assert await client.receive() == READY


@pytest.mark.requirement("ws.fragments")
async def test_a_fragment_may_be_empty_and_pings_may_come_between(server: ServerProcess) -> None:
    text = json.dumps({"id": 7, "method": "nothing", "pad": "é"}).encode()
    async with frames(server.url) as connection:
        await connection.send(
            frame(b"", final=False)
            + frame(text[:5], kind=CONTINUATION, final=False)
            + frame(b"between", kind=PING)
            + frame(text[5:-4], kind=CONTINUATION, final=False)
            + frame(b"", kind=CONTINUATION, final=False)
            + frame(text[-4:], kind=CONTINUATION)
        )
        received = [await connection.receive(), await connection.receive()]
        assert (PONG, b"between") in received
        (reply,) = [json.loads(payload) for kind, payload in received if kind == TEXT]
        assert (reply["id"], reply["error"]["code"]) == (7, -32601)


@pytest.mark.slow
@pytest.mark.requirement("ws.fragments")
async def test_a_message_larger_than_a_frame_may_come_in_fragments(client: Client) -> None:
    text = _padded(17 * MIB)
    await client.send_raw([text[i : i + 4 * MIB] for i in range(0, len(text), 4 * MIB)])
    assert await client.receive() == READY


@pytest.mark.slow
@pytest.mark.requirement("ws.frame-limit")
async def test_a_frame_has_16_mib_at_most(server: ServerProcess) -> None:
    async with connect(server.url) as client, connect(server.url) as other:
        await client.send_raw(_padded(16 * MIB))
        assert await client.receive() == READY
        with suppress(Ended):
            await client.send_raw(_padded(16 * MIB + 1))
        assert await client.ended()
        assert await other.is_ready()


@pytest.mark.slow
@pytest.mark.requirement("ws.message-limit")
async def test_a_message_has_64_mib_at_most(server: ServerProcess) -> None:
    async with connect(server.url) as client, connect(server.url) as other:
        text = _padded(64 * MIB)
        await client.send_raw([text[i : i + 16 * MIB] for i in range(0, len(text), 16 * MIB)])
        assert await client.receive() == READY
        with suppress(Ended):
            await client.send_raw(
                [text[i : i + 8 * MIB] for i in range(0, len(text), 8 * MIB)] + ["x"]
            )
        assert await client.ended()
        assert await other.is_ready()


@pytest.mark.requirement("ws.pong")
async def test_pings_of_the_client_are_answered(server: ServerProcess) -> None:
    async with frames(server.url) as connection:
        await connection.send(frame(b"", kind=PING) + frame(b"x" * 125, kind=PING))
        assert await connection.receive() == (PONG, b"")
        assert await connection.receive() == (PONG, b"x" * 125)


@pytest.mark.requirement("ws.pong")
async def test_a_ping_behind_a_request_does_not_hold_up_the_answer(server: ServerProcess) -> None:
    async with frames(server.url) as connection:
        await connection.send(INITIALIZE + INITIALIZED + frame(STATUS) + frame(b"x", kind=PING))
        received = [await connection.receive() for _ in range(3)]
        assert (PONG, b"x") in received
        replies = [json.loads(payload) for kind, payload in received if kind == TEXT]
        assert [reply["id"] for reply in replies] == [0, 7]


@pytest.mark.requirement("ws.ping")
async def test_the_server_pings_and_does_not_mind_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.wire.transports.websocket_listener.PING_INTERVAL", 0.01)
    async with serving_here() as url, frames(url) as connection:
        for _ in range(3):
            assert await connection.receive() == (PING, b"")
        await connection.send(INITIALIZE)
        kind, payload = await connection.receive()
        while kind == PING:
            kind, payload = await connection.receive()
        assert json.loads(payload)["id"] == 0


async def test_a_close_frame_ends_the_connection(server: ServerProcess) -> None:
    async with frames(server.url) as connection:
        await connection.send(frame((1000).to_bytes(2) + b"bye", kind=CLOSE))
        # Until the end there may be a Close frame in return, and nothing else.
        with suppress(Ended):
            assert (await connection.receive())[0] == CLOSE
        with pytest.raises(Ended):
            await connection.receive()


@pytest.mark.parametrize(
    "bad",
    [
        frame(b"{}", kind=CONTINUATION),
        frame(b"{", final=False) + frame(b"}"),
        frame(b"{", final=False) + frame(b"}", kind=BINARY),
        frame(b"{}", kind=3),
        frame(b"{}", kind=11),
        b"\xf1" + frame(b"{}")[1:],
        frame(b"x" * 126, kind=PING),
        b"\x81\xff" + b"\xff" * 8,
        b"\x81\xff\x7f" + b"\xff" * 7 + bytes(4),
    ],
    ids=[
        "continuation-of-nothing",
        "message-inside-message",
        "binary-inside-text",
        "unknown-kind",
        "unknown-control",
        "reserved-bits",
        "long-ping",
        "negative-length",
        "endless-length",
    ],
)
async def test_frames_against_the_rules_disturb_nobody_else(
    server: ServerProcess, client: Client, bad: bytes
) -> None:
    async with frames(server.url) as connection:
        await connection.send(INITIALIZE)
        assert (await connection.receive())[0] == TEXT
        await connection.send(bad)
        # It ends the connection, or is overlooked; either way nothing else is heard.
        await connection.send(frame(STATUS))
        with suppress(Ended):
            assert (await connection.receive())[0] in (TEXT, CLOSE)
    assert await client.is_ready()


async def test_a_client_that_vanishes_in_mid_message_disturbs_nobody(
    server: ServerProcess, client: Client
) -> None:
    whole = frame({**STATUS, "pad": "x" * 70_000})
    for cut in (1, 2, 5, 13, 14, 15, 1000, 65_536, len(whole) - 1):
        async with frames(server.url) as connection:
            await connection.send(INITIALIZE + INITIALIZED + whole[:cut])
            assert (await connection.receive())[0] == TEXT
    async with frames(server.url) as connection:
        await connection.send(frame(b'{"id":1', final=False))
    assert await client.is_ready()


# -- messages


@pytest.mark.requirement("envelope.id")
@pytest.mark.parametrize("request_id", ["", "12", "a\u0000é\U0001f600", 0, -1, 2**63 - 1, -(2**63)])
async def test_an_id_comes_back_unchanged(client: Client, request_id: str | int) -> None:
    await client.send({**STATUS, "id": request_id})
    assert await client.receive() == {**READY, "id": request_id}


@pytest.mark.requirement("envelope.id.repeated")
async def test_ids_may_repeat_even_in_flight(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    for _ in range(2):
        await client.request("process/read", {"processId": "p", "waitMs": 60_000}, request_id="x")
    await client.request("environment/status", request_id="x")
    assert await client.receive() == {"id": "x", "result": {"status": "ready"}}
    await client.call("process/closeStdin", {"processId": "p"})
    await client.finish("p")
    assert (await client.reply("x"))["result"]["exited"] is True
    assert (await client.reply("x"))["result"]["exited"] is True


# -- limits of the decoder


@pytest.mark.requirement("envelope.limit.values")
async def test_a_message_has_262144_values_at_most(client: Client) -> None:
    # The root, the id, the method and the list count too.
    await client.send({**STATUS, "pad": [0] * (262_144 - 4)})
    assert await client.receive() == READY
    detail = await _malformed(client, json.dumps({**STATUS, "pad": [0] * (262_144 - 3)}))
    assert re.fullmatch(
        r"JSON-RPC message exceeds the limit of 262144 JSON values at line 1 column \d+", detail
    )


# -- what cannot be read


@pytest.mark.requirement("envelope.malformed.reply", "envelope.malformed.prefix")
@pytest.mark.requirement("envelope.malformed.syntax")
async def test_a_syntax_error_is_reported_and_the_connection_goes_on(client: Client) -> None:
    for text in ("", "{", '{"id":1,"method":"x\ny"}'):
        assert await _malformed(client, text)


@pytest.mark.requirement("envelope.malformed.reply")
@pytest.mark.parametrize("cut", [b"\xc3", b"\xe2\x82", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80"])
async def test_half_a_character_is_reported_and_the_connection_goes_on(
    client: Client, cut: bytes
) -> None:
    for kind in (False, True):
        await client.send_raw(b'{"id":1,"method":"' + cut + b'"}', text=kind)
        reply = await client.receive()
        assert (reply["id"], reply["error"]["code"]) == (-1, -32600)
    assert await client.is_ready()


@pytest.mark.requirement("envelope.malformed.reply")
async def test_a_malformed_message_may_come_before_the_handshake(server: ServerProcess) -> None:
    async with connect(server.url, initialize=False) as client:
        await client.send_raw("{")
        assert (await client.receive())["id"] == -1
        await client.initialize()
        assert await client.is_ready()


# -- what ends the connection


@pytest.mark.requirement("envelope.violation.notification", "envelope.kinds")
@pytest.mark.parametrize(
    "message",
    [
        {"method": "nope"},
        {"method": "Initialized"},
        {"method": "process/output", "params": {}},
        {"method": "environment/status"},
        {"method": "initialize", "params": {"clientName": "x"}},
        {"method": "process/terminate", "params": {"processId": "p"}},
    ],
)
async def test_any_other_notification_ends_the_connection(
    server: ServerProcess, message: object
) -> None:
    async with connect(server.url) as client:
        await client.send(message)
        assert await client.ended()


@pytest.mark.requirement("envelope.violation.initialized-early")
async def test_initialized_before_initialize_ends_the_connection(server: ServerProcess) -> None:
    async with connect(server.url, initialize=False) as client:
        await client.notify("initialized")
        assert await client.ended()


@pytest.mark.requirement("envelope.violation.reply", "envelope.kinds")
@pytest.mark.parametrize(
    "message",
    [
        {"id": 1, "result": {}},
        {"id": 0, "result": {}},
        {"id": "s", "result": None},
        {"id": -1, "error": {"code": 1, "message": "x"}},
    ],
)
async def test_a_reply_to_nothing_ends_the_connection(
    server: ServerProcess, message: object
) -> None:
    async with connect(server.url) as client:
        await client.send(message)
        assert await client.ended()


@pytest.mark.requirement("envelope.violation.resumable")
async def test_a_violation_leaves_the_session_to_be_resumed(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        await client.start("p", ["cat"], pipeStdin=True)
        await client.notify("nope")
        assert await client.ended()
    async with resume(server.url, client.session_id) as again:
        assert await again.write("p", b"still here") == "accepted"
        await again.output("p", b"still here")


@pytest.mark.requirement("envelope.violation.notification")
async def test_nothing_is_done_for_a_client_after_its_violation(server: ServerProcess) -> None:
    start = {"id": 1, "method": "process/start", "params": start_params("p", ["sleep", "600"])}
    async with frames(server.url) as connection:
        await connection.send(INITIALIZE + INITIALIZED)
        (_, payload) = await connection.receive()
        session_id = json.loads(payload)["result"]["sessionId"]
        await connection.send(frame({"method": "nope"}) + frame(start) + frame(STATUS))
        with pytest.raises(Ended):
            await connection.receive()
    async with resume(server.url, session_id) as client:
        assert (await client.call("process/list"))["processes"] == []


# -- params


@pytest.mark.requirement("envelope.params.before-state")
async def test_params_are_read_before_the_handshake_is_looked_at(server: ServerProcess) -> None:
    async with connect(server.url, initialize=False) as client:
        code, _ = await client.refusal("process/start", {})
        assert code == -32602
        code, _ = await client.refusal("process/start", start_params("p", ["true"]))
        assert code == -32600


@pytest.mark.requirement("envelope.params.before-state", "write.base64", "fs.errors.base64")
@pytest.mark.parametrize(
    ("method", "member", "params"),
    [
        ("process/write", "chunk", {"processId": "p", "writeId": ""}),
        ("fs/writeBlock", "chunk", {"handleId": "x" * 33, "offset": 0}),
        ("http/request", "bodyBase64", {"method": "", "url": "", "requestId": "r"}),
    ],
)
async def test_base64_is_a_part_of_the_params(
    server: ServerProcess, method: str, member: str, params: dict[str, object]
) -> None:
    async with connect(server.url, initialize=False) as client:
        refusal = await client.refusal(method, {**params, member: "!!"})
        assert refusal == (-32602, "Invalid symbol 33, offset 0.")
        code, _ = await client.refusal(method, {**params, member: "eA=="})
        assert code == -32600


@pytest.mark.requirement("fs.write.base64")
async def test_but_not_in_a_whole_file(server: ServerProcess) -> None:
    async with connect(server.url, initialize=False) as client:
        params = {"path": "file:///none", "dataBase64": "!!"}
        text = "client must call initialize before using filesystem methods"
        assert await client.refusal("fs/writeFile", params) == (-32600, text)


@pytest.mark.requirement("envelope.unknown-method", "envelope.codes")
@pytest.mark.parametrize(
    "method", ["nope", "", "process/kill", "process/output", "initialized", "fs/link", "é`\n"]
)
async def test_an_unknown_method_is_named_at_any_time(server: ServerProcess, method: str) -> None:
    refusal = (-32601, f"exec-server stub does not implement `{method}` yet")
    async with connect(server.url, initialize=False) as client:
        assert await client.refusal(method, {"x": 1}) == refusal
        await client.initialize()
        assert await client.refusal(method) == refusal
        assert await client.is_ready()

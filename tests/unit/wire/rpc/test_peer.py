"""One side of a conversation, and two of them back to back."""

import json

import pytest

from holdfast.base.errors import LocalProtocolError, MalformedMessage, RemoteProtocolError
from holdfast.wire.protocol.envelope import ErrorReply, Notification, Reply, Request
from holdfast.wire.rpc.encode import encode_error, encode_notification, encode_result
from holdfast.wire.rpc.peer import Peer


@pytest.mark.requirement("client.request-ids")
def test_requests_are_numbered_from_one() -> None:
    peer = Peer()
    assert peer.request("m", None) == (1, b'{"id":1,"method":"m","params":null}')
    assert [peer.request("m", None)[0] for _ in range(3)] == [2, 3, 4]
    assert peer.pending == 4


def test_two_peers_back_to_back_understand_each_other() -> None:
    near, far = Peer(), Peer()
    first, asked = near.request("ping", {"a": 1})
    assert far.receive(asked) == Request(first, "ping", {"a": 1})
    assert near.receive(encode_result(first, "pong")) == Reply(first, "pong")
    assert near.pending == 0
    assert far.receive(encode_notification("tell", [1])) == Notification("tell", [1])


def test_answers_may_come_in_any_order() -> None:
    peer = Peer()
    ids = [peer.request("m", None)[0] for _ in range(3)]
    for request_id in reversed(ids):
        assert peer.receive(encode_result(request_id, request_id)) == Reply(request_id, request_id)
    assert peer.pending == 0


def test_an_error_is_an_answer_too() -> None:
    peer = Peer()
    request_id, _ = peer.request("m", None)
    reply = peer.receive(encode_error(request_id, -32600, "no"))
    assert isinstance(reply, ErrorReply)
    assert reply.error.message == "no"
    assert peer.pending == 0


def test_requests_of_the_peer_may_repeat_their_ids() -> None:
    peer = Peer()
    message = json.dumps({"id": "same", "method": "m"}).encode()
    assert peer.receive(message) == peer.receive(message) == Request("same", "m")


@pytest.mark.requirement("envelope.violation.reply")
def test_a_second_answer_and_one_that_is_late_are_ignored() -> None:
    peer = Peer()
    first, _ = peer.request("m", None)
    second, _ = peer.request("m", None)
    peer.forget(second)
    assert peer.pending == 2
    assert peer.receive(encode_result(first, None)) == Reply(first, None)
    assert peer.receive(encode_result(first, None)) is None
    assert peer.pending == 1
    assert peer.receive(encode_result(second, None)) is None
    assert peer.pending == 0


@pytest.mark.requirement("envelope.violation.reply")
@pytest.mark.parametrize("request_id", [0, -1, 2, 1000, "1", ""], ids=repr)
def test_an_answer_to_what_was_never_asked_ends_the_conversation(request_id: int | str) -> None:
    peer = Peer()
    peer.request("m", None)
    with pytest.raises(RemoteProtocolError):
        peer.receive(encode_result(request_id, None))
    with pytest.raises(RemoteProtocolError):
        peer.receive(encode_error(request_id, -1, "x"))


def test_only_a_pending_request_can_be_forgotten() -> None:
    peer = Peer()
    with pytest.raises(LocalProtocolError):
        peer.forget(1)
    request_id, _ = peer.request("m", None)
    peer.forget(request_id)
    with pytest.raises(LocalProtocolError):
        peer.forget(request_id)


def test_a_malformed_message_leaves_the_conversation_as_it_was() -> None:
    peer = Peer()
    request_id, _ = peer.request("m", None)
    with pytest.raises(MalformedMessage):
        peer.receive(b"{")
    assert peer.receive(encode_result(request_id, 1)) == Reply(request_id, 1)

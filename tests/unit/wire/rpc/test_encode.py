"""Messages to bytes: member order, and the hand-made message around a chunk."""

import base64
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.protocol.envelope import Trace
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import (
    ClosedEvent,
    ExitedEvent,
    OutputChunk,
    OutputEvent,
    ReadResponse,
    WriteResponse,
    WriteStatus,
)
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.rpc.encode import (
    encode_error,
    encode_notification,
    encode_output,
    encode_request,
    encode_result,
    output_prefix,
)


@pytest.mark.requirement("envelope.reply-order", "envelope.jsonrpc-member")
def test_replies_have_their_members_in_the_order_of_the_real_server() -> None:
    assert encode_result(1, Empty()) == b'{"id":1,"result":{}}'
    assert encode_result("x", None) == b'{"id":"x","result":null}'
    assert encode_error(-1, -32600, "no") == b'{"error":{"code":-32600,"message":"no"},"id":-1}'


def test_an_error_may_quote_a_path_that_is_not_unicode() -> None:
    path = os.fsdecode(b"/tmp/\xff\xc3\xa9")
    error = json.loads(encode_error(1, -32603, f"no {path}"))["error"]
    assert error["message"] == "no /tmp/\N{REPLACEMENT CHARACTER}é"


def test_an_error_has_data_only_if_there_is_any() -> None:
    message = encode_error(1, -32603, "no", {"kind": "spawnFailed", "errno": 2, "program": "x"})
    assert message == (
        b'{"error":{"code":-32603,"message":"no",'
        b'"data":{"kind":"spawnFailed","errno":2,"program":"x"}},"id":1}'
    )
    assert b"data" not in encode_error(1, -32603, "no")


def test_data_may_name_a_program_that_is_not_unicode() -> None:
    data = {"kind": "spawnFailed", "program": os.fsdecode(b"/bin/\xff")}
    error = json.loads(encode_error(1, -32603, "no", dict(data)))["error"]
    assert error["data"]["program"] == "/bin/\N{REPLACEMENT CHARACTER}"


def test_requests_and_notifications_always_have_params() -> None:
    assert encode_request(1, "m", None) == b'{"id":1,"method":"m","params":null}'
    assert encode_notification("m", {"a": 1}) == b'{"method":"m","params":{"a":1}}'


def test_a_request_carries_the_trace_it_is_a_part_of() -> None:
    message = json.loads(encode_request(1, "m", None, Trace(traceparent="00-a-b-01")))
    assert message["trace"] == {"traceparent": "00-a-b-01", "tracestate": None}


@pytest.mark.requirement("output.notifications")
def test_events_have_the_members_of_the_protocol() -> None:
    exited = ExitedEvent(process_id="p", seq=2, exit_code=0, sandbox_denied=False)
    assert json.loads(encode_notification("process/exited", exited)) == {
        "method": "process/exited",
        "params": {"processId": "p", "seq": 2, "exitCode": 0, "sandboxDenied": False},
    }
    closed = ClosedEvent(process_id="p", seq=3)
    assert encode_notification("process/closed", closed) == (
        b'{"method":"process/closed","params":{"processId":"p","seq":3}}'
    )


@pytest.mark.requirement("read.members", "output.sandbox-denied")
def test_a_read_has_all_members_also_those_that_are_null() -> None:
    chunk = OutputChunk(seq=1, stream="stdout", chunk=b"hi")
    read = ReadResponse(chunks=[chunk], next_seq=2, exited=False, exit_code=None, closed=False)
    assert json.loads(encode_result(1, read))["result"] == {
        "chunks": [{"seq": 1, "stream": "stdout", "chunk": "aGk="}],
        "nextSeq": 2,
        "exited": False,
        "exitCode": None,
        "closed": False,
        "failure": None,
        "sandboxDenied": False,
    }


def test_a_status_goes_out_as_its_word_and_a_path_as_its_uri() -> None:
    status = WriteResponse(status=WriteStatus.STDIN_CLOSED)
    assert encode_result(1, status) == b'{"id":1,"result":{"status":"stdinClosed"}}'
    uri = PathUri.parse("file:///a b")
    assert encode_result(1, uri) == b'{"id":1,"result":"file:///a%20b"}'


@pytest.mark.requirement("output.notifications")
@given(st.text(), st.integers(1, 2**53), st.sampled_from(["stdout", "stderr", "pty"]), st.binary())
def test_output_made_by_hand_equals_output_made_by_the_encoder(
    process_id: str, seq: int, stream: str, chunk: bytes
) -> None:
    parts = encode_output(output_prefix(process_id), seq, stream, chunk)
    event = json.loads(b"".join(parts))
    assert event == {
        "method": "process/output",
        "params": {
            "processId": process_id,
            "seq": seq,
            "stream": stream,
            "chunk": base64.b64encode(chunk).decode(),
        },
    }
    typed = OutputEvent(process_id=process_id, seq=seq, stream="pty", chunk=chunk)
    if stream == "pty":
        assert b"".join(parts) == encode_notification("process/output", typed)

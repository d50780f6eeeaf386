"""
The few messages a benchmark sends and reads, as bytes.

Requests are encoded before the clock starts. What arrives is decoded into
`Incoming`, except the output of a stream, of which `output_size` reads only the ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from bench.errors import BenchError

__all__ = [
    "Event",
    "Incoming",
    "decode",
    "frame",
    "notification",
    "output_size",
    "request",
    "start",
]


class Event(msgspec.Struct, rename="camel"):
    """The params of a `process/*` notification, whichever it is."""

    process_id: str = ""
    seq: int = 0
    chunk: bytes = b""
    exit_code: int = 0


class Incoming(msgspec.Struct):
    """Any message a server sends: a reply has an id, a notification a method."""

    id: int | None = None
    method: str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    params: Event = msgspec.field(default_factory=Event)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Incoming).decode


def decode(payload: bytes | memoryview) -> Incoming:
    """
    Decode one message in full.

    Raises:
        BenchError: The server answered a request with an error.
    """
    message = _decode(payload)
    if message.error:
        raise BenchError(f"the server answered with an error: {bytes(message.error).decode()}")
    return message


def request(request_id: int, method: str, params: Mapping[str, object] | None = None) -> bytes:
    """Encode a request."""
    return _encode({"id": request_id, "method": method, "params": params})


def notification(method: str) -> bytes:
    """Encode a notification without params."""
    return _encode({"method": method})


def start(
    request_id: int,
    process_id: str,
    argv: Sequence[str],
    *,
    tty: bool = False,
    pipe_stdin: bool = False,
) -> bytes:
    """Encode a `process/start` with a minimal environment."""
    params = {
        "processId": process_id,
        "argv": argv,
        "cwd": "file:///",
        "env": {"PATH": "/usr/bin:/bin"},
        "tty": tty,
        "pipeStdin": pipe_stdin,
    }
    return request(request_id, "process/start", params)


def frame(payload: bytes) -> bytes:
    """
    Wrap a message into one client frame, for batches that go out in one write.

    The mask is zero, which the RFC allows (6455, 5.3: any value) and leaves the bytes as they are.
    """
    size = len(payload)
    if size < 126:
        head = bytes((0x81, 0x80 | size))
    elif size < 65536:
        head = b"\x81\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\x81\xff" + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


_OUTPUT_HEAD = re.compile(
    rb'\{"method":"process/output","params":'
    rb'\{"processId":"[^"\\]{0,64}","seq":(\d{1,18}),"stream":"[a-z]{3,6}","chunk":"'
)
_HEAD_SIZE = 192
"""Bytes; the head above cannot be longer."""

_OUTPUT_TAIL = b'"}}'


def output_size(payload: memoryview) -> tuple[int, int] | None:
    """
    Return the seq and the number of payload bytes of a `process/output`.

    Only the two ends of the message are looked at: the size follows from the length
    of the base64 text and its padding. A message laid out differently is decoded in
    full, which is as right and slower; None means that it is no output at all.
    """
    head = _OUTPUT_HEAD.match(payload[:_HEAD_SIZE])
    tail = bytes(payload[-5:])
    if head is not None and tail.endswith(_OUTPUT_TAIL):
        text = len(payload) - head.end() - len(_OUTPUT_TAIL)
        if text % 4 == 0:
            return int(head[1]), text // 4 * 3 - tail.count(b"=")
    message = decode(payload)
    if message.method != "process/output":
        return None
    return message.params.seq, len(message.params.chunk)

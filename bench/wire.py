"""
The few messages that a benchmark sends and reads, as bytes.

Requests are encoded before the clock starts. Received messages are decoded into `Incoming`, except
the output of a stream, of which `output_size` reads only the ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from bench.errors import BenchError

__all__ = [
    "ENVIRONMENT",
    "Event",
    "Incoming",
    "decode",
    "frame",
    "framed",
    "notification",
    "output_size",
    "payload_of",
    "request",
    "start",
]


class Event(msgspec.Struct, rename="camel"):
    """The params of any `process/*` notification."""

    process_id: str = ""
    seq: int = 0
    chunk: bytes = b""
    exit_code: int = 0


class Incoming(msgspec.Struct):
    """Any message of a server: a reply has an id, a notification a method."""

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


ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin"}
"""Environment of every process."""


def start(
    request_id: int,
    process_id: str,
    argv: Sequence[str],
    *,
    tty: bool = False,
    pipe_stdin: bool = False,
    cwd: str = "file:///",
    sandbox: Mapping[str, object] | None = None,
) -> bytes:
    """Encode a `process/start` with a minimal environment."""
    params: dict[str, object] = {
        "processId": process_id,
        "argv": argv,
        "cwd": cwd,
        "env": ENVIRONMENT,
        "tty": tty,
        "pipeStdin": pipe_stdin,
    }
    if sandbox is not None:
        params["sandbox"] = sandbox
    return request(request_id, "process/start", params)


_MAX_FRAME = 16 * 1024 * 1024
"""Largest frame that a server accepts, in bytes; a longer message is fragmented."""

_TEXT, _CONTINUATION, _FINAL = 0x01, 0x00, 0x80


def frame(payload: bytes) -> bytes:
    """Wrap a message into one client frame, for batches that are sent in one write."""
    return _head(_FINAL | _TEXT, len(payload)) + payload


def framed(parts: Sequence[bytes]) -> list[bytes | memoryview]:
    """
    Wrap a message in parts, none of them empty, without copying any.

    It becomes one frame if possible, otherwise at least one fragment per part.
    """
    size = sum(map(len, parts))
    if size <= _MAX_FRAME:
        return [_head(_FINAL | _TEXT, size), *parts]
    pieces = [
        memoryview(part)[start : start + _MAX_FRAME]
        for part in parts
        for start in range(0, len(part), _MAX_FRAME)
    ]
    found: list[bytes | memoryview] = []
    for number, piece in enumerate(pieces):
        kind = _CONTINUATION if number else _TEXT
        final = _FINAL if number == len(pieces) - 1 else 0
        found += (_head(final | kind, len(piece)), piece)
    return found


def _head(kind: int, size: int) -> bytes:
    """
    Return the head of a client's frame.

    The mask is zero, which the RFC allows (6455, 5.3: any value) and which leaves the bytes
    unchanged.
    """
    if size < 126:
        head = bytes((kind, 0x80 | size))
    elif size < 65536:
        head = bytes((kind, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((kind, 0xFF)) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0"


_DATA_HEAD = re.compile(rb'\{"id":(\d{1,18}),"result":\{"(?:dataBase64|chunk)":"')
_DATA_TAIL = re.compile(rb'"(?:,"eof":(?:true|false))?\}\}\Z')
_DATA_ENDS = 64
"""Bytes; neither the head nor the tail above can be longer."""


def payload_of(payload: memoryview) -> tuple[int, memoryview]:
    """
    Return the id of an answer to `fs/readFile` or `fs/readBlock`, and its base64 text.

    Only the ends of the message are examined; they must have the layout that all servers use.

    Raises:
        BenchError: The message is another one, such as an error.
    """
    head = _DATA_HEAD.match(payload[:_DATA_ENDS])
    tail = _DATA_TAIL.search(payload[-_DATA_ENDS:])
    if head is None or tail is None:
        decode(payload)
        raise BenchError(f"not the content of a file: {bytes(payload[:_DATA_ENDS])!r}")
    return int(head[1]), payload[head.end() : len(payload) - len(tail[0])]


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

    Only the two ends of the message are examined: the size follows from the length of the base64
    text and its padding. A message with another layout is decoded in full, which is slower; None
    means that it is not output.
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

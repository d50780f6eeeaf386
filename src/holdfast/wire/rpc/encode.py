"""Messages to bytes, with the members in a fixed order [envelope.reply-order]."""

from collections.abc import Sequence

import msgspec
import pybase64

from holdfast.wire.protocol.envelope import ErrorData, RequestId, Trace
from holdfast.wire.protocol.fs import FileContent
from holdfast.wire.protocol.methods import PROCESS_OUTPUT
from holdfast.wire.protocol.wire_types import Base64

__all__ = [
    "Encoded",
    "encode_error",
    "encode_notification",
    "encode_output",
    "encode_request",
    "encode_result",
    "encode_result_parts",
    "encode_value",
    "output_prefix",
]


def _to_text(value: object) -> str:
    """Return the text of a wire type that is a string in JSON."""
    if type(value) is Base64 or type(value) is FileContent:
        data = value.data
        return data if isinstance(data, str) else pybase64.b64encode_as_string(data)
    return str(value)


_encode = msgspec.json.Encoder(enc_hook=_to_text).encode
_OUTPUT = PROCESS_OUTPUT.name.encode()


def encode_request(
    request_id: RequestId, method: str, params: object, trace: Trace | None = None
) -> bytes:
    request = {"id": request_id, "method": method, "params": params}
    if trace is not None:
        request["trace"] = trace
    return _encode(request)


def encode_notification(method: str, params: object) -> bytes:
    return _encode({"method": method, "params": params})


def encode_result(request_id: RequestId, result: object) -> bytes:
    return _encode({"id": request_id, "result": result})


class Encoded:
    """
    A result that is already JSON, in parts that need not be joined.

    For large results: the base64 of a file is neither walked by the encoder nor copied on its way
    to the socket.
    """

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts


def encode_value(value: object) -> bytes:
    """Return any value as JSON, to be a part of `Encoded`."""
    return _encode(value)


def encode_result_parts(request_id: RequestId, result: Encoded) -> Sequence[bytes]:
    """Encode a result in parts; see `encode_result`."""
    return b'{"id":%b,"result":' % _encode(request_id), *result.parts, b"}"


def encode_error(
    request_id: RequestId, code: int, message: str, data: ErrorData | None = None
) -> bytes:
    """
    Encode the answer to a request that failed.

    Args:
        request_id: The id of the request.
        code: One of `wire/protocol/codes.py`.
        message: The text.
        data: The error as data; None leaves the member out.
    """
    error: dict[str, object] = {"code": code, "message": _unicode(message)}
    if data is not None:
        error["data"] = {
            name: _unicode(value) if isinstance(value, str) else value
            for name, value in data.items()
        }
    # `error` comes before `id`, though `id` comes before `result`.
    return _encode({"error": error, "id": request_id})


def _unicode(text: str) -> str:
    """Replace what JSON cannot carry: a path of this machine need not be Unicode."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def output_prefix(process_id: str) -> bytes:
    """Return the part of every `process/output` that is the same for one process."""
    return b'{"method":"%b","params":{"processId":%b,"seq":' % (_OUTPUT, _encode(process_id))


def encode_output(prefix: bytes, seq: int, stream: str, chunk: bytes) -> tuple[bytes, bytes, bytes]:
    """Return one `process/output` in parts around its base64, which is not copied again."""
    # Every byte of output takes this path. The generic encoder does not use vector instructions for
    # base64 and is slower: `scripts/bench --without encoded-output`.
    head = b'%b%d,"stream":"%b","chunk":"' % (prefix, seq, stream.encode())
    return head, pybase64.b64encode(chunk), b'"}}'

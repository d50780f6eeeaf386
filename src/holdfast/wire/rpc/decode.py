"""
Decoding of messages, with every limit of the protocol (docs/protocol.md#messages).

Almost all messages are small and flat. For those, counting colons proves that no key is
duplicated and nothing is nested; the length proves that there are not too many values. Only
large or unusual messages pay for the full checks.
"""

import json
import re
from itertools import islice
from typing import NoReturn, TypeVar

import msgspec

from holdfast.base.dialect import blame, limits
from holdfast.base.errors import MalformedMessage
from holdfast.wire.protocol.envelope import (
    ErrorObject,
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    RequestId,
    Trace,
)
from holdfast.wire.protocol.wire_types import I64_MAX, I64_MIN

__all__ = [
    "MAX_DEPTH",
    "MAX_VALUES",
    "count_rare",
    "decode_any_keys",
    "decode_message",
    "decode_patiently",
]

T = TypeVar("T")

MAX_VALUES = limits.MESSAGE_VALUES
"""JSON values in one message: scalars, arrays and objects count, keys do not."""

MAX_DEPTH = limits.MESSAGE_DEPTH
"""Levels of nesting, the root object included."""

# Fewer bytes than this cannot hold closed brackets that nest deeper than `MAX_DEPTH`.
_SURELY_SHALLOW = 2 * MAX_DEPTH

# From this many opening brackets nesting may be too deep; root and params come on top.
_SUSPICIOUS = MAX_DEPTH - 2

# Up to this many bytes, counting colons is cheaper than searching for the ends of keys.
_SMALL = 4096

# From this many occurrences, finding one after the other is slower than a plain count.
_MANY = 1024

# Values of a message that msgspec decodes within a millisecond, whatever the length of its strings.
_FEW = 4096

_QUOTE = ord('"')

# Bytes of a large message to examine at a time, which takes half a millisecond.
_SLICE = 256 << 10

# Digits of an integer that `int` reads: the default of `sys.get_int_max_str_digits`.
_MAX_DIGITS = 4300

_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode
# A quote, then a colon: the end of every key, and occasionally of something else.
_KEY_END = re.compile(rb'"[ \t\r\n]*:')
# The same with blanks in between, which hardly any program writes.
_BLANK_KEY_END = re.compile(rb'"[ \t\r\n]+:')


def decode_message(data: bytes, *, few_values: bool = False) -> Message:
    """
    Decode one message.

    Args:
        data: The message.
        few_values: True if the caller knows that it has less than `MAX_VALUES`. The check takes a
            tenth of the time of decoding a large message.

    Raises:
        MalformedMessage: With the detail to report; the connection can go on.
    """
    # A value takes at least two bytes (a digit and a comma), so a shorter message needs no count.
    if len(data) > 2 * MAX_VALUES and not few_values:
        _check_value_count(data)
    message = _decode_object(data)
    params = message.get("params")
    keys = len(message)
    if type(params) is dict:
        keys += len(params)
    # Every key has one colon. As many colons as keys at the two upper levels means that there are
    # no keys elsewhere: nothing is nested below, and no key was duplicated.
    if (
        len(data) > _SMALL
        or (keys != data.count(b":") and (keys != data.count(b'":') or _BLANK_KEY_END.search(data)))
        or (len(data) > _SURELY_SHALLOW and data.count(b"[") >= _SUSPICIOUS)
    ) and not _is_plainly_sound(data, message):
        _check_nesting_and_keys(data, message)
    return _classify(message, params)


def decode_any_keys(data: bytes, *, few_values: bool = False) -> Message:
    """
    Decode one message of a peer that may duplicate keys: the last one applies.

    Nesting is limited by the decoder, which goes deeper than `MAX_DEPTH`. The limit on the
    number of values holds.

    Args:
        data: The message.
        few_values: See `decode_message`.

    Raises:
        MalformedMessage: It cannot be read; the connection can go on.
    """
    if len(data) > 2 * MAX_VALUES and not few_values:
        _check_value_count(data)
    message = _decode_object(data)
    return _classify(message, message.get("params"))


def decode_patiently(data: bytes) -> Message:
    """
    Decode one message with many values as `decode_message` does, in a thread among others.

    Raises:
        MalformedMessage: With the detail to report; the connection can go on.
    """
    # Counted first, as in `decode_message`: before memory is spent on too many values.
    if len(data) > 2 * MAX_VALUES:
        _check_value_count(data)
        if _count_values(data) < _FEW:
            # The commas and brackets of a large string, which msgspec reads ten times as fast.
            return decode_message(data, few_values=True)
    # msgspec holds the interpreter until it is done, here 20 ms for 100,000 values. The decoder of
    # the standard library calls Python for each object, which lets other threads run.
    try:
        # It would accept half of a surrogate pair as a character.
        if b"\\u" in data:
            return decode_message(data)
        message = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_refuse_doubled,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError, _DoubledKey, MalformedMessage):
        return decode_message(data)
    if type(message) is not dict or _is_deep(message):
        return decode_message(data)
    return _classify(message, message.get("params"))


def _is_deep(message: dict[str, object]) -> bool:
    """Return True if values are nested deeper than `MAX_DEPTH`."""
    level: list[object] = [message]
    for _ in range(MAX_DEPTH):
        level = [
            value
            for container in level
            for value in (container.values() if type(container) is dict else container)  # type: ignore[attr-defined]
            if type(value) is dict or type(value) is list
        ]
        if not level:
            return False
    return True


def _decode_object(data: bytes) -> dict[str, object]:
    try:
        message = _decode_json(data)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = _decode_again(data, error)
    if type(message) is not dict:
        raise MalformedMessage("expected a JSON-RPC object")
    return message


def _is_plainly_sound(data: bytes, message: dict[str, object]) -> bool:
    """Return True if a small message is shallow and re-encodes to itself: no key was duplicated."""
    # A fast path for messages with a sandbox: `scripts/bench --without sound-messages`.
    if len(data) > _SMALL or data.count(b"{") + data.count(b"[") > MAX_DEPTH:
        return False
    try:
        return _encode_json(message) == data
    except (OverflowError, ValueError, msgspec.MsgspecError):
        # A number or text that only the standard library reads: the full check decides.
        return False


def _classify(message: dict[str, object], params: object) -> Message:
    if "method" in message:
        method = message["method"]
        if type(method) is not str:
            raise MalformedMessage(blame(method, str))
        if "id" in message:
            trace = message.get("trace")
            return Request(
                _request_id(message["id"]),
                method,
                params,
                None if trace is None else _typed(trace, Trace),
            )
        return Notification(method, params)
    if "result" in message:
        return Reply(_own_id(message), message["result"])
    if "error" not in message:
        raise MalformedMessage("missing field `error`")
    return ErrorReply(_own_id(message), _typed(message["error"], ErrorObject))


def _own_id(message: dict[str, object]) -> RequestId:
    if "id" not in message:
        raise MalformedMessage("missing field `id`")
    return _request_id(message["id"])


def _request_id(value: object) -> RequestId:
    if type(value) is str or (type(value) is int and I64_MIN <= value <= I64_MAX):
        return value
    raise MalformedMessage("data did not match any variant of untagged enum RequestId")


def _typed(value: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise MalformedMessage(blame(value, kind)) from None


def _decode_again(data: bytes, error: Exception) -> object:
    """Decode with the standard library to find the fault, or a number that is only too large."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise MalformedMessage(f"invalid unicode code point at line 1 column {bad.start}") from None
    try:
        message: object = json.loads(text, parse_int=_large, parse_constant=_refuse_constant)
    except json.JSONDecodeError as bad:
        detail, column = "expected value", bad.colno
        if bad.pos >= len(text.rstrip()):
            # The column of the last character; 0 if there is none.
            detail, column = "EOF while parsing a value", bad.colno - 1
        raise MalformedMessage(f"{detail} at line {bad.lineno} column {column}") from None
    except RecursionError:
        raise _too_deep() from None
    if isinstance(error, msgspec.ValidationError) and _is_unicode(message):
        # Such as 1e999: too large for a float, which does not concern the envelope.
        return message
    # The standard library accepts a lone surrogate; the protocol's strings are Unicode.
    raise MalformedMessage("unexpected end of hex escape at line 1 column 1") from None


def _is_unicode(message: object) -> bool:
    try:
        json.dumps(message, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _large(digits: str) -> int | float:
    """Return a number, or infinity if it has more digits than Python reads."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedMessage(f"expected value at line 1 column 1: {name}")


def _too_deep() -> MalformedMessage:
    return MalformedMessage("recursion limit exceeded")


def _check_value_count(data: bytes) -> None:
    """Refuse a huge number of values before memory is spent on them."""
    if sum(count_rare(data, byte, MAX_VALUES) for byte in (b",", b"[", b"{")) < MAX_VALUES:
        return
    if _count_values(data) > MAX_VALUES:
        raise MalformedMessage(
            f"JSON-RPC message exceeds the limit of {MAX_VALUES} JSON values"
            f" at line 1 column {len(data)}"
        )


def _count_values(data: bytes) -> int:
    """Count the values of a message, or stop once there are too many."""
    values = 1
    in_text = False
    # Parts at the end of a slice that belong to the next: an escape, an opening bracket.
    escape = opened = b""
    # In slices, so that other threads can run, and too many values are found early.
    for start in range(0, len(data), _SLICE):
        part = escape + data[start : start + _SLICE]
        if b"\\" in part:
            # In this order: the quote after two backslashes ends the string.
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        escape = b"\\" if part.endswith(b"\\") else b""
        pieces = part.removesuffix(escape).split(b'"')
        # Every second piece is outside strings. A `0` stands for each string.
        bare = opened + b"0" * in_text + b"0".join(pieces[in_text::2])
        bare = bare.translate(None, b" \t\r\n")
        in_text ^= len(pieces) % 2 == 0
        # Counted with the next slice, which shows whether the container is empty.
        opened = bare[-1:] if bare.endswith((b"[", b"{")) else b""
        bare = bare.removesuffix(opened)
        # Every element but the first one of an array or an object has a comma before it.
        values += bare.count(b",") + bare.count(b"[") + bare.count(b"{")
        values -= bare.count(b"[]") + bare.count(b"{}")
        if values > MAX_VALUES:
            break
    return values + len(opened)


def _check_nesting_and_keys(data: bytes, message: dict[str, object]) -> None:
    keys = 0
    level: list[object] = [message]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        below: list[object] = []
        for value in level:
            if type(value) is dict:
                keys += len(value)
                below.extend(v for v in value.values() if type(v) is dict or type(v) is list)
            else:
                # Only containers are put into `level`.
                assert type(value) is list
                below.extend(v for v in value if type(v) is dict or type(v) is list)
        level = below
    # Every key ends in a quote and a colon. If there are as many of those as keys left after
    # decoding, none was doubled. If there are more, look closer: a string may hold them too.
    if _count_key_ends(data, keys + 1) != keys:
        _check_doubled_keys(data)


def _count_key_ends(data: bytes, limit: int) -> int:
    """Count quotes followed by a colon, up to `limit`: a string may hold millions."""
    if len(data) <= _SMALL:
        return len(_KEY_END.findall(data))
    found = colons = 0
    colon = data.find(b":")
    while colon >= 0:
        colons += 1
        if colons == _MANY:
            return sum(1 for _ in islice(_KEY_END.finditer(data), limit))
        found += _ends_key(data, colon)
        colon = data.find(b":", colon + 1)
    return found


def count_rare(data: bytes, byte: bytes, limit: int) -> int:
    """
    Count a byte until there are more than `limit`.

    For a rare byte this is many times faster than `bytes.count`, and for a frequent one in a
    large message as well.
    """
    # Base64 has none of the bytes counted here: `find` skips it with `memchr`, while `count` goes
    # through it byte by byte.
    found = 0
    at = data.find(byte)
    while at >= 0:
        found += 1
        at += 1
        if found == _MANY:
            for start in range(at, len(data), _SLICE):
                found += data.count(byte, start, start + _SLICE)
                if found > limit:
                    break
            return found
        at = data.find(byte, at)
    return found


def _ends_key(data: bytes, colon: int) -> bool:
    """Return True if a quote stands before the colon, with only blanks in between."""
    # In pieces: a string may have a megabyte of blanks, and most keys have none.
    size = 1
    while colon > 0:
        before = data[max(colon - size, 0) : colon].rstrip(b" \t\r\n")
        if before:
            return before[-1] == _QUOTE
        colon -= size
        size = 1 << 16
    return False


def _check_doubled_keys(data: bytes) -> None:
    try:
        json.loads(data, object_pairs_hook=_refuse_doubled, parse_int=str, parse_float=str)
    except _DoubledKey as doubled:
        raise MalformedMessage(
            f"duplicate JSON object key `{doubled.key}`"
            f" at line 1 column {_column_of_doubled(data, doubled.key)}"
        ) from None


class _DoubledKey(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


def _refuse_doubled(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DoubledKey(key)
            seen.add(key)
    return found


def _column_of_doubled(data: bytes, key: str) -> int:
    """Return the column of the last occurrence of a key, which is good enough to find it by eye."""
    end = 0
    for match in re.finditer(re.escape(msgspec.json.encode(key)) + rb"[ \t\r\n]*:", data):
        end = match.start() + len(msgspec.json.encode(key))
    return end

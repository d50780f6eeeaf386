"""Bytes to messages: kinds, limits, and agreement with a slow and simple reading."""

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.base.errors import MalformedMessage
from holdfast.wire.protocol.envelope import ErrorReply, Message, Notification, Reply, Request, Trace
from holdfast.wire.rpc import decode
from holdfast.wire.rpc.decode import MAX_DEPTH, MAX_VALUES, decode_message, decode_patiently


def fault(data: bytes) -> str:
    with pytest.raises(MalformedMessage) as caught:
        decode_message(data)
    return str(caught.value)


def nested(depth: int, around: Callable[[bytes], bytes] = lambda value: value) -> bytes:
    """A message of that depth, the root and its params included."""
    inner = around(b"[" * (depth - 2) + b"]" * (depth - 2))
    return b'{"id":1,"method":"m","params":{"a":' + inner + b"}}"


# Kinds.


@pytest.mark.requirement("envelope.kinds")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"id":1,"method":"m"}', Request(1, "m")),
        (b'{"id":"x","method":"m","params":[1]}', Request("x", "m", [1])),
        (b'{"method":"m"}', Notification("m")),
        (b'{"method":"m","params":{"a":null}}', Notification("m", {"a": None})),
        (b'{"id":7,"result":null}', Reply(7, None)),
        (b'{"id":7,"result":{"a":1}}', Reply(7, {"a": 1})),
    ],
)
def test_the_members_tell_the_kind_of_a_message(data: bytes, message: Message) -> None:
    assert decode_message(data) == message


@pytest.mark.requirement("envelope.kinds")
def test_an_error_has_a_code_a_text_and_perhaps_data() -> None:
    message = decode_message(b'{"id":1,"error":{"code":-5,"message":"no","data":[1]}}')
    assert isinstance(message, ErrorReply)
    assert (message.id, message.error.code, message.error.message) == (1, -5, "no")
    assert message.error.data == [1]


@pytest.mark.requirement("envelope.method-first")
def test_a_method_decides_before_a_result() -> None:
    assert decode_message(b'{"id":1,"method":"m","result":1}') == Request(1, "m")
    assert decode_message(b'{"method":"m","result":1}') == Notification("m")


@pytest.mark.requirement("envelope.jsonrpc-member", "envelope.unknown-members")
def test_unknown_members_and_the_version_are_ignored() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"m","meta":{"a":[1,2]}}'
    assert decode_message(data) == Request(1, "m")


# Ids and traces.


@pytest.mark.requirement("envelope.id.refused")
@pytest.mark.parametrize(
    "value",
    [
        b"null",
        b"true",
        b"1.5",
        b"1.0",
        b"1e2",
        b"-0.0",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"[]",
        b"{}",
    ],
)
def test_anything_else_is_no_id(value: bytes) -> None:
    expected = "data did not match any variant of untagged enum RequestId"
    assert fault(b'{"id":' + value + b',"method":"m"}') == expected
    assert fault(b'{"id":' + value + b',"result":1}') == expected


@pytest.mark.requirement("envelope.trace")
def test_a_request_may_carry_a_trace() -> None:
    message = decode_message(b'{"id":1,"method":"m","trace":{"traceparent":"nonsense","x":1}}')
    assert isinstance(message, Request)
    assert message.trace == Trace(traceparent="nonsense")
    for absent in (b"null", b"{}", b'{"traceparent":null}'):
        message = decode_message(b'{"id":1,"method":"m","trace":' + absent + b"}")
        assert isinstance(message, Request)
        assert message.trace in (None, Trace())


@pytest.mark.requirement("envelope.trace")
def test_a_trace_of_the_wrong_type_is_malformed() -> None:
    assert fault(b'{"id":1,"method":"m","trace":{"traceparent":1}}') == (
        "invalid type: number, expected a string"
    )
    assert fault(b'{"id":1,"method":"m","trace":{"tracestate":[]}}') == (
        "invalid type: sequence, expected a string"
    )
    for value in (b'"x"', b"5", b"true"):
        data = b'{"id":1,"method":"m","trace":' + value + b"}"
        assert "expected struct Trace" in fault(data)


# What cannot be read.


@pytest.mark.requirement("envelope.malformed.not-an-object")
@pytest.mark.parametrize(
    "data", [b"[]", b'[{"id":1,"method":"m"}]', b"1", b'"x"', b"null", b"true", b"1e999"]
)
def test_only_an_object_is_a_message(data: bytes) -> None:
    assert fault(data) == "expected a JSON-RPC object"


@pytest.mark.requirement("envelope.malformed.missing")
def test_a_missing_member_is_named() -> None:
    assert fault(b"{}") == "missing field `error`"
    assert fault(b'{"id":1}') == "missing field `error`"
    assert fault(b'{"params":{}}') == "missing field `error`"
    assert fault(b'{"result":1}') == "missing field `id`"
    assert fault(b'{"error":{"code":1,"message":"x"}}') == "missing field `id`"
    assert fault(b'{"id":1,"error":{"message":"x"}}') == "missing field `code`"


@pytest.mark.requirement("envelope.malformed.member-type")
def test_a_member_of_the_wrong_type_is_named() -> None:
    assert fault(b'{"id":1,"method":1}') == "invalid type: number, expected a string"
    assert fault(b'{"method":null}') == "invalid type: null, expected a string"
    assert fault(b'{"id":1,"error":{"code":1,"message":5}}') == (
        "invalid type: number, expected a string"
    )
    assert "expected struct ErrorObject" in fault(b'{"id":1,"error":"x"}')


@pytest.mark.requirement("envelope.malformed.syntax")
@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"id":1,',
        b'{"id":1}x',
        b"nope",
        b'{"id":01}',
        b'{"id":NaN,"method":"m"}',
        b"{'a':1}",
        b'{"id":1,"method":"m"}}',
        b'{"id":1,"method":"m"} {}',
        b'{"id":1,}',
        b'{"id":1,"method":"m\\x"}',
        b"\0",
        "\ufeff{}".encode(),
    ],
)
def test_what_is_not_json_is_malformed(data: bytes) -> None:
    assert " at line 1 column " in fault(data)


@pytest.mark.requirement("envelope.malformed.syntax")
@pytest.mark.parametrize("data", [b"", b" ", b"\n"])
def test_an_empty_message_is_malformed(data: bytes) -> None:
    assert fault(data).startswith("EOF while parsing a value at line ")


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"\xff","method":"m"}',
        b'{"id":"\xc3',
        b'{"id":"\\ud800","method":"m"}',
        b'{"params":1e999,"id":"\\ud800","method":"m"}',  # the number alone would be fine
        b'{"params":{"\\udfff":1e999},"id":1,"method":"m"}',
    ],
)
def test_texts_are_whole_unicode(data: bytes) -> None:
    assert "at line 1 column" in fault(data)


@pytest.mark.parametrize(
    "number", [b"1e999", b"-1e999", b"1" * 400, b"9" * 5000, b"-" + b"9" * 5000]
)
def test_a_number_beyond_all_bounds_is_left_to_the_params(number: bytes) -> None:
    message = decode_message(b'{"id":1,"method":"m","params":' + number + b"}")
    assert isinstance(message, Request)
    assert message.id == 1
    assert isinstance(message.params, int | float)


# Doubled keys.


@pytest.mark.requirement("envelope.duplicate-key")
@pytest.mark.parametrize(
    "data",
    [
        b'{"id":1,"id":1,"method":"m"}',
        b'{"id":1,"method":"m","params":{"a":1,"a":1}}',
        b'{"id":1,"method":"m","params":{"b":{"a":1,"a":2}}}',
        b'{"id":1,"method":"m","params":[{"c":[{"a":1,"a":2}]}]}',
        b'{"id":1,"method":"m","params":{"\\u0061":1,"a":2}}',
        b'{"id":1,"method":"m","extra":{"a":1,"a":2}}',
        b'{"id":1,"result":{"a":1 , "a" \n:2}}',
        b'{"id":1,"method":"m","params":{"a":1,"a":2},"p":"' + b"x" * 5000 + b'"}',
        b'{"id":1,"method":"m","params":{"a":' + b"9" * 5000 + b',"a":2}}',
    ],
)
def test_a_key_twice_in_one_object_is_malformed_wherever_it_is(data: bytes) -> None:
    assert fault(data).startswith("duplicate JSON object key `")
    assert " at line 1 column " in fault(data)


@pytest.mark.requirement("envelope.duplicate-key")
def test_the_doubled_key_is_named_with_its_place() -> None:
    assert fault(b'{"id":1,"id":2}') == "duplicate JSON object key `id` at line 1 column 12"
    for text, key in (
        ('{"id":1,"method":"m","params":[[{"x":{"é":1,"é":1}}]]}', "é"),
        ('{"id":1,"method":"m","\\u0069d":7}', "id"),
        ('{"id":1,"method":"m","params":{"":1,"" :2}}', ""),
    ):
        place = f"duplicate JSON object key `{key}` at line 1 column "
        assert fault(text.encode()).startswith(place)


@pytest.mark.parametrize(
    "params",
    [
        {"a": "b", "c": {"a": "b"}},  # the same key in another object
        {"a": '"a":1,"a":2'},  # texts that look like keys
        {'"a":': 1, '\\"a\\":': 2},
        {"a": ":::::::"},
        {":": ":", "": ""},
        {"a": ["x" * 5000, {"a": 1}]},
    ],
)
def test_what_only_looks_like_a_doubled_key_is_fine(params: object) -> None:
    data = json.dumps({"id": 1, "method": "m", "params": params}).encode()
    assert decode_message(data) == Request(1, "m", params)


# Limits.


@pytest.mark.requirement("envelope.limit.depth")
@pytest.mark.parametrize(
    "around",
    [
        pytest.param(lambda value: value, id="arrays"),
        pytest.param(lambda value: value.replace(b"[]", b"{}"), id="an empty object inside"),
        pytest.param(lambda value: b'["' + b"x" * 5000 + b'",' + value[1:], id="a large message"),
        pytest.param(lambda value: b"[{},{}," + value[1:], id="objects beside"),
    ],
)
def test_127_levels_are_fine_and_one_more_is_too_deep(around: Callable[[bytes], bytes]) -> None:
    assert isinstance(decode_message(nested(MAX_DEPTH, around)), Request)
    assert fault(nested(MAX_DEPTH + 1, around)).startswith("recursion limit exceeded")


@pytest.mark.requirement("envelope.limit.depth")
def test_objects_count_as_levels_like_arrays() -> None:
    def data(depth: int) -> bytes:
        return b'{"id":1,"result":' + b'{"a":' * (depth - 1) + b"1" + b"}" * depth

    assert isinstance(decode_message(data(MAX_DEPTH)), Reply)
    assert fault(data(MAX_DEPTH + 1)).startswith("recursion limit exceeded")


@pytest.mark.parametrize("depth", [1_000, 5_000, 200_000])
def test_nesting_without_end_is_refused_and_not_followed(depth: int) -> None:
    assert fault(nested(depth)) == "recursion limit exceeded"
    assert fault(b"[" * depth)


@pytest.mark.parametrize("text", ["[" * 500, "{" * 500, '\\"' * 500, "]" * 500 + "[" * 500])
def test_brackets_in_a_text_do_not_nest(text: str) -> None:
    data = json.dumps({"id": 1, "method": "m", "params": {"a": text}}).encode()
    assert decode_message(data) == Request(1, "m", {"a": text})


@pytest.mark.slow
@pytest.mark.requirement("envelope.limit.values")
@pytest.mark.parametrize(
    "filler",
    [
        pytest.param(b"0", id="numbers"),
        pytest.param(b"[]", id="empty arrays"),
        pytest.param(b"{ }", id="empty objects"),
        pytest.param(b'",[{"', id="texts that look like more"),
    ],
)
def test_262144_values_are_fine_and_one_more_is_too_many(filler: bytes) -> None:
    def data(values: int) -> bytes:
        # The root, the id and the array itself count too.
        return b'{"id":1,"result":[' + b",".join([filler] * (values - 3)) + b"]}"

    message = decode_message(data(MAX_VALUES))
    assert isinstance(message, Reply)
    assert fault(data(MAX_VALUES + 1)).startswith(
        "JSON-RPC message exceeds the limit of 262144 JSON values at line 1 column "
    )


@pytest.mark.slow
@pytest.mark.requirement("envelope.limit.values")
def test_keys_are_no_values_but_nested_containers_are() -> None:
    def data(pairs: int) -> bytes:
        members = b",".join(b'"%d":[0]' % n for n in range(pairs))
        return b'{"id":1,"result":{' + members + b"}}"

    # Two values for each member, and three around them.
    most = (MAX_VALUES - 3) // 2
    assert isinstance(decode_message(data(most)), Reply)
    assert "exceeds the limit" in fault(data(most + 1))


# Agreement with a straightforward reading.


class Doubled(Exception):
    pass


def reference(data: bytes) -> Any:
    """Decode as the specification says, without regard to cost; `None` if it is malformed."""

    def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(found)) != len(found):
            raise Doubled
        return dict(found)

    def depth(value: object) -> int:
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        if isinstance(value, list):
            return 1 + max(map(depth, value), default=0)
        return 0

    try:
        value = json.loads(data, object_pairs_hook=pairs)
    except (ValueError, Doubled):
        return None
    return value if isinstance(value, dict) and depth(value) <= MAX_DEPTH else None


keys = st.sampled_from(["id", "a", "b", 'q"', "ü", "a:b", "\\", ""]) | st.text(max_size=3)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8)


def written(value: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Arrays and objects of texts, as text: an object may hold a key twice."""
    blank = st.sampled_from(["", " ", "\n"])
    key = st.builds(json.dumps, keys, ensure_ascii=st.booleans())
    member = st.builds("{0}{1}:{1}{2}".format, key, blank, value)
    return st.builds("[{}]".format, st.lists(value, max_size=4).map(",".join)) | st.builds(
        "{{{}{}}}".format, blank, st.lists(member, max_size=4).map(",".join)
    )


values = st.recursive(
    st.builds(json.dumps, scalars, ensure_ascii=st.booleans()), written, max_leaves=20
)


@pytest.mark.slow
@pytest.mark.requirement("envelope.duplicate-key")
@given(params=values, padding=st.sampled_from([0, 5000]))
@example(params='{"a":{"b":[{"a":1,"a":1}]}}', padding=0)
def test_any_params_are_read_as_a_simple_reader_reads_them(params: str, padding: int) -> None:
    data = f'{{"id":1,"method":"m","params":{params}{" " * padding}}}'.encode()
    expected = reference(data)
    if expected is None:
        assert fault(data).startswith("duplicate JSON object key")
    else:
        assert decode_message(data) == Request(1, "m", expected["params"])


@pytest.mark.slow
@given(
    members=st.lists(
        st.tuples(st.sampled_from(["id", "method", "params", "result", "error", "x"]), values),
        max_size=5,
    )
)
def test_any_object_is_a_message_or_malformed(members: list[tuple[str, str]]) -> None:
    data = ("{" + ",".join(f'"{key}":{value}' for key, value in members) + "}").encode()
    try:
        decode_message(data)
    except MalformedMessage:
        return
    assert reference(data) is not None


@given(st.binary(max_size=60))
def test_noise_is_malformed_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_message(data)


@given(st.integers(100, 150), st.integers(0, 40), st.booleans())
def test_depth_is_counted_right_around_the_limit(depth: int, objects: int, large: bool) -> None:
    opening, closing = "", ""
    for level in range(depth - 1):
        if level < objects:
            opening, closing = opening + '{"k":', "}" + closing
        else:
            opening, closing = opening + "[", "]" + closing
    inner = "1" if depth - 1 <= objects else ""
    padding = " " * 5000 if large else ""
    data = f'{{"id":1,"result":{opening}{inner}{closing}{padding}}}'.encode()
    if reference(data) is None:
        assert depth > MAX_DEPTH
        assert fault(data).startswith("recursion limit exceeded")
    else:
        assert isinstance(decode_message(data), Reply)


@pytest.mark.parametrize(
    "message",
    [
        b'{"id":1,"method":"m","params":{"a":[1,2.5,"x",null,true,{"b":"\xc3\xa9"}]}}',
        b'{"id":1,"method":"m","params":{"a":"\\u00e9"}}',
        b'{"id":1,"method":"m","params":{"a":1,"a":2}}',
        b'{"id":1,"method":"m","params":{"a":NaN}}',
        b'{"id":1,"method":"m","params":{"a":1e999}}',
        b'{"id":1,"method":"m","params":{"a":%s}}' % (b"9" * 5000),
        b'{"id":1,"method":"m","params":%s%s}' % (b"[" * 126, b"]" * 126),
        b'{"id":1,"method":"m","params":%s%s}' % (b"[" * 127, b"]" * 127),
        b'{"id":1,"method":"m","params":%s%s}' % (b"[" * 5000, b"]" * 5000),
        b'{"id":1,"method":"m","params":[%s0]}' % (b"0," * MAX_VALUES),
        b'{"id":1,"method":"m","params":"\xff"}',
        b'\xef\xbb\xbf{"id":1,"method":"m"}',
        b'{"id":1,"method":"m"',
        b"[1]",
        b'{"method":"m","params":["\t"]}',
        b'{"id":[],"method":"m"}',
        b'{"id":1,"result":{}}',
    ],
)
def test_patience_changes_nothing(message: bytes) -> None:
    def outcome(decode: Callable[[bytes], Message]) -> object:
        try:
            return decode(message)
        except MalformedMessage as error:
            return str(error)

    assert outcome(decode_patiently) == outcome(decode_message)


def test_too_many_values_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was decoded"))
    data = b'{"id":1,"method":"m","params":[%s0]}' % (b"0," * MAX_VALUES)
    with pytest.raises(MalformedMessage, match="exceeds the limit of 262144 JSON values"):
        decode_patiently(data)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        pytest.param(b",", b'"}', id="commas"),
        pytest.param(b'\\":', b'"}', id="ends of keys"),
        pytest.param(b"a", b'"', id="a message without its end"),
    ],
)
@pytest.mark.parametrize("read", [decode_message, decode_patiently])
def test_a_large_text_takes_little_memory_besides_its_own(
    read: Callable[[bytes], Message], text: bytes, end: bytes
) -> None:
    # A pattern that can go back one character at a time remembers all of them: 100 times the
    # size of the text, and a minute of the largest one.
    data = b'{"id":1,"method":"m","params":"' + text * ((1 << 20) // len(text)) + end
    tracemalloc.start()
    try:
        with suppress(MalformedMessage):
            read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(data)


def count_plainly(value: object) -> int:
    if isinstance(value, list):
        return 1 + sum(map(count_plainly, value))
    if isinstance(value, dict):
        return 1 + sum(map(count_plainly, value.values()))
    return 1


@given(
    st.recursive(
        st.text('a,"\\\\[]{}:', max_size=6) | st.integers(0, 9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text('k,"[', max_size=2), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.sampled_from([None, 1]),
    st.sampled_from([1, 2, 3, 7]),
)
def test_values_are_counted_across_the_slices_of_a_message(
    value: object, indent: int | None, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_SLICE", size)
        data = json.dumps(value, indent=indent).encode()
        assert decode._count_values(data) == count_plainly(value)


@pytest.mark.parametrize("blanks", [0, 1, 2, 1 << 16, (1 << 16) + 1, 1 << 18])
def test_a_doubled_key_is_found_however_many_blanks_are_before_its_colon(blanks: int) -> None:
    end = b'"a"' + b" " * blanks + b":1}}"
    head = b'{"id":1,"method":"' + b"m" * 5000 + b'","params":{'
    assert isinstance(decode_message(head + end), Request)
    assert fault(head + b'"a":0,' + end).startswith("duplicate JSON object key `a`")

"""Params to types, and the texts of those that cannot be read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import (
    ReadParams,
    ReadResponse,
    ResizeParams,
    StartParams,
    ThreadId,
    WriteParams,
)
from holdfast.wire.protocol.wire_types import U64_MAX, Base64, Empty
from holdfast.wire.rpc.encode import encode_value
from holdfast.wire.rpc.params import decode_params, decode_result

START: dict[str, object] = {
    "processId": "p",
    "argv": ["true"],
    "cwd": "file:///tmp",
    "env": {},
    "tty": False,
}


def refusal(params: object, kind: type) -> str:
    with pytest.raises(InvalidParams) as caught:
        decode_params(params, kind)
    return str(caught.value)


# Methods without params.


@pytest.mark.requirement("envelope.params.absent")
@pytest.mark.parametrize("params", [None, {}])
def test_no_params_may_be_nothing_or_an_empty_object(params: object) -> None:
    assert decode_params(params, Empty) == Empty()


@pytest.mark.requirement("envelope.params.absent")
@pytest.mark.parametrize(
    ("params", "got"),
    [
        ({"a": 1}, "map"),
        ([], "sequence"),
        ("x", 'string "x"'),
        (1, "number"),
        (True, "boolean `true`"),
    ],
)
def test_anything_else_is_no_unit(params: object, got: str) -> None:
    assert refusal(params, Empty) == f"invalid type: {got}, expected unit"


# Members.


@pytest.mark.requirement("start.params.required")
@pytest.mark.parametrize("member", ["processId", "argv", "cwd", "env", "tty"])
def test_a_start_misses_what_it_needs(member: str) -> None:
    params = {key: value for key, value in START.items() if key != member}
    assert refusal(params, StartParams) == f"missing field `{member}`"


@pytest.mark.requirement("start.params.required")
def test_a_start_does_without_the_rest() -> None:
    params = decode_params(START, StartParams)
    assert not params.pipe_stdin
    optional = (params.arg0, params.env_policy, params.metadata, params.sandbox)
    assert optional == (None, None, None, None)
    names = ("arg0", "envPolicy", "metadata", "sandbox", "managedNetwork", "networkProxy")
    nothing = dict.fromkeys((*names, "shellSnapshot", "terminalSize"))
    assert decode_params({**START, **nothing}, StartParams) == params


@pytest.mark.requirement("start.params.required")
@pytest.mark.parametrize(
    ("member", "wanted"),
    [
        ("env", "a map"),
        ("pipeStdin", "a boolean"),
        ("tty", "a boolean"),
        ("enforceManagedNetwork", "a boolean"),
    ],
)
def test_some_members_may_not_be_null(member: str, wanted: str) -> None:
    expected = f"invalid type: null, expected {wanted}"
    assert refusal({**START, member: None}, StartParams) == expected


@pytest.mark.requirement("envelope.params.wrong-type")
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"processId": 5}, "number, expected a string"),
        ({"processId": None}, "null, expected a string"),
        ({"argv": "x"}, 'string "x", expected a sequence'),
        ({"argv": [1]}, "number, expected a string"),
        ({"env": {"A": []}}, "sequence, expected a string"),
        ({"tty": "yes"}, 'string "yes", expected a boolean'),
        ({"arg0": 5}, "number, expected a string"),
    ],
)
def test_members_of_a_start_have_their_types(changed: dict[str, object], text: str) -> None:
    assert refusal({**START, **changed}, StartParams) == f"invalid type: {text}"


@pytest.mark.requirement("envelope.params.wrong-type", "envelope.params.number")
@pytest.mark.parametrize("member", ["afterSeq", "maxBytes", "waitMs"])
def test_options_of_a_read_are_numbers(member: str) -> None:
    params = {"processId": "p"}
    assert refusal({**params, member: "5"}, ReadParams) == 'invalid type: string "5", expected u64'
    for number in (-1, 1.5):
        assert refusal({**params, member: number}, ReadParams) == "invalid number"


@pytest.mark.requirement("envelope.unknown-members")
def test_unknown_members_are_ignored() -> None:
    assert decode_params({**START, "colour": "red"}, StartParams).process_id == "p"


# Types that are a text on the wire.


@pytest.mark.requirement("start.cwd.refused")
@pytest.mark.parametrize(
    ("cwd", "text"),
    [
        ("/tmp", "invalid URI: relative URL without a base"),
        ("tmp", "invalid URI: relative URL without a base"),
        ("", "invalid URI: relative URL without a base"),
        ("http://x/y", "unsupported path URI scheme `http`"),
        ("file:///a?b", "query parameters are not allowed in path URIs"),
        ("file:///a#b", "fragments are not allowed in path URIs"),
        ("file:///a%00b", "'file:///a%00b' is invalid on 'linux'"),
    ],
)
def test_a_folder_that_is_no_path_uri_is_refused_in_its_own_words(cwd: str, text: str) -> None:
    assert refusal({**START, "cwd": cwd}, StartParams) == text


def test_a_folder_of_the_wrong_type_is_refused_like_any_text() -> None:
    assert refusal({**START, "cwd": 1}, StartParams) == "invalid type: number, expected a string"
    assert refusal({**START, "cwd": {}}, StartParams) == "invalid type: map, expected a string"
    assert refusal({**START, "cwd": None}, StartParams) == "invalid type: null, expected a string"


def test_a_folder_becomes_a_path_uri() -> None:
    assert decode_params(START, StartParams).cwd == PathUri.parse("file:///tmp")


@pytest.mark.requirement("env.thread-id")
@pytest.mark.parametrize(
    "text",
    [
        "67E55044-10B1-426F-9247-BB680E5FE0C8",
        "67e5504410b1426f9247bb680e5fe0c8",
        "urn:uuid:67e55044-10b1-426f-9247-bb680e5fe0c8",
        "{67e55044-10b1-426f-9247-bb680e5fe0c8}",
    ],
)
def test_a_thread_id_is_brought_into_its_usual_form(text: str) -> None:
    params = decode_params({**START, "metadata": {"threadId": text}}, StartParams)
    assert params.metadata is not None
    assert params.metadata.thread_id == ThreadId("67e55044-10b1-426f-9247-bb680e5fe0c8")


@pytest.mark.parametrize("text", ["", "x", "67e55044", "67e5504410b1426f9247bb680e5fe0c8\n"])
def test_what_is_no_uuid_is_no_thread_id(text: str) -> None:
    params = {**START, "metadata": {"threadId": text}}
    assert refusal(params, StartParams) == f"invalid UUID `{text}`"


def test_a_thread_id_of_the_wrong_type_is_refused_like_any_text() -> None:
    params = {**START, "metadata": {"threadId": 1}}
    assert refusal(params, StartParams) == "invalid type: number, expected a string"


# Numbers.


@pytest.mark.requirement("read.wait.huge")
@pytest.mark.parametrize("member", ["afterSeq", "maxBytes", "waitMs"])
def test_a_number_of_64_bits_is_taken_and_one_more_is_invalid(member: str) -> None:
    params = decode_params({"processId": "p", member: U64_MAX}, ReadParams)
    assert U64_MAX in (params.after_seq, params.max_bytes, params.wait_ms)
    assert refusal({"processId": "p", member: U64_MAX + 1}, ReadParams) == "invalid number"
    assert refusal({"processId": "p", member: float("inf")}, ReadParams) == "invalid number"


@pytest.mark.requirement("read.null-options")
def test_the_options_of_a_read_may_be_null() -> None:
    nulls = {"processId": "p", "afterSeq": None, "maxBytes": None, "waitMs": None}
    assert decode_params(nulls, ReadParams) == ReadParams(process_id="p")


@pytest.mark.parametrize(("rows", "cols"), [(0, 80), (24, 0), (65536, 80), (24, 65536)])
def test_a_terminal_has_a_size_the_kernel_can_hold(rows: int, cols: int) -> None:
    text = "terminal size must be between 1 and 65535 rows and columns"
    assert refusal({"processId": "p", "rows": rows, "cols": cols}, ResizeParams) == text
    size = {"rows": rows, "cols": cols}
    assert refusal({**START, "terminalSize": size}, StartParams) == text


def test_bytes_are_base64_on_the_wire_only() -> None:
    params = WriteParams(process_id="p", chunk=Base64(b"hi"), write_id="1")
    wire = {"processId": "p", "chunk": "aGk=", "writeId": "1"}
    assert msgspec.json.decode(encode_value(params)) == wire
    assert decode_params(wire, WriteParams) == params
    assert {params, decode_params(wire, WriteParams)} == {params}
    assert params.chunk != b"hi"
    assert repr(params.chunk) == "Base64(b'hi')"
    for chunk, text in (("aGk", "Invalid padding"), (1, "invalid type: number, expected a string")):
        assert refusal({**wire, "chunk": chunk}, WriteParams) == text


# Anything at all.

MEMBERS = ["metadata", "envPolicy", "terminalSize", "afterSeq", "chunk", "writeId", "rows"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    st.sampled_from([StartParams, ReadParams, WriteParams, ResizeParams, Empty]),
    json_values
    | st.fixed_dictionaries(
        {},
        optional=dict.fromkeys([*START, *MEMBERS], json_values),
    ),
)
def test_any_value_is_taken_or_refused_with_a_reason(kind: type, params: object) -> None:
    try:
        decode_params(params, kind)
    except InvalidParams as refused:
        reason = str(refused)
    else:
        return
    assert reason not in ("", "invalid value")


# Results.


def test_a_result_becomes_the_type_of_its_method() -> None:
    result = {
        "chunks": [{"seq": 1, "stream": "pty", "chunk": "aGk="}],
        "nextSeq": 2,
        "exited": False,
        "exitCode": None,
        "closed": False,
        "failure": None,
        "sandboxDenied": None,
    }
    read = decode_result(result, ReadResponse)
    assert read.chunks[0].chunk == b"hi"
    assert read.next_seq == 2


@pytest.mark.parametrize("result", [{}, None, {"anything": 1}, 7])
def test_an_empty_result_may_be_anything(result: object) -> None:
    assert decode_result(result, Empty) == Empty()


def test_a_result_of_another_type_is_invalid() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_result({"chunks": 1}, ReadResponse)

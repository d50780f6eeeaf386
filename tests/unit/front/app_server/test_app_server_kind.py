"""Params and notifications of the app-server."""

import json
from typing import Any

import pytest

from holdfast.base.errors import InvalidRequest, MalformedMessage, Overloaded
from holdfast.front.app_server.app_server_kind import APP_SERVER, DeltaEncoder
from holdfast.wire.protocol.command_exec import (
    AppInitializeParams,
    CommandExecParams,
    CommandExecTerminalSize,
    ProcessSpawnParams,
    WorkspaceWrite,
)
from holdfast.wire.protocol.envelope import Request


def refused(params: object, kind: type = CommandExecParams) -> str:
    with pytest.raises(InvalidRequest) as caught:
        APP_SERVER.decode_params(params, kind)
    return str(caught.value).removeprefix("Invalid request: ")


@pytest.mark.requirement("app-server.decoding")
def test_the_first_fault_in_the_order_of_the_message_is_told() -> None:
    assert refused({"tty": 1, "command": 2}) == "invalid type: integer `1`, expected a boolean"
    assert refused({"command": 2, "tty": 1}) == "invalid type: integer `2`, expected a sequence"
    assert refused({"tty": True}) == "missing field `command`"


@pytest.mark.requirement("app-server.decoding")
def test_the_capability_of_human_approval_is_a_boolean() -> None:
    client = {"clientInfo": {"name": "a", "version": "1"}}
    for value, named in (("x", 'string "x"'), (None, "null")):
        wrong = {**client, "capabilities": {"requiredHumanApproval": value}}
        text = f"invalid type: {named}, expected a boolean"
        assert refused(wrong, AppInitializeParams) == text
    right = {**client, "capabilities": {"requiredHumanApproval": True}}
    APP_SERVER.decode_params(right, AppInitializeParams)


@pytest.mark.requirement("app-server.decoding")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "invalid type: boolean `true`, expected i64"),
        (1e16, "invalid type: floating point `1e+16`, expected i64"),
        (1 << 63, f"invalid value: integer `{1 << 63}`, expected i64"),
        (1 << 64, f"invalid type: integer `{1 << 64}` as u128, expected any value"),
        (-(1 << 63) - 1, f"invalid type: integer `{-(1 << 63) - 1}` as i128, expected any value"),
        ({}, "invalid type: map, expected i64"),
    ],
)
def test_numbers_are_named(value: object, text: str) -> None:
    assert refused({"command": [], "timeoutMs": value}) == text


@pytest.mark.requirement("app-server.decoding")
@pytest.mark.parametrize(
    ("kind", "member"), [("readOnly", "access"), ("workspaceWrite", "readOnlyAccess")]
)
def test_reads_that_cannot_be_restricted_are_not_left_open(kind: str, member: str) -> None:
    def policy(access: object) -> dict[str, Any]:
        return {"command": [], "sandboxPolicy": {"type": kind, member: access}}

    assert refused(policy({"type": "restricted", "readableRoots": ["/tmp"]})) == (
        f"{kind}.{member} is no longer supported; use permissionProfile for restricted reads"
    )
    assert refused(policy({"type": "some"})) == (
        "unknown variant `some`, expected `fullAccess` or `restricted`"
    )
    for access in (None, {"type": "fullAccess", "other": 1}):
        APP_SERVER.decode_params(policy(access), CommandExecParams)


@pytest.mark.requirement("app-server.decoding")
def test_a_list_with_all_members_is_a_structure() -> None:
    params: dict[str, Any] = {"command": ["a"], "size": [3, 4]}
    decoded = APP_SERVER.decode_params(params, CommandExecParams)
    assert decoded.size == CommandExecTerminalSize(rows=3, cols=4)
    assert refused({"command": [], "size": [3]}) == (
        "invalid length 1, expected struct CommandExecTerminalSize with 2 elements"
    )
    assert refused({"command": [], "size": [3, -1]}) == "invalid value: integer `-1`, expected u16"
    as_list = APP_SERVER.decode_params([5, 6], CommandExecTerminalSize)
    assert as_list == CommandExecTerminalSize(rows=5, cols=6)


@pytest.mark.requirement("app-server.decoding")
def test_paths_that_have_to_be_absolute() -> None:
    text = "AbsolutePathBuf deserialized without a base path"
    policy = {"type": "workspaceWrite", "writableRoots": ["/a", "b"]}
    assert refused({"command": [], "sandboxPolicy": policy}) == text
    assert refused({"command": [], "processHandle": "h", "cwd": "x"}, ProcessSpawnParams) == text
    policy["writableRoots"] = ["/a"]
    decoded = APP_SERVER.decode_params({"command": [], "sandboxPolicy": policy}, CommandExecParams)
    assert decoded.sandbox_policy == WorkspaceWrite(writable_roots=("/a",))


@pytest.mark.requirement("app-server.process")
def test_limits_of_a_process_are_absent_or_null() -> None:
    params: dict[str, Any] = {"command": ["a"], "processHandle": "h", "cwd": "/"}
    absent = APP_SERVER.decode_params(params, ProcessSpawnParams)
    assert (absent.timeout_ms, absent.output_bytes_cap) == (10_000, 1 << 20)
    null = {"timeoutMs": None, "outputBytesCap": None}
    none = APP_SERVER.decode_params({**params, **null}, ProcessSpawnParams)
    assert (none.timeout_ms, none.output_bytes_cap) == (None, None)


@pytest.mark.requirement("app-server.junk")
def test_of_doubled_keys_the_last_one_counts() -> None:
    message = APP_SERVER.decode_message(b'{"id":1,"method":"m","params":{"a":1,"a":2}}')
    assert message == Request(1, "m", {"a": 2})
    with pytest.raises(MalformedMessage):
        APP_SERVER.decode_message(b'{"id":1.5,"method":"m"}')
    assert APP_SERVER.parse_failure(MalformedMessage("x"), "stdio", "stdio") is None


@pytest.mark.requirement("app-server.overload")
def test_a_full_server_refuses() -> None:
    assert isinstance(APP_SERVER.overload(), Overloaded)
    assert "command/exec/terminate" in APP_SERVER.control
    assert "command/exec" not in APP_SERVER.control


@pytest.mark.requirement("app-server.envelope")
def test_a_delta_is_plain_json() -> None:
    encoder = DeltaEncoder("command/exec/outputDelta", "processId", 'a"\\\nü')
    message = json.loads(b"".join(encoder.encode("stderr", b"\0x", True)))
    assert isinstance(message.pop("emittedAtMs"), int)
    assert message == {
        "method": "command/exec/outputDelta",
        "params": {
            "processId": 'a"\\\nü',
            "stream": "stderr",
            "deltaBase64": "AHg=",
            "capReached": True,
        },
    }
    note = json.loads(APP_SERVER.encode_notification("process/exited", {"a": 1}))
    assert list(note) == ["method", "params", "emittedAtMs"]

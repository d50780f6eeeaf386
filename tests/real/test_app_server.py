"""The app-server beside the real one, and in front of a real exec-server."""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.app_wire import APP_SERVER, FULL, HELLO, app_connect, app_serving, sh
from tests.e2e.wire import LIMIT
from tests.real.codex import codex, codex_env, codex_serving

pytestmark = pytest.mark.real

TRUE = ["/bin/true"]

_NO_PARAMS: list[Any] = [[], [TRUE], "x", 5, True, {}]

_WRONG_MEMBERS: list[dict[str, Any]] = [
    {"command": 'x\u200b\u0301"\\\n'},
    {"command": [None]},
    {"command": {}},
    {"processId": 1},
    {"tty": None},
    {"tty": "true"},
    {"streamStdin": 0},
    {"outputBytesCap": -1},
    {"outputBytesCap": 1.5},
    {"outputBytesCap": 1 << 64},
    {"outputBytesCap": "1"},
    {"timeoutMs": 1e300},
    {"timeoutMs": 1.0},
    {"timeoutMs": 1 << 63},
    {"timeoutMs": -(1 << 63) - 1},
    {"timeoutMs": []},
    {"cwd": 5},
    {"env": []},
    {"env": {"A": 1}},
    {"env": {"A": {}}},
    {"size": 7},
    {"size": {}},
    {"size": {"rows": 1}},
    {"size": [1]},
    {"size": [1, 2]},
    {"size": {"rows": -1, "cols": 1}},
    {"size": {"rows": 65536, "cols": 1}},
    {"size": {"rows": None, "cols": 1}},
    {"sandboxPolicy": {}},
    {"sandboxPolicy": 5},
    {"sandboxPolicy": "readOnly"},
    {"sandboxPolicy": {"type": 5}},
    {"sandboxPolicy": {"type": None}},
    {"sandboxPolicy": {"type": "bogus"}},
    {"sandboxPolicy": {"type": "readOnly", "networkAccess": "x"}},
    {"sandboxPolicy": {"type": "externalSandbox", "networkAccess": "x"}},
    {"sandboxPolicy": {"type": "externalSandbox", "networkAccess": True}},
    {"sandboxPolicy": {"type": "workspaceWrite", "writableRoots": 5}},
    {"sandboxPolicy": {"type": "workspaceWrite", "writableRoots": [5]}},
    {"sandboxPolicy": {"type": "workspaceWrite", "writableRoots": ["rel"]}},
    {"sandboxPolicy": {"type": "readOnly", "access": 5}},
    {"sandboxPolicy": {"type": "readOnly", "access": {"type": "bogus"}}},
    {"sandboxPolicy": {"type": "readOnly", "access": {"type": "restricted"}}},
    {"sandboxPolicy": {"type": "workspaceWrite", "readOnlyAccess": {}}},
    {"sandboxPolicy": {"type": "workspaceWrite", "readOnlyAccess": {"type": "restricted"}}},
    {"permissionProfile": 5},
    {"permissionProfile": ""},
    {"permissionProfile": "plain"},
    {"permissionProfile": ":bogus"},
    {"command": [], "sandboxPolicy": FULL, "permissionProfile": ":x"},
    {"sandboxPolicy": FULL, "permissionProfile": ":x", "size": {"rows": 0, "cols": 0}},
    {"timeoutMs": -1},
    {"timeoutMs": -1, "disableTimeout": True},
    {"tty": True},
    {"streamStdin": True},
    {"command": ["a\0b"], "sandboxPolicy": FULL},
    {"command": [""], "sandboxPolicy": FULL},
    {"command": ["/etc/passwd"], "sandboxPolicy": FULL},
    {"cwd": "/etc/passwd", "sandboxPolicy": FULL},
    {"cwd": "a\0b", "sandboxPolicy": FULL},
    {"cwd": "a\0b"},
    {"cwd": "a\0b", "permissionProfile": ":workspace"},
    {"env": {"A": "b\0"}, "sandboxPolicy": FULL},
]

WRONG: list[dict[str, Any]] = [
    {"method": "initialize", "params": {}},
    {"method": "initialize", "params": {"clientInfo": {"name": "x"}}},
    {"method": "initialize", "params": {"clientInfo": {"name": "x", "version": 1}}},
    {"method": "command/exec"},
    {"method": "command/exec", "params": None},
    *({"method": "command/exec", "params": params} for params in _NO_PARAMS),
    *({"method": "command/exec", "params": {"command": TRUE, **wrong}} for wrong in _WRONG_MEMBERS),
    *(
        {"method": "command/exec/write", "params": params}
        for params in (
            {"processId": "none"},
            {"processId": "none", "deltaBase64": 5},
            {"processId": "none", "deltaBase64": "a"},
            {"processId": "none", "deltaBase64": "YR=="},
            {"processId": "none", "deltaBase64": "YQ==YQ=="},
            {"processId": "none", "deltaBase64": "é"},
            {"processId": 'n"\\\u0001\u200b\U0001f600', "closeStdin": True},
        )
    ),
    *(
        {"method": "process/spawn", "params": {"command": TRUE, "processHandle": "h", **wrong}}
        for wrong in (
            {},
            {"cwd": 5},
            {"cwd": "rel"},
            {"cwd": "/", "timeoutMs": -1},
            {"cwd": "/", "processHandle": ""},
            {"cwd": "/", "size": {"rows": 1, "cols": 1}},
            {"cwd": "/", "tty": True, "size": {"rows": 0, "cols": 1}},
            {"cwd": "/", "tty": True, "size": {"rows": 0, "cols": 1}, "timeoutMs": -1},
            {"cwd": "/", "size": {"rows": 0, "cols": 1}, "timeoutMs": -1},
            {"cwd": "/", "command": []},
            {"cwd": "/no/such"},
        )
    ),
    {"method": "process/kill", "params": {"processHandle": 'n"\\\u0001\u200b\u0301\U0001f600'}},
    {"method": "process/resizePty", "params": {"processHandle": "n", "size": [0, 1]}},
    {"method": "process/writeStdin", "params": {"processHandle": "n"}},
]
"""Requests that are refused; each is sent with an id of its own."""


def refusals(command: Sequence[str], home: Path) -> list[Any]:
    """Return what a server answers to all of them, one after the other."""
    messages = [
        {**HELLO, "id": "hello"},
        *({"id": number, **wrong} for number, wrong in enumerate(WRONG)),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=codex_env(home),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in messages))
        process.stdin.flush()
        answers: dict[int, Any] = {}
        for line in process.stdout:
            message = json.loads(line)
            if isinstance(message.get("id"), int):
                answers[message["id"]] = message
            if len(answers) == len(WRONG):
                break
        process.stdin.close()
        process.wait(2 * LIMIT)
    return [answers[number] for number in range(len(WRONG))]


@pytest.mark.slow
@pytest.mark.requirement("app-server.decoding")
def test_everything_wrong_is_refused_in_the_same_words(tmp_path: Path) -> None:
    real = refusals([codex(), "app-server"], tmp_path / "real")
    ours = refusals([*APP_SERVER, "--compat", "codex-0.166.0"], tmp_path / "ours")
    different = [
        (wrong, expected, found)
        for wrong, expected, found in zip(WRONG, real, ours, strict=True)
        if found != expected
    ]
    assert not different


@pytest.mark.slow
@pytest.mark.requirement("app-server.environment")
async def test_what_a_real_exec_server_lacks_is_refused_before_the_start(tmp_path: Path) -> None:
    with (
        codex_serving(tmp_path / "home") as far,
        app_serving("--environment", far) as near,
    ):
        async with app_connect(near.url) as client:
            done = await client.run(*sh("echo out; echo err >&2; exit 3"), env={"A": "1"})
            assert done == {"exitCode": 3, "stdout": "out\n", "stderr": "err\n"}
            for extension, params in (
                ("closeStdin", {"streamStdin": True}),
                ("resize", {"tty": True}),
                ("size", {"tty": True, "size": {"rows": 2, "cols": 3}}),
            ):
                code, text = await client.run("/bin/true", processId="p", **params)
                assert code == -32600
                assert f"({extension})" in text
            async with asyncio.timeout(2 * LIMIT):
                timed = await client.run("/bin/sleep", "60", timeoutMs=100)
            assert timed["exitCode"] == 124

"""Who may come in over HTTP, whose sessions they see, and how long those are kept."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.e2e.mcp_clients import HANDSHAKE, MODERN, Place, serving, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


async def answered(
    place: Place, headers: Mapping[str, str], *, path: str = "", method: str = "POST"
) -> tuple[int, str]:
    """The status and the text that a plain request gets."""
    accept = {"Accept": "application/json, text/event-stream"}
    async with create_mcp_http_client() as http:
        found = await http.request(
            method, place.url + path, json=HELLO, headers={**accept, **headers}
        )
        return found.status_code, found.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:4700"}, 200),
        ({"Host": "[::1]:4700"}, 200),
        ({"Host": "evil.example.com"}, 421),
        ({"Host": "localhost.evil.example.com:80"}, 421),
        ({"Host": "127.0.0.1.evil.example.com"}, 421),
        ({"Origin": "https://evil.example.com"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_pages_of_a_browser_and_foreign_names_are_refused(
    headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    async with serving("http", HANDSHAKE, tmp_path) as place:
        found, said = await answered(place, headers)
        assert found == status
        if status != 200:
            assert "--allowed-" in said


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", "Basic one", "one", "Bearer one two"]
)
async def test_a_token_that_is_missing_or_foreign_is_refused(
    given: str | None, tmp_path: Path
) -> None:
    async with serving("http", HANDSHAKE, tmp_path, tokens=["one", "two"]) as place:
        headers = {} if given is None else {"Authorization": given}
        status, said = await answered(place, headers)
        assert status == 401
        assert "bearer token" in said


async def test_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    async with serving("http", HANDSHAKE, tmp_path) as place:
        assert (await answered(place, {}, path="/other"))[0] == 404
        assert (await answered(place, {}, method="PUT"))[0] == 405


@pytest.mark.parametrize("mode", [HANDSHAKE, MODERN])
async def test_a_principal_sees_its_own_sessions_only(mode: str, tmp_path: Path) -> None:
    async with (
        serving("http", mode, tmp_path, tokens=["one", "two"]) as place,
        place.client(token="one") as mine,
        place.client(token="two") as other,
    ):
        began = await mine.call_tool(
            "exec_command", {"cmd": "sleep 100", "login": False, "yield_time_ms": 250}
        )
        number = began.structured_content["session_id"]
        for tool in ("write_stdin", "kill_session"):
            result = await other.call_tool(tool, {"session_id": number})
            assert text(result) == f"write_stdin failed: Unknown process id {number}"
        result = await other.call_tool("read_output", {"session_id": number})
        assert result.is_error
        assert (await other.call_tool("list_sessions", {})).structured_content == {"sessions": []}
        with pytest.raises(Exception, match=f"there is no session {number}"):
            await other.read_resource(f"holdfast://sessions/{number}")
        # The same client again, on another connection.
        async with place.client(token="one") as again:
            listed = await again.call_tool("list_sessions", {})
            assert len(listed.structured_content["sessions"]) == 1


async def test_without_tokens_an_mcp_session_sees_its_own_only(tmp_path: Path) -> None:
    async with (
        serving("http", HANDSHAKE, tmp_path) as place,
        place.client() as mine,
        place.client() as other,
    ):
        began = await mine.call_tool(
            "exec_command", {"cmd": "sleep 100", "login": False, "yield_time_ms": 250}
        )
        number = began.structured_content["session_id"]
        result = await other.call_tool("kill_session", {"session_id": number})
        assert result.is_error
        assert not (await mine.call_tool("kill_session", {"session_id": number})).is_error


@pytest.mark.parametrize("mode", [HANDSHAKE, MODERN])
async def test_sessions_are_kept_for_a_while(mode: str, tmp_path: Path) -> None:
    async with serving("http", mode, tmp_path, tokens=["one"], keep=0.5) as place:
        async with place.client(token="one") as client:
            script = "echo $$ > pid; sleep 100"
            arguments: dict[str, Any] = {"cmd": script, "login": False, "yield_time_ms": 250}
            await client.call_tool("exec_command", arguments)
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)  # it outlives the connection
        async with asyncio.timeout(20):
            while alive(pid):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

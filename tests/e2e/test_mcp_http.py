"""MCP over HTTP: access, separation of sessions, and how long they are kept."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.e2e.mcp_clients import HANDSHAKE, MODERN, Ending, ServedMcp, serving, text
from tests.e2e.wire import Fifo

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
    served: ServedMcp, headers: Mapping[str, str], *, path: str = "", method: str = "POST"
) -> tuple[int, str]:
    """The status and the text that a plain request gets."""
    accept = {"Accept": "application/json, text/event-stream"}
    async with create_mcp_http_client() as http:
        found = await http.request(
            method, served.url + path, json=HELLO, headers={**accept, **headers}
        )
        return found.status_code, found.text


@pytest.mark.requirement("security.mcp.browsers")
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
    async with serving("http", HANDSHAKE, tmp_path) as served:
        found, said = await answered(served, headers)
        assert found == status
        if status != 200:
            assert "--allowed-" in said


@pytest.mark.requirement("security.mcp.browsers")
async def test_a_page_that_is_allowed_can_send_its_requests(tmp_path: Path) -> None:
    page = "https://app.example.com"
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,mcp-protocol-version",
    }
    async with (
        serving("http", HANDSHAKE, tmp_path, tokens=["one"], origins=[page + "/"]) as served,
        create_mcp_http_client() as http,
    ):
        asked = await http.options(served.url, headers={"Origin": page, **preflight})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == page
        headers = {"Origin": page, "Authorization": "Bearer one", "Accept": "*/*"}
        done = await http.post(served.url, json=HELLO, headers=headers)
        assert done.status_code == 200
        assert done.headers["access-control-expose-headers"] == "mcp-session-id"
        other = {"Origin": "https://evil.example.com", **preflight}
        assert (await http.options(served.url, headers=other)).status_code == 400


@pytest.mark.requirement("security.token.needed")
@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", "Basic one", "one", "Bearer one two"]
)
async def test_a_token_that_is_missing_or_foreign_is_refused(
    given: str | None, tmp_path: Path
) -> None:
    async with serving("http", HANDSHAKE, tmp_path, tokens=["one", "two"]) as served:
        headers = {} if given is None else {"Authorization": given}
        status, said = await answered(served, headers)
        assert status == 401
        assert "bearer token" in said


async def test_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    async with serving("http", HANDSHAKE, tmp_path) as served:
        assert (await answered(served, {}, path="/other"))[0] == 404
        assert (await answered(served, {}, method="PUT"))[0] == 405


@pytest.mark.requirement("security.mcp.principals")
@pytest.mark.parametrize("mode", [HANDSHAKE, MODERN])
async def test_a_principal_sees_its_own_sessions_only(mode: str, tmp_path: Path) -> None:
    async with (
        serving("http", mode, tmp_path, tokens=["one", "two"]) as served,
        served.client(token="one") as mine,
        served.client(token="two") as other,
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
        async with served.client(token="one") as again:
            listed = await again.call_tool("list_sessions", {})
            assert len(listed.structured_content["sessions"]) == 1


@pytest.mark.requirement("security.mcp.principals")
async def test_without_tokens_an_mcp_session_sees_its_own_only(tmp_path: Path) -> None:
    async with (
        serving("http", HANDSHAKE, tmp_path) as served,
        served.client() as mine,
        served.client() as other,
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
    async with serving("http", mode, tmp_path, tokens=["one"], keep=0.5) as served:
        async with served.client(token="one") as client:
            script = "echo $$ > pid; sleep 100"
            arguments: dict[str, Any] = {"cmd": script, "login": False, "yield_time_ms": 250}
            await client.call_tool("exec_command", arguments)
        # It outlives the connection, or there would be no such process.
        await Ending(int((tmp_path / "pid").read_text())).wait()


async def opened(served: ServedMcp, headers: Mapping[str, str]) -> str:
    """Begin an MCP session, and return its id."""
    accept = {"Accept": "application/json, text/event-stream"}
    async with create_mcp_http_client() as http:
        found = await http.post(served.url, json=HELLO, headers={**accept, **headers})
        return str(found.headers["mcp-session-id"])


@pytest.mark.requirement("security.mcp.principals")
async def test_an_mcp_session_is_of_use_to_its_token_only(tmp_path: Path) -> None:
    async with serving("http", HANDSHAKE, tmp_path, tokens=["one", "two"]) as served:
        mine = {"Authorization": "Bearer one"}
        session = {"mcp-session-id": await opened(served, mine)}
        other = {"Authorization": "Bearer two", **session}
        assert (await answered(served, other))[0] == 404
        assert (await answered(served, other, method="DELETE"))[0] == 404
        assert (await answered(served, {**mine, **session}, method="DELETE"))[0] == 200


async def test_without_tokens_commands_end_with_their_mcp_session(tmp_path: Path) -> None:
    async with serving("http", HANDSHAKE, tmp_path) as served:
        async with served.client() as client:
            arguments = {"cmd": "echo $$ > pid; sleep 100", "login": False, "yield_time_ms": 250}
            await client.call_tool("exec_command", arguments)
            ending = Ending(int((tmp_path / "pid").read_text()))
        await ending.wait()


async def connected(served: ServedMcp) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(served.url)
    return await asyncio.open_connection(address.hostname, address.port)


async def test_a_head_without_end_is_refused(tmp_path: Path) -> None:
    async with serving("http", HANDSHAKE, tmp_path) as served, asyncio.timeout(20):
        reader, writer = await connected(served)
        writer.write(b"POST /mcp HTTP/1.1\r\n" + b"x: y\r\n" * 4_000)
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()


async def test_clients_without_a_token_keep_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of those that send no head is given up, and a refused one is not kept."""
    monkeypatch.setattr("holdfast.wire.transports.accepting._MOST_NEWCOMERS", 2)
    async with serving("http", HANDSHAKE, tmp_path, tokens=["one"]) as served, asyncio.timeout(20):
        slow = [await connected(served) for _ in range(4)]
        for reader, _ in slow[:2]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert (await answered(served, {"Authorization": "Bearer one"}))[0] == 200
        reader, writer = slow[3]
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"401"
        await reader.read()
        for _, writer in slow:
            writer.close()


@pytest.mark.parametrize(
    ("limit", "sent"),
    [
        ("http_protocol._HEAD_TIME", b""),
        ("http_protocol._HEAD_TIME", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"),
        (
            "http_body._BODY_TIME",
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        ),
    ],
)
async def test_a_request_that_does_not_come_is_given_up(
    limit: str, sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"holdfast.front.mcp.{limit}", 0.05)
    async with serving("http", HANDSHAKE, tmp_path) as served, asyncio.timeout(20):
        reader, writer = await connected(served)
        writer.write(sent.replace(b"localhost", b"localhost\r\nAccept: application/json"))
        with contextlib.suppress(ConnectionError):
            assert await reader.readline() in (b"", b"HTTP/1.1 408 Request Timeout\r\n")
        writer.close()


async def test_who_left_and_runs_nothing_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.front.mcp.mcp_principals._PRINCIPALS", 2)
    async with serving("http", MODERN, tmp_path, tokens=["one", "two", "three"]) as served:
        for token in ("one", "two", "three"):
            async with served.client(token=token) as client:
                arguments = {"cmd": "sleep 100", "login": False, "yield_time_ms": 250}
                if token == "one":
                    await client.call_tool("exec_command", arguments)
                else:
                    await client.list_tools()
                    result = await client.call_tool("list_sessions", {})
                    assert not result.is_error
        async with served.client(token="one") as client:
            listed = await client.call_tool("list_sessions", {})
            assert len(listed.structured_content["sessions"]) == 1


async def used(served: ServedMcp, token: str, session: str) -> int:
    """Return the status of a request in an MCP session."""
    headers = {
        "Authorization": f"Bearer {token}",
        "mcp-session-id": session,
        "Accept": "application/json, text/event-stream",
    }
    async with create_mcp_http_client() as http:
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        return (await http.post(served.url, json=ping, headers=headers)).status_code


@pytest.mark.both_loops
@pytest.mark.requirement("auth.sessions-of-one")
async def test_the_mcp_session_that_is_idle_for_longest_ends_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.front.mcp.streamable_http.SESSIONS_OF_ONE", 3)
    async with serving("http", HANDSHAKE, tmp_path, tokens=["one", "two"]) as served:
        mine, other = ({"Authorization": f"Bearer {token}"} for token in ("one", "two"))
        theirs = await opened(served, other)
        first, second, _ = [await opened(served, mine) for _ in range(3)]
        assert await used(served, "one", first) == 200
        # Used since, so the second one has been idle for longest.
        await opened(served, mine)
        assert [await used(served, "one", one) for one in (first, second)] == [200, 404]
        # As many at once as it may have: each finds its place.
        assert len(set(await asyncio.gather(*[opened(served, mine) for _ in range(3)]))) == 3
        assert await used(served, "one", first) == 404
        assert await used(served, "two", theirs) == 200


@pytest.mark.both_loops
@pytest.mark.requirement("auth.sessions-of-one")
async def test_an_mcp_session_with_a_call_under_way_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.front.mcp.streamable_http.SESSIONS_OF_ONE", 2)
    async with serving("http", HANDSHAKE, tmp_path, tokens=["one", "two"]) as served:
        mine = {"Authorization": "Bearer one"}
        with Fifo(tmp_path / "begun") as begun, Fifo(tmp_path / "end") as end:
            script = f"echo > {begun.path}; read x < {end.path}"
            arguments = {"cmd": script, "login": False, "yield_time_ms": 30_000}
            async with served.client(token="one") as busy, served.client(token="one") as idle:
                calls = [asyncio.ensure_future(busy.call_tool("exec_command", arguments))]
                await begun.line()
                # The client that only holds its stream open goes, and not the one that calls.
                await opened(served, mine)
                with pytest.raises(Exception, match=r"Session (not found|terminated)"):
                    await idle.list_tools()
                async with served.client(token="one") as another:
                    calls.append(
                        asyncio.ensure_future(another.call_tool("exec_command", arguments))
                    )
                    await begun.line()
                    status, said = await answered(served, mine)
                    assert (status, "this client has 2 MCP sessions" in said) == (429, True)
                    # Others are not concerned.
                    assert await opened(served, {"Authorization": "Bearer two"})
                    end.write("\n\n")
                    for result in await asyncio.gather(*calls):
                        assert result.structured_content["exit_code"] == 0


@pytest.mark.requirement("auth.sessions-of-one")
async def test_who_has_most_mcp_sessions_makes_room_on_a_full_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.front.mcp.http_sessions.SESSIONS", 4)
    async with serving("http", HANDSHAKE, tmp_path, tokens=["one", "two", "three"]) as served:
        headers = {name: {"Authorization": f"Bearer {name}"} for name in ("one", "two", "three")}
        kept = await opened(served, headers["two"])
        first, *_ = [await opened(served, headers["one"]) for _ in range(3)]
        assert await opened(served, headers["three"])
        assert await used(served, "one", first) == 404
        assert await used(served, "two", kept) == 200


async def test_without_tokens_an_mcp_session_with_commands_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.front.mcp.streamable_http.SESSIONS", 2)
    async with serving("http", HANDSHAKE, tmp_path) as served, served.client() as client:
        arguments = {"cmd": "sleep 100", "login": False, "yield_time_ms": 250}
        await client.call_tool("exec_command", arguments)
        gone, _ = await opened(served, {}), await opened(served, {})
        assert (await answered(served, {"mcp-session-id": gone}))[0] == 404
        listed = await client.call_tool("list_sessions", {})
        assert len(listed.structured_content["sessions"]) == 1

"""A token that a reload revokes: its connections, sessions and commands end, all others go on."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed
from holdfast.base.token_file import NamedToken
from holdfast.client import ExecServerClient
from holdfast.front.app_server.app_server import AppServer
from holdfast.server.app import Server
from holdfast.server.operate.auth import Access, check_tokens
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams
from tests.e2e.app_wire import AppClient, app_connect, sh
from tests.e2e.mcp_clients import HANDSHAKE, MODERN, Ending, serving
from tests.e2e.wire import Fifo, is_alive

pytestmark = [pytest.mark.both_loops, pytest.mark.timeout(60)]

CI, ALICE = NamedToken("ci", "token-of-ci"), NamedToken("alice", "token-of-alice")

Revoke = Callable[[Callable[..., bool]], None]


class Tokens:
    """A token file of which the content can be replaced."""

    def __init__(self) -> None:
        self.content = [CI, ALICE]
        self.access = Access(lambda: check_tokens(self.content))

    def replace(self, *content: NamedToken, revoke: Revoke) -> None:
        """Do what SIGHUP does."""
        self.content = list(content)
        self.access.read()()
        revoke(self.access.admits)


def cat(process_id: str = "p") -> StartParams:
    return StartParams(
        process_id=process_id,
        argv=["/bin/cat"],
        cwd=PathUri.from_path("/"),
        env={},
        tty=False,
        pipe_stdin=True,
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of the log about tokens."""
    lines = [record.getMessage() for record in caplog.records]
    return sorted(line for line in lines if line.startswith("token revoked"))


@pytest.mark.requirement("auth.revoked")
@pytest.mark.parametrize(
    "left",
    [(ALICE,), (NamedToken("other", CI.token), ALICE), (NamedToken("ci", "another-token"), ALICE)],
    ids=["removed", "renamed", "replaced"],
)
async def test_connections_sessions_and_processes_end(
    left: tuple[NamedToken, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    tokens = Tokens()
    async with Server() as server:
        url = await server.listen("ws://127.0.0.1:0", tokens.access)
        async with await ExecServerClient.connect(url, bearer_token=ALICE.token) as alice:
            kept = await alice.start(cat())
            ci = await ExecServerClient.connect(url, bearer_token=CI.token)
            process = await ci.start(cat())
            away = await ExecServerClient.connect(url, bearer_token=CI.token)
            detached = await away.start(cat())
            assert process.pid is not None
            assert detached.pid is not None
            endings = [Ending(process.pid), Ending(detached.pid)]
            await away.aclose()
            async with asyncio.timeout(20):
                while len(server.state.connections) > 2:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0.001)
            tokens.replace(*left, revoke=server.revoke)
            for ending in endings:
                await ending.wait()
            assert said(caplog) == ["token revoked principal=ci connections=1 sessions=2"]
            # One whose token has another name now may come back, but not to its session.
            assert "ci" not in {one.principal for one in server.state.connections}
            assert len(server.state.sessions) == 1
            await ci.aclose()
            await kept.write(b"still here\n")
            event = await anext(kept.events())
            assert getattr(event, "chunk", None) == b"still here\n"


@pytest.mark.requirement("auth.revoked")
async def test_a_reload_that_changes_no_token_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    tokens = Tokens()
    async with Server() as server:
        url = await server.listen("ws://127.0.0.1:0", tokens.access)
        async with await ExecServerClient.connect(url, bearer_token=CI.token) as ci:
            await ci.start(cat())
            added = NamedToken("ci", "second-token-of-ci")
            tokens.replace(added, CI, revoke=server.revoke)
            await ci.info()
            tokens.replace(CI, ALICE, revoke=server.revoke)
            await ci.info()
            assert len(server.state.connections) == 1
    assert said(caplog) == []


@pytest.mark.requirement("auth.revoked")
async def test_commands_of_an_app_server_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    tokens = Tokens()
    async with AppServer() as server:
        url = await server.listen("ws://127.0.0.1:0", tokens.access)
        async with (
            app_connect(url, token=CI.token) as ci,
            app_connect(url, token=ALICE.token) as alice,
        ):
            pids = [await started(client) for client in (ci, alice)]
            ending = Ending(pids[0])
            tokens.replace(ALICE, revoke=server.revoke)
            await ending.wait()
            assert is_alive(pids[1])
            assert said(caplog) == ["token revoked principal=ci connections=1"]
            with pytest.raises(ConnectFailed, match="401"):
                await ExecServerClient.connect(url, bearer_token=CI.token)


async def started(client: AppClient) -> int:
    """Start a command that goes on, and return its pid."""
    await client.exec(
        *sh("echo $$; exec cat"), processId="p", streamStdin=True, streamStdoutStderr=True
    )
    await client.until_output("p", b"\n")
    return int(client.output("p"))


@pytest.mark.requirement("auth.revoked")
@pytest.mark.parametrize("mode", [HANDSHAKE, MODERN])
async def test_calls_and_commands_of_mcp_end(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    tokens = Tokens()
    async with (
        serving("http", mode, tmp_path, check=tokens.access) as served,
        served.client(token=ALICE.token) as alice,
    ):
        with Fifo(tmp_path / "pids") as pids, contextlib.suppress(ExceptionGroup):
            script = f"echo $$ > {pids.path}; exec sleep 1000"
            arguments = {"cmd": script, "login": False, "yield_time_ms": 250}
            await alice.call_tool("exec_command", arguments)
            kept = int(await pids.line())
            async with served.client(token=CI.token) as ci:
                await ci.call_tool("exec_command", arguments)
                endings = [Ending(int(await pids.line()))]
                # One more that its call waits on.
                calling = asyncio.ensure_future(
                    ci.call_tool("exec_command", {**arguments, "yield_time_ms": 30_000})
                )
                endings.append(Ending(int(await pids.line())))
                tokens.replace(ALICE, revoke=served.server.revoke)
                for ending in endings:
                    await ending.wait()
                # Its request is over, and so is everything that it could ask for.
                async with asyncio.timeout(20):
                    await asyncio.wait([calling])
                assert calling.exception() is not None
                with pytest.raises(Exception, match=r".+"):
                    await ci.list_tools()
        assert is_alive(kept)
        listed = await alice.call_tool("list_sessions", {})
        assert len(listed.structured_content["sessions"]) == 1
    (line,) = said(caplog)
    assert line.startswith("token revoked principal=ci requests=")
    # Neither we nor the web server complain of what was cut.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

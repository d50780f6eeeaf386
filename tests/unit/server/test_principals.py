"""Limits of one principal on a server, unnoticed by others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed, RemoteError, SpawnFailed
from holdfast.base.token_file import NamedToken
from holdfast.client import ExecServerClient
from holdfast.client.client_session import ClientSession
from holdfast.client.target import Target
from holdfast.server.app import Server
from holdfast.server.operate.auth import check_tokens
from holdfast.server.pages import metrics_text
from holdfast.server.principals import PrincipalLimits
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.fs import OpenParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams
from tests.e2e.wire import connect

pytestmark = pytest.mark.both_loops

TOKENS = [NamedToken("ci", "token-of-ci"), NamedToken("alice", "token-of-alice")]


class LimitedServer:
    """A server with limits, and clients of two principals."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url

    async def connect(self, name: str = "ci") -> ExecServerClient:
        return await ExecServerClient.connect(self.url, bearer_token=f"token-of-{name}")


@pytest.fixture
async def served(request: pytest.FixtureRequest) -> AsyncIterator[LimitedServer]:
    limits = PrincipalLimits(**getattr(request, "param", {}))
    async with Server(limits=limits, session_expiry=30.0) as server:
        yield LimitedServer(server, await server.listen("ws://127.0.0.1:0", check_tokens(TOKENS)))


def limited(**limits: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("served", [limits], indirect=True, ids=[""])


def sleeper(process_id: str) -> StartParams:
    return StartParams(
        process_id=process_id,
        argv=["/bin/cat"],
        cwd=PathUri.from_path("/"),
        env={},
        tty=False,
        pipe_stdin=True,
    )


@pytest.mark.requirement("security.limits.principal")
@limited(connections=1)
async def test_connections_are_limited_by_principal(served: LimitedServer) -> None:
    async with await served.connect():
        with pytest.raises(ConnectFailed, match=r"429.*`ci` has 1 connections.*--max-connections"):
            await served.connect()
        async with await served.connect("alice"):
            pass
    async with asyncio.timeout(5):
        while served.server.state.connections:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
    async with await served.connect():
        pass


@pytest.mark.requirement("security.limits.principal")
@limited(sessions=1)
async def test_a_session_counts_until_it_has_ended(served: LimitedServer) -> None:
    async with await served.connect(), await served.connect("alice"):
        with pytest.raises(RemoteError, match="--max-sessions") as caught:
            await served.connect()
        assert caught.value.code == codes.OVERLOADED


@pytest.mark.requirement("auth.sessions-of-one")
@limited(sessions=2)
async def test_a_client_that_left_does_not_count(served: LimitedServer) -> None:
    sessions = served.server.state.sessions
    for _ in range(3):
        async with await served.connect() as client:
            # Its client closes the connection, so nobody comes back for what it has left here.
            await client.start(sleeper("p"))
        await connections(served, 0)
    assert len(sessions) == 2
    # Both of these lose their connections. One has a process, for which it may come back.
    headers = {"Authorization": "Bearer token-of-ci"}
    async with (
        connect(served.url, headers=headers) as kept,
        connect(served.url, headers=headers),
    ):
        await kept.start("p", ["/bin/sleep", "1000"])
    await connections(served, 0)
    async with await served.connect():
        assert len(sessions) == 2
        with pytest.raises(RemoteError, match="`ci` has 2 sessions already"):
            await served.connect()
        async with connect(served.url, headers=headers, resume=kept.session_id) as again:
            assert await again.terminate("p")


async def connections(served: LimitedServer, count: int) -> None:
    async with asyncio.timeout(5):
        while len(served.server.state.connections) != count:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)


@pytest.mark.requirement("security.limits.principal")
@limited(processes=2)
async def test_processes_of_all_connections_count_together(served: LimitedServer) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(await served.connect())
        other = await stack.enter_async_context(await served.connect())
        alice = await stack.enter_async_context(await served.connect("alice"))
        first = await one.start(sleeper("p"))
        await other.start(sleeper("p"))
        for client in (one, other):
            with pytest.raises(RemoteError, match=r"`ci` has 2 processes.*--max-processes"):
                await client.start(sleeper("q"))
        await alice.start(sleeper("p"))
        await first.terminate()
        async for _ in first.events():
            pass  # until its close
        await one.start(sleeper("r"))
        text = metrics_text(served.server.state.principals).decode()
        assert 'holdfast_processes{principal="ci"} 2\n' in text
        assert 'holdfast_processes{principal="alice"} 1\n' in text
        assert "holdfast_processes_total 4\n" in text
        assert "holdfast_overloads_total 2\n" in text


@limited(processes=1)
async def test_a_start_that_fails_or_is_given_up_frees_its_place(served: LimitedServer) -> None:
    async with await served.connect() as client:
        missing = StartParams(
            process_id="x",
            argv=["/no/such/program"],
            cwd=PathUri.from_path("/"),
            env={},
            tty=False,
        )
        for _ in range(3):
            with pytest.raises(SpawnFailed, match="No such file"):
                await client.start(missing)
        await client.start(sleeper("p"))


@pytest.mark.requirement("security.limits.principal")
@limited(file_handles=2)
async def test_open_files_count_together_and_end_with_their_connection(
    served: LimitedServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    path = PathUri.from_path(tmp_path / "file")
    async with await served.connect() as one:
        handle = await one.files.open(OpenParams(handle_id="", path=path))
        async with await served.connect() as other:
            await other.files.open(OpenParams(handle_id="", path=path))
            with pytest.raises(RemoteError, match=r"2 open files.*--max-file-handles"):
                await one.files.open(OpenParams(handle_id="", path=path))
        async with asyncio.timeout(5):
            while served.server.state.principals["ci"].file_handles > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        more = await one.files.open(OpenParams(handle_id="", path=path))
        await more.aclose()
        await handle.aclose()
        assert served.server.state.principals["ci"].file_handles == 0


@pytest.mark.requirement("security.limits.principal")
@limited(requests=2)
async def test_requests_in_flight_count_together(served: LimitedServer) -> None:
    async with await served.connect() as one, await served.connect("alice") as alice:
        process = await one.start(sleeper("p"))
        other = await alice.start(sleeper("p"))
        reads = [asyncio.ensure_future(process.read(wait=20)) for _ in range(2)]
        async with asyncio.timeout(5):
            while served.server.state.principals["ci"].requests < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        with pytest.raises(RemoteError, match=r"2 requests in flight.*--max-requests"):
            await process.read(wait=20)
        await other.write(b"hello")
        await process.terminate()  # control is always let through, and ends the waiting
        await asyncio.gather(*reads)
        async with asyncio.timeout(5):
            while served.server.state.principals["ci"].requests:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.mark.requirement("security.session.principal")
async def test_only_its_own_principal_resumes_a_session(served: LimitedServer) -> None:
    client = await served.connect()
    session, target = client.session_id, Target.of(served.url, bearer_token="token-of-alice")
    alice = ClientSession(target, client_name="alice", initialize_timeout=5.0)
    with pytest.raises(RemoteError, match="unknown session id"):
        await alice.open_link(session)
    await alice.aclose()
    await client.aclose()
    assert {usage.principal for usage in served.server.state.principals} <= {"ci", "alice"}


@limited(connections=1)
async def test_a_socket_file_has_the_same_limit_and_says_so(
    served: LimitedServer, tmp_path: Path
) -> None:
    url = await served.server.listen(f"unix://{tmp_path}/s")
    async with await ExecServerClient.connect(url), asyncio.timeout(5):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        assert b"`local` has 1 connections already" in await reader.read()  # and then the end
        writer.close()


@pytest.mark.requirement("security.others.strangers")
@limited(connections=2)
async def test_a_connection_without_a_session_makes_room_for_another_client(
    served: LimitedServer,
) -> None:
    headers = {"Authorization": "Bearer token-of-ci"}
    async with (
        await served.connect(),
        connect(served.url, headers=headers, initialize=False) as silent,
    ):
        async with await served.connect():
            await silent.ended()
            # Those that have a session stay.
            with pytest.raises(ConnectFailed, match="429"):
                await served.connect()
        await connections(served, 1)


@pytest.mark.requirement("security.others.strangers")
async def test_connections_without_a_session_are_few(
    served: LimitedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.state._MOST_NEWCOMERS", 2)
    await served.server.listen(f"unix://{tmp_path}/s")
    async with asyncio.timeout(10):
        lines = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(4)]
        for reader, _ in lines[:2]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        async with await ExecServerClient.connect(f"unix://{tmp_path}/s") as client:
            await client.info()
        for _, writer in lines:
            writer.close()

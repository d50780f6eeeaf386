"""A server as a environment: connected on first use, once for all, and again when it is lost."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from holdfast.backends import FileSystem
from holdfast.base.errors import ConnectFailed, ConnectionLost, EnvironmentClosed, RemoteError
from holdfast.client import recovery
from holdfast.client.remote_process import RemoteProcess
from holdfast.environments.config.snapshot import Entry, ServerUrl, ServingProgram
from holdfast.environments.environment import Status
from holdfast.environments.remote import RemoteEnvironment
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.testing.scripted import SESSION_ID, Answer
from holdfast.wire.protocol.envelope import Request
from holdfast.wire.protocol.fs import ReadFileParams
from holdfast.wire.protocol.http import HttpRequestParams
from holdfast.wire.protocol.paths import PathUri
from tests.unit.client.script import meanwhile, param, settled, start_params

ROOT = PathUri.parse("file:///")
FAILED = "exec-server connection attempt failed: "
LOST = "exec-server transport disconnected: connection closed"


def ready(peer: ScriptedPeer, request: Request) -> None:
    peer.reply(request, {"status": "ready"})


@pytest.fixture(autouse=True)
async def servers_that_are_ready(server: ScriptedServer) -> None:
    server.answers["environment/status"] = ready


async def read(files: FileSystem) -> bytes:
    """By one request."""
    return await files.read_file(ReadFileParams(ROOT, follow_symlinks=False))


async def lost(server: ScriptedServer, number: int = 0) -> None:
    """Cut a connection."""
    peer = await server.peer(number)
    peer.cut()
    await peer.until(lambda: peer.lost_reason is not None)


def refuse_to_resume(server: ScriptedServer) -> None:
    """A server that has forgotten its sessions, as one does that was restarted."""
    plain = server.answers["initialize"]

    def initialize(peer: ScriptedPeer, request: Request) -> None:
        if param(request, "resumeSessionId") is None:
            plain(peer, request)
        else:
            peer.fail(request, -32600, f"unknown session id {SESSION_ID}")

    server.answers["initialize"] = initialize


# -- the first attempt


async def test_nothing_is_connected_before_the_first_use(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    assert environment.is_remote
    await settled()
    assert server.peers == []


@pytest.mark.requirement("environments.one-connection", "environments.handshake")
async def test_the_seams_share_one_connection(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    http = HttpRequestParams(method="GET", url="http://x", request_id="1")
    async with (
        meanwhile(environment.backend.start(start_params())) as starting,
        meanwhile(read(environment.filesystem)) as reading,
        meanwhile(environment.http.request(http)) as calling,
        meanwhile(environment.wait_ready()),
    ):
        peer = await server.peer(0)
        peer.reply(await peer.take("process/start"), {"processId": "p1"})
        peer.reply(await peer.take("fs/readFile"), {"dataBase64": "aGk="})
        answer = {"status": 204, "headers": [], "bodyBase64": ""}
        peer.reply(await peer.take("http/request"), answer)
    assert (await starting).process_id == "p1"
    assert await reading == b"hi"
    assert (await calling).status == 204
    assert len(server.peers) == 1
    (request,) = peer.requests("initialize")
    assert (request.id, request.params) == (
        1,
        {"clientName": "holdfast", "resumeSessionId": None, "acknowledges": True},
    )
    assert (await peer.notified("initialized")).params == {}


async def test_a_body_can_be_streamed(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    http = HttpRequestParams(method="GET", url="http://x", request_id="1")
    async with meanwhile(environment.http.stream(http)) as calling:
        peer = await server.peer(0)
        request = await peer.take("http/request")
        peer.reply(request, {"status": 200, "headers": [], "bodyBase64": ""})
    response, body = await calling
    delta = {
        "requestId": param(request, "requestId"),
        "seq": 1,
        "deltaBase64": "aGk=",
        "done": True,
    }
    peer.notify("http/request/bodyDelta", delta)
    assert response.status == 200
    assert [piece async for piece in body] == [b"hi"]


@pytest.mark.requirement("environments.shared-attempt")
async def test_all_callers_share_the_first_attempt_and_its_failure(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    del server.answers["initialize"]
    async with (
        meanwhile(environment.wait_ready()) as one,
        meanwhile(environment.info()) as another,
    ):
        peer = await server.peer(0)
        request = await peer.take("initialize")
        await settled()
        peer.fail(request, -32099, "not today")
    for caller in (one, another):
        with pytest.raises(ConnectFailed) as caught:
            await caller
        assert str(caught.value) == FAILED + "exec-server rejected request (-32099): not today"
        assert isinstance(caught.value.__cause__, RemoteError)
    assert len(server.peers) == 1


@pytest.mark.requirement("environments.shared-attempt")
async def test_one_who_gives_up_does_not_end_the_attempt_of_the_others(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    del server.answers["initialize"]
    async with (
        meanwhile(environment.wait_ready()) as impatient,
        meanwhile(environment.wait_ready()) as patient,
    ):
        peer = await server.peer(0)
        request = await peer.take("initialize")
        impatient.cancel()
        await asyncio.wait([impatient])
        peer.reply(
            request,
            {"sessionId": "s", "environmentInfo": {"shell": {"name": "sh", "path": "/bin/sh"}}},
        )
    await patient
    assert impatient.cancelled()
    assert len(server.peers) == 1


@pytest.mark.requirement("environments.remembered-failure")
async def test_a_refusal_is_remembered_and_not_asked_for_again(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    server.answers["initialize"] = lambda peer, request: peer.fail(request, -32600, "no")
    text = FAILED + "exec-server rejected request (-32600): no"
    for _ in range(3):
        with pytest.raises(ConnectFailed) as caught:
            await environment.wait_ready()
        assert str(caught.value) == text
    environment.start_connecting()
    assert await environment.status() == Status("disconnected", text)
    assert len(server.peers) == 1


@pytest.mark.requirement("environments.remembered-failure")
async def test_a_server_that_could_not_be_reached_is_tried_again_by_the_next_use(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    server.refusing = 2
    text = FAILED + "the scripted server refuses this attempt"
    for attempt in (1, 2):
        with pytest.raises(ConnectFailed) as caught:
            await environment.wait_ready()
        assert str(caught.value) == text
        assert server.refused == attempt
        assert await environment.status() == Status("disconnected", text)
    await environment.wait_ready()
    assert await environment.status() == Status("ready")


def no_answer(peer: ScriptedPeer, request: Request) -> None:
    """Says nothing."""


def hang_up(peer: ScriptedPeer, request: Request) -> None:
    peer.cut()


def still_attached(peer: ScriptedPeer, request: Request) -> None:
    peer.fail(request, -32010, "session is already attached")


@pytest.mark.requirement("environments.remembered-failure")
@pytest.mark.parametrize("answer", [no_answer, hang_up, still_attached])
async def test_what_may_go_better_is_tried_again(answer: Answer, server: ScriptedServer) -> None:
    plain = server.answers["initialize"]
    server.answers["initialize"] = answer
    environment = RemoteEnvironment("far", server, initialize_timeout=0.01)
    try:
        with pytest.raises(ConnectFailed, match=FAILED):
            await environment.wait_ready()
        server.answers["initialize"] = plain
        await environment.wait_ready()
        assert len(server.peers) == 2
    finally:
        await environment.aclose()


@pytest.mark.requirement("environments.timeouts")
async def test_a_server_that_does_not_answer_is_hung_up_on(server: ScriptedServer) -> None:
    server.answers["initialize"] = no_answer
    environment = RemoteEnvironment("far", server, initialize_timeout=0.01)
    with pytest.raises(ConnectFailed) as caught:
        await environment.wait_ready()
    assert str(caught.value) == (
        f"{FAILED}timed out waiting for exec-server initialize handshake after 10ms"
    )
    (peer,) = server.peers
    await peer.until(lambda: peer.lost_reason is not None)
    await environment.aclose()


@pytest.mark.requirement("environments.command-once")
@pytest.mark.parametrize("answer", [no_answer, hang_up, still_attached])
async def test_a_command_is_not_started_again_whatever_went_wrong(
    answer: Answer, server: ScriptedServer
) -> None:
    server.can_reconnect = False
    server.answers["initialize"] = answer
    environment = RemoteEnvironment("far", server, initialize_timeout=0.01)
    texts = set()
    for _ in range(3):
        with pytest.raises(ConnectFailed) as caught:
            await environment.wait_ready()
        texts.add(str(caught.value))
    assert len(texts) == len(server.peers) == 1
    await environment.aclose()


@pytest.mark.requirement("environments.command-once")
async def test_a_command_that_ended_is_not_started_again(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    server.can_reconnect = False
    await environment.wait_ready()
    await lost(server)
    for _ in range(2):
        with pytest.raises(ConnectionLost) as caught:
            await read(environment.filesystem)
        assert str(caught.value) == LOST
    assert await environment.status() == Status("disconnected", LOST)
    assert len(server.peers) == 1


async def test_a_fault_of_ours_is_told_to_all_who_wait(
    environment: RemoteEnvironment, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(accept: object) -> None:
        raise LookupError("where was it")

    monkeypatch.setattr(server, "open", broken)
    with pytest.raises(ConnectFailed, match="where was it"):
        await environment.wait_ready()
    monkeypatch.undo()
    await environment.wait_ready()


# -- status and states


@pytest.mark.requirement("environments.status")
async def test_the_status_never_connects(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    assert await environment.status() == Status("pending")
    await settled()
    assert server.peers == []


@pytest.mark.requirement("environments.status")
async def test_the_status_is_pending_while_the_first_attempt_runs(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    del server.answers["initialize"]
    environment.start_connecting()
    environment.start_connecting()
    peer = await server.peer(0)
    await peer.take("initialize")
    assert await environment.status() == Status("pending")
    assert len(server.peers) == 1


@pytest.mark.requirement("environments.status")
async def test_the_status_asks_a_live_connection_each_time(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    (peer,) = server.peers
    for asked in (1, 2):
        assert await environment.status() == Status("ready")
        assert len(peer.requests("environment/status")) == asked
    server.answers["environment/status"] = lambda peer, request: peer.fail(request, -32603, "ill")
    assert await environment.status() == Status(
        "disconnected", "exec-server rejected request (-32603): ill"
    )


@pytest.mark.requirement("environments.status")
async def test_the_status_tells_of_a_recovery_without_waiting_for_it(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    del server.answers["initialize"]
    await lost(server)
    recovering = Status("disconnected", "exec-server environment is recovering")
    assert await environment.status() == recovering
    await server.peer(1)
    assert await environment.status() == recovering


async def test_the_states_of_the_connection_are_told_as_they_change(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    async with asyncio.timeout(5):
        states: AsyncIterator[bool] = environment.connection_states()
        assert not await anext(states)
        await environment.wait_ready()
        assert await anext(states)
        del server.answers["initialize"]
        await lost(server)
        assert not await anext(states)
        again = await server.peer(1)
        again.reply(await again.take("initialize"), {"sessionId": SESSION_ID})
        assert await anext(states)
        await environment.aclose()
        assert [state async for state in states] == [False]


async def test_one_who_watches_late_hears_of_the_last_state_only(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    states: AsyncIterator[bool] = environment.connection_states()
    await anext(states)
    await environment.wait_ready()
    await lost(server)
    await environment.wait_ready()
    assert await anext(states)
    await environment.aclose()
    assert [state async for state in environment.connection_states()] == [False]
    assert [state async for state in states] == [False]


# -- recovery


async def started(environment: RemoteEnvironment, peer: ScriptedPeer) -> RemoteProcess:
    async with meanwhile(environment.backend.start(start_params())) as starting:
        peer.reply(await peer.take("process/start"), {"processId": "p1"})
    process = await starting
    assert isinstance(process, RemoteProcess)
    return process


@pytest.mark.requirement("environments.recovery")
async def test_a_lost_connection_is_resumed_and_callers_wait_for_it(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    server.refusing = 3
    await lost(server)
    async with (
        meanwhile(read(environment.filesystem)) as reading,
        meanwhile(environment.wait_ready()) as waiting,
    ):
        again = await server.peer(1)
        again.reply(await again.take("fs/readFile"), {"dataBase64": "aGk="})
    assert await reading == b"hi"
    await waiting
    assert param(again.requests("initialize")[0], "resumeSessionId") == SESSION_ID
    assert server.refused == 3


@pytest.mark.requirement("environments.recovery")
async def test_recovery_has_45_seconds_with_100_milliseconds_between_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert (recovery.RECOVERY_LIMIT, recovery.RETRY_INTERVAL) == (45.0, 0.1)


@pytest.mark.requirement("environments.new-session")
async def test_a_refusal_to_resume_ends_the_recovery_and_the_next_use_opens_a_new_session(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    old = await environment.client()
    process = await started(environment, server.peers[0])
    refuse_to_resume(server)
    await lost(server)
    text = (
        f"{LOST}; failed to resume exec-server session:"
        f" exec-server rejected request (-32600): unknown session id {SESSION_ID}"
    )
    with pytest.raises(ConnectionLost) as caught:
        await process.wait()
    assert str(caught.value) == text
    assert await environment.status() == Status("disconnected", text)
    assert len(server.peers) == 2  # the status has not changed that
    await environment.wait_ready()
    assert await environment.status() == Status("ready")
    assert await environment.client() is not old
    sessions = [param(peer.requests("initialize")[0], "resumeSessionId") for peer in server.peers]
    assert sessions == [None, SESSION_ID, None]
    with pytest.raises(ConnectionLost) as caught:
        await process.write(b"x")  # what was started in the old session stays lost
    assert str(caught.value) == text


@pytest.mark.requirement("environments.new-session")
async def test_recovery_that_takes_too_long_is_followed_by_a_new_session(
    environment: RemoteEnvironment, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RECOVERY_LIMIT", 0.01)
    await environment.wait_ready()
    plain = server.answers.pop("initialize")
    await lost(server)
    with pytest.raises(ConnectionLost) as caught:
        await environment.wait_ready()
    assert str(caught.value) == (
        f"{LOST}; failed to resume exec-server session: recovery timed out after 0.01s"
    )
    server.answers["initialize"] = plain
    await environment.wait_ready()
    assert param(server.peers[-1].requests("initialize")[0], "resumeSessionId") is None


@pytest.mark.requirement("environments.new-session")
async def test_all_callers_share_the_new_session(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    refuse_to_resume(server)
    await lost(server)
    with pytest.raises(ConnectionLost):
        await environment.wait_ready()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(environment.client()) for _ in range(5)]
    assert len({id(await client) for client in waiting}) == 1
    assert len(server.peers) == 3


# -- those who do not want to wait


@pytest.mark.requirement("environments.fail-fast")
async def test_fail_fast_connects_to_nothing(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    with pytest.raises(ConnectionLost) as caught:
        await read(environment.fail_fast_filesystem)
    assert str(caught.value) == "exec-server environment is not ready"
    await settled()
    assert server.peers == []


@pytest.mark.requirement("environments.fail-fast")
async def test_fail_fast_uses_a_connection_that_is_there(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    async with meanwhile(read(environment.fail_fast_filesystem)) as reading:
        (peer,) = server.peers
        peer.reply(await peer.take("fs/readFile"), {"dataBase64": "aGk="})
    assert await reading == b"hi"


@pytest.mark.requirement("environments.fail-fast")
async def test_fail_fast_fails_with_the_connection(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    del server.answers["initialize"]
    async with meanwhile(read(environment.fail_fast_filesystem)) as reading:
        await server.peers[0].take("fs/readFile")
        await lost(server)
        with pytest.raises(ConnectionLost) as caught:
            await reading  # though the connection is being recovered
        assert str(caught.value) == "exec-server environment is not ready"
    with pytest.raises(ConnectionLost, match="not ready"):
        await read(environment.fail_fast_filesystem)


async def test_fail_fast_tells_of_a_time_out_that_is_not_its_own(
    environment: RemoteEnvironment, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(path: PathUri, **options: object) -> bytes:
        environment._shared._connection_changed()  # to no worse: it goes on
        raise TimeoutError("a mount that hangs")

    monkeypatch.setattr((await environment.client()).files, "read_file", slow)
    with pytest.raises(TimeoutError, match="a mount that hangs"):
        await read(environment.fail_fast_filesystem)


# -- the end


async def test_closing_ends_the_connection_and_what_waits(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    (peer,) = server.peers
    async with meanwhile(read(environment.filesystem)) as reading:
        await peer.take("fs/readFile")
        await environment.aclose()
        with pytest.raises(ConnectionLost):
            await reading
    await peer.until(lambda: peer.lost_reason is not None)
    await environment.aclose()  # a second time does no harm
    with pytest.raises(EnvironmentClosed, match="environment `far` is closed"):
        await environment.wait_ready()
    environment.start_connecting()
    status = await environment.status()
    assert (status.state, status.error) == ("disconnected", str(EnvironmentClosed("far")))
    assert len(server.peers) == 1


async def test_closing_calls_off_an_attempt(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    del server.answers["initialize"]
    async with meanwhile(environment.wait_ready()) as waiting:
        peer = await server.peer(0)
        await peer.take("initialize")
        await environment.aclose()
        with pytest.raises(EnvironmentClosed):
            await waiting
    await peer.until(lambda: peer.lost_reason is not None)


async def test_closing_goes_on_when_nobody_waits_for_it(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    await environment.wait_ready()
    (peer,) = server.peers
    async with meanwhile(environment.aclose()) as closing:
        await asyncio.sleep(0)
        closing.cancel()
    await peer.until(lambda: peer.lost_reason is not None)
    await environment.aclose()


async def test_one_that_was_never_used_can_be_closed(environment: RemoteEnvironment) -> None:
    async with asyncio.timeout(5):
        await environment.aclose()


async def test_what_a_server_told_is_not_asked_for(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    for _ in range(2):
        assert (await environment.info()).shell.name == "sh"
    assert server.peers[0].requests("environment/info") == []


async def test_a_new_session_may_be_on_another_kind_of_server(
    environment: RemoteEnvironment, server: ScriptedServer
) -> None:
    assert (await environment.shell()).path == "/bin/sh"

    def initialize(peer: ScriptedPeer, request: Request) -> None:
        shell = {"name": "zsh", "path": "/bin/zsh"}
        peer.reply(request, {"sessionId": "another", "environmentInfo": {"shell": shell}})

    server.answers["initialize"] = initialize
    refuse_to_resume(server)
    await lost(server)
    await server.peer(1)
    while not (await environment.client()).is_connected:
        await settled()
    assert (await environment.shell()).path == "/bin/zsh"


# -- where it is


@pytest.mark.requirement("environments.url-variable")
@pytest.mark.parametrize("url", ["http://x", "no url", "ws://h:x"])
async def test_a_bad_url_shows_up_as_a_failed_connection(url: str) -> None:
    environment = RemoteEnvironment.of(Entry(id="remote", transport=ServerUrl(url=url)))
    with pytest.raises(ConnectFailed) as caught:
        await environment.wait_ready()
    assert str(caught.value).startswith(
        f"{FAILED}failed to connect to exec-server websocket `{url}`: "
    )
    await environment.aclose()


@pytest.mark.requirement("environments.timeouts")
async def test_a_port_that_never_becomes_a_websocket_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        transport = ServerUrl(url=url, connect_timeout=0.05)
        environment = RemoteEnvironment.of(Entry(id="far", transport=transport))
        with pytest.raises(ConnectFailed) as caught:
            await environment.wait_ready()
        await environment.aclose()
    assert str(caught.value) == (
        f"{FAILED}timed out connecting to exec-server websocket `{url}` after 50ms"
    )


async def test_a_socket_file_is_a_place_too() -> None:
    environment = RemoteEnvironment("far", "unix:///nowhere/at/all")
    with pytest.raises(ConnectFailed, match="failed to connect to unix socket"):
        await environment.wait_ready()
    await environment.aclose()


@pytest.mark.requirement("environments.spawn-failure")
async def test_a_command_that_cannot_be_started_is_remembered() -> None:
    transport = ServingProgram(program="/nowhere/at/all")
    environment = RemoteEnvironment.of(Entry(id="far", transport=transport))
    for _ in range(2):
        with pytest.raises(ConnectFailed) as caught:
            await environment.wait_ready()
        assert str(caught.value) == (
            f"{FAILED}failed to spawn exec-server `/nowhere/at/all`:"
            " No such file or directory (os error 2)"
        )
    await environment.aclose()


async def test_an_argv_is_a_place_too() -> None:
    environment = RemoteEnvironment("far", ["/nowhere/at/all"])
    with pytest.raises(ConnectFailed, match="failed to spawn exec-server"):
        await environment.wait_ready()
    await environment.aclose()

"""The handshake, and what outlives a connection [session.*]."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.in_process import serving_here
from tests.e2e.wire import (
    LIMIT,
    Client,
    Fifo,
    Run,
    ServerProcess,
    connect,
    file_uri,
    gone,
    is_alive,
    joined,
    resume,
    serving,
    start_params,
)

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

METHODS: dict[str, tuple[str, object]] = {
    "process/start": ("exec", start_params("p", ["true"])),
    "process/read": ("exec", {"processId": "p"}),
    "process/write": ("exec", {"processId": "p", "chunk": "", "writeId": "1"}),
    "process/signal": ("exec", {"processId": "p", "signal": "interrupt"}),
    "process/terminate": ("exec", {"processId": "p"}),
    "process/resize": ("exec", {"processId": "p", "rows": 1, "cols": 1}),
    "process/closeStdin": ("exec", {"processId": "p"}),
    "process/list": ("exec", None),
    "environment/info": ("environment info", None),
    "environment/status": ("environment status", None),
    "environmentConfig/read": (
        "environment config",
        {"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []},
    ),
}
"""Every method, the family it belongs to, and params that fit."""


@pytest.fixture
async def fresh(server: ServerProcess) -> AsyncIterator[Client]:
    """A connection on which nothing was said yet."""
    async with connect(server.url, initialize=False) as client:
        yield client


# -- the handshake


@pytest.mark.requirement("session.initialize", "environment.info")
async def test_initialize_answers_with_a_session_and_the_environment(fresh: Client) -> None:
    result = await fresh.initialize()
    assert set(result) == {"sessionId", "environmentInfo"}
    assert UUID4.fullmatch(result["sessionId"])
    assert await fresh.call("environment/info") == result["environmentInfo"]


@pytest.mark.requirement("session.client-name")
@pytest.mark.parametrize("name", ["", "x" * 10_000, "é\0"])
async def test_a_client_has_any_name(fresh: Client, name: str) -> None:
    result = await fresh.call("initialize", {"clientName": name})
    assert set(result) == {"sessionId", "environmentInfo"}


@pytest.mark.requirement("session.initialize")
async def test_initialize_may_be_tried_until_its_params_are_right(fresh: Client) -> None:
    assert await fresh.refusal("initialize", {}) == (-32602, "missing field `clientName`")
    assert await fresh.refusal("initialize") == (
        -32602,
        "invalid type: null, expected struct InitializeParams",
    )
    wrong = (-32602, "invalid type: number, expected a string")
    assert await fresh.refusal("initialize", {"clientName": 5}) == wrong
    params = {"clientName": "x", "resumeSessionId": 5}
    assert await fresh.refusal("initialize", params) == wrong
    await fresh.initialize()
    assert await fresh.is_ready()


@pytest.mark.requirement("session.initialized.lenient")
async def test_initialized_takes_anything_and_may_be_repeated(fresh: Client) -> None:
    await fresh.call("initialize", {"clientName": "x"})
    for params in (5, "x", [1], {"a": None}, None):
        await fresh.notify("initialized", params)
    await fresh.send({"method": "initialized"})
    assert await fresh.is_ready()


@pytest.mark.requirement("session.before-initialize")
@pytest.mark.parametrize("method", METHODS)
async def test_before_initialize_every_method_is_refused(fresh: Client, method: str) -> None:
    family, params = METHODS[method]
    assert await fresh.refusal(method, params) == (
        -32600,
        f"client must call initialize before using {family} methods",
    )


@pytest.mark.requirement("session.before-initialized")
@pytest.mark.parametrize("method", METHODS)
async def test_before_initialized_every_method_is_refused(fresh: Client, method: str) -> None:
    await fresh.call("initialize", {"clientName": "x"})
    family, params = METHODS[method]
    assert await fresh.refusal(method, params) == (
        -32600,
        f"client must send initialized before using {family} methods",
    )


@pytest.mark.requirement("session.initialize.once")
async def test_a_connection_is_initialized_once(client: Client) -> None:
    once = (-32600, "initialize may only be sent once per connection")
    assert await client.refusal("initialize", {"clientName": "x"}) == once
    params = {"clientName": "x", "resumeSessionId": client.session_id}
    assert await client.refusal("initialize", params) == once
    assert await client.is_ready()


@pytest.mark.requirement("session.resume.unknown")
@pytest.mark.parametrize("session_id", ["", "nope", "00000000-0000-4000-8000-000000000000"])
async def test_an_unknown_session_cannot_be_resumed(fresh: Client, session_id: str) -> None:
    params = {"clientName": "x", "resumeSessionId": session_id}
    assert await fresh.refusal("initialize", params) == (
        -32600,
        f"unknown session id {session_id}",
    )
    code, text = await fresh.refusal("environment/status")
    assert (code, text[:27]) == (-32600, "client must call initialize")
    await fresh.initialize()
    assert await fresh.is_ready()


# -- sessions


@pytest.mark.requirement("session.scope")
async def test_processes_belong_to_a_session(server: ServerProcess, client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    async with connect(server.url) as other:
        assert await other.refusal("process/read", {"processId": "p"}) == (
            -32600,
            "unknown process id p",
        )
        assert await other.write("p", b"x") == "unknownProcess"
        assert await other.terminate("p") is False
        await other.call("process/signal", {"processId": "p", "signal": "SIGKILL"})
        assert (await other.call("process/list"))["processes"] == []
        # The id is free there.
        await other.shell("p", "echo mine")
        assert await other.finish("p") == Run(0, stdout=b"mine\n")
    await client.write("p", b"theirs")
    await client.output("p", b"theirs")
    assert not other.seen("p")[3:]


@pytest.mark.requirement("session.resume")
async def test_a_session_may_be_resumed_again_and_again(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        await client.start("p", ["cat"], pipeStdin=True)
    for turn in range(5):
        async with resume(server.url, client.session_id) as again:
            assert again.session_id == client.session_id
            text = f"turn {turn}\n".encode()
            assert await again.write("p", text, f"write {turn}") == "accepted"
            await again.output("p", text)
    async with resume(server.url, client.session_id) as again:
        assert joined(await again.read("p")) == b"".join(b"turn %d\n" % n for n in range(5))


@pytest.mark.requirement("session.resume")
async def test_a_session_that_was_closed_properly_may_be_resumed_too(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        await client.socket.close()
    async with resume(server.url, client.session_id) as again:
        assert await again.is_ready()


@pytest.mark.requirement("session.resume.attached")
async def test_a_session_with_a_living_connection_is_not_taken_over(
    server: ServerProcess, client: Client, fresh: Client
) -> None:
    params = {"clientName": "x", "resumeSessionId": client.session_id}
    for _ in range(2):
        assert await fresh.refusal("initialize", params) == (
            -32010,
            f"session {client.session_id} is already attached to another connection",
        )
    assert await client.is_ready()
    await fresh.initialize()
    assert fresh.session_id != client.session_id


@pytest.mark.requirement("session.resume.attached")
async def test_of_many_that_resume_at_once_one_succeeds(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        pass
    params = {"clientName": "x", "resumeSessionId": client.session_id}
    async with AsyncExitStack() as stack, asyncio.timeout(LIMIT):
        contenders = [
            await stack.enter_async_context(connect(server.url, initialize=False)) for _ in range(8)
        ]
        replies: list[dict[str, Any]] = []
        # The server may not have seen the first one go.
        while not any("result" in reply for reply in replies):
            asked = [(c, await c.request("initialize", params)) for c in contenders]
            replies = [await contender.reply(request_id) for contender, request_id in asked]
    codes = sorted(reply["error"]["code"] if "error" in reply else 0 for reply in replies)
    assert codes == [-32010] * 7 + [0]


@pytest.mark.requirement("session.detached.goes-on", "session.resume.catch-up")
async def test_what_happened_meanwhile_is_read_and_not_sent_again(
    server: ServerProcess, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go, Fifo(tmp_path / "done") as done:
        async with connect(server.url) as client:
            script = f"echo one; read x <{go.path}; echo two; echo >{done.path}; read y; exit 7"
            await client.shell("p", script, pipeStdin=True)
            await client.output("p", b"one\n")
        go.write()
        await done.line()
        async with resume(server.url, client.session_id) as again:
            read = await again.read("p", afterSeq=1, waitMs=60_000)
            assert (joined(read), read["nextSeq"], read["exited"]) == (b"two\n", 3, False)
            assert again.seen("p") == []
            await again.write("p", b"\n")
            # Later events go to the new connection, and nothing is between the two.
            events = await again.events("p", first=3)
            assert [event.kind for event in events] == ["exited", "closed"]
            assert events[0].params["exitCode"] == 7


@pytest.mark.requirement("session.detached.goes-on")
async def test_an_end_without_a_client_is_kept(server: ServerProcess, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        async with connect(server.url) as client:
            await client.shell("p", f"echo $$; read x <{go.path}; echo bye; exit 5")
            pid = int(await client.output("p", b"\n"))
        # Until another one resumes, the server may not have seen the first one go.
        async with resume(server.url, client.session_id):
            pass
        go.write()
        await gone(pid)
        async with resume(server.url, client.session_id) as again:
            read = await again.read("p", waitMs=60_000)
            while not read["closed"]:
                read = await again.read("p", afterSeq=read["nextSeq"] - 1, waitMs=60_000)
            whole = await again.read("p")
            assert joined(whole) == f"{pid}\nbye\n".encode()
            assert (whole["exitCode"], whole["closed"], whole["nextSeq"]) == (5, True, 5)


@pytest.mark.requirement("session.resume.new-events")
async def test_new_events_come_from_initialize_on(server: ServerProcess, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        async with connect(server.url) as client:
            await client.shell("p", f"read x <{go.path}; echo two")
        async with connect(server.url, initialize=False) as again:
            await _attach(again, client.session_id)
            go.write()
            # Without `initialized`.
            assert await again.finish("p") == Run(0, stdout=b"two\n")


async def _attach(client: Client, session_id: str) -> None:
    """Resume without `initialized`, once the server has seen the last connection go."""
    params = {"clientName": "x", "resumeSessionId": session_id}
    async with asyncio.timeout(LIMIT):
        while "error" in (reply := await client.reply(await client.request("initialize", params))):
            assert reply["error"]["code"] == -32010


@pytest.mark.requirement("session.detached.write-ids")
async def test_what_was_written_once_is_not_written_again_after_a_resume(
    server: ServerProcess,
) -> None:
    async with connect(server.url) as client:
        await client.start("p", ["cat"], pipeStdin=True)
        await client.write("p", b"once\n", "the-id")
        await client.output("p", b"once\n")
    async with resume(server.url, client.session_id) as again:
        assert await again.write("p", b"twice\n", "the-id") == "accepted"
        assert await again.write("p", b"end\n", "another-id") == "accepted"
        await again.output("p", b"end\n")
        assert joined(await again.read("p")) == b"once\nend\n"


async def test_a_write_that_waited_when_the_line_broke_may_be_repeated(
    server: ServerProcess, tmp_path: Path
) -> None:
    size, count = 65536, 200
    with Fifo(tmp_path / "go") as go:
        async with connect(server.url) as client:
            await client.shell("p", f"read x <{go.path}; exec cat | wc -c", pipeStdin=True)
            writes = [client.write_params("p", b"x" * size, f"w{n}") for n in range(count)]
            for n, params in enumerate(writes):
                await client.request("process/write", params, request_id=f"first {n}")
            # Some of them wait now, and this one has overtaken them.
            assert await client.is_ready()
        async with resume(server.url, client.session_id) as again:
            for n, params in enumerate(writes):
                await again.request("process/write", params, request_id=f"again {n}")
            go.write()
            for n in range(count):
                assert (await again.reply(f"again {n}"))["result"] == {"status": "accepted"}
            await again.call("process/closeStdin", {"processId": "p"})
            await again.output("p", b"%d\n" % (size * count))


@pytest.mark.requirement("output.detached-not-blocked")
async def test_nobody_waits_for_a_client_that_is_gone(
    server: ServerProcess, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "done") as done:
        async with connect(server.url) as client:
            script = f"head -c 20000000 /dev/zero; echo >{done.path}; exec sleep 600"
            await client.shell("p", script)
        await done.line()


@pytest.mark.requirement("dispatch.lost")
async def test_a_read_that_waits_does_not_keep_a_session_attached(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        await client.start("p", ["cat"], pipeStdin=True)
        for _ in range(3):
            await client.request("process/read", {"processId": "p", "waitMs": 10**9})
        assert await client.is_ready()
    async with resume(server.url, client.session_id) as again:
        await again.write("p", b"x")
        await again.output("p", b"x")


# -- the end of a session


@pytest.mark.requirement("session.expiry", "session.resume.unknown")
async def test_a_session_that_nobody_resumes_is_removed_with_its_processes() -> None:
    async with serving_here(session_expiry=0.05) as url:
        async with connect(url) as client:
            pids: list[int] = []
            for tty in (False, True):
                script = "trap '' TERM HUP INT; sleep 600 & echo $! $$ ready; exec sleep 600"
                await client.shell(f"p{tty}", script, tty=tty)
                text = await client.output(f"p{tty}", b"ready")
                pids += map(int, text.split()[:2])
            assert len(pids) == 4
            assert all(map(is_alive, pids))
        for pid in pids:
            await gone(pid)
        async with connect(url, initialize=False) as late:
            params = {"clientName": "late", "resumeSessionId": client.session_id}
            assert await late.refusal("initialize", params) == (
                -32600,
                f"unknown session id {client.session_id}",
            )


@pytest.mark.requirement("session.expiry")
async def test_an_attached_session_does_not_expire() -> None:
    async with (
        serving_here(session_expiry=0.01) as url,
        connect(url) as client,
        connect(url) as other,
    ):
        await client.start("p", ["cat"], pipeStdin=True)
        await other.shell("q", "echo $$; exec sleep 600")
        pid = int(await other.output("q", b"\n"))
        await other.vanish()
        await gone(pid)  # the other one has expired meanwhile
        await client.write("p", b"x")
        await client.output("p", b"x")


# -- the environment


@pytest.mark.requirement("environment.info", "environment.status")
async def test_the_environment_is_told(client: Client) -> None:
    assert await client.call("environment/status") == {"status": "ready"}
    info = await client.call("environment/info", {})
    assert set(info) == {
        "shell",
        "executorVersion",
        "holdfastVersion",
        "providerId",
        "cwd",
        "userHomeDir",
        "platformOs",
        "prependPathDirs",
        "temporaryDirectories",
        "tempDir",
        "capabilities",
    }
    assert info["platformOs"] == "linux"
    assert info["executorVersion"] == "0.169.0"
    assert info["cwd"] == file_uri(Path.cwd())
    assert os.access(info["shell"]["path"], os.X_OK)
    assert Path(info["shell"]["path"]).name == info["shell"]["name"]


@pytest.mark.requirement("environment.capabilities")
async def test_capabilities_are_what_is_really_there(client: Client) -> None:
    capabilities = (await client.call("environment/info"))["capabilities"]
    assert all(isinstance(value, bool) for value in capabilities.values())
    assert {name for name, value in capabilities.items() if value} == {
        "capabilityDiscoverySandbox",
        "capabilityDiscoveryV2",
        "environmentConfigRead",
        "fileWriteStreaming",
        "fsWatchMissing",
        "httpHeaderEnvVars",
        "sandboxedFileStreaming",
        "shellSnapshotV2",
        "processResize",
        "processCloseStdin",
        "processList",
        "processSignalNames",
        "processLimits",
        "processHold",
        "processAck",
        "processTerminateLeft",
        "processUnset",
        "processWaitingFor",
        "processEndMarked",
        "filePermissions",
        "fileRename",
        "fileReadLimit",
    }
    assert {"networkProxyLaunch", "windowsMxc"} < set(capabilities)


@pytest.mark.slow
@pytest.mark.requirement("environment.provider", "environment.temporary", "environment.info")
async def test_the_environment_follows_the_variables_of_the_server(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    variables = {"HOME": "/some/home", "TMPDIR": "/some/where"}
    with serving(cwd=tmp_path, env={**os.environ, **variables}) as other:
        async with connect(other.url) as there:
            info = await there.call("environment/info")
    assert info["cwd"] == file_uri(tmp_path)
    assert info["userHomeDir"] == "file:///some/home"
    assert info["temporaryDirectories"] == ["file:///some/where"]
    assert info["tempDir"] == "file:///some/where"
    provider = info["providerId"]
    assert isinstance(provider, str)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", provider)
    assert provider == (await client.call("environment/info"))["providerId"]

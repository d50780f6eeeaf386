"""Environments by name: which there are, which is meant, and what happens when one is replaced."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed, EnvironmentClosed, InvalidConfig, InvalidRequest
from holdfast.environments.config.providers import GivenProvider, UrlProvider
from holdfast.environments.config.snapshot import (
    ConfiguredEnvironments,
    Entry,
    ServerUrl,
    ServingProgram,
)
from holdfast.environments.environment import Status
from holdfast.environments.environment_manager import EnvironmentManager
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment
from tests.e2e.wire import Fifo, gone, is_alive
from tests.unit.client.script import param, settled
from tests.unit.environments.listening import ListeningServer, listening

LAZY = Entry(id="lazy", transport=ServingProgram(program="/nowhere"))


@pytest.fixture
async def server() -> AsyncIterator[ListeningServer]:
    async with listening() as server:
        yield server


@pytest.fixture
async def manager() -> AsyncIterator[EnvironmentManager]:
    """With this machine alone."""
    async with EnvironmentManager(UrlProvider(None)) as manager:
        yield manager


def given(*entries: Entry, default: str | None = "local", local: bool = True) -> GivenProvider:
    return GivenProvider(
        ConfiguredEnvironments(entries=entries, include_local=local, default=default)
    )


# -- which there are


@pytest.mark.requirement("environments.ids")
async def test_this_machine_is_the_default_when_nothing_is_said(
    manager: EnvironmentManager,
) -> None:
    assert manager.ids == manager.ids_for_new_thread() == ["local"]
    assert manager.default_id == "local"
    assert isinstance(manager.local, LocalEnvironment)
    assert manager.default is manager.local is manager.get("local")
    assert await manager.status("local") == Status("ready")


@pytest.mark.requirement("environments.url-variable", "environments.ids")
async def test_none_disables_everything() -> None:
    async with EnvironmentManager(UrlProvider(" None ")) as manager:
        assert manager.ids == manager.ids_for_new_thread() == []
        assert (manager.default_id, manager.default, manager.local) == (None, None, None)
        assert manager.get("local") is None


@pytest.mark.requirement("environments.url-variable")
async def test_a_url_takes_the_place_of_this_machine(server: ListeningServer) -> None:
    async with EnvironmentManager(UrlProvider(f" {server.url} ")) as manager:
        assert manager.ids == ["remote"]
        assert manager.default_id == "remote"
        assert manager.local is None
        assert isinstance(manager.default, RemoteEnvironment)


@pytest.mark.requirement("environments.ids")
async def test_the_default_comes_first_for_a_new_thread() -> None:
    async with EnvironmentManager(given(LAZY, default="lazy")) as manager:
        assert manager.ids == ["local", "lazy"]
        assert manager.ids_for_new_thread() == ["lazy", "local"]


@pytest.mark.requirement("environments.ids")
async def test_without_a_default_a_new_thread_has_none() -> None:
    async with EnvironmentManager(given(LAZY, default=None)) as manager:
        assert manager.default is None
        assert manager.ids_for_new_thread() == []
        assert manager.get("lazy") is not None


async def test_a_default_is_one_of_them() -> None:
    with pytest.raises(InvalidConfig) as caught:
        EnvironmentManager(given(LAZY, default="x"))
    assert str(caught.value) == "default environment `x` is not configured"


@pytest.mark.requirement("environments.ids")
async def test_an_id_is_one_object(manager: EnvironmentManager) -> None:
    assert manager.get("local") is manager.get("local") is manager.require("local")


async def test_an_unknown_id_is_none_or_an_error_with_those_there_are(
    manager: EnvironmentManager,
) -> None:
    assert manager.get("x") is None
    assert await manager.status("x") is None
    with pytest.raises(InvalidConfig) as caught:
        manager.require("x")
    assert str(caught.value) == "unknown environment id `x`"
    assert caught.value.advice == "configured: `local`"


# -- where it looks


@pytest.mark.requirement("environments.sources")
async def test_the_home_is_looked_at_before_the_variable(tmp_path: Path) -> None:
    environ = {"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_EXEC_SERVER_URL": "none"}
    async with EnvironmentManager.from_env(environ) as manager:
        assert manager.ids == []
    (tmp_path / "environments.toml").write_text(
        '[[environments]]\nid = "a"\nprogram = "x"\ncwd = "w"\n'
    )
    async with EnvironmentManager.from_env(environ) as manager:
        assert manager.ids == ["local", "a"]
    async with EnvironmentManager.from_env(environ, home=tmp_path / "other") as manager:
        assert manager.ids == []


async def test_the_home_of_codex_is_read_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "environments.toml").write_text('[[environments]]\nid = "a"\nprogram = "x"\n')
    nothing = {"HOME": "/nowhere", "CODEX_HOME": str(tmp_path)}
    async with EnvironmentManager.from_env(nothing) as manager:
        assert manager.ids == ["local"]
    async with EnvironmentManager.from_codex_home(environ=nothing) as manager:
        assert manager.ids == ["local", "a"]
    async with EnvironmentManager.from_codex_home(tmp_path, {}) as manager:
        assert manager.ids == ["local", "a"]


async def test_the_variables_of_this_process_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_EXEC_SERVER_URL", "none")
    async with EnvironmentManager.from_env() as manager:
        assert manager.ids == []
    async with EnvironmentManager.from_codex_home() as manager:
        assert manager.ids == []


async def test_a_file_that_cannot_be_used_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "environments.toml").write_text('default = "x"')
    with pytest.raises(InvalidConfig, match="default environment `x` is not configured"):
        EnvironmentManager.from_env({}, home=tmp_path)


# -- when it connects


@pytest.mark.requirement("environments.eager-and-lazy", "environments.handshake")
async def test_a_server_with_a_url_is_connected_to_without_any_use(
    server: ListeningServer,
) -> None:
    transport = ServerUrl(url=f"{server.url}/a/path?query=1", bearer_token="sesame")
    async with EnvironmentManager(given(Entry(id="a", transport=transport))) as manager:
        peer = await server.peer(0)
        await peer.notified("initialized")
        assert param(peer.requests("initialize")[0], "resumeSessionId") is None
        await manager.require("a").wait_ready()
        assert await manager.status("a") == Status("ready")
        (head,) = server.heads
        headers = dict(head.headers)
        assert head.path == "/a/path"
        assert headers["authorization"] == "Bearer sesame"
        assert not headers.keys() & {"sec-websocket-protocol", "origin", "cookie"}
    await peer.until(lambda: peer.lost_reason is not None)  # it ended with the manager


async def test_a_server_without_a_token_is_sent_none(server: ListeningServer) -> None:
    async with EnvironmentManager(UrlProvider(server.url)) as manager:
        await manager.require("remote").wait_ready()
    assert "authorization" not in dict(server.heads[0].headers)


@pytest.mark.requirement("environments.eager-and-lazy")
async def test_a_program_is_started_by_its_first_use_only(tmp_path: Path) -> None:
    with Fifo(tmp_path / "told") as told:
        script = f"echo started > {told.path}; exit 3"
        transport = ServingProgram(program="/bin/sh", args=("-c", script))
        async with EnvironmentManager(given(Entry(id="a", transport=transport))) as manager:
            assert await manager.status("a") == Status("pending")
            await settled()
            assert not told.has_something()
            with pytest.raises(ConnectFailed, match="exec-server connection attempt failed: "):
                await manager.require("a").wait_ready()
            assert await told.line() == "started"
            with pytest.raises(ConnectFailed):
                await manager.require("a").wait_ready()
            assert not told.has_something()


async def test_a_program_gets_its_variables_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with Fifo(tmp_path / "told") as told:
        (tmp_path / "environments.toml").write_text(
            '[[environments]]\nid = "a"\nprogram = "/bin/sh"\n'
            f"args = ['-c', 'echo \"$TIDE $PATH $PWD\" > {told.path}']\n"
            'env = { TIDE = "ebb" }\ncwd = "below"\n'
        )
        async with EnvironmentManager.from_env({}, home=tmp_path) as manager:
            with pytest.raises(ConnectFailed):
                await manager.require("a").wait_ready()
        assert await told.line() == f"ebb {os.environ['PATH']} {tmp_path / 'below'}"


# -- registration at run time


@pytest.mark.requirement("environments.add")
async def test_one_that_is_added_connects_at_once_and_leaves_the_default_alone(
    manager: EnvironmentManager, server: ListeningServer
) -> None:
    added = manager.add_or_replace("x y", f" {server.url} ", bearer_token="sesame")
    assert manager.get("x y") is added
    assert manager.ids_for_new_thread() == ["local", "x y"]
    await (await server.peer(0)).notified("initialized")
    assert dict(server.heads[0].headers)["authorization"] == "Bearer sesame"


@pytest.mark.requirement("environments.add")
async def test_without_a_default_one_that_is_added_does_not_become_it(
    server: ListeningServer,
) -> None:
    async with EnvironmentManager(UrlProvider("none")) as manager:
        manager.add_or_replace("a", server.url)
        assert manager.default is None
        assert manager.ids_for_new_thread() == []


@pytest.mark.requirement("environments.add")
@pytest.mark.parametrize("url", ["http://x", "nonsense"])
async def test_the_url_of_one_that_is_added_is_not_looked_at(
    manager: EnvironmentManager, url: str
) -> None:
    added = manager.add_or_replace("a", url)
    with pytest.raises(ConnectFailed, match=f"`{url}`"):
        await added.wait_ready()


@pytest.mark.requirement("environments.add.texts")
@pytest.mark.parametrize(
    ("environment_id", "url", "token", "text"),
    [
        ("", "", None, "environment id cannot be empty"),
        ("local", "ws://x", None, "environment id `local` is reserved for EnvironmentManager"),
        ("a", " ", None, "remote environment requires an exec-server url"),
        ("a", " NONE ", None, "remote environment cannot use disabled exec-server url"),
        (
            "a",
            "ws://far",
            "t",
            "exec-server WebSocket headers require wss:// or a loopback destination",
        ),
        (
            "a",
            "ws://127.0.0.1:1",
            "a\nb",
            "invalid value for exec-server WebSocket header `authorization`",
        ),
    ],
)
async def test_what_cannot_be_added_is_refused(
    manager: EnvironmentManager, environment_id: str, url: str, token: str | None, text: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        manager.add_or_replace(environment_id, url, bearer_token=token)
    assert str(caught.value) == text
    assert manager.ids == ["local"]


@pytest.mark.requirement("environments.add")
@pytest.mark.parametrize("environment_id", [" local", "  ", "none", "ä" * 99])
async def test_ids_are_looked_at_less_closely_than_in_a_file(
    manager: EnvironmentManager, environment_id: str
) -> None:
    manager.add_or_replace(environment_id, "ws://127.0.0.1:1")
    assert environment_id in manager.ids


@pytest.mark.requirement("environments.replaced")
async def test_one_that_is_replaced_loses_its_connection(server: ListeningServer) -> None:
    async with EnvironmentManager(UrlProvider(server.url)) as manager:
        old = manager.require("remote")
        await old.wait_ready()
        new = manager.add_or_replace("remote", server.url)
        peer = server.peers[0]
        await peer.until(lambda: peer.lost_reason is not None)
        assert manager.get("remote") is manager.default is new
        assert new is not old
        await new.wait_ready()
        with pytest.raises(EnvironmentClosed):
            await old.wait_ready()


SERVING = """\
import json, signal, subprocess, sys
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
below = subprocess.Popen(["/bin/sleep", "1000"])
shell = {"name": "sh", "path": "/bin/sh"}
answer = {"sessionId": "s", "environmentInfo": {"shell": shell}}
request = json.loads(sys.stdin.readline())
print(json.dumps({"id": request["id"], "result": answer}), flush=True)
with open(sys.argv[1], "w") as told:
    print(below.pid, file=told)
signal.pause()
"""


@pytest.mark.requirement("environments.replaced")
@pytest.mark.parametrize("manner", ["docile", pytest.param("stubborn", marks=pytest.mark.slow)])
async def test_one_that_is_replaced_loses_its_command_and_what_that_started(
    tmp_path: Path, server: ListeningServer, manner: str
) -> None:
    with Fifo(tmp_path / "told") as told:
        args = ("-S", "-c", SERVING, str(told.path), manner)
        entry = Entry(id="a", transport=ServingProgram(program=sys.executable, args=args))
        async with EnvironmentManager(given(entry)) as manager:
            await manager.require("a").wait_ready()
            below = int(await told.line())
            assert is_alive(below)
            manager.add_or_replace("a", server.url)
            await gone(below)


@pytest.mark.requirement("environments.replaced")
async def test_the_manager_waits_for_those_that_were_replaced(
    tmp_path: Path, server: ListeningServer
) -> None:
    with Fifo(tmp_path / "told") as told:
        args = ("-S", "-c", SERVING, str(told.path), "docile")
        entry = Entry(id="a", transport=ServingProgram(program=sys.executable, args=args))
        async with EnvironmentManager(given(entry)) as manager:
            await manager.require("a").wait_ready()
            below = int(await told.line())
            manager.add_or_replace("a", server.url)
        await gone(below)
    # What the command itself left behind, the fixture of all tests would find.


async def test_one_that_cannot_be_closed_does_not_keep_the_others_open(
    server: ListeningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck() -> None:
        raise OSError("stuck")

    manager = EnvironmentManager(given(Entry(id="a", transport=ServerUrl(url=server.url))))
    await manager.require("a").wait_ready()
    monkeypatch.setattr(manager.local, "aclose", stuck)
    with pytest.raises(OSError, match="stuck"):
        await manager.aclose()
    assert manager.require("a").closed
    peer = server.peers[0]
    await peer.until(lambda: peer.lost_reason is not None)


async def test_nothing_is_added_after_the_end(manager: EnvironmentManager) -> None:
    async with asyncio.timeout(5):
        await manager.aclose()
        await manager.aclose()
    with pytest.raises(InvalidRequest, match="the environment manager is closed"):
        manager.add_or_replace("a", "ws://x")
    assert manager.ids == ["local"]
    assert (await manager.require("local").status()).state == "disconnected"

"""The manager and real servers: cut off, restarted, killed."""

import asyncio
import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed
from holdfast.environments.config.providers import UrlProvider
from holdfast.environments.environment import Status
from holdfast.environments.environment_manager import EnvironmentManager
from holdfast.environments.remote import RemoteEnvironment
from holdfast.wire.protocol.http import HttpRequestParams
from tests.e2e.cutting import cutting
from tests.e2e.faults import (
    dies_for_good,
    is_recovering,
    lives_through_a_cut,
    loses_its_session,
    opens_a_new_session,
    start,
    works,
)
from tests.e2e.wire import HOLDFAST, LIMIT, ServerProcess, serving

STDIO = (
    f'[[environments]]\nid = "command"\nprogram = {json.dumps(HOLDFAST[0])}\n'
    f"args = {json.dumps([*HOLDFAST[1:], 'serve', '--listen', 'stdio'])}\n"
)


def remote(manager: EnvironmentManager, environment_id: str) -> RemoteEnvironment:
    environment = manager.require(environment_id)
    assert isinstance(environment, RemoteEnvironment)
    return environment


@pytest.mark.slow
@pytest.mark.requirement("environments.one-connection")
async def test_all_places_of_a_file_can_be_used_side_by_side(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "environments.toml").write_text(
        f'[[environments]]\nid = "server"\nurl = "{server.url}"\n{STDIO}'
    )
    async with EnvironmentManager.from_env({}, home=tmp_path) as manager:
        assert manager.ids == ["local", "server", "command"]
        async with asyncio.timeout(4 * LIMIT), asyncio.TaskGroup() as tasks:
            for name in manager.ids:
                folder = tmp_path / name
                folder.mkdir()
                tasks.create_task(works(manager.require(name), folder))
        for name in manager.ids:
            assert await manager.status(name) == Status("ready")
            assert (await manager.require(name).info()).platform_os == "linux"


async def test_http_calls_are_made_by_the_server(server: ServerProcess) -> None:
    async with EnvironmentManager(UrlProvider(server.url)) as manager:
        url = server.url.replace("ws://", "http://") + "/readyz"
        params = HttpRequestParams(method="GET", url=url, request_id="1")
        assert (await manager.require("remote").http.request(params)).status == 200


@pytest.mark.slow
@pytest.mark.requirement("environments.recovery")
async def test_a_cut_is_lived_through(server: ServerProcess, tmp_path: Path) -> None:
    async with cutting(server.url) as proxy, EnvironmentManager(UrlProvider(proxy.url)) as manager:
        await lives_through_a_cut(remote(manager, "remote"), proxy, tmp_path)


@pytest.mark.slow
@pytest.mark.requirement("environments.new-session")
async def test_a_server_that_is_started_anew_gets_a_new_session(tmp_path: Path) -> None:
    with ExitStack() as first:
        server = first.enter_context(serving())
        async with EnvironmentManager(UrlProvider(server.url)) as manager:
            environment = remote(manager, "remote")
            process = await start(environment, "p", "read x")
            os.kill(server.serving_pid, signal.SIGKILL)  # it cannot say that it ends
            first.close()
            await is_recovering(environment)
            with serving("--listen", server.url):
                await loses_its_session(environment, process)
                await opens_a_new_session(environment, process, tmp_path)


@pytest.mark.slow
async def test_a_server_that_comes_late_is_found_by_the_next_use(tmp_path: Path) -> None:
    with serving() as server:
        url = server.url
    async with EnvironmentManager(UrlProvider(url)) as manager:
        environment = remote(manager, "remote")
        with pytest.raises(ConnectFailed):
            await environment.wait_ready()
        with serving("--listen", url):
            await works(environment, tmp_path)


@pytest.mark.slow
@pytest.mark.requirement("environments.command-once")
async def test_a_command_that_was_killed_is_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "environments.toml").write_text(STDIO)
    async with EnvironmentManager.from_env({}, home=tmp_path) as manager:
        await works(manager.require("command"), tmp_path)
        await dies_for_good(remote(manager, "command"))

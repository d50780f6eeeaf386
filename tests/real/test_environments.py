"""Our environments on the real server: the faults that the real client survives on ours."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.environments.config import config_file as config
from holdfast.environments.config.providers import UrlProvider
from holdfast.environments.environment import Status
from holdfast.environments.environment_manager import EnvironmentManager
from holdfast.environments.remote import RemoteEnvironment
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
from tests.real.codex import codex, codex_env, codex_serving
from tests.real.versions import chosen

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(90)]


@pytest.fixture
def codex_url(tmp_path: Path) -> Iterator[str]:
    with codex_serving(tmp_path / "home") as url:
        yield url


def remote(manager: EnvironmentManager, environment_id: str = "remote") -> RemoteEnvironment:
    environment = manager.require(environment_id)
    assert isinstance(environment, RemoteEnvironment)
    return environment


def command(folder: Path) -> str:
    """An entry of `environments.toml` that starts the real server."""
    env = {"CODEX_HOME": codex_env(folder / "home")["CODEX_HOME"]}
    variables = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
    return (
        f'[[environments]]\nid = "command"\nprogram = {json.dumps(codex())}\n'
        f'args = ["exec-server", "--listen", "stdio"]\nenv = {{ {variables} }}\n'
    )


async def test_both_ways_to_the_real_server_work(codex_url: str, tmp_path: Path) -> None:
    toml = f'[[environments]]\nid = "listens"\nurl = "{codex_url}"\n{command(tmp_path)}'
    (tmp_path / config.FILE_NAME).write_text(toml)
    async with EnvironmentManager.from_codex_home(tmp_path, {}) as manager:
        for name in ("listens", "command"):
            environment = manager.require(name)
            (tmp_path / name).mkdir()
            await works(environment, tmp_path / name)
            assert await manager.status(name) == Status("ready")
            assert (await environment.info()).executor_version == chosen()


@pytest.mark.requirement("environments.recovery")
async def test_a_cut_is_lived_through(codex_url: str, tmp_path: Path) -> None:
    async with cutting(codex_url) as proxy, EnvironmentManager(UrlProvider(proxy.url)) as manager:
        await lives_through_a_cut(remote(manager), proxy, tmp_path)


@pytest.mark.requirement("environments.new-session")
async def test_a_server_that_is_started_anew_gets_a_new_session(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ExitStack() as first:
        url = first.enter_context(codex_serving(home))
        async with EnvironmentManager(UrlProvider(url)) as manager:
            environment = remote(manager)
            process = await start(environment, "p", "read x")
            first.close()
            await is_recovering(environment)
            with codex_serving(home, url):
                await loses_its_session(environment, process)
                await opens_a_new_session(environment, process, tmp_path)


@pytest.mark.requirement("environments.command-once")
async def test_a_command_that_was_killed_is_not_started_again(tmp_path: Path) -> None:
    (tmp_path / config.FILE_NAME).write_text(command(tmp_path))
    async with EnvironmentManager.from_codex_home(tmp_path, {}) as manager:
        environment = remote(manager, "command")
        await works(environment, tmp_path)
        await dies_for_good(environment)

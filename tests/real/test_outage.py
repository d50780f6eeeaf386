"""
An outage of 40 seconds between the real Codex and ours, either way: nothing is lost.

All of them wait at once, and a wait costs no processor. A client of 0.166.0 gives up before, and
a server of 0.166.0 has forgotten the session by then.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.environments.config.providers import UrlProvider
from holdfast.environments.environment_manager import EnvironmentManager
from holdfast.events import Exited
from holdfast.wire.protocol.process import WriteStatus
from tests.e2e.cutting import CuttingProxy, cutting
from tests.e2e.faults import output, start
from tests.e2e.wire import LIMIT, Fifo, serving
from tests.real.codex import codex_serving
from tests.real.model import Item, Model, Turn, run, type_in
from tests.real.test_codex_client import play
from tests.real.versions import VERSIONS

OUTAGE = 40.0
"""More than the 30 s for which 0.166.0 keeps a session, less than the 45 s of a client."""

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(90 + 12 * LIMIT),
    pytest.mark.parametrize(
        "codex_version", [version for version in VERSIONS if version != "0.166.0"], indirect=True
    ),
]


def lose(proxy: CuttingProxy) -> None:
    """Cut the line, and let no connection through for a while."""
    upstream, proxy.upstream = proxy.upstream, "unix:///nowhere"
    assert proxy.cut() == 1
    asyncio.get_running_loop().call_later(OUTAGE, setattr, proxy, "upstream", upstream)


async def codex_survives(url: str, folder: Path) -> None:
    """A command of the real client ends during the outage: it learns of all output and the end."""
    with Fifo(folder / "go") as go:
        async with cutting(url) as proxy:

            def lose_and_ask(model: Model) -> list[Item]:
                lose(proxy)
                go.write()
                return [type_in("c2", model.session("c1"), "", yield_time_ms=120_000)]

            script = f"echo before; read x < {go.path}; echo after; exit 5"
            turns: list[Turn] = [[run("c1", script, yield_time_ms=500)], lose_and_ask]
            model = await play(folder, turns, url=proxy.url)
    assert model.body("c1") + model.body("c2") == "before\nafter\n"
    assert model.exit_code("c2") == 5


async def we_survive(url: str) -> None:
    """A write of our client during the outage arrives once, and no output is lost."""
    async with outage(url) as (proxy, manager):
        process = await start(
            manager.require("remote"), "p", 'echo before; read x; echo "=$x="; read y; exit 5'
        )
        events = process.events()
        await output(events, b"before\n")
        lose(proxy)
        assert await process.write(b"meanwhile\n") is WriteStatus.ACCEPTED
        await output(events, b"=meanwhile=\n", limit=OUTAGE + 2 * LIMIT)
        assert await process.write(b"\n") is WriteStatus.ACCEPTED
        last = [event async for event in events]
    assert [event.verdict.exit_code for event in last if isinstance(event, Exited)] == [5]


@asynccontextmanager
async def outage(url: str) -> AsyncIterator[tuple[CuttingProxy, EnvironmentManager]]:
    async with cutting(url) as proxy, EnvironmentManager(UrlProvider(proxy.url)) as manager:
        yield proxy, manager


@pytest.mark.requirement("session.expiry", "client.recovery.resumes", "environments.recovery")
async def test_an_outage_of_40_seconds_loses_nothing(tmp_path: Path) -> None:
    with serving() as ours, codex_serving(tmp_path / "server") as theirs:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(codex_survives(ours.url, tmp_path))
            tasks.create_task(we_survive(theirs))
            tasks.create_task(we_survive(ours.url))
            # Once more, on the event loop of asyncio.
            tasks.create_task(asyncio.to_thread(asyncio.run, we_survive(theirs)))

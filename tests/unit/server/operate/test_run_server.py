"""Duties of a server beside serving."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.engine.sandbox import factory
from holdfast.server.app import Server
from holdfast.server.operate import run_server as serve
from holdfast.server.principals import Principals
from holdfast.wire.transports.transport import Credential
from tests.unit.descriptors import no_descriptors


@pytest.mark.requirement("security.sandbox.probed")
def test_a_look_at_the_machine_that_fails_does_not_end_a_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("nobody thought of this")

    monkeypatch.setattr(factory.shared_sandboxes(), "probe_support", fail)

    serve._probe_sandboxes()

    assert "the probe of sandboxes failed" in caplog.text
    assert "nobody thought of this" in caplog.text


class _Used:
    """A server that is in use until the test says so."""

    def __init__(self) -> None:
        self.idle = False
        self.looks = 0
        self.looked = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        self.looks += 1
        if self.looks >= 5:
            self.looked.set()
        return self.idle


async def test_only_a_server_that_nobody_uses_ends_by_itself() -> None:
    server, stopped = _Used(), asyncio.Event()
    serve._end_when_idle(cast(Server, server), 0.01, stopped)
    async with asyncio.timeout(5):
        await server.looked.wait()
        assert not stopped.is_set()
        server.idle = True
        await stopped.wait()


async def test_a_session_that_can_be_resumed_is_a_use() -> None:
    async with Server(session_expiry=0.05) as server:
        stopped = asyncio.Event()
        session = server.state.sessions.open(_Owner())
        server.state.sessions.detach(session)
        assert not server.is_idle
        serve._end_when_idle(server, 0.01, stopped)
        async with asyncio.timeout(5):
            await stopped.wait()
        assert len(server.state.sessions) == 0


class _Owner:
    """A connection that is of no interest."""

    credential = Credential("somebody")
    usage = Principals()["somebody"]

    paused = False
    acknowledges = False

    def abandon(self, reason: str) -> None:
        """It is none."""

    def send(self, message: bytes) -> None:
        """Nobody reads it."""

    def send_output(self, prefix: bytes, chunk: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def children() -> tuple[int, int]:
    """Two children that have nothing to do."""
    return tuple(os.posix_spawn("/bin/true", ["true"], {}) for _ in range(2))  # type: ignore[return-value]


def is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@pytest.mark.requirement("process.no-descriptors", "security.others.descriptors")
async def test_orphans_are_reaped_after_a_moment_without_descriptors(
    children: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, orphan = children
    monkeypatch.setattr(serve, "_REAP_INTERVAL", 0.001)
    monkeypatch.setattr(serve, "owned_pids", lambda: frozenset({mine}))
    scheduled: list[asyncio.TimerHandle] = []
    later = asyncio.get_running_loop().call_later

    def call_later(*arguments: Any) -> asyncio.TimerHandle:
        scheduled.append(later(*arguments))
        return scheduled[-1]

    with no_descriptors():
        serve._reap_orphans(cast(asyncio.AbstractEventLoop, SimpleNamespace(call_later=call_later)))
        for _ in range(3):
            await asyncio.sleep(0.002)
    async with asyncio.timeout(5):
        while is_there(orphan):  # noqa: ASYNC110 - there is no event for that
            await asyncio.sleep(0.002)
    scheduled[-1].cancel()
    assert os.waitpid(mine, 0)[1] == 0  # noqa: ASYNC222 - it has ended

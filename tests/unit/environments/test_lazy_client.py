"""The times of a recovery, on a clock that jumps."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.base.errors import ConnectionLost
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT
from holdfast.environments.environment import Status
from holdfast.environments.remote import RemoteEnvironment
from holdfast.testing import ScriptedServer, run_virtual
from holdfast.wire.transports.transport import Receiver, Transport

TIMED_OUT = (
    "exec-server transport disconnected: connection closed;"
    " failed to resume exec-server session: recovery timed out after 45s"
)


class Clocked(ScriptedServer):
    """Remembers when it was tried."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[float] = []

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        self.tried.append(asyncio.get_running_loop().time())
        return await super().open(accept)


@pytest.mark.requirement("environments.recovery")
def test_recovery_goes_on_for_45_seconds_with_an_attempt_every_100_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the times are the real ones here

    async def lose_it() -> None:
        server = Clocked()
        async with RemoteEnvironment("far", server) as environment:
            lost_at = asyncio.get_running_loop().time()
            server.tried.clear()
            server.refusing = 1000
            server.peers[0].cut()
            async with asyncio.TaskGroup() as tasks:
                waiting = [tasks.create_task(fails(environment)) for _ in range(3)]
            assert {await text for text in waiting} == {TIMED_OUT}
            assert asyncio.get_running_loop().time() - lost_at == pytest.approx(45.0)
            expected = [lost_at + 0.1 * number for number in range(len(server.tried))]
            assert server.tried == pytest.approx(expected)
            assert len(server.tried) in (450, 451)
            assert await environment.status() == Status("disconnected", TIMED_OUT)
            server.refusing = 0
            await environment.wait_ready()
            assert len(server.peers) == 2

    run_virtual(lose_it())


async def fails(environment: RemoteEnvironment) -> str:
    await asyncio.sleep(0)  # the loss is noticed first
    with pytest.raises(ConnectionLost) as caught:
        await environment.wait_ready()
    return str(caught.value)


@pytest.mark.requirement("environments.timeouts")
@pytest.mark.parametrize(("seconds", "text"), [(DEFAULT_TIMEOUT, "10s"), (0.5, "500ms")])
def test_a_server_has_its_time_to_answer(seconds: float, text: str) -> None:
    async def wait() -> None:
        server = ScriptedServer()
        del server.answers["initialize"]
        environment = RemoteEnvironment("far", server, initialize_timeout=seconds)
        with pytest.raises(ConnectionLost) as caught:
            await environment.wait_ready()
        assert str(caught.value) == (
            "exec-server connection attempt failed:"
            f" timed out waiting for exec-server initialize handshake after {text}"
        )
        assert asyncio.get_running_loop().time() == pytest.approx(seconds)
        await environment.aclose()

    assert DEFAULT_TIMEOUT == 10.0
    run_virtual(wait())


@pytest.mark.requirement("environments.status")
def test_a_server_has_10_seconds_to_tell_its_status() -> None:
    async def ask() -> None:
        async with RemoteEnvironment("far", ScriptedServer()) as environment:
            assert await environment.status() == Status(
                "disconnected",
                "exec-server protocol error: timed out waiting for exec-server"
                " `environment/status` response after 10s",
            )
            assert asyncio.get_running_loop().time() == pytest.approx(10.0)

    run_virtual(ask())

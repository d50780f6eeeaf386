"""A command that serves on its standard streams: its life is the connection's."""

import asyncio
import logging
import os
import signal
import sys

import pytest

from holdfast.base.errors import ConnectFailed, ConnectionLost
from holdfast.client import supervised_command
from holdfast.client.client import ExecServerClient
from holdfast.client.serving_command import ServingCommand
from holdfast.wire.transports.transport import Transport
from tests.e2e.wire import gone, is_alive

GREETING = r"""
import json, os, sys
def answer(result):
    print(json.dumps({"id": json.loads(sys.stdin.readline())["id"], "result": result}), flush=True)
answer({"sessionId": "s", "environmentInfo": {"shell": {"name": "sh", "path": "/bin/sh"}}})
sys.stdin.readline()  # initialized
"""
"""A server that knows the handshake and nothing else."""


def serving(more: str) -> list[str]:
    return [sys.executable, "-S", "-c", GREETING + more]


class Heard:
    """Receives from a command."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.changed = asyncio.Event()
        self.reason: str | None = None

    def received(self, message: bytes) -> None:
        self.messages.append(message)
        self.changed.set()

    def lost(self, reason: str) -> None:
        self.reason = reason
        self.changed.set()

    def pause_sending(self) -> None:
        """Not needed here."""

    def resume_sending(self) -> None:
        """Not needed here."""

    async def message(self) -> bytes:
        async with asyncio.timeout(5):
            while not self.messages:
                self.changed.clear()
                await self.changed.wait()
        return self.messages.pop(0)


async def start(*argv: str) -> tuple[ServingCommand, Heard]:
    heard = Heard()

    def accept(transport: Transport) -> Heard:
        return heard

    command = await ServingCommand.start(argv)
    await command.speak(accept)
    return command, heard


@pytest.mark.requirement("client.texts")
@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], ": the command is empty"),
        (["/no/such/program"], " `/no/such/program`: No such file or directory (os error 2)"),
        (["/"], " `/`: Permission denied (os error 13)"),
    ],
)
async def test_a_command_that_cannot_be_started_is_an_error(argv: list[str], why: str) -> None:
    with pytest.raises(ConnectFailed) as caught:
        await ExecServerClient.connect(argv)
    assert str(caught.value) == f"failed to spawn exec-server{why}"


@pytest.mark.slow
@pytest.mark.requirement("client.stdio")
async def test_a_command_has_a_group_of_its_own_and_is_asked_to_end() -> None:
    script = 'trap "exit 0" TERM; sleep 60 & echo $$; echo $!; wait'
    command, heard = await start("/bin/sh", "-c", script)
    pid, background = int(await heard.message()), int(await heard.message())
    assert os.getpgid(pid) == pid
    await command.aclose()
    assert not is_alive(pid)
    await gone(background)


@pytest.mark.slow
@pytest.mark.requirement("client.stdio")
async def test_a_command_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supervised_command.GRACE == 2.0
    monkeypatch.setattr(supervised_command, "GRACE", 0.05)
    command, heard = await start(
        "/bin/sh", "-c", 'trap "" TERM; echo $$; while :; do sleep 60; done'
    )
    pid = int(await heard.message())
    await command.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.requirement("client.stdio")
async def test_the_end_of_the_command_is_the_end_of_the_client() -> None:
    async with await ExecServerClient.connect(serving("sys.stdin.readline()")) as client:
        # It reads the call and exits without an answer.
        with pytest.raises(ConnectionLost, match="exec-server transport disconnected"):
            await client.status()
        async with asyncio.timeout(5):
            with pytest.raises(ConnectionLost) as caught:
                await client.list_processes()
    assert str(caught.value) == "exec-server transport disconnected: end of input"


@pytest.mark.slow
async def test_a_command_that_exits_instead_of_serving_is_an_error() -> None:
    with pytest.raises(ConnectionLost):
        await ExecServerClient.connect(["/bin/true"])


@pytest.mark.slow
@pytest.mark.requirement("client.stdio")
async def test_what_a_command_says_on_stderr_is_logged_and_the_last_line_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast.client.serving_command")
    script = "printf 'trouble\\n\\nahe'; sleep 0.01; printf 'ad'"
    command, _ = await start("/bin/sh", "-c", f"exec 3>&1 1>&2; {script}; exec 2>&- 1>&-; read x")
    assert await command.last_words() == "ahead"
    await command.aclose()
    assert [record.getMessage() for record in caplog.records] == [
        "exec-server stderr: trouble",
        "exec-server stderr: ahead",
    ]


@pytest.mark.slow
async def test_a_command_that_was_killed_is_reaped() -> None:
    command, heard = await start("/bin/sh", "-c", "echo $$; sleep 60")
    os.killpg(int(await heard.message()), signal.SIGKILL)
    async with asyncio.timeout(5):
        while heard.reason is None:
            heard.changed.clear()
            await heard.changed.wait()
    await command.aclose()

"""Commands of `command_exec` over a line that breaks."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.events import LimitKind
from holdfast.front.app_server.command_exec import CommandExec
from tests.e2e.cutting import cutting
from tests.e2e.wire import Fifo, ServerProcess, gone

SCRIPT = "setsid sh -c 'echo $$ >pids; exec sleep 100' & echo $$ >pids; printf before; wait"


@pytest.mark.slow
@pytest.mark.requirement("command-exec.timeout.lost-line")
async def test_a_lost_line_does_not_let_a_command_run_on(
    server: ServerProcess, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "pids") as pids:
        async with (
            cutting(server.url) as proxy,
            holdfast.connect(proxy.url) as env,
            CommandExec(env) as commands,
        ):
            command = await commands.start(["sh", "-c", SCRIPT], cwd=tmp_path, timeout=0.3)
            running = {int(await pids.line()), int(await pids.line())}
            proxy.freeze()  # nobody notices, and no kill gets through
            for pid in running:
                await gone(pid)
            proxy.thaw()
            done = await command.wait()
            assert (done.exit_code, done.verdict.limit) == (124, LimitKind.WALL_TIME)


@pytest.mark.slow
async def test_a_cut_loses_nothing_of_a_command(server: ServerProcess, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        async with (
            cutting(server.url) as proxy,
            holdfast.connect(proxy.url) as env,
            CommandExec(env) as commands,
        ):
            script = "seq 1 1000; read x <go; seq 1001 2000; exit 3"
            command = await commands.start(["sh", "-c", script], cwd=tmp_path, stream=True)
            deltas = command.output()
            seen = (await anext(deltas)).data
            assert proxy.cut()
            go.write()
            async with asyncio.timeout(20):
                async for delta in deltas:
                    seen += delta.data
                done = await command.wait()
            assert seen == "".join(f"{number}\n" for number in range(1, 2001)).encode()
            assert done.exit_code == 3

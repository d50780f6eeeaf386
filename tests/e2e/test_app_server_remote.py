"""An app-server whose commands run on an exec-server: the same answers."""

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.app_wire import AppClient, app_connect, app_serving, sh
from tests.e2e.wire import HOLDFAST, Fifo, ServerProcess, children, gone, serving

pytestmark = pytest.mark.requirement("app-server.environment")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the exec-server runs in."""
    return tmp_path_factory.mktemp("there")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    there = {**os.environ, "ONLY_THERE": "yes"}
    with serving(cwd=folder, env=there) as far, app_serving("--environment", far.url) as near:
        yield near
        assert near.stop() == 0
        assert near.errors == ""
        assert not children(far.serving_pid)


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[AppClient]:
    async with app_connect(server.url) as client:
        yield client


async def test_commands_run_there(client: AppClient, folder: Path) -> None:
    done = await client.run(*sh("pwd -P; echo $ONLY_THERE; echo err >&2; exit 3"))
    assert done == {"exitCode": 3, "stdout": f"{folder}\nyes\n", "stderr": "err\n"}
    (folder / "sub").mkdir()
    assert (await client.run("/bin/pwd", "-P", cwd="sub"))["stdout"] == f"{folder}/sub\n"
    assert (await client.run("/bin/pwd", cwd="~"))["stdout"] == f"{Path.home()}\n"


async def test_refusals_are_the_same(client: AppClient) -> None:
    missing = "failed to spawn command: No such file or directory (os error 2)"
    assert await client.run("/no/such/program") == (-32603, missing)
    assert await client.run("/bin/true", cwd="/no/such/folder") == (-32603, missing)


async def test_the_default_sandbox_holds_there(client: AppClient) -> None:
    done = await client.call(
        "command/exec",
        command=sh(
            "(: > file) 2>/dev/null && echo ok || echo no; echo $CODEX_SANDBOX_NETWORK_DISABLED"
        ),
    )
    assert done["stdout"] == "no\n1\n"


async def test_a_terminal_has_a_size_and_gets_another(client: AppClient) -> None:
    await client.exec(
        *sh("stty -echo; stty size; read x; stty size"),
        processId="t",
        tty=True,
        size={"rows": 5, "cols": 60},
    )
    await client.until_output("t", b"5 60\r\n")
    resized = await client.call("command/exec/resize", processId="t", size={"rows": 7, "cols": 8})
    assert resized == {}
    assert await client.write("t", b"go\n") == {}
    assert (await client.answer(1))["exitCode"] == 0
    assert client.output("t") == b"5 60\r\n7 8\r\n"


async def test_input_goes_there_and_ends(client: AppClient) -> None:
    data = os.urandom(200_000)
    await client.exec("/bin/cat", processId="p", streamStdin=True, streamStdoutStderr=True)
    assert await client.write("p", data, close=True) == {}
    assert (await client.answer(1))["exitCode"] == 0
    assert client.output("p") == data


async def test_a_connection_that_ends_takes_its_commands_along(
    server: ServerProcess, client: AppClient, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "pid") as pids:
        async with app_connect(server.url) as other:
            await other.exec(*sh(f"echo $$ > {pids.path}; exec sleep 60"), disableTimeout=True)
            pid = int(await pids.line())
        await gone(pid)
    assert (await client.run("/bin/echo", "x"))["stdout"] == "x\n"


@pytest.mark.requirement("app-server.environment.lost")
async def test_a_place_that_is_lost_fails_what_runs_there(tmp_path: Path) -> None:
    """It is a program that cannot be resumed, so that nobody waits for that."""
    variables = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
    program, *options = (*HOLDFAST, "serve", "--listen", "stdio")
    (tmp_path / "environments.toml").write_text(
        f'[[environments]]\nid = "there"\nprogram = "{program}"\nargs = {json.dumps(options)}\n'
    )
    with app_serving("--environment", "there", env=variables) as server:
        async with app_connect(server.url) as client:
            # The one tells its parent's pid when the other has begun.
            os.mkfifo(tmp_path / "begun")
            buffered = await client.exec(*sh(f"echo > {tmp_path}/begun; exec sleep 100"))
            streamed = await client.exec(
                *sh(f"read line < {tmp_path}/begun; echo $PPID; cat"),
                processId="s",
                streamStdin=True,
                streamStdoutStderr=True,
            )
            spawn = {"command": ["/bin/sleep", "100"], "cwd": "/", "processHandle": "h"}
            assert await client.call("process/spawn", **spawn) == {}
            await client.until_output("s", b"\n")
            os.kill(int(client.output("s")), signal.SIGKILL)
            told = "exec-server transport disconnected"
            for request, name in ((buffered, ""), (streamed, ' "s"')):
                code, text = await client.answer(request)
                assert code == -32603
                lost = f"exec failed: command/exec{name} on environment `there` is lost: {told}"
                # Of the one that is not streamed, the answer to its start may be lost as well.
                unanswered = f"exec failed: environment `there`: {told}"
                assert text.startswith((lost, unanswered) if request == buffered else lost)
            exited = await client.until_note("process/exited")
            assert (exited["processHandle"], exited["exitCode"]) == ("h", -1)
            refused = await client.write("s", b"x")
            assert refused == (-32600, 'no active command/exec for process id "s"')
            # For the home it has to be asked before the start.
            for params in ({}, {"cwd": "~"}):
                code, text = await client.run("/bin/echo", "again", **params)
                assert code == -32603
                assert text.startswith(f"exec failed: environment `there`: {told}")

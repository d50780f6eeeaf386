"""Messages for users when a server stops, or a connection is lost: at once, in plain words."""

import asyncio
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast.base.errors import ConnectionLost
from holdfast.events import Reason
from holdfast.server.app import Server
from holdfast.wire.protocol.http import HttpRequestParams
from tests.e2e.cutting import cutting
from tests.e2e.in_process import serving_here
from tests.e2e.wire import HOLDFAST, LIMIT, http, serving


async def started(env: holdfast.Environment, command: str) -> "asyncio.Task[holdfast.Completed]":
    """Run a command beside the test, until it has written something."""
    wrote = asyncio.Event()
    task = asyncio.ensure_future(env.run(command, on_output=lambda chunk: wrote.set()))
    async with asyncio.timeout(LIMIT):
        await wrote.wait()
    return task


@pytest.mark.parametrize("scheme", ["ws", "unix"])
async def test_a_command_that_ends_with_its_server_says_so(scheme: str, tmp_path: Path) -> None:
    async with Server() as server:
        where = "ws://127.0.0.1:0" if scheme == "ws" else f"unix://{tmp_path}/socket"
        env = holdfast.connect(await server.listen(where))
        running = await started(env, "echo; exec sleep 600")
    async with asyncio.timeout(LIMIT):  # far less than the 45 s of a lost connection
        done = await running
        assert done.reason is Reason.SERVER_STOPPING
        assert not done.ok
        with pytest.raises(ConnectionLost):
            await env.run("true")
        await env.aclose()


async def test_what_is_asked_to_end_with_its_server_did_not_end_by_itself() -> None:
    async with Server() as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with holdfast.connect(url) as env:
            running = await started(env, "trap 'exit 3' TERM; echo; while :; do sleep 0.01; done")
            await server.drain(LIMIT)
            done = await running
    assert (done.reason, done.exit_code) == (Reason.SERVER_STOPPING, 3)


@pytest.mark.parametrize("sandbox", [None, "read-only"])
async def test_a_stopped_command_is_asked_to_end_as_well(sandbox: str | None) -> None:
    async with Server() as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with holdfast.connect(url, sandbox=sandbox) as env:
            script = "trap 'echo saved; exit 3' TERM; echo; kill -STOP $$; exit 4"
            running = await started(env, script)
            async with asyncio.timeout(LIMIT):
                await server.drain(60)
            done = await running
    assert (done.exit_code, done.stdout) == (3, "\nsaved\n")


SERVE = (*HOLDFAST, "serve", "--config", "/dev/null")


async def test_commands_end_by_themselves_after_a_signal_to_their_server() -> None:
    with serving(command=SERVE) as server:
        async with holdfast.connect(server.url) as env:
            script = "trap 'echo saved; exit 3' TERM; echo; while :; do sleep 0.01; done"
            running = await started(env, script)
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(LIMIT):
                done = await running
        assert (done.stdout, done.exit_code) == ("\nsaved\n", 3)
        assert done.reason is Reason.SERVER_STOPPING
        assert server.process.wait(LIMIT) == 0


async def test_a_draining_server_takes_no_new_work_until_a_second_signal_ends_it(
    tmp_path: Path,
) -> None:
    with serving("--drain", "600", command=SERVE) as server:
        page = server.url.replace("ws", "http") + "/healthz"
        request = HttpRequestParams(method="GET", url=page, request_id="r")
        async with holdfast.connect(server.url) as env:
            running = await started(env, "trap '' TERM; echo; while :; do sleep 0.01; done")
            obedient = await started(env, "echo; exec sleep 600")
            async with asyncio.timeout(2 * LIMIT):
                server.process.send_signal(signal.SIGTERM)
                await obedient
                assert (await http(server.url, "/readyz")).status == 503
                assert (await http(server.url, "/healthz")).status == 200
                with pytest.raises(holdfast.HoldfastError, match="the server is stopping"):
                    await env.run("true")
                with pytest.raises(holdfast.HoldfastError, match="the server is stopping"):
                    async with holdfast.connect(server.url) as other:
                        await other.run("true")
                with pytest.raises(holdfast.HoldfastError, match="the server is stopping"):
                    await env.http.request(request)
                # What is there can still be used: a client may fetch or save a result.
                await env.files.write(f"{tmp_path}/saved", b"result")
                assert await env.files.read_bytes(f"{tmp_path}/saved") == b"result"
                server.process.send_signal(signal.SIGTERM)
                done = await running
        assert done.reason is Reason.SERVER_STOPPING
        assert server.process.wait(LIMIT) == 0


async def test_run_ends_at_once_with_a_server_that_is_stopped() -> None:
    with serving() as server:
        run = await asyncio.create_subprocess_exec(
            *(*HOLDFAST, "run", "-v", "--url", server.url, "--"),
            *("sh", "-c", "echo up; exec sleep 600"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert run.stdout is not None
        assert run.stderr is not None
        async with asyncio.timeout(2 * LIMIT):
            assert await run.stdout.readline() == b"up\n"
            where = (await run.stderr.readline()).decode()
            assert where.startswith(f"holdfast: running on {server.url}, in /")
            server.process.send_signal(signal.SIGTERM)
            text = (await run.stderr.read()).decode()
            assert await run.wait() == 125
    assert text == "holdfast: the command was terminated because the server stopped\n"


async def test_run_tells_at_once_that_the_connection_is_lost_and_back() -> None:
    async with serving_here() as url, cutting(url) as proxy:
        run = await asyncio.create_subprocess_exec(
            *(*HOLDFAST, "run", "--url", proxy.url, "--"),
            *("sh", "-c", "echo up; read line; echo $line"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        async with asyncio.timeout(2 * LIMIT):
            assert await run.stdout.readline() == b"up\n"
            proxy.cut()
            lost = (await run.stderr.readline()).decode()
            assert lost == f"holdfast: the connection to {proxy.url} was lost: reconnecting\n"
            back = (await run.stderr.readline()).decode()
            assert back.startswith(f"holdfast: reconnected to {proxy.url} after ")
            run.stdin.write(b"here\n")
            assert (await run.stdout.read(), await run.wait()) == (b"here\n", 0)

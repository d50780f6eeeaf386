"""Commands on this machine, and on servers that do not do what they should."""

import asyncio
import gc
import os
import resource
from collections.abc import AsyncIterator, Iterator
from errno import ENOENT, ENOTDIR
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectionLost, EnvironmentClosed, InvalidParams, SpawnFailed
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.commands import run as run_module
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.events import Reason
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.wire.protocol.envelope import Request
from tests.e2e.wire import LIMIT, Fifo, readable


@pytest.fixture
async def env(tmp_path: Path) -> AsyncIterator[Environment]:
    async with LocalEnvironment() as environment:
        environment.cwd = tmp_path
        yield environment


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """This process may open no more than 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- on this machine


@pytest.mark.slow
async def test_many_runs_at_once_leave_descriptors_for_others(
    few_descriptors: None,
) -> None:
    async with LocalEnvironment() as env:
        most = 0

        async def run(number: int) -> str:
            nonlocal most
            done = await env.run(["echo", str(number)])
            most = max(most, descriptors())
            return done.stdout

        async with asyncio.timeout(4 * LIMIT):
            outputs = await asyncio.gather(*(run(number) for number in range(500)))
    assert outputs == [f"{number}\n" for number in range(500)]
    assert most < 192


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_output(env: Environment) -> None:
    await env.run("head -c 10000000 /dev/zero")
    before = resident()
    done = await env.run("head -c 100000000 /dev/zero", cap=1 << 20, timeout=4 * LIMIT)
    assert done.captured_stdout.size == 100_000_000
    assert resident() - before < 40 << 20


async def test_a_command_that_left_its_group_is_ended_too(env: Environment, tmp_path: Path) -> None:
    with Fifo(tmp_path / "started") as started:
        script = f"echo $$ > {started.path}; exec sleep 600"
        task = asyncio.ensure_future(env.run(["setsid", "-w", "sh", "-c", script]))
        pid = int(await started.line())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # gone, and reaped by whoever inherited it
    try:
        async with asyncio.timeout(LIMIT):
            await readable(ended)
    finally:
        os.close(ended)


async def test_a_run_that_is_cancelled_twice_still_ends_its_command(
    env: Environment, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "started") as started:
        task = asyncio.ensure_future(env.run(f"echo > {started.path}; exec sleep 600"))
        await started.line()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    # The fixture of every test finds what is left running.


async def test_a_closed_environment_says_so(tmp_path: Path) -> None:
    async with LocalEnvironment() as env:
        process = await env.start(["sleep", "600"])
    with pytest.raises(EnvironmentClosed, match="environment `local` is closed: open it again"):
        await env.run("true")
    with pytest.raises(EnvironmentClosed):
        await env.start("true")
    with pytest.raises(EnvironmentClosed):
        env.attach("x")
    with pytest.raises(EnvironmentClosed):
        await env.files.read_text("x")
    async with asyncio.timeout(LIMIT):
        verdict = await process.wait()  # what was started there has ended
    assert verdict.reason in (Reason.TERMINATED, Reason.SERVER_STOPPING)


async def test_an_environment_that_was_closed_by_hand_says_so_too() -> None:
    env = LocalEnvironment()
    await env.run("true")
    await env.aclose()
    with pytest.raises(EnvironmentClosed):
        await env.run("true")


async def test_a_failed_start_names_its_program_and_its_folder(
    env: Environment, tmp_path: Path
) -> None:
    with pytest.raises(SpawnFailed) as caught:
        await env.run(["no-such-program"])
    error = caught.value
    assert (error.errno, error.path, error.program) == (ENOENT, None, "no-such-program")

    (tmp_path / "file").touch()
    for tty in [False, True]:
        for cwd, errno in [("gone", ENOENT), ("file", ENOTDIR)]:
            with pytest.raises(SpawnFailed) as caught:
                await env.start(["/bin/true"], cwd=cwd, tty=tty)
            error = caught.value
            assert (error.errno, error.program) == (errno, "/bin/true")
            assert error.path == str(tmp_path / cwd)


async def test_what_makes_no_sense_is_refused(env: Environment) -> None:
    with pytest.raises(InvalidParams, match="cap must not be negative"):
        await env.run("true", cap=-1)
    with pytest.raises(TypeError, match="an argument must be a string, not bytes"):
        await env.run([b"true"])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        await env.run(["kill", 9])  # type: ignore[list-item]
    with pytest.raises(SpawnFailed, match="pass a command line as a string"):
        await env.run(["echo hello"])
    with pytest.raises(SpawnFailed, match="nul byte"):
        await env.run(["echo", "\0"])
    with pytest.raises(InvalidParams, match="the path is empty"):
        await env.run("true", cwd="")


async def test_no_time_at_all_ends_a_command_at_once(env: Environment) -> None:
    assert (await env.run("sleep 600", timeout=0)).reason is Reason.TIMED_OUT


async def test_a_command_may_be_killed_by_others(env: Environment) -> None:
    done = await env.run("kill -9 $$")
    assert (done.reason, done.exit_code, done.verdict.signal) == (Reason.SIGNALED, 137, 9)


async def test_a_result_that_was_dropped_holds_nothing(env: Environment) -> None:
    await env.run("true")  # the first one opens what the event loop keeps
    gc.collect()
    before = descriptors()
    for _ in range(5):
        await env.run("echo hello")
    gc.collect()
    assert descriptors() == before


async def test_a_start_that_nobody_awaits_is_complained_of(env: Environment) -> None:
    def forget() -> None:
        env.start("true")
        gc.collect()

    with pytest.warns(RuntimeWarning, match="never awaited"):
        forget()


async def test_a_process_describes_itself(env: Environment) -> None:
    async with env.start("true", detach="job") as process:
        assert repr(process).endswith("detached as 'job', running>")
        await process.wait()
        assert repr(process).endswith("detached as 'job', exited with code 0>")


@pytest.mark.slow
async def test_ended_names_are_forgotten_before_there_are_too_many(env: Environment) -> None:
    for number in range(70):
        process = await env.start(["true"], detach=str(number))
        await process.wait()
    commands = env._commands
    assert len(commands._detached) <= 64
    assert env.attach("69").verdict is not None


# -- on servers that do not do what they should


def start_quietly(peer: ScriptedPeer, request: Request) -> None:
    params = request.params
    assert isinstance(params, dict)
    peer.reply(request, {"processId": params["processId"]})
    peer.output(params["processId"], 1, b"partial")


async def test_a_server_that_falls_silent_costs_a_run_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "END_LIMIT", 0.05)
    server = ScriptedServer()
    server.answers["process/start"] = start_quietly
    async with RemoteEnvironment("far", server) as env:
        async with asyncio.timeout(LIMIT):
            done = await env.run("anything", timeout=0.05)
        assert (await server.peer(0)).requests("process/terminate")
    assert (done.reason, done.exit_code, done.stdout) == (Reason.TIMED_OUT, None, "partial")
    assert "its end could not be observed" in str(done)
    assert not done.background  # nobody can tell


async def test_a_line_that_breaks_for_good_fails_a_run() -> None:
    server = ScriptedServer()
    server.can_reconnect = False
    server.answers["process/start"] = start_quietly
    async with RemoteEnvironment("far", server) as env:
        task = asyncio.ensure_future(env.run("anything"))
        peer = await server.peer(0)
        await peer.until(lambda: bool(peer.requests("process/start")))
        peer.cut()
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(LIMIT):
                await task


@pytest.mark.parametrize("way", ["run", "start"])
async def test_output_that_a_line_that_is_down_holds_back_is_waited_for(way: str) -> None:
    server = ScriptedServer()
    server.answers["process/start"] = start_quietly
    later = {"seq": 3, "stream": "stdout", "chunk": "IGxhdGU="}

    def resumed(peer: ScriptedPeer, request: Request) -> None:
        state = {"nextSeq": 5, "exited": True, "exitCode": 0, "closed": True}
        peer.reply(request, {"chunks": [later], "failure": None, "sandboxDenied": False, **state})

    async def output(env: Environment) -> str:
        if way == "run":
            done = await env.run("anything", drain=0.01)
            assert not done.background
            return done.stdout
        process = await env.start("anything")
        return "".join([chunk.text async for chunk in process.output(drain=0.01)])

    async with RemoteEnvironment("far", server) as env:
        task = asyncio.ensure_future(output(env))
        peer = await server.peer(0)
        await peer.until(lambda: bool(peer.requests("process/start")))
        (start,) = peer.requests("process/start")
        assert isinstance(start.params, dict)
        peer.exited(start.params["processId"], 2)
        await peer.take("process/read")  # it is quiet here, and the far side is asked
        server.answers["process/read"] = resumed
        peer.cut()
        async with asyncio.timeout(LIMIT):
            assert await task == "partial late"


async def test_a_server_that_refuses_a_start_is_quoted() -> None:
    server = ScriptedServer()
    server.answers["process/start"] = lambda peer, request: peer.fail(
        request, -32603, "no more of these (os error 11)"
    )
    async with RemoteEnvironment("far", server) as env:
        with pytest.raises(SpawnFailed, match="cannot run `x`: no more of these") as caught:
            await env.run(["x"])
    assert caught.value.errno == 11


async def test_an_end_that_a_slow_callback_did_not_get_to_is_known(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "END_LIMIT", 0.2)

    async def stand(chunk: object) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(LIMIT):
        done = await env.run("cat /dev/zero", timeout=1.0, on_output=stand)
    assert (done.reason, done.exit_code) == (Reason.TIMED_OUT, 137)
    assert "its last output was not consumed in time" in str(done)


# -- at the end of an environment


@pytest.mark.both_loops
async def test_what_is_cancelled_before_it_begins_is_not_waited_for() -> None:
    """A command is cancelled, and its environment is closed in the same moment."""

    async def end() -> None:
        raise AssertionError("it does not begin")

    tasks = OwnedTasks()
    waiting = asyncio.create_task(run_module.run_on(end(), tasks))
    await asyncio.sleep(0)
    await tasks.aclose()
    async with asyncio.timeout(LIMIT):
        await waiting

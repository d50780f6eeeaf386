"""Readers and waiters of one process, and what they do when it cannot be reached."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectionLost, InvalidParams, InvalidRequest, PatternTimedOut
from holdfast.environments.commands.running import Running
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.events import Reason
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.wire.protocol.envelope import Request
from tests.e2e.wire import LIMIT

FLOOD = 6_000_000


@pytest.fixture
async def env(tmp_path: Path) -> AsyncIterator[Environment]:
    async with LocalEnvironment() as environment:
        environment.cwd = tmp_path
        yield environment


async def read_all(process: Running) -> int:
    size = 0
    async for chunk in process.output():
        size += len(chunk.data)
        await asyncio.sleep(0)  # slower than the process
    return size


async def test_one_who_waits_takes_nothing_from_one_who_reads(env: Environment) -> None:
    async with env.start(f"head -c {FLOOD} /dev/zero") as process:
        output = process.output()
        first = await anext(output)
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(process.wait())
            reading = tasks.create_task(read_all(process))
        assert waiting.result().ok
    assert len(first.data) + reading.result() == FLOOD


async def test_several_readers_get_every_chunk_once(env: Environment) -> None:
    async with env.start(f"head -c {FLOOD} /dev/zero") as process:
        async with asyncio.timeout(LIMIT):
            sizes = await asyncio.gather(*(read_all(process) for _ in range(3)))
        assert await read_all(process) == 0  # there is no more
    assert sum(sizes) == FLOOD


async def test_a_reader_that_gave_up_loses_nothing(env: Environment) -> None:
    async with env.start("read x; echo late") as process:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(process.output())
        await process.write("\n")
        assert (await anext(process.output())).text == "late\n"


async def test_a_block_ends_while_somebody_reads(env: Environment) -> None:
    async with (
        asyncio.timeout(LIMIT),
        asyncio.TaskGroup() as tasks,
        env.start("cat /dev/zero") as process,
    ):
        output = process.output()
        await anext(output)
        reading = tasks.create_task(process.wait())
        await asyncio.sleep(0)
    assert not reading.result().ok
    output.close()
    assert [chunk async for chunk in output] == []


async def test_the_input_of_a_terminal_has_no_end(env: Environment) -> None:
    async with env.start("cat", tty=True) as process:
        with pytest.raises(InvalidRequest, match="Ctrl-D"):
            await process.close_stdin()
        await process.write("\x04")
        async with asyncio.timeout(LIMIT):
            assert (await process.wait()).ok


async def test_a_signal_goes_by_its_name_or_number(env: Environment) -> None:
    for which in ("SIGTERM", 15):
        async with env.start("sleep 600") as process:
            await process.signal(which)
            async with asyncio.timeout(LIMIT):
                assert (await process.wait()).signal == 15


# -- on servers that do not do what they should


def start_quietly(peer: ScriptedPeer, request: Request) -> None:
    assert isinstance(request.params, dict)
    peer.reply(request, {"processId": request.params["processId"]})
    peer.output(request.params["processId"], 1, b"partial")


async def test_a_process_that_is_lost_says_so_every_time() -> None:
    server = ScriptedServer()
    server.can_reconnect = False
    server.answers["process/start"] = start_quietly
    async with RemoteEnvironment("far", server) as env:
        process = await env.start("anything")
        (await server.peer(0)).cut()
        output = process.output()
        async with asyncio.timeout(LIMIT):
            assert (await anext(output)).text == "partial"
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await anext(output)
                with pytest.raises(ConnectionLost):
                    await process.wait()


# -- what nobody read


async def flood_unread(env: Environment, process: Running) -> None:
    """Wait until a process has written more than is kept, and nobody has read it."""
    async with asyncio.timeout(LIMIT):
        await process.process.exited()


async def test_output_that_nobody_read_in_time_is_told_as_missed(env: Environment) -> None:
    async with env.start(f"head -c {FLOOD} /dev/zero; echo end") as process:
        await flood_unread(env, process)
        chunks = [chunk async for chunk in process.output()]
    assert process.missed > 0
    assert chunks[0].missed == process.missed
    assert chunks[0].seq == process.missed + 1
    assert not any(chunk.missed for chunk in chunks[1:])
    assert chunks[-1].data.endswith(b"end\n")


async def test_between_two_blocks_a_detached_process_waits_for_nobody(env: Environment) -> None:
    script = f"echo one; read x; head -c {FLOOD} /dev/zero; echo end"
    async with env.start(script, detach="job") as process:
        assert (await anext(process.output())).text == "one\n"
        await process.write("\n")
    await flood_unread(env, process)
    async with env.attach("job") as found:
        chunks = [chunk async for chunk in found.output()]
    assert found.missed > 0
    assert chunks[0].seq == 2 + found.missed  # the first was read before
    assert chunks[-1].data.endswith(b"end\n")


async def test_a_pattern_is_found_behind_more_than_is_kept(env: Environment) -> None:
    async with env.start(f"head -c {FLOOD} /dev/zero; echo end; echo rest") as process:
        async with asyncio.timeout(4 * LIMIT):
            found = await process.expect("end\n", timeout=None)
        assert found.skipped + len(found.before) == FLOOD
        assert len(found.before) <= 5 << 18
        assert "".join([chunk.text async for chunk in process.output()]) == "rest\n"
        assert process.missed == 0


async def test_a_cancelled_expect_consumes_nothing(env: Environment) -> None:
    async with env.start("echo one; sleep 600") as process:
        for _ in range(3):
            with pytest.raises(PatternTimedOut):
                await process.expect("two", timeout=0.02)
            task = asyncio.ensure_future(process.expect("two"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await anext(process.output())).text == "one\n"


async def test_a_reader_without_patience_does_not_wait_for_one_with(
    env: Environment, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(LIMIT),
        asyncio.TaskGroup() as tasks,
        env.start("sleep 600 & echo early") as process,
    ):
        assert (await process.wait()).ok
        patient = process.output(drain=None)
        assert (await anext(patient)).text == "early\n"
        waiting = tasks.create_task(anext(patient))
        await asyncio.sleep(0)
        assert [chunk async for chunk in process.output(drain=0.05)] == []
        assert not waiting.done()
        waiting.cancel()


async def test_how_to_terminate_is_passed_on(env: Environment) -> None:
    asked: list[dict[str, object]] = []
    async with env.start("sleep 600") as process:
        real = process.process.terminate

        async def terminate(**how: object) -> bool:
            asked.append(how)
            return await real(tree=True)

        process.process.terminate = terminate  # type: ignore[method-assign]
        await process.terminate(left=True, streams="keep")
    assert asked[0] == {"tree": True, "left": True, "streams": "keep"}


async def test_output_that_a_wait_did_not_keep_is_told_as_missed(env: Environment) -> None:
    async with env.start(f"head -c {FLOOD} /dev/zero") as process, asyncio.timeout(LIMIT):
        assert (await process.wait()).ok
        chunks = [chunk async for chunk in process.output()]
    assert sum(len(chunk.data) for chunk in chunks) < FLOOD
    assert process.missed > 0
    assert sum(chunk.missed for chunk in chunks) == process.missed
    first = chunks[0]
    assert first.missed == first.seq - 1 == process.missed


@pytest.mark.parametrize("which", ["SIGFOO", "TERM", 0, 4096])
async def test_a_signal_that_is_none_is_named_in_the_error(
    env: Environment, which: str | int
) -> None:
    async with env.start("sleep 600") as process:
        with pytest.raises(InvalidParams, match=f"there is no signal {which!r}"):
            await process.signal(which)


async def until_full(process: Running) -> None:
    """Wait until somebody who waits has as much as is kept for the reader."""
    while process._pending_size <= 1 << 20:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)


async def test_who_waits_sees_the_end_of_a_process_whose_reader_stands(env: Environment) -> None:
    async with env.start("cat /dev/zero") as process:
        output = process.output()
        await anext(output)  # and never again
        waiting = asyncio.create_task(process.wait())
        async with asyncio.timeout(LIMIT):
            await until_full(process)
            await process.terminate()
            assert (await waiting).reason is Reason.TERMINATED
        output.close()

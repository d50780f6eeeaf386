"""Commands that do not behave: too slow, too loud, never quite over, or failing."""

import asyncio

import holdfast
from holdfast import CommandFailed, Environment, Reason


async def too_slow(env: Environment) -> None:
    done = await env.run("echo begun; sleep 600", timeout=0.5)
    assert done.reason is Reason.TIMED_OUT
    assert done.stdout == "begun\n"  # what it wrote until then
    print(repr(done))


async def too_loud(env: Environment) -> None:
    done = await env.run("seq 1 1000000", cap=200)
    assert done.ok
    assert done.truncated
    print(f"{done.omitted} bytes were left out of:\n{done.stdout}")


async def never_quite_over(env: Environment) -> None:
    done = await env.run("(sleep 1; echo late) & echo early", timeout=60)
    assert done.exit_code == 0
    assert done.background  # something it started still holds its output
    later = await done.process.read(after_seq=done.last_seq, wait=10)
    assert [chunk.chunk for chunk in later.chunks] == [b"late\n"]


async def failing(env: Environment) -> None:
    failure = None
    try:
        await env.run(["ls", "/no/such/folder"], check=True)
    except CommandFailed as error:
        failure = error
        print(error)
    assert failure is not None
    assert failure.completed.exit_code != 0


async def several(env: Environment) -> None:
    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(env.run(["echo", str(n)])) for n in range(20)]
    assert [run.result().stdout for run in runs] == [f"{n}\n" for n in range(20)]


async def cancelled(env: Environment) -> None:
    try:
        async with asyncio.timeout(0.2):  # cancels what is in it
            await env.run("sleep 600")
    except TimeoutError:
        print("the command was ended with its task")


async def main() -> None:
    async with asyncio.timeout(20), holdfast.connect() as env:
        await too_slow(env)
        await too_loud(env)
        await never_quite_over(env)
        await failing(env)
        await several(env)
        await cancelled(env)


asyncio.run(main())

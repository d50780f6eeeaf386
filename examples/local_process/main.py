"""A process on this machine: its input, its output, its end, and one that cannot be started."""

import asyncio
import os

from holdfast import (
    Closed,
    Exited,
    LocalBackend,
    OutputChunk,
    PathUri,
    Reason,
    SpawnFailed,
    StartParams,
    WriteStatus,
)


def request(name: str, *argv: str, pipe_stdin: bool = False) -> StartParams:
    """A command in this folder; of our variables it gets nothing but the search path."""
    return StartParams(
        process_id=name,
        argv=list(argv),
        cwd=PathUri.from_path(os.getcwd()),
        env={"PATH": os.defpath},
        tty=False,
        pipe_stdin=pipe_stdin,
    )


async def sort_words(backend: LocalBackend) -> None:
    process = await backend.start(request("sort", "sort", pipe_stdin=True))
    for word in (b"pear\n", b"apple\n", b"fig\n"):
        assert await process.write(word) is WriteStatus.ACCEPTED
    await process.close_stdin()

    output = b""
    numbers = []
    async for event in process.events():
        numbers.append(event.seq)
        match event:
            case OutputChunk():
                assert event.stream == "stdout"
                output += event.chunk
            case Exited():
                print(f"sort {event.verdict}")
            case Closed():
                print("and nothing more will come")
    assert output == b"apple\nfig\npear\n"
    assert numbers == list(range(1, len(numbers) + 1))  # one numbering over all of it
    assert (await process.wait()).ok


async def end_a_process(backend: LocalBackend) -> None:
    process = await backend.start(request("sleep", "sleep", "600"))
    assert await process.terminate()
    verdict = await process.wait()
    print(f"sleep was {verdict}")
    assert verdict.reason is Reason.TERMINATED
    assert verdict.exit_code == 128 + 9


async def miss_a_program(backend: LocalBackend) -> None:
    try:
        await backend.start(request("missing", "there-is-no-such-program"))
    except SpawnFailed as error:
        print(f"as expected: {error}")
    else:
        raise AssertionError("a program that does not exist was started")


async def main() -> None:
    async with LocalBackend() as backend:
        await sort_words(backend)
        await end_a_process(backend)
        await miss_a_program(backend)


asyncio.run(main())

import asyncio
import os

from holdfast import ExecBackend, ExecServerClient, LocalBackend, OutputChunk, PathUri, StartParams


async def say_hello(backend: ExecBackend) -> None:
    """Run one command; whoever calls this decides where."""
    request = StartParams(
        process_id="hello",  # our own name for it
        argv=["sh", "-c", "echo hello from process $$"],
        cwd=PathUri.from_path("/"),
        env={"PATH": os.defpath},
        tty=False,
    )
    process = await backend.start(request)
    async for event in process.events():
        if isinstance(event, OutputChunk):
            print(event.stream, event.chunk)
    verdict = await process.wait()
    print(verdict)
    assert verdict.ok


async def main() -> None:
    async with LocalBackend() as here:
        await say_hello(here)
    # The URL of a server would do as well; this command is a server on its standard streams.
    command = ["holdfast", "serve", "--listen", "stdio"]
    async with await ExecServerClient.connect(command) as there:
        await say_hello(there)


asyncio.run(main())

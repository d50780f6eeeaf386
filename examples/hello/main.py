import asyncio
import sys

import holdfast


async def show(env: holdfast.Environment) -> None:
    """Run commands and write a file; the caller chooses the environment."""
    done = await env.run("echo hello from process $$", timeout=60)
    print(done.stdout, done.exit_code, done.reason)
    assert done.ok

    async with env.start(["python3", "-i", "-q"], tty=True) as repl:
        await repl.write("6 * 7\n")
        async for chunk in repl.output():
            print(chunk.text, end="")
            if "42" in chunk.text:
                break  # the end of the block ends the process

    await env.files.write("notes.txt", "hello\n")
    assert await env.files.read_text("notes.txt") == "hello\n"


async def main() -> None:
    async with holdfast.connect() as here:
        await show(here)
    # The URL of a server would do as well; this command is a server on its standard streams.
    server = [sys.executable, "-m", "holdfast", "serve", "--listen", "stdio"]
    async with holdfast.connect(server) as there:
        await show(there)


asyncio.run(main())

"""A shell on a terminal of its own: its size, a resize, Ctrl-C, and the end."""

import asyncio
import os
from collections.abc import AsyncIterator

from holdfast import ExecProcess, LocalBackend, OutputChunk, PathUri, ProcessEvent, StartParams
from holdfast.wire.protocol.process import TerminalSize


class Screen:
    """Text that the terminal showed so far: echo, prompts and output in one."""

    def __init__(self, process: ExecProcess) -> None:
        self._events: AsyncIterator[ProcessEvent] = aiter(process.events())
        self.text = b""

    async def wait_for(self, expected: bytes) -> None:
        """Read on until a text has appeared, and forget everything up to it."""
        while expected not in self.text:
            event = await anext(self._events)
            if isinstance(event, OutputChunk):
                assert event.stream == "pty"
                self.text += event.chunk
        self.text = self.text.partition(expected)[2]


async def main() -> None:
    async with LocalBackend() as backend, asyncio.timeout(20):
        request = StartParams(
            process_id="shell",
            argv=["/bin/sh"],
            cwd=PathUri.from_path("/"),
            env={"PATH": os.defpath, "TERM": "dumb", "PS1": "ready> "},
            tty=True,
            terminal_size=TerminalSize(rows=40, cols=100),
        )
        process = await backend.start(request)
        screen = Screen(process)
        await screen.wait_for(b"ready> ")

        await process.write(b"stty size\n")
        await screen.wait_for(b"40 100\r\n")
        await process.resize(50, 132)
        await process.write(b"stty size\n")
        await screen.wait_for(b"50 132\r\n")
        print("the terminal has the size it was given")

        # `$((…))`, so that the echo of what was typed does not look like its output.
        await process.write(b"sh -c 'echo begun-$((1 + 1)); exec sleep 600'\n")
        await screen.wait_for(b"begun-2\r\n")
        await process.write(b"\x03")
        await screen.wait_for(b"ready> ")
        print("Ctrl-C ended the command, and the shell goes on")

        await process.write(b"exit 7\n")
        verdict = await process.wait()
        print(f"the shell {verdict}")
        assert verdict.exit_code == 7


asyncio.run(main())

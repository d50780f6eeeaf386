"""Leftovers of commands (processes, descriptors, tasks), and waiting until they are gone."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path


def left_running(mark: str) -> list[str]:
    """Return the command lines of processes that have a variable of this value."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().decode())
            except OSError:
                continue  # it has gone
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until_nothing(look: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + 20
    while left := look():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what there is no event for."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)

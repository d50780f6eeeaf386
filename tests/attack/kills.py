"""
Kills servers at random moments, and sees that nothing they started goes on.

Each server starts processes that are hard to get rid of. Then it, or its guardian, is ended by
a signal, often before they are all there. What carries the mark of the attack is looked for in
all of `/proc`.

The long form: `python -m tests.attack.kills --count 500`.
"""

import argparse
import asyncio
import os
import random
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path

from websockets.exceptions import WebSocketException

from tests.e2e.test_nothing_left_behind import ENDS, KINDS
from tests.e2e.wire import LIMIT, PATH, Ended, connect, serving, start_params

__all__ = ["kill_servers"]

_MARK = "HOLDFAST_ATTACK"
_PROCESSES = 6
_LONGEST = 0.15
"""Seconds after the first start in which the signal comes."""


async def kill_servers(*, kills: int, seed: int) -> float:
    """
    Kill so many servers.

    Returns:
        The seconds that the slowest one took until nothing was left of it.

    Raises:
        AssertionError: Something was left.
    """
    chance = random.Random(seed)
    slowest = 0.0
    for _ in range(kills):
        mark = secrets.token_hex(16)
        end, kinds = chance.choice(list(ENDS)), chance.sample(list(KINDS), _PROCESSES)
        who, number = ENDS[end]
        with serving() as server:
            starting = asyncio.ensure_future(_start(server.url, mark, kinds))
            await asyncio.sleep(chance.uniform(0.0, _LONGEST))
            os.kill(server.pid if who == "guardian" else server.serving_pid, number)
            ended = time.monotonic()
            # It may be gone at any moment, in the handshake as well.
            with suppress(Ended, OSError, EOFError, WebSocketException):
                await starting
        while left := _marked(mark):
            waited = time.monotonic() - ended
            assert waited < 2 * LIMIT, f"left after {end} with {kinds}: {left}"
            await asyncio.sleep(0.01)
        slowest = max(slowest, time.monotonic() - ended)
    return slowest


async def _start(url: str, mark: str, kinds: list[str]) -> None:
    async with connect(url) as client:
        for kind in kinds:
            argv = ["/bin/sh", "-c", KINDS[kind].script]
            env = {"PATH": PATH, _MARK: mark}
            params = start_params(kind, argv, env=env, tty=KINDS[kind].tty)
            await client.call("process/start", params)
        await asyncio.sleep(2 * _LONGEST)  # until the signal has come


def _marked(mark: str) -> list[str]:
    """Return the processes that have a mark among their variables."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes():
                    found.append(f"{folder.name} {(folder / 'comm').read_text().strip()}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill servers at random moments.")
    parser.add_argument("--count", "--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    slowest = asyncio.run(kill_servers(kills=options.count, seed=options.seed))
    sys.stdout.write(f"{options.count} kills, nothing left, at most {slowest:.2f} s after one\n")


if __name__ == "__main__":
    main()

"""
Kills servers and programs at random moments, and sees that nothing they started goes on.

Each server starts processes that are hard to get rid of. Then it, or its guardian, is ended by
a signal, often before they are all there. What carries the mark of the attack is looked for in
all of `/proc`.

A program without a server starts sandboxes as fast as it can, in a local environment, until it
gets SIGKILL: no guardian looks after what it leaves.

The long form: `python -m tests.attack.kills --count 500`, once with `--programs`.
"""

import argparse
import asyncio
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from websockets.exceptions import WebSocketException

import holdfast
from holdfast.engine.process.spawn import spawn
from tests.e2e.test_nothing_left_behind import ENDS, KINDS
from tests.e2e.wire import LIMIT, PATH, Ended, Refused, connect, serving, start_params

__all__ = ["kill_programs", "kill_servers"]

_MARK = "HOLDFAST_ATTACK"
_PROCESSES = 6
_LONGEST = 0.15
"""Seconds after the first start in which the signal comes."""
_SANDBOXES = 4
"""Sandboxes that a program starts at the same time."""
_NAMESPACES_MADE = 0.003
"""Seconds after its start by which bubblewrap has made all namespaces."""


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
            # It may be gone at any moment, in the handshake as well, or refuse the rest.
            with suppress(Ended, OSError, EOFError, Refused, WebSocketException):
                await starting
        slowest = max(slowest, _wait_until_gone(mark, ended, f"{end} with {kinds}"))
    return slowest


def kill_programs(*, kills: int, seed: int) -> float:
    """
    Kill so many programs that start sandboxes without a server.

    Each is a fork of this process, which must not have other threads. Every second one gets the
    signal while bubblewrap makes the namespaces of a sandbox.

    Returns:
        The seconds that the slowest one took until nothing was left of it.

    Raises:
        AssertionError: Something was left.
    """
    chance = random.Random(seed)
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-") as folder:
        for number in range(kills):
            mark = secrets.token_hex(16)
            ready, theirs = os.pipe()
            after_spawn = chance.uniform(0.0, _NAMESPACES_MADE) if number % 2 else None
            pid = os.fork()
            if pid == 0:
                try:
                    asyncio.run(_start_sandboxes(mark, folder, theirs, after_spawn))
                finally:
                    os._exit(1)
            os.close(theirs)
            # At the first start the program finds out what this machine can enforce.
            began = os.read(ready, 1)
            os.close(ready)
            assert began, "the program has failed by itself"
            if after_spawn is None:
                time.sleep(chance.uniform(0.0, _LONGEST))
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
            ended = time.monotonic()
            slowest = max(slowest, _wait_until_gone(mark, ended, "SIGKILL of a program"))
    return slowest


async def _start_sandboxes(mark: str, folder: str, ready: int, after_spawn: float | None) -> None:
    """Start sandboxes until this process is killed, by itself if `after_spawn` is given."""
    async with holdfast.connect(cwd=folder) as here, asyncio.TaskGroup() as group:

        async def start_again_and_again() -> None:
            while True:
                await here.run(["true"], sandbox="workspace-write", env={_MARK: mark})

        await here.run(["true"], sandbox="workspace-write")
        os.write(ready, b"r")
        if after_spawn is not None:
            _kill_after_spawn(after_spawn)
        for _ in range(_SANDBOXES):
            group.create_task(start_again_and_again())


def _kill_after_spawn(seconds: float) -> None:
    """Let this process die so long after the next start of bubblewrap."""

    def spawn_and_die(*arguments: Any, **options: Any) -> NoReturn:
        spawn(*arguments, **options)
        time.sleep(seconds)
        signal.raise_signal(signal.SIGKILL)
        raise AssertionError("it is killed")

    mock.patch("holdfast.engine.process.child.spawn", spawn_and_die).start()


def _wait_until_gone(mark: str, since: float, what: str) -> float:
    """Wait until no process has the mark; return the seconds since a moment."""
    while left := _marked(mark):
        waited = time.monotonic() - since
        if waited > 2 * LIMIT:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left after {what}: {left}")
        time.sleep(0.01)
    return time.monotonic() - since


async def _start(url: str, mark: str, kinds: list[str]) -> None:
    async with connect(url) as client:
        for kind in kinds:
            argv = ["/bin/sh", "-c", KINDS[kind].script]
            env = {"PATH": PATH, _MARK: mark}
            params = start_params(kind, argv, env=env, tty=KINDS[kind].tty)
            await client.call("process/start", params)
        await asyncio.sleep(2 * _LONGEST)  # until the signal has come


def _marked(mark: str) -> dict[int, str]:
    """Return the processes that have a mark among their variables, with their names."""
    wanted = f"{_MARK}={mark}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "comm").read_text().strip()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill servers or programs at random moments.")
    parser.add_argument("--count", "--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", action="store_true", help="kill programs without a server")
    options = parser.parse_args()
    if options.programs:
        slowest = kill_programs(kills=options.count, seed=options.seed)
    else:
        slowest = asyncio.run(kill_servers(kills=options.count, seed=options.seed))
    sys.stdout.write(f"{options.count} kills, nothing left, at most {slowest:.2f} s after one\n")


if __name__ == "__main__":
    main()

"""
Uses up what a server has, and sees that it answers all the while and gets everything back.

Each attack takes one kind of thing as far as the server lets it: descriptors, threads, inotify
instances, waiting input, profiles, patterns, open files, processes, sessions, requests. It has
to be refused with an error that names what there is too much of. Then its clients vanish, and
the server has to hold what it held before. How another client fares meanwhile is measured by
`tests/soak/worst_client.py`.

The long form: `python -m tests.attack.exhaustion --count 50`.
"""

import argparse
import asyncio
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from tests.e2e.measured import Measured, measured
from tests.e2e.test_sandbox import context, entry, special
from tests.e2e.wire import LIMIT, Client, connect, file_uri, start_params
from tests.soak.worst_client import inotify_instances

__all__ = ["ATTACKS", "Figures", "attack_exhaustion"]

MEBIBYTE = bytes(1 << 20)

_FEW = 24
"""Descriptors that are left to a server which is to run out of them."""

_MOST_THREADS = 300
"""Threads of a server: 256 for stuck calls, and its own."""

_GROWTH = 48 << 10
"""KiB by which memory may differ: what is freed is kept for a while."""


class Target(NamedTuple):
    """A server to be exhausted."""

    server: Measured
    folder: Path
    chance: random.Random

    @property
    def url(self) -> str:
        return self.server.url


class Figures(NamedTuple):
    """Resources of a server at the worst moment of an attack."""

    attack: str
    rounds: int
    refused: int
    """Requests that were refused since there was too much of something."""
    descriptors: int
    threads: int
    kilobytes: int


Attack = Callable[[Target], Awaitable[int]]
"""Takes one kind of thing, and returns how many requests were refused."""


async def _refusals(client: Client, asked: list[str | int], *words: str) -> int:
    """Wait for the answers, and count those that are errors; each has one of the words."""
    count = 0
    for number in asked:
        error = (await client.reply(number)).get("error")
        if error is not None:
            assert any(word in error["message"] for word in words), error
            count += 1
    return count


async def take_descriptors(target: Target) -> int:
    """Start commands, in sandboxes too, and open files, where no descriptor is left."""
    pid = target.server.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    sandbox = context(target.folder, special("root", "read"))
    async with connect(target.url) as client, connect(target.url) as other:
        held = (await target.server.measure())["descriptors"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (held + _FEW, before[1]))
        try:
            asked = [
                await client.request(
                    "fs/open", {"path": "file:///etc/passwd", "mode": "read", "handleId": str(n)}
                )
                for n in range(2 * _FEW)
            ]
            refused = await _refusals(client, asked, "Too many open files")
            starts = []
            for number in range(8):
                more = {} if number % 2 else {"sandbox": sandbox, "cwd": file_uri(target.folder)}
                params = start_params(f"p{number}", ["/bin/true"], tty=number > 3, **more)
                starts.append(await client.request("process/start", params))
            refused += await _refusals(client, starts, "Too many open files")
            assert await other.is_ready()
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        # As soon as there are some again, all works again.
        assert (await other.run(["/bin/true"], sandbox=sandbox)).exit_code == 0
    assert refused >= _FEW
    return refused


async def take_threads(target: Target) -> int:
    """Ask for many things that take long, and leave before they are done."""
    options = {"maxDepth": 64, "maxDirectories": 100, "maxEntries": 1000}
    walk = {"path": "file:///proc", "options": {**options, "followDirectorySymlinks": False}}
    async with AsyncExitStack() as stack:
        for _ in range(8):
            client = await stack.enter_async_context(connect(target.url))
            await client.request("fs/walk", walk)
            for number in range(64):
                path = file_uri(target.folder / str(number))
                await client.request("fs/writeFile", {"path": path, "dataBase64": ""})
        asking = await stack.enter_async_context(connect(target.url))
        assert await asking.is_ready()
        assert _threads(target.server.pid) < _MOST_THREADS
    return 0


async def take_inotify(target: Target) -> int:
    """Watch for files that are missing, on connections that end at once."""
    for _ in range(10):
        async with connect(target.url) as client:
            asked = [
                await client.request(
                    "fs/watchMissing",
                    {"watchId": n, "missing": [file_uri(target.folder / "x")], "present": None},
                )
                for n in range(1, 20)
            ]
            await client.reply(asked[-1])
            assert inotify_instances(target.server.pid) <= 1
    return 0


async def take_input(target: Target) -> int:
    """Write to a command that does not read, more than may wait."""
    async with connect(target.url) as client, connect(target.url) as other:
        await client.start("deaf", ["/bin/sleep", "600"], pipeStdin=True)
        with suppress(TimeoutError):  # it reads no more until some are written
            async with asyncio.timeout(1.0):
                for _ in range(24):
                    await client.request("process/write", client.write_params("deaf", MEBIBYTE))
        assert await other.is_ready()
        assert (await other.run(["/bin/true"])).exit_code == 0
    return 0


async def take_profiles(target: Target) -> int:
    """Ask for sandboxes with more entries, roots and wildcards than there may be."""
    root = special("root", "read")
    paths = [entry(target.folder / str(number), "deny") for number in range(2_000)]
    stars = [_denied(f"{target.folder}/{'*/' * 30}{number}") for number in range(100)]
    async with connect(target.url) as client:
        asked = []
        for number, entries in enumerate((paths, stars, [*paths, *stars])):
            sandbox = context(target.folder, root, *entries)
            params = start_params(f"p{number}", ["/bin/true"], sandbox=sandbox)
            asked.append(await client.request("process/start", params))
        refused = await _refusals(client, asked, "are the most")
        assert refused == len(asked)
    return refused


async def take_patterns(target: Target) -> int:
    """Ask for patterns that take for ever where they are tried letter by letter."""
    (target.folder / ("a" * 200)).touch()
    hard = [f"{target.folder}/**/{'*a' * 30}*b", f"{target.folder}/{'**/' * 20}x"]
    async with connect(target.url) as client, asyncio.timeout(4 * LIMIT):
        asked = []
        for number, pattern in enumerate(hard):
            sandbox = context(target.folder, special("root", "read"), _denied(pattern))
            params = start_params(f"p{number}", ["/bin/true"], sandbox=sandbox)
            asked.append(await client.request("process/start", params))
        return await _refusals(client, asked)


def _denied(pattern: str) -> dict[str, object]:
    return {"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"}


async def take_handles(target: Target) -> int:
    """Have more files open than there may be."""
    refused = 0
    async with AsyncExitStack() as stack:
        for _ in range(3):
            client = await stack.enter_async_context(connect(target.url))
            asked = [
                await client.request(
                    "fs/open", {"path": "file:///etc/passwd", "mode": "read", "handleId": str(n)}
                )
                for n in range(140)
            ]
            refused += await _refusals(client, asked, "at most 128 file handles")
    assert refused == 3 * 12
    return refused


async def take_processes(target: Target) -> int:
    """Start commands with children of their own, and leave."""
    async with connect(target.url) as client:
        scripts = ("sleep 600 & sleep 600", "trap '' TERM; sleep 600", "sleep 600")
        for number in range(30):
            await client.start(f"p{number}", ["/bin/sh", "-c", target.chance.choice(scripts)])
        # The same names again are refused.
        again = [
            await client.request("process/start", start_params(f"p{n}", ["/bin/true"]))
            for n in range(30)
        ]
        return await _refusals(client, again, "already exists", "already")


async def take_sessions(target: Target) -> int:
    """Open sessions, and leave all of them behind."""
    for _ in range(40):
        async with connect(target.url) as client:
            await client.start("left", ["/bin/sleep", "600"])
    return 0


async def take_requests(target: Target) -> int:
    """Send more requests that wait than may wait, and read no answer."""
    async with connect(target.url) as client, connect(target.url) as other:
        await client.start("silent", ["/bin/sleep", "600"])
        wait = {"processId": "silent", "afterSeq": 0, "waitMs": 600_000}
        with suppress(TimeoutError):  # it reads no more until some are answered
            async with asyncio.timeout(1.0):
                for _ in range(3_000):
                    await client.request("process/read", wait)
        assert await other.is_ready()
    return 0


ATTACKS: dict[str, Attack] = {
    "descriptors": take_descriptors,
    "threads": take_threads,
    "inotify": take_inotify,
    "input": take_input,
    "profiles": take_profiles,
    "patterns": take_patterns,
    "handles": take_handles,
    "processes": take_processes,
    "sessions": take_sessions,
    "requests": take_requests,
}


# -- the run


def _threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


async def _given_back(server: Measured, before: dict[str, int], attack: str) -> None:
    """Wait until a server holds no more than before."""
    deadline = time.monotonic() + 4 * LIMIT
    while True:
        now = await server.measure()
        kept = {
            name: (before[name], now[name])
            for name in ("descriptors", "children", "tasks", "sessions", "processes")
            if now[name] > before[name]
        }
        grown = now["kilobytes"] - before["kilobytes"]
        if not kept and grown < _GROWTH and inotify_instances(server.pid) <= 1:
            return
        assert time.monotonic() < deadline, f"{attack}: kept {kept}, {grown} KiB"
        await asyncio.sleep(0.02)


async def attack_exhaustion(
    *, count: int, seed: int, names: tuple[str, ...] = tuple(ATTACKS)
) -> list[Figures]:
    """
    Make each attack so many times on one server.

    Raises:
        AssertionError: It does not refuse what it has to, or keeps something.
        TimeoutError: It does not answer.
    """
    found = []
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as name,
        measured(0.05, ping_interval=0.25) as server,
    ):
        target = Target(server, Path(name), random.Random(seed))
        async with connect(server.url) as client:  # what is made once, is made here
            sandbox = context(target.folder, special("root", "read"))
            await client.run(["/bin/true"], sandbox=sandbox)
            await ATTACKS["inotify"](target)
        await server.settled()
        for attack in names:
            before, refused, most = await server.measure(), 0, (0, 0, 0)
            for _ in range(count):
                async with asyncio.timeout(8 * LIMIT):
                    refused += await ATTACKS[attack](target)
                now = await server.measure()
                held = (now["descriptors"], _threads(server.pid), now["kilobytes"])
                most = max(most[0], held[0]), max(most[1], held[1]), max(most[2], held[2])
                await _given_back(server, before, attack)
            found.append(Figures(attack, count, refused, *most))
        async with connect(server.url) as client:
            assert (await client.run(["/bin/true"])).exit_code == 0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Use up what a server has.")
    parser.add_argument("--count", type=int, default=50, help="rounds of each attack")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    for figures in asyncio.run(attack_exhaustion(count=options.count, seed=options.seed)):
        sys.stdout.write(f"{figures}\n")
    sys.stdout.write(f"all given back, in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()

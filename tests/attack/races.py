"""
Does things to servers at the worst moment, and sees that nothing is left, lost or doubled.

- A client is cancelled, or leaves without a word, at each of its waits in turn.
- A start in a sandbox of this process is given up at each of its waits in turn.
- Two connections start, read, write, signal and end processes of one name all at once, and
  then fight for the session of one that left.
- Servers start at once on one socket file, which a dead one has left, and with one token file.
- A command exchanges directories for links while others are being enclosed.

The long form: `python -m tests.attack.races --count 1000`.
"""

import argparse
import asyncio
import gc
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from pathlib import Path
from types import coroutine
from typing import Any, NamedTuple

import holdfast
from holdfast.base.token_file import make_token_file, read_tokens
from holdfast.client import ExecServerClient
from holdfast.engine.process.registry import LocalBackend
from holdfast.server.app import Server
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams
from holdfast.wire.transports.unix import bind_unix
from tests.breakout.ground import prepare
from tests.breakout.harness import THROUGH, beside
from tests.breakout.test_races import APPEND, EXCHANGE, all_outcomes, running
from tests.e2e.wire import HOLDFAST, LIMIT, Client, connect, first_line, start_params

__all__ = ["Figures", "attack_races", "swap_during_starts"]

_SERVERS = 4
"""Servers that start at once for one file."""

_REQUESTS = 24
"""Requests of two connections that are under way together."""

_INTERNAL = "internal error"
"""The text of an error that the server did not expect."""


class Figures(NamedTuple):
    """Counts of a run."""

    cancelled: int
    left: int
    given_up: int
    storms: int
    contests: int
    """Of servers for one file."""


# -- at each wait


@coroutine
def interrupted(work: Coroutine[Any, Any, object], at: int) -> Generator[Any, Any, int]:
    """Run something, cancel it when it waits for the `at`-th time, and return how often it did."""
    task = asyncio.current_task()
    assert task is not None
    waits = 0
    try:
        waited = work.send(None)
        while True:
            waits += 1
            if waits == at:
                task.cancel()
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is handed on
                waited = work.throw(error)
            else:
                waited = work.send(None)
    except StopIteration:
        pass
    except asyncio.CancelledError:
        if waits < at:
            raise
    finally:
        if waits >= at:
            task.uncancel()
    return waits


async def at_each_wait(
    work: Callable[[], Coroutine[Any, Any, object]],
    after: Callable[[], Awaitable[None]],
    *,
    count: int,
    chance: random.Random,
) -> int:
    """Cancel something at its waits, `count` times in all, and see after each that all is well."""
    waits = await interrupted(work(), sys.maxsize)
    await after()
    waits_to_interrupt = [wait for _ in range(-(-count // waits)) for wait in range(1, waits + 1)]
    for wait in chance.sample(waits_to_interrupt, count):
        async with asyncio.timeout(4 * LIMIT):
            await interrupted(work(), wait)
            await after()
    return count


def _echo(name: str) -> StartParams:
    return StartParams(
        process_id=name,
        argv=["/bin/cat"],
        cwd=PathUri.from_path("/"),
        env={},
        tty=False,
        pipe_stdin=True,
    )


async def use_and_close(url: str) -> None:
    """Use a server as our own client does, and close the connection well, also if cancelled."""
    async with await ExecServerClient.connect(url) as client:
        process = await client.start(_echo("one"))
        await process.write(b"hello\n")
        await process.read(wait=LIMIT)
        await client.list_processes()
        await process.close_stdin()
        await process.wait()
        other = await client.start(_echo("other"))
        await other.terminate()


async def use_and_leave(url: str) -> None:
    """Do about the same on a connection that ends without a word."""
    async with connect(url) as client:
        await client.start("echo", ["/bin/cat"], pipeStdin=True)
        await client.write("echo", b"hello\n")
        await client.output("echo", b"hello\n")
        await client.call("fs/readFile", {"path": "file:///etc/hostname"})
        await client.start("other", ["/bin/sleep", "600"], tty=True)
        await client.terminate("other")
        await client.read("echo", waitMs=1)


class Quiet:
    """Waits until a server in this process holds no more than at its start."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = descriptors()

    async def __call__(self) -> None:
        """Raises `TimeoutError` if it goes on to hold something."""
        state = self._server.state
        async with asyncio.timeout(2 * LIMIT):
            while state.connections or len(state.sessions) or descriptors() > self._before:
                gc.collect()
                await asyncio.sleep(0.005)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def attack_clients(count: int, chance: random.Random) -> tuple[int, int]:
    """Cancel a client at its waits, and let one leave there. Returns how often."""
    async with Server(session_expiry=0.02, process_retention=0.02) as server:
        url = await server.listen("ws://127.0.0.1:0")
        await use_and_close(url)  # what is made once, is made here
        await asyncio.sleep(0.05)
        quiet = Quiet(server)
        found = [
            await at_each_wait(lambda use=use: use(url), quiet, count=count, chance=chance)  # type: ignore[misc]
            for use in (use_and_close, use_and_leave)
        ]
        async with connect(url) as client:
            assert (await client.run(["/bin/true"])).exit_code == 0
    return found[0], found[1]


async def attack_starts(count: int, chance: random.Random, folder: Path) -> int:
    """Give a start in a sandbox up at its waits. Returns how often."""
    async with holdfast.connect("local", cwd=folder, sandbox="workspace-write") as env:

        async def run() -> None:
            await env.run(["/bin/true"])

        await run()
        before = descriptors()

        async def after() -> None:
            async with asyncio.timeout(2 * LIMIT):
                # Nothing stays in the workspace either.
                while descriptors() > before or os.listdir(folder):
                    gc.collect()
                    await asyncio.sleep(0.002)

        return await at_each_wait(run, after, count=count, chance=chance)


# -- one name, two connections


def _wild(client: Client, chance: random.Random) -> tuple[str, object]:
    """Return a request about one of two processes."""
    name = chance.choice("ab")
    plain = {"processId": name}
    more: list[tuple[str, object]] = [
        ("process/start", start_params(name, ["/bin/cat"], pipeStdin=True)),
        ("process/start", start_params(name, ["/bin/true"])),
        ("process/start", start_params(name, ["/bin/cat"], tty=True)),
        ("process/write", client.write_params(name, b"x\n")),
        ("process/write", client.write_params(name, b"x\n", "the same")),
        ("process/read", {**plain, "afterSeq": 0, "waitMs": chance.choice((0, 5))}),
        ("process/terminate", plain),
        ("process/signal", {**plain, "signal": "interrupt"}),
        ("process/closeStdin", plain),
        ("process/resize", {**plain, "size": {"rows": 9, "cols": 9}}),
        ("process/list", {}),
    ]
    return chance.choice(more)


async def storm(url: str, chance: random.Random) -> None:
    """Ask for all at once, and let two fight for the session of one that leaves."""
    async with AsyncExitStack() as stack:
        one, two, three = [
            await stack.enter_async_context(connect(url, initialize=number == 0))
            for number in range(3)
        ]
        other = await stack.enter_async_context(connect(url))
        asked = []
        for _ in range(_REQUESTS):
            client = chance.choice((one, other))
            asked.append((client, await client.request(*_wild(client, chance))))
        for client, number in asked:
            reply = await client.reply(number)  # each is answered
            assert _INTERNAL not in str(reply.get("error")).lower(), reply
        for client in (one, other):
            listed = [
                each["processId"] for each in (await client.call("process/list"))["processes"]
            ]
            assert len(listed) == len(set(listed)), listed
        for _ in range(chance.randrange(_REQUESTS)):
            await one.request(*_wild(one, chance))  # what is under way when it leaves
        await one.vanish()
        winner = await _resumed(one.session_id, two, three)
        for name in "ab":
            await winner.terminate(name)
        assert await winner.is_ready()
        assert await other.is_ready()


async def _resumed(session: str, two: Client, three: Client) -> Client:
    """Let both resume at once, until one of them has."""
    params = {"clientName": "x", "resumeSessionId": session}
    async with asyncio.timeout(2 * LIMIT):
        while True:
            asked = [(each, await each.request("initialize", params)) for each in (two, three)]
            replies = [(each, await each.reply(number)) for each, number in asked]
            winners = [each for each, reply in replies if "result" in reply]
            assert len(winners) <= 1, "two have one session"
            if winners:
                await winners[0].notify("initialized", {})
                return winners[0]


async def attack_names(count: int, chance: random.Random) -> int:
    """Make so many storms, and return how many."""
    async with Server(session_expiry=2 * LIMIT) as server:
        url = await server.listen("ws://127.0.0.1:0")
        for _ in range(count):
            async with asyncio.timeout(4 * LIMIT):
                await storm(url, chance)
    return count


# -- servers that start at once


def _at_once(work: Callable[[], object]) -> list[object]:
    """Do something in several threads at once, and return what came of each."""
    ready = threading.Barrier(_SERVERS)
    found: list[object] = []

    def run() -> None:
        ready.wait(LIMIT)
        try:
            found.append(work())
        except OSError as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(_SERVERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT)
    assert len(found) == _SERVERS, "a thread is stuck"
    return found


def contest(folder: Path) -> None:
    """Let several have one socket file, which a dead server has left, and one token file."""
    path, tokens = folder / "socket", folder / "tokens"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    found = _at_once(lambda: bind_unix(str(path)))
    bound = [one for one in found if isinstance(one, socket.socket)]
    try:
        assert len(bound) == 1, found
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(LIMIT)
            line.connect(str(path))
            bound[0].settimeout(LIMIT)
            bound[0].accept()[0].close()
    finally:
        for one in bound:
            one.close()

    def token() -> str:
        make_token_file(str(tokens))
        return read_tokens(str(tokens))[0].token

    assert len(set(_at_once(token))) == 1
    assert sorted(each.name for each in folder.iterdir()) == ["socket", "tokens"]
    path.unlink()
    tokens.unlink()


def contest_of_servers(folder: Path) -> None:
    """Let two whole servers have one socket file: one serves, one says why it does not."""
    url = f"unix://{folder}/socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{folder}/socket")
    servers = [
        subprocess.Popen(
            [*HOLDFAST, "serve", "--listen", url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        lines = [first_line(server) for server in servers]
        assert sorted(lines) == ["", url], lines
        loser = servers[lines.index("")]
        assert loser.wait(2 * LIMIT) == 1
        assert loser.stderr is not None
        assert b"Address already in use" in loser.stderr.read()
    finally:
        for server in servers:
            server.terminate()
            server.communicate(timeout=2 * LIMIT)
    assert list(folder.iterdir()) == []


# -- a swapper beside starts


async def swap_during_starts(starts: int) -> int:
    """
    Exchange a directory for a link beside so many starts in sandboxes; returns how many.

    `tests/breakout/test_races.py` is the short form.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, beside(Path(name)) as outsider:
        async with LocalBackend() as backend:
            for profile in ("guarded", "nested"):
                ground = prepare(Path(name, profile), outsider.about)
                work = ground.path("work")
                (work / "swap").symlink_to("../outside")
                text = ground.path("file").read_text()
                names = sorted(ground.path("outside").iterdir())
                swapped = (EXCHANGE, str(work / "sub"), str(work / "swap"))
                async with running(backend, ground, *swapped, limit=None):
                    seen = await all_outcomes(
                        backend, ground, APPEND, ground.path("file"), profile=profile, starts=starts
                    )
                assert THROUGH not in seen, seen
                assert ground.path("file").read_text() == text
                assert sorted(ground.path("outside").iterdir()) == names
    return 2 * starts


# -- the run


async def attack_races(*, count: int, seed: int) -> Figures:
    """
    Make so many of the quick races, and a fifth as many of those that start more.

    Raises:
        AssertionError: Two got what is one's, or something is left.
        TimeoutError: Something is not answered, or never given back.
    """
    chance = random.Random(seed)
    few = max(1, count // 5)
    cancelled, left = await attack_clients(count, chance)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        given_up = await attack_starts(few, chance, Path(name))
    storms = await attack_names(few, chance)
    with tempfile.TemporaryDirectory() as name:
        for _ in range(count):
            contest(Path(name))
        for _ in range(-(-count // 50)):
            contest_of_servers(Path(name))
    return Figures(cancelled, left, given_up, storms, count + -(-count // 50))


def main() -> None:
    parser = argparse.ArgumentParser(description="Do things to servers at the worst moment.")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    figures = asyncio.run(attack_races(count=options.count, seed=options.seed))
    sys.stdout.write(f"{figures} in {time.monotonic() - began:.0f} s\n")
    began = time.monotonic()
    starts = asyncio.run(swap_during_starts(options.count // 2))
    sys.stdout.write(f"{starts} starts beside a swapper in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()

"""
Random cuts under load: no byte lost, doubled or out of order, and no process lost.

    python -m tests.soak.cuts --cuts 2000 --processes 50 --loop uvloop
    python -m tests.soak.cuts --cuts 10000 --clients 8 --processes 4 --sign-interval 0.2

Fast and slow writers and echoes of numbered input are started, checked byte by byte and
replaced by new ones, while the connection is cut in every way of `proxy.CUTS`. Exits 1 with
the first difference.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from functools import reduce
from typing import Any

from holdfast.client.client import ExecServerClient
from holdfast.events import Exited
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams, WriteStatus
from tests.e2e.wire import PATH, serving
from tests.soak.proxy import CUTS, CutProxy, cut_proxy

FAST = "import sys\nfor i in range({count}): sys.stdout.write('%09d\\n' % i)\n"
SLOW = (
    "import sys, time\nfor i in range({count}):\n print('%09d' % i, flush=True); time.sleep(0.01)\n"
)
TINY = "dd if=/dev/zero bs=1 count={count} status=none | tr '\\0' x"


SIGN_INTERVAL = 0.5
"""Seconds; a client whose half of the connection is left open notices after twice as long."""

CONNECT_TIMEOUT = 2.0
"""Seconds; a connection that is left half open in its handshake costs so much of the recovery."""


MOST_IN_A_ROW = 3
"""Cuts before the client has resumed its session once."""


class Load:
    """Workers that start processes, check all they write, and start the next ones."""

    def __init__(self, client: ExecServerClient, seed: int) -> None:
        self._client = client
        self._chance = random.Random(seed)
        self._count = 0
        self.going = True
        self.done: Counter[str] = Counter()
        self.bytes = 0
        self.starts_cut = 0

    async def work(self, number: int) -> None:
        """Run one process after the other until the load is to end."""
        kinds = ("fast", "slow", "echo", "echo", "slow", "tiny")
        while self.going:
            kind = kinds[number % len(kinds)]
            self._count += 1
            await getattr(self, f"_{kind}")(f"{kind}-{self._count}")
            self.done[kind] += 1

    def _params(self, process_id: str, *argv: str, stdin: bool = False) -> StartParams:
        return StartParams(
            process_id=process_id,
            argv=list(argv),
            cwd=PathUri.parse("file:///"),
            env={"PATH": PATH},
            tty=False,
            pipe_stdin=stdin,
        )

    async def _numbered(self, process_id: str, script: str, count: int) -> None:
        process = await self._client.start(
            self._params(process_id, sys.executable, "-c", script.format(count=count))
        )
        expected, rest, code, last = 0, b"", None, 0
        async for event in process.events():
            assert event.seq == last + 1, (process_id, event.seq, last)
            last = event.seq
            if isinstance(event, OutputChunk):
                self.bytes += len(event.chunk)
                data = rest + event.chunk
                whole = len(data) // 10 * 10
                lines = b"".join(b"%09d\n" % n for n in range(expected, expected + whole // 10))
                assert data[:whole] == lines, (process_id, expected, data[:40])
                expected += whole // 10
                rest = data[whole:]
            elif isinstance(event, Exited):
                code = event.verdict.exit_code
        assert (expected, rest, code) == (count, b"", 0), (process_id, expected, rest, code)

    async def _fast(self, process_id: str) -> None:
        await self._numbered(process_id, FAST, self._chance.randrange(100_000, 800_000))

    async def _slow(self, process_id: str) -> None:
        await self._numbered(process_id, SLOW, self._chance.randrange(20, 300))

    async def _tiny(self, process_id: str) -> None:
        count = self._chance.randrange(5_000, 60_000)
        process = await self._client.start(
            self._params(process_id, "/bin/sh", "-c", TINY.format(count=count))
        )
        got = 0
        async for event in process.events():
            if isinstance(event, OutputChunk):
                assert event.chunk == b"x" * len(event.chunk)
                got += len(event.chunk)
        self.bytes += got
        assert got == count, (process_id, got, count)

    async def _echo(self, process_id: str) -> None:
        count = self._chance.randrange(10, 400)
        params = self._params(process_id, "/bin/cat", stdin=True)
        process = await self._client.start(params)

        async def write() -> None:
            for at in range(0, count, 8):
                lines = [b"%09d\n" % n for n in range(at, min(at + 8, count))]
                for status in await asyncio.gather(*(process.write(line) for line in lines)):
                    assert status is WriteStatus.ACCEPTED
                if self._chance.random() < 0.2:
                    await asyncio.sleep(0.01)
            await process.close_stdin()

        got = b""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            async for event in process.events():
                if isinstance(event, OutputChunk):
                    got += event.chunk
        expected = b"".join(b"%09d\n" % n for n in range(count))
        assert got == expected, (process_id, len(got), len(expected), got[-40:])
        self.bytes += len(got)


async def cut_randomly(
    proxy: CutProxy,
    client: ExecServerClient,
    chance: random.Random,
    cuts: int,
    kinds: list[str],
    pause: float,
) -> Counter[str]:
    """
    Cut so many times, at random moments; also while a session is being resumed.

    After a few cuts of that kind the client may come back: it gives up after 45 s.
    """
    made: Counter[str] = Counter()
    in_a_row = 0
    for number in range(cuts):
        async with asyncio.timeout(60):
            await proxy.connected()
            while in_a_row >= MOST_IN_A_ROW and not client.is_connected:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.005)
        in_a_row = 0 if client.is_connected else in_a_row + 1
        await asyncio.sleep(chance.choice((0.0, 0.005, 0.05, chance.uniform(0.0, pause))))
        how = chance.choice(kinds)
        made[how] += 1
        await proxy.cut(how)
        if number % 100 == 99:
            print(f"{number + 1} cuts", file=sys.stderr, flush=True)
    return made


async def soak(
    url: str,
    *,
    cuts: int,
    processes: int,
    seed: int,
    kinds: list[str],
    pause: float = 0.2,
    sign_interval: float = SIGN_INTERVAL,
) -> dict[str, object]:
    """Cut the connection under load; raises at the first difference."""
    chance = random.Random(seed)
    began = time.monotonic()
    async with cut_proxy(url, chance) as proxy:
        client = await ExecServerClient.connect(
            proxy.url,
            sign_interval=sign_interval,
            connect_timeout=CONNECT_TIMEOUT,
            initialize_timeout=CONNECT_TIMEOUT,
        )
        async with client:
            load = Load(client, seed)
            async with asyncio.TaskGroup() as tasks:
                for number in range(processes):
                    tasks.create_task(load.work(number))
                made = await cut_randomly(proxy, client, chance, cuts, kinds, pause)
                load.going = False
    return {
        "cuts": dict(made),
        "connections": proxy.accepted,
        "processes": dict(load.done),
        "MB": load.bytes // 1_000_000,
        "seconds": round(time.monotonic() - began),
    }


async def soak_all(
    url: str, *, clients: int, cuts: int, processes: int, seed: int, **more: Any
) -> dict[str, object]:
    """Cut the connections of several clients at the same time, so many times in all."""
    began = time.monotonic()
    shares = [cuts // clients + (number < cuts % clients) for number in range(clients)]
    async with asyncio.TaskGroup() as tasks:
        each = [
            tasks.create_task(
                soak(url, cuts=share, processes=processes, seed=seed + number, **more)
            )
            for number, share in enumerate(shares)
        ]
    found = reduce(_sum, (task.result() for task in each))
    return {"clients": clients, **found, "seconds": round(time.monotonic() - began)}


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {name: _sum(one.get(name, 0), other.get(name, 0)) for name in one | other}
    return one + other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=50, help="of each client")
    parser.add_argument("--clients", type=int, default=1, help="at the same time")
    parser.add_argument("--sign-interval", type=float, default=SIGN_INTERVAL)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--kinds", nargs="*", default=list(CUTS), choices=CUTS)
    parser.add_argument("--url", help="of a server; one is started unless given")
    options = parser.parse_args()

    async def run(url: str) -> None:
        print(
            await soak_all(
                url,
                clients=options.clients,
                cuts=options.cuts,
                processes=options.processes,
                seed=options.seed,
                kinds=options.kinds,
                sign_interval=options.sign_interval,
            )
        )

    def run_loop(url: str) -> None:
        if options.loop == "uvloop":
            import uvloop

            uvloop.run(run(url))
        else:
            asyncio.run(run(url))

    if options.url:
        run_loop(options.url)
        return
    with serving() as server:
        run_loop(server.url)
        print(server.errors, file=sys.stderr)


if __name__ == "__main__":
    main()

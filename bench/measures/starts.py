"""From `process/start` to `process/closed`: one after another, and many at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from bench import bare, wire
from bench.client import RawClient
from bench.errors import BenchError
from bench.figures import (
    Acks,
    Benchmark,
    Better,
    Context,
    Figure,
    Subject,
    Target,
    both_clients,
    for_both,
    through_both,
)
from bench.servers import talking

__all__ = ["ARGV", "BURST", "PIPES", "TERMINAL", "WARM_UP", "AtOnce", "Starts"]

ARGV = ("/bin/true",)
"""The command that is started."""

WARM_UP = 3
"""Unmeasured starts at the beginning."""


class Starts:
    """Starts each process once the previous one is closed and its start answered."""

    def __init__(self, client: RawClient, requests: Sequence[bytes]) -> None:
        """The ids of the requests count from 0, and each process has to succeed."""
        self._client = client
        self._requests = requests
        self._next = 0
        self._owed = 0
        self._begun = 0.0
        self._seconds = 0.0

    async def run(self) -> float:
        """Return the mean seconds from the request to `closed`."""
        await self._client.until(self, [self._begin()])
        return self._seconds / len(self._requests)

    def _begin(self) -> bytes:
        self._owed = 2
        self._begun = time.perf_counter()
        return self._requests[self._next]

    def __call__(self, payload: memoryview) -> bool:
        message = wire.decode(payload)
        if message.method == "process/closed":
            self._seconds += time.perf_counter() - self._begun
            self._owed -= 1
        elif message.id == self._next:
            self._owed -= 1
        else:
            _check_exit(message)
        if self._owed:
            return False
        self._next += 1
        if self._next == len(self._requests):
            return True
        self._client.send(self._begin())
        return False


def _requests(name: str, count: int, *, tty: bool = False) -> list[bytes]:
    return [wire.start(number, f"{name}{number}", ARGV, tty=tty) for number in range(count)]


class AtOnce:
    """Requests many processes in one write and waits until each is closed."""

    def __init__(self, client: RawClient, name: str, count: int) -> None:
        self._client = client
        self._open = {f"{name}{number}" for number in range(count)}
        self._unanswered = set(range(count))
        self._frames = b"".join(
            wire.frame(wire.start(number, f"{name}{number}", ARGV)) for number in range(count)
        )

    async def run(self) -> float:
        """Return the seconds taken."""
        begun = time.perf_counter()
        self._client.send_frames(self._frames)
        await self._client.until(self)
        return time.perf_counter() - begun

    def __call__(self, payload: memoryview) -> bool:
        message = wire.decode(payload)
        if message.method == "process/closed":
            self._open.remove(message.params.process_id)
        elif message.id is not None:
            self._unanswered.remove(message.id)
        else:
            _check_exit(message)
        return not self._open and not self._unanswered


def _check_exit(message: wire.Incoming) -> None:
    if message.method == "process/exited" and message.params.exit_code != 0:
        raise BenchError(f"{ARGV} ended with {message.params.exit_code}")


def _benchmark(
    name: str, what: str, start: Callable[[Sequence[str]], None], *, tty: bool
) -> Benchmark:
    async def server(context: Context, acks: Acks) -> Mapping[str, float]:
        async with talking(context.command, acks) as (_, client):
            await Starts(client, _requests("warm-up-", WARM_UP, tty=tty)).run()
            requests = _requests("p", context.sizes.starts, tty=tty)
            seconds = await Starts(client, requests).run()
        return {name: seconds * 1e3}

    async def bare_calls(context: Context) -> Mapping[str, float]:
        for _ in range(WARM_UP):
            start(ARGV)
        begun = time.perf_counter()
        for _ in range(context.sizes.starts):
            start(ARGV)
        return for_both({name: (time.perf_counter() - begun) / context.sizes.starts * 1e3})

    return Benchmark(
        name=name.replace("_", "-"),
        figures=both_clients(
            Figure(
                key=name,
                title=f"start → closed of `/bin/true`, {what}",
                unit="ms",
                targets=(Target(factor=1.5, against=Subject.BARE),),
            )
        ),
        runners={
            **dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(server)),
            Subject.BARE: bare_calls,
        },
    )


async def _burst(context: Context, acks: Acks) -> Mapping[str, float]:
    count = context.sizes.burst
    async with talking(context.command, acks) as (_, client):
        await Starts(client, _requests("warm-up-", WARM_UP)).run()
        seconds = await AtOnce(client, "p", count).run()
    return {"burst": count / seconds}


PIPES = _benchmark("start_pipes", "pipes", bare.start_with_pipes, tty=False)
TERMINAL = _benchmark("start_terminal", "terminal", bare.start_with_terminal, tty=True)

BURST = Benchmark(
    name="burst",
    figures=both_clients(
        Figure(
            key="burst",
            title="150 starts of `/bin/true` at once, until all are closed",
            unit="starts/s",
            better=Better.HIGHER,
            targets=(Target(factor=6.0),),
        )
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_burst)),
)

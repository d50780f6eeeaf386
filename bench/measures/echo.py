"""A line to the stdin of `cat` and back."""

from __future__ import annotations

import base64
import statistics
import time
from collections.abc import Mapping

from bench import wire
from bench.client import RawClient
from bench.errors import BenchError
from bench.figures import (
    Acks,
    Benchmark,
    Context,
    Figure,
    Subject,
    Target,
    both_clients,
    through_both,
)
from bench.servers import talking

__all__ = ["ECHO", "Echoes", "start_cat"]

_ARGV = ("/bin/cat",)
_PROCESS = "cat"
_LINE = b"a line of thirty-two characters\n"
_WARM_UP = 3


class Echoes:
    """Writes each line once the previous one has returned and its write was answered."""

    def __init__(self, client: RawClient, first: int, count: int) -> None:
        self._client = client
        chunk = base64.b64encode(_LINE).decode()
        self._requests = [
            wire.request(
                number,
                "process/write",
                {"processId": _PROCESS, "chunk": chunk, "writeId": f"w{number}"},
            )
            for number in range(first, first + count)
        ]
        self._first = first
        self._next = 0
        self._answered = False
        self._back = b""
        self._begun = 0.0
        self._seconds: list[float] = []

    async def run(self) -> list[float]:
        """Return the seconds from each write to its output."""
        await self._client.until(self, [self._begin()])
        return self._seconds

    def _begin(self) -> bytes:
        self._answered = False
        self._back = b""
        self._begun = time.perf_counter()
        return self._requests[self._next]

    def __call__(self, payload: memoryview) -> bool:
        message = wire.decode(payload)
        if message.method == "process/output":
            self._back += message.params.chunk
            if self._back == _LINE:
                self._seconds.append(time.perf_counter() - self._begun)
        elif message.id == self._first + self._next:
            if b'"accepted"' not in bytes(message.result):
                raise BenchError(f"a write was not accepted: {bytes(message.result).decode()}")
            self._answered = True
        else:
            raise BenchError("cat ended")
        if not self._answered or self._back != _LINE:
            return False
        self._next += 1
        if self._next == len(self._requests):
            return True
        self._client.send(self._begin())
        return False


async def start_cat(client: RawClient) -> int:
    """Start the echoing command and warm it up; return the first id that is free for `Echoes`."""
    await client.call(wire.start(1, _PROCESS, _ARGV, pipe_stdin=True), 1)
    await Echoes(client, 2, _WARM_UP).run()
    return 2 + _WARM_UP


async def _echo(context: Context, acks: Acks) -> Mapping[str, float]:
    async with talking(context.command, acks) as (_, client):
        first = await start_cat(client)
        seconds = statistics.mean(await Echoes(client, first, context.sizes.echoes).run())
    return {"echo": seconds * 1e3}


ECHO = Benchmark(
    name="echo",
    figures=both_clients(
        Figure(
            key="echo",
            title="stdin echo of a line through `cat`",
            unit="ms",
            targets=(Target(factor=0.01),),
        )
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_echo)),
)

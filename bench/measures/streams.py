"""Bytes per second from a command through a server to its client, and their cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

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
from bench.processes import cpu_seconds
from bench.servers import talking

__all__ = ["PIPE", "TERMINAL"]

_MIB = 1024 * 1024
_GIB = 1024 * _MIB

_CHECKED_BYTES = 256 * 1024
"""Size of the stream that is decoded and compared in full before the timed one."""

_WRITER = """
import os, sys
left, block = int(sys.argv[1]), b"x" * 65536
while left:
    left -= os.write(1, block[:left])
"""


def _zeros(size: int) -> list[str]:
    """Return the cheapest command that writes so many bytes."""
    return ["/usr/bin/head", "-c", str(size), "/dev/zero"]


def _letters(size: int) -> list[str]:
    """
    Return a command that writes `x` that many times, for terminals.

    Their modes stay at the kernel's defaults; without control characters the line discipline has
    nothing to translate, so the size does not change.
    """
    return [sys.executable, "-I", "-S", "-c", _WRITER, str(size)]


class _Stream:
    """
    Runs one command and counts its output, examining only the ends of each message.

    For every stream it checks that no seq is missing and that the total is right; that the bytes
    are right is checked for a first, small one (`_CheckedStream`).
    """

    def __init__(
        self, client: RawClient, process_id: str, argv: Sequence[str], size: int, *, tty: bool
    ) -> None:
        self._client = client
        self._start = wire.start(1, process_id, argv, tty=tty)
        self._size = size
        self._seq = 0
        self._early: set[int] = set()
        self._last = 0
        self._answered = False
        self._first = 0
        self._count = 0
        self._begun = 0.0
        self._ended = 0.0

    async def run(self) -> float:
        """Return bytes per second from the first message of output to the last."""
        await self._client.until(self, [self._start])
        if self._count != self._size:
            raise BenchError(f"{self._count} bytes arrived of {self._size}")
        return (self._count - self._first) / max(self._ended - self._begun, 1e-9)

    def __call__(self, payload: memoryview) -> bool:
        output = wire.output_size(payload)
        if output is None:
            self._other(wire.decode(payload))
            return self._complete()
        seq, size = output
        self._follow(seq)
        if not self._count:
            self._first = size
            self._begun = time.perf_counter()
        self._count += size
        if self._count == self._size:
            self._ended = time.perf_counter()
        return self._complete()

    def _complete(self) -> bool:
        return self._last != 0 and self._seq == self._last and self._answered

    def _follow(self, seq: int) -> None:
        """Count the events up to the first gap: each arrives once, in any order [output.seq]."""
        if seq != self._seq + 1:
            if seq <= self._seq or seq in self._early:
                raise BenchError(f"event {seq} arrived twice")
            self._early.add(seq)
            return
        self._seq = seq
        while self._early and self._seq + 1 in self._early:
            self._seq += 1
            self._early.remove(self._seq)

    def _other(self, message: wire.Incoming) -> None:
        if message.id is not None:
            self._answered = True
            return
        self._follow(message.params.seq)
        if message.method == "process/closed":
            self._last = message.params.seq
        elif message.params.exit_code != 0:
            raise BenchError(f"the writing command ended with {message.params.exit_code}")


class _CheckedStream(_Stream):
    """A stream of which every byte is decoded and compared."""

    def __init__(
        self,
        client: RawClient,
        process_id: str,
        argv: Sequence[str],
        size: int,
        *,
        tty: bool,
        byte: bytes,
    ) -> None:
        super().__init__(client, process_id, argv, size, tty=tty)
        self._byte = byte

    def __call__(self, payload: memoryview) -> bool:
        chunk = wire.decode(payload).params.chunk
        if chunk.strip(self._byte):
            raise BenchError("other bytes arrived than were written")
        output = wire.output_size(payload)
        if output is not None and output[1] != len(chunk):
            raise BenchError("the size read from a message differs from its content")
        return super().__call__(payload)


async def _pipe(context: Context, acks: Acks) -> Mapping[str, float]:
    size = context.sizes.pipe_bytes
    argv = _zeros(size)
    async with talking(context.command, acks) as (server, client):
        await _CheckedStream(
            client, "checked", _zeros(_CHECKED_BYTES), _CHECKED_BYTES, tty=False, byte=b"\0"
        ).run()
        pids = server.processes(command=argv)
        before = cpu_seconds(pids)
        rate = await _Stream(client, "timed", argv, size, tty=False).run()
        if not set(pids) <= set(server.processes(command=argv)):
            raise BenchError("a process of the server ended, so its CPU time is lost")
        # A new process, such as a late helper, had used no time before.
        used = cpu_seconds(server.processes(command=argv)) - before
    return {"stream_pipe": rate / _MIB, "cpu": used / (size / _GIB)}


async def _terminal(context: Context, acks: Acks) -> Mapping[str, float]:
    size = context.sizes.terminal_bytes
    async with talking(context.command, acks) as (_, client):
        await _CheckedStream(
            client, "checked", _letters(_CHECKED_BYTES), _CHECKED_BYTES, tty=True, byte=b"x"
        ).run()
        rate = await _Stream(client, "timed", _letters(size), size, tty=True).run()
    return {"stream_terminal": rate / _MIB}


async def _bare_pipe(context: Context) -> Mapping[str, float]:
    size = context.sizes.pipe_bytes
    return for_both({"stream_pipe": bare.pipe_rate(_zeros(size), size) / _MIB})


async def _bare_terminal(context: Context) -> Mapping[str, float]:
    size = context.sizes.terminal_bytes
    return for_both({"stream_terminal": bare.terminal_rate(_letters(size), size) / _MIB})


PIPE = Benchmark(
    name="stream-pipe",
    figures=both_clients(
        Figure(
            key="stream_pipe",
            title="stream 192 MiB through a pipe",
            unit="MiB/s",
            better=Better.HIGHER,
            targets=(Target(factor=3.0),),
        ),
        Figure(
            key="cpu",
            title="server CPU per GiB of that stream",
            unit="s/GiB",
            targets=(Target(factor=0.25),),
        ),
    ),
    runners={
        **dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_pipe)),
        Subject.BARE: _bare_pipe,
    },
)

TERMINAL = Benchmark(
    name="stream-terminal",
    figures=both_clients(
        Figure(
            key="stream_terminal",
            title="stream 32 MiB through a terminal",
            unit="MiB/s",
            better=Better.HIGHER,
            targets=(Target(factor=0.75, against=Subject.BARE),),
        ),
    ),
    runners={
        **dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_terminal)),
        Subject.BARE: _bare_terminal,
    },
)

"""A process that was started and goes on: written to, read, waited for, ended."""

import asyncio
import codecs
import signal as signals
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Generator
from dataclasses import dataclass
from typing import Self

from holdfast.backends import ExecProcess
from holdfast.environments.commands.run import DRAIN, PIECE, end_process
from holdfast.errors import HoldfastError, RemoteError, StdinClosed
from holdfast.events import Closed, Exited, ProcessEvent, Verdict
from holdfast.protocol.process import (
    Enforcement,
    OutputChunk,
    OutputStream,
    ReadResponse,
    WriteStatus,
)
from holdfast.tasks import OwnedTasks

__all__ = ["Chunk", "Output", "Running", "Starting"]

_KEPT = 1 << 20
"""Bytes kept for `output` while somebody waits for the end and nobody reads."""

_PAST_THE_END = 1 << 62
"""A number that no event has: to read after it tells how a process stands."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Something that a process wrote."""

    stream: OutputStream
    """`stdout` or `stderr`, or `pty` on a terminal."""
    data: bytes
    text: str
    """As text; a letter that is cut between two chunks comes with the second."""
    seq: int
    """Its number among all events of the process."""

    def __str__(self) -> str:
        return self.text


class Running:
    """
    A process that was started.

    As a context manager it ends the process at the end of the block: it is killed with
    all that is below it, unless it was detached by a name.
    """

    def __init__(self, process: ExecProcess, *, detached: str | None, tasks: OwnedTasks) -> None:
        self.process = process
        """The process behind the seam."""
        self.detached = detached
        """The name to find it by, if it has one."""
        self.verdict: Verdict | None = None
        """How it ended, as soon as `output` or `wait` has seen that."""
        self._tasks = tasks
        self._events: AsyncIterator[ProcessEvent] | None = None
        self._turn = asyncio.Lock()
        self._last_seq = 0
        self._closed = False
        self._failure: HoldfastError | None = None
        self._exit_time = 0.0
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        # What was seen while waiting for the end, and nobody has read yet.
        self._pending: deque[Chunk] = deque()
        self._pending_size = 0
        self._room = asyncio.Event()
        self._readers = 0
        # Whether it is being ended: then nobody reads who could be waited for.
        self._ending = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.detached is None:
            await self.aclose()
        else:
            self._events = None  # it must not wait for a reader that has gone

    async def aclose(self) -> None:
        """Kill it and all that is below it, if it runs, and wait for its end; at most 5 s."""
        if self.verdict is None:
            self._ending = True
            await end_process(self.process, self.wait, self._tasks)
        self._events = None

    @property
    def process_id(self) -> str:
        """The id it was started with."""
        return self.process.process_id

    @property
    def enforcement(self) -> Enforcement | None:
        """What its sandbox enforces, and what that does not stop; `None` without one."""
        return self.process.enforcement

    # -- input

    async def write(self, data: str | bytes) -> None:
        """
        Write to its input; waits while its queue is full.

        Raises:
            StdinClosed: It reads nothing any more, or was started without an input.
        """
        raw = data.encode() if isinstance(data, str) else data
        for at in range(0, len(raw), PIECE):
            status = await self.process.write(raw[at : at + PIECE])
            if status is not WriteStatus.ACCEPTED:
                raise StdinClosed("the input of the process is closed")

    async def close_stdin(self) -> None:
        """
        Let it read the end of its input.

        Raises:
            InvalidRequest: It has a terminal: write `"\\x04"` instead.
            Unsupported: The server does not know how.
        """
        await self.process.close_stdin()

    # -- output

    def output(self, *, drain: float | None = DRAIN) -> "Output":
        """
        What it writes, as it comes; goes on where the last call stopped.

        It ends when the output has ended, or soon after the exit if something else
        still holds the output. Who reads slowly makes the process wait.

        Args:
            drain: Seconds to wait after the exit; `None` for as long as it takes.
        """
        return Output(self, drain)

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        """What is kept of its output (up to 1 MiB) after a number; does not disturb `output`."""
        return await self.process.read(after_seq, max_bytes, wait)

    # -- the end

    async def wait(self) -> Verdict:
        """
        Wait for its exit and tell how it ended.

        Meanwhile its output is kept for `output`: if nobody reads that, the last 1 MiB.

        Raises:
            ConnectionLost: It cannot be reached any more.
        """
        while self.verdict is None:
            if self._pending_size > _KEPT:
                if self._readers and not self._ending:
                    self._room.clear()
                    await self._room.wait()
                    continue
                self._take()
            else:
                await self._pull()
        return self.verdict

    async def exited(self) -> bool:
        """Whether it has exited, asked where it runs."""
        if self.verdict is not None:
            return True
        try:
            return (await self.process.read(_PAST_THE_END)).exited
        except RemoteError:
            return True  # so long ago that it is forgotten

    async def signal(self, which: str | int) -> None:
        """
        Signal its group; nothing happens once it has exited.

        Args:
            which: A number or a name such as `SIGTERM`. The real Codex knows only `SIGINT`.
        """
        name = which if isinstance(which, str) else signals.Signals(which).name
        await self.process.signal("interrupt" if name == "SIGINT" else name)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal."""
        await self.process.resize(rows, cols)

    async def terminate(self) -> bool:
        """Kill it and all that is below it, at once; whether it was running."""
        return await self.process.terminate(tree=True)

    def __repr__(self) -> str:
        state = "running" if self.verdict is None else str(self.verdict)
        name = "" if self.detached is None else f" detached as {self.detached!r}"
        return f"<Running {self.process_id}{name}, {state}>"

    # -- what readers and waiters share

    async def _pull(self) -> None:
        """Wait for one more event, whoever gets it."""
        seen = self._last_seq
        async with self._turn:
            if self._last_seq != seen or self._closed:
                return  # somebody else got one meanwhile
            if self._failure is not None:
                raise self._failure
            if self._events is None:
                self._events = self.process.events()
            try:
                event = await anext(self._events)
            except HoldfastError as error:
                self._failure = error
                raise
            if event.seq > seen:  # events that begin anew begin with what was seen
                self._last_seq = event.seq
                self._see(event)

    def _see(self, event: ProcessEvent) -> None:
        if type(event) is OutputChunk:
            self._keep(event.stream, event.chunk, event.seq)
        elif type(event) is Exited:
            self.verdict = event.verdict
            self._exit_time = asyncio.get_running_loop().time()
        else:
            assert type(event) is Closed  # the only other kind
            self._closed = True
            for stream in ("stdout", "stderr", "pty"):
                if stream in self._decoders:
                    self._keep(stream, b"", event.seq, final=True)
        self._room.set()

    def _keep(self, stream: OutputStream, data: bytes, seq: int, *, final: bool = False) -> None:
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final)
        if data or text:
            self._pending.append(Chunk(stream, data, text, seq))
            self._pending_size += len(data)

    def _take(self) -> Chunk | None:
        if not self._pending:
            return None
        chunk = self._pending.popleft()
        self._pending_size -= len(chunk.data)
        self._room.set()
        return chunk

    async def next_chunk(self, drain: float | None) -> Chunk | None:
        """For `Output`: the next one; `None` at the end."""
        while True:
            chunk = self._take()
            if chunk is not None:
                return chunk
            if self._closed:
                return None
            limit = None
            if self.verdict is not None and drain is not None:
                limit = self._exit_time + drain
            try:
                async with asyncio.timeout_at(limit):
                    await self._pull()
            except TimeoutError:
                return None

    def reading(self, change: int) -> None:
        """For `Output`: one reader more or less."""
        self._readers += change
        self._room.set()


class Output:
    """An iterator over what a process writes."""

    def __init__(self, running: Running, drain: float | None) -> None:
        self._running = running
        self._drain = drain
        self._reading = True
        running.reading(1)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._running.next_chunk(self._drain) if self._reading else None
        if chunk is None:
            self.close()
            raise StopAsyncIteration
        return chunk

    def close(self) -> None:
        """Read no more; what comes is kept for the next one."""
        if self._reading:
            self._reading = False
            self._running.reading(-1)

    def __del__(self) -> None:
        self.close()


class Starting:
    """
    A process about to be started: `await` it, or use it with `async with`.

    At the end of the block the process is ended, unless it was detached by a name.
    """

    def __init__(self, work: Coroutine[object, None, Running]) -> None:
        self._work = work
        self._running: Running | None = None

    def __await__(self) -> Generator[object, None, Running]:
        return self._work.__await__()

    async def __aenter__(self) -> Running:
        self._running = await self._work
        return self._running

    async def __aexit__(self, *exc: object) -> None:
        assert self._running is not None  # made at the beginning of the block
        await self._running.__aexit__(*exc)

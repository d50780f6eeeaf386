"""A running process: its input, output and end."""

import asyncio
import codecs
from collections import deque
from collections.abc import Coroutine, Generator
from dataclasses import replace
from typing import Self

from holdfast.backends import ExecProcess
from holdfast.base.errors import OutputLost, PatternNotFound, PatternTimedOut, StdinClosed
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.collect.drain import DRAIN_LIMIT, Drain
from holdfast.environments.commands.arguments import as_bytes, as_signal_name, seconds
from holdfast.environments.commands.chunks import Chunk, ChunkDecoder
from holdfast.environments.commands.command_starter import EndLeft
from holdfast.environments.commands.expect import AnyPattern, ExpectMatch, PatternSearch
from holdfast.environments.commands.run import DRAIN, PIECE, end_process, run_on
from holdfast.events import Closed, Gap, ProcessEvent, Verdict, WaitingFor
from holdfast.wire.protocol.process import (
    Enforcement,
    OutputChunk,
    ReadResponse,
    StreamsAtEnd,
    WriteStatus,
)

__all__ = ["EXPECT_TIMEOUT", "ExpectMatch", "Output", "Running", "Starting"]

EXPECT_TIMEOUT = 30.0
"""Seconds that `expect` waits by default."""

# Bytes kept for `output` while callers wait for the exit or a pattern without reading.
_KEPT = 1 << 20


class Running:
    """
    A started process.

    As a context manager, it kills the process tree at the end of the block, unless the process
    was detached.
    """

    def __init__(
        self,
        process: ExecProcess,
        *,
        detached: str | None,
        tasks: OwnedTasks,
        end_left: EndLeft,
    ) -> None:
        self.process = process
        """The backend's process."""
        self.detached = detached
        """The name to find it by, if it has one."""
        self.missed = 0
        """
        Number of output events that were dropped before they were read.

        Output can only be lost while there is no reader: before the first read, during a `wait`,
        or between two blocks of a detached process. `Chunk.missed` marks each gap.
        """
        self._tasks = tasks
        self._end_left = end_left
        self._drain: Drain | None = None
        # Held by the task that waits for the next event.
        self._turn = asyncio.Lock()
        self._decoder = ChunkDecoder()
        self._closed = False
        # Chunks that were received but not read yet.
        self._pending: deque[Chunk] = deque()
        self._pending_size = 0
        self._room = asyncio.Event()
        self._readers = 0
        # True once the process is being ended: from then on, readers cause no backpressure.
        self._ending = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.detached is None:
            await self.aclose()
        else:
            # Paused, so that the process does not wait for a reader that has left.
            self._pause()

    async def aclose(self) -> None:
        """
        Kill the process tree if it runs, and wait for its end, at most 5 s.

        Also kills processes it left behind, including daemons: see `Environment.run`.
        """
        if self.verdict is None:
            # Makes `wait` drop output instead of waiting for a reader.
            self._ending = True
            await end_process(self.process, self.wait, self._tasks)
        await run_on(self._end_left(), self._tasks)
        self._pause()

    @property
    def process_id(self) -> str:
        """The id it was started with."""
        return self.process.process_id

    @property
    def pid(self) -> int | None:
        """Its pid on the machine where it runs; None if the server does not send it."""
        return self.process.pid

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, or None while it runs."""
        return self.process.verdict

    @property
    def exit_code(self) -> int | None:
        """Its exit status, or 128 plus the signal that killed it; None while it runs."""
        verdict = self.process.verdict
        return None if verdict is None else verdict.exit_code

    @property
    def enforcement(self) -> Enforcement | None:
        """The enforced sandbox layers and their known gaps; None without a sandbox."""
        return self.process.enforcement

    # -- input

    async def write(self, data: str | bytes) -> None:
        """
        Write to its stdin; waits while the queue is full.

        Raises:
            StdinClosed: Its stdin is closed, or it was started without one.
            TypeError: The data is neither a string nor bytes.
        """
        raw = as_bytes(data, "data")
        for at in range(0, len(raw), PIECE):
            status = await self.process.write(raw[at : at + PIECE])
            if status is not WriteStatus.ACCEPTED:
                raise StdinClosed("the input of the process is closed")

    async def close_stdin(self) -> None:
        """
        Close its stdin.

        Raises:
            InvalidRequest: It has a terminal: write `"\\x04"` instead.
            Unsupported: The server lacks the method.
        """
        await self.process.close_stdin()

    # -- output

    def output(self, *, drain: float | None = DRAIN) -> "Output":
        """
        Iterate over its output, from where the last iterator stopped.

        Iteration ends when the output has ended. If another process holds the output open after
        the exit, it ends after `drain` seconds of silence, and at the latest 2 s (or `drain`)
        after the exit. A slow reader makes the process wait.

        Args:
            drain: Seconds of silence after the exit; None waits for the end of the output without
                a limit.
        """
        return Output(self, None if drain is None else seconds(drain, "drain"))

    async def expect(
        self, pattern: AnyPattern, timeout: float | None = EXPECT_TIMEOUT
    ) -> ExpectMatch:
        """
        Wait until a pattern appears in its output; return the match and the text before it.

        Searches what `output` would return next, from all streams in order of arrival. The
        returned text is consumed: the next `expect` or `output` continues after the match.
        Without a match, only output further back than 1 MiB is consumed. Do not read in another
        task meanwhile: each chunk goes to only one of the two.

        Args:
            pattern: A literal string or bytes, or a compiled regular expression, whose match
                begins at most 64 KiB before the newest output.
            timeout: Seconds; `None` for no limit.

        Raises:
            PatternTimedOut: It did not appear in time; also a `TimeoutError`. `seen` is the
                output that arrived instead.
            PatternNotFound: The output ended without it; also has `seen`.
            ConnectionLost: The connection was lost for good.
        """
        search = PatternSearch(pattern)
        limit = None if timeout is None else seconds(timeout, "timeout")
        taken: deque[Chunk] = deque()
        found: ExpectMatch | None = None
        deadline = asyncio.timeout(limit)
        self.reading(1)
        try:
            async with deadline:
                while found is None and (chunk := await self.next_chunk(DRAIN)) is not None:
                    taken.append(chunk)
                    search.add(chunk.data)
                    found = search.find()
                    # Bound memory: drop chunks that a match cannot reach.
                    while search.size - len(taken[0].data) > _KEPT and found is None:
                        search.skip(len(taken.popleft().data))
        except TimeoutError:
            if not deadline.expired():
                raise
            raise PatternTimedOut(pattern, search.seen) from None
        finally:
            # Also after a timeout: the next reader gets these chunks.
            self._give_back(taken, search.end)
            self.reading(-1)
        if found is None:
            raise PatternNotFound(pattern, search.seen)
        return found

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        """Return retained output after a `seq`, up to 1 MiB; does not consume it."""
        return await self.process.read(after_seq, max_bytes, wait)

    # -- the end

    async def wait(self) -> Verdict:
        """
        Wait for its exit and return the verdict.

        Meanwhile output is kept for `output`: the last 1 MiB, if there is no reader.

        Raises:
            ConnectionLost: The connection was lost for good.
        """
        while self.process.verdict is None and not self._closed:
            if self._pending_size > _KEPT:
                # A reader takes the chunks; without one, drop the oldest so that the exit arrives.
                if self._readers and not self._ending:
                    await self._room_or_exit()
                    continue
                self._drop_oldest()
            else:
                await self._pull(None)
        verdict = self.process.verdict
        return await self.process.exited() if verdict is None else verdict

    async def signal(self, which: str | int) -> None:
        """
        Signal its process group; does nothing once it has exited.

        Args:
            which: A number or a name such as `SIGTERM`. The base protocol has only `SIGINT`.

        Raises:
            InvalidParams: There is no such signal.
        """
        name = as_signal_name(which)
        await self.process.signal("interrupt" if name == "SIGINT" else name)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal."""
        await self.process.resize(rows, cols)

    async def waiting_for(self) -> WaitingFor:
        """
        Return which input it waits for on its terminal: a line, a password, a key, or none.

        `UNKNOWN` on pipes, on a server without Holdfast's extensions, and for a process of another
        user. Call it when the process has been quiet for a while, not in a loop.
        """
        return await self.process.waiting_for()

    async def terminate(self, *, left: bool = False, streams: StreamsAtEnd = "close") -> bool:
        """
        Kill the process tree at once; return True if any process was killed.

        Args:
            left: Also kill the process group of an exited process; an extension.
            streams: `close` ends its output; `keep` reads until the output ends. The base
                protocol always closes.
        """
        return await self.process.terminate(tree=True, left=left, streams=streams)

    def __repr__(self) -> str:
        state = "running" if self.verdict is None else str(self.verdict)
        name = "" if self.detached is None else f" detached as {self.detached!r}"
        return f"<Running {self.process_id}{name}, {state}>"

    # -- shared by readers and waiters

    async def _pull(self, drain: float | None) -> bool:
        """Wait until any reader has received an event; return False at the end."""
        if self._drain is None:
            self._drain = Drain(self.process)
        reader = self._drain
        seen = reader.last_seq
        try:
            # Another reader may hold the turn for longer than this one waits.
            async with asyncio.timeout(None if reader.verdict is None else drain):
                await self._turn.acquire()
        except TimeoutError:
            return False
        try:
            if reader.last_seq != seen or self._closed:
                # Another reader received an event while we waited.
                return True
            limit = None if drain is None else max(DRAIN_LIMIT, drain)
            try:
                event = await reader.next(quiet=drain, limit=limit)
            except OutputLost:
                # The stream continues after the gap, and reports its size.
                return True
            if event is not None:
                self._see(event)
            elif reader.closed:
                self._finish(reader.last_seq)
            return event is not None
        finally:
            self._turn.release()

    async def _room_or_exit(self) -> None:
        """Wait until a reader has taken a chunk, or the process has exited."""
        # Wait for both: a reader may have stopped for ever while the process is ended.
        self._room.clear()

        def done(task: asyncio.Task[Verdict]) -> None:
            self._room.set()
            if not task.cancelled():
                # Retrieved so that asyncio does not log it; raised below if still awaited.
                task.exception()

        exited = asyncio.create_task(self.process.exited())
        exited.add_done_callback(done)
        try:
            await self._room.wait()
            if exited.done():
                exited.result()
        finally:
            exited.cancel()

    def _pause(self) -> None:
        """Stop backpressure on the process, unless a reader is waiting."""
        # The task that holds the turn is a reader, and must not lose its stream.
        if self._drain is not None and not self._turn.locked():
            self._drain.pause()

    def _see(self, event: ProcessEvent) -> None:
        if type(event) is OutputChunk:
            self._pending.append(self._decoder.decode(event))
            self._pending_size += len(event.chunk)
        elif type(event) is Gap:
            lost = event.last_seq - event.first_seq + 1
            self.missed += lost
            self._decoder.skip(lost)
        elif type(event) is Closed:
            self._finish(event.seq)
        self._room.set()

    def _finish(self, seq: int) -> None:
        self._closed = True
        # They have text but no bytes.
        self._pending.extend(self._decoder.finish(seq))

    def _take(self) -> Chunk | None:
        if not self._pending:
            return None
        chunk = self._pending.popleft()
        self._pending_size -= len(chunk.data)
        self._room.set()
        return chunk

    def _drop_oldest(self) -> None:
        """Drop the oldest unread chunk, and count it in the next one."""
        dropped = self._take()
        if dropped is None:
            return
        self.missed += 1
        missed = dropped.missed + 1
        if self._pending:
            following = self._pending[0]
            # The next chunk reports the gap.
            self._pending[0] = replace(following, missed=following.missed + missed)
        else:
            self._decoder.skip(missed)

    def _give_back(self, taken: deque[Chunk], consumed: int) -> None:
        """Put chunks back to be read next, without the `consumed` bytes."""
        while taken and consumed > 0:
            chunk = taken.popleft()
            if len(chunk.data) > consumed:
                taken.appendleft(_rest(chunk, consumed))
            consumed -= len(chunk.data)
        self._pending.extendleft(reversed(taken))
        self._pending_size += sum(len(chunk.data) for chunk in taken)

    async def next_chunk(self, drain: float | None) -> Chunk | None:
        """Return the next chunk, or None at the end; for `Output`."""
        while not (self._pending or self._closed) and await self._pull(drain):
            pass
        return self._take()

    def reading(self, change: int) -> None:
        """Add `change` to the number of readers; for `Output`."""
        self._readers += change
        self._room.set()


class Output:
    """An iterator over the output of a process."""

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
        """Stop reading; later output is kept for the next reader."""
        if self._reading:
            self._reading = False
            self._running.reading(-1)

    # A dropped iterator must not count as a reader.
    def __del__(self) -> None:
        self.close()


def _rest(chunk: Chunk, start: int) -> Chunk:
    """Return the chunk without its first bytes."""
    data = chunk.data[start:]
    # Not final: a character split at the end belongs to the next chunk.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    return Chunk(chunk.stream, data, text, chunk.seq)


class Starting:
    """
    A process about to be started: `await` it, or use it with `async with`.

    The process is ended at the end of the block, unless it was detached.
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
        # Set by `__aenter__`.
        assert self._running is not None
        await self._running.__aexit__(*exc)

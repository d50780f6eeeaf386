"""A started process: write to it, read from it, wait for it, end it."""

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
"""Seconds that `expect` waits unless told otherwise."""

# Bytes kept for `output` while somebody waits for the exit or a pattern and nobody reads.
_KEPT = 1 << 20


class Running:
    """
    A started process.

    As a context manager it ends the process at the end of the block: the process tree is
    killed, unless it was detached by a name.
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
        Number of output events that are lost: no longer retained, and read by nobody here.

        Only output written while nobody read can be lost: before the first read, during a
        `wait`, or between two blocks of a detached process. `Chunk.missed` marks each gap.
        """
        self._tasks = tasks
        self._end_left = end_left
        self._drain: Drain | None = None
        # Held by the one task that waits for the next event.
        self._turn = asyncio.Lock()
        self._decoder = ChunkDecoder()
        self._closed = False
        # Chunks that were received and not read yet.
        self._pending: deque[Chunk] = deque()
        self._pending_size = 0
        self._room = asyncio.Event()
        self._readers = 0
        # True while the process is being ended: from then on no reader is waited for.
        self._ending = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.detached is None:
            await self.aclose()
        else:
            # Paused, so that the process does not wait for a reader that has gone.
            self._pause()

    async def aclose(self) -> None:
        """
        Kill the process tree, if it runs, and wait for its end; at most 5 s.

        Processes it left behind, daemons too, are killed as well: see `Environment.run`.
        """
        if self.verdict is None:
            # From now on `wait` drops output instead of waiting for a reader.
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
        """The verdict once it is known here; None while it runs."""
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
        Write to its input; waits while its queue is full.

        Raises:
            StdinClosed: It reads nothing any more, or was started without an input.
            TypeError: The data is neither text nor bytes.
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
        Return an iterator over its output; continues where the last one stopped.

        It ends when the output has ended. After the exit it also ends after `drain` seconds of
        silence, and at the latest 2 s (or `drain`) after the exit: then another process still
        holds the output open. A slow reader makes the process wait.

        Args:
            drain: Seconds without output after the exit; None waits for the end of the output
                as long as it takes.
        """
        return Output(self, None if drain is None else seconds(drain, "drain"))

    async def expect(
        self, pattern: AnyPattern, timeout: float | None = EXPECT_TIMEOUT
    ) -> ExpectMatch:
        """
        Wait until a pattern is in its output, and return the match with the text before it.

        It looks at what `output` would have next, of all streams as they came. What it
        returns is consumed: the next `expect` or `output` goes on right behind the match.
        Without a match nothing is consumed but what is further back than 1 MiB. Do not read
        in another task meanwhile: each chunk goes to one of the two.

        Args:
            pattern: A literal text or bytes, or a compiled regular expression. A match of
                that begins at most 64 KiB before the newest output.
            timeout: Seconds; `None` for as long as it takes.

        Raises:
            PatternTimedOut: It did not come in time; also a `TimeoutError`. `seen` is the
                text that came instead.
            PatternNotFound: The output has ended; with `seen`, too.
            ConnectionLost: It cannot be reached any more.
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
                    # Memory is bounded: chunks beyond the reach of a match are given up.
                    while search.size - len(taken[0].data) > _KEPT and found is None:
                        search.skip(len(taken.popleft().data))
        except TimeoutError:
            if not deadline.expired():
                raise
            raise PatternTimedOut(pattern, search.seen) from None
        finally:
            # Also after a timeout: what was read belongs to the next reader.
            self._give_back(taken, search.end)
            self.reading(-1)
        if found is None:
            raise PatternNotFound(pattern, search.seen)
        return found

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        """Return the retained output after a number, up to 1 MiB; `output` returns it as well."""
        return await self.process.read(after_seq, max_bytes, wait)

    # -- the end

    async def wait(self) -> Verdict:
        """
        Wait for its exit and return the verdict.

        Meanwhile its output is kept for `output`: the last 1 MiB, if nobody reads.

        Raises:
            ConnectionLost: It cannot be reached any more.
        """
        while self.process.verdict is None and not self._closed:
            if self._pending_size > _KEPT:
                # A reader takes the chunks; without one the oldest are dropped so that the exit is
                # seen.
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
        Signal its group; nothing happens once it has exited.

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
        Return the input that its terminal is read for: a line, a password, a key, or nothing.

        `UNKNOWN` on pipes, on a server without our extensions, and for a process of another
        user. Call it when the process has been quiet for a while, not in a loop.
        """
        return await self.process.waiting_for()

    async def terminate(self, *, left: bool = False, streams: StreamsAtEnd = "close") -> bool:
        """
        Kill the process tree at once; return True if there was something to kill.

        Args:
            left: Also kill what an exited process left in its group; an extension.
            streams: `close` ends its output; `keep` reads until the output ends. The base
                protocol always closes.
        """
        return await self.process.terminate(tree=True, left=left, streams=streams)

    def __repr__(self) -> str:
        state = "running" if self.verdict is None else str(self.verdict)
        name = "" if self.detached is None else f" detached as {self.detached!r}"
        return f"<Running {self.process_id}{name}, {state}>"

    # -- what readers and waiters share

    async def _pull(self, drain: float | None) -> bool:
        """Wait for one more event, for whichever reader gets it; return False at the end."""
        if self._drain is None:
            self._drain = Drain(self.process)
        reader = self._drain
        seen = reader.last_seq
        try:
            # Another reader may hold the turn longer than this one wants to wait.
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
                # The stream continues after the gap and reports its size.
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
        # Both, because a reader may stop for ever while others end the process.
        self._room.clear()

        def done(task: asyncio.Task[Verdict]) -> None:
            self._room.set()
            if not task.cancelled():
                # Retrieved, so that asyncio does not log it; raised below if somebody still waits.
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
        """Let the process continue without a reader, unless one waits right now."""
        # A task that holds the turn is a reader, which must not lose its stream.
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
        # They have text, and no bytes.
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
            # The gap is reported at the chunk behind it.
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

    # An iterator that is dropped in the middle must not count as a reader any more.
    def __del__(self) -> None:
        self.close()


def _rest(chunk: Chunk, start: int) -> Chunk:
    """Return the chunk without its first bytes."""
    data = chunk.data[start:]
    # Not final: a character that is split at the end belongs to the next chunk.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    return Chunk(chunk.stream, data, text, chunk.seq)


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
        # Set by `__aenter__`.
        assert self._running is not None
        await self._running.__aexit__(*exc)

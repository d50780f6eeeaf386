"""
Runs one process to its end: output collected, input fed, time limited.

Its exit is what counts. Something that it started may hold its output for ever; that is
waited for only as `holdfast.collect.drain` says, and told.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

import msgspec

from holdfast.backends import ExecProcess
from holdfast.collect.drain import DRAIN_LIMIT, QUIET, Drain
from holdfast.collect.head_tail import HeadTail
from holdfast.environments.commands.chunks import Chunk, ChunkDecoder
from holdfast.environments.commands.completed import Completed
from holdfast.errors import ConnectionLost, HoldfastError, Refused, RemoteError
from holdfast.events import Exited, Reason, Verdict
from holdfast.protocol.process import OutputChunk, WriteStatus
from holdfast.tasks import OwnedTasks

__all__ = [
    "DRAIN",
    "END_LIMIT",
    "PIECE",
    "OnOutput",
    "drain_limit",
    "end_process",
    "run_on",
    "run_to_end",
]

OnOutput = Callable[[Chunk], Awaitable[object] | object]
"""Called with each chunk of output; if it returns an awaitable, that is awaited."""

DRAIN = QUIET
"""Seconds without output, after an exit, that end the wait for the end of the output."""

END_LIMIT = 5.0
"""Seconds to wait for the end of a process that was killed; only a broken line takes longer."""

PIECE = 64 << 10
"""Bytes of input written at once."""


def drain_limit(drain: float | None) -> float | None:
    """Return the hard limit that goes with a quiet window, in seconds after the exit."""
    return None if drain is None else max(DRAIN_LIMIT, drain)


async def run_to_end(
    process: ExecProcess,
    command: str | tuple[str, ...],
    *,
    given: bytes = b"",
    timeout: float | None = None,
    cap: int,
    drain: float | None = DRAIN,
    on_output: OnOutput | None = None,
    tasks: OwnedTasks,
) -> Completed:
    """
    Follow a process that was just started, and return what came of it.

    When this is cancelled, or fails, the process is killed and its end waited for.

    Args:
        process: Nobody else has asked for its events.
        command: For the result.
        given: Its input, if it has one.
        timeout: Seconds until it is killed.
        cap: Bytes to keep of each stream.
        drain: Seconds without output that end the wait for the end of the output.
        on_output: Called with each chunk. Its failure is a failure of this.
        tasks: Where to end it, if the caller is cancelled more than once.

    Raises:
        ConnectionLost: It cannot be reached any more.
    """
    follower = _Follower(process, cap, drain, on_output)
    feeding: OwnedTasks | None = None
    try:
        if given:
            # Beside the reading: neither may wait for the other.
            feeding = OwnedTasks()
            feeding.start(_feed(process, given))
        if not await follower.follow(timeout):
            await follower.time_out()
    except BaseException:
        if process.verdict is None:
            await end_process(process, follower.see_the_exit, tasks)
        raise
    finally:
        follower.close()
        if feeding is not None:
            await feeding.aclose()
    return follower.completed(command)


async def end_process(
    process: ExecProcess, see_the_exit: Callable[[], Awaitable[object]], tasks: OwnedTasks
) -> None:
    """
    Kill a process with all below it and wait for its end; goes on if this is cancelled.

    It takes no longer than `END_LIMIT`. Its close is not waited for: a daemon that it left
    may hold its output for ever.
    """

    async def end() -> None:
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(END_LIMIT):
                await process.terminate(tree=True)
                await see_the_exit()

    await run_on(end(), tasks)


async def run_on(work: Coroutine[object, object, None], tasks: OwnedTasks) -> None:
    """Wait for some work, which goes on if this is cancelled."""
    ended = asyncio.Event()

    async def run() -> None:
        try:
            await work
        finally:
            ended.set()

    tasks.start(run())
    await ended.wait()


class _Follower:
    """Reads the events of one process."""

    def __init__(
        self, process: ExecProcess, cap: int, drain: float | None, on_output: OnOutput | None
    ) -> None:
        self._process = process
        self._drain = Drain(process, quiet=drain, limit=drain_limit(drain))
        self._stdout = HeadTail(cap)
        self._stderr = HeadTail(cap)
        self._on_output = on_output
        self._decoder = ChunkDecoder()
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        # What replaces the verdict of the process when its time was over.
        self._timed_out: Verdict | None = None

    async def follow(self, limit: float | None) -> bool:
        """Collect until the end, or for so many seconds; return True if it has exited."""
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                async for event in self._drain:
                    if type(event) is OutputChunk:
                        into = self._stderr if event.stream == "stderr" else self._stdout
                        into.append(event.chunk)
                        if self._on_output is not None:
                            await self._tell(self._decoder.decode(event))
                    elif type(event) is Exited:
                        # Its own time counts, not that of others that hold its output.
                        deadline.reschedule(None)
                for chunk in self._decoder.finish(self._drain.last_seq):
                    await self._tell(chunk)
        except TimeoutError:
            if not deadline.expired():
                raise  # it came from the callback
        return self._drain.verdict is not None

    async def _tell(self, chunk: Chunk) -> None:
        assert self._on_output is not None  # nothing is decoded without one
        result = self._on_output(chunk)
        if inspect.isawaitable(result):
            await result

    async def see_the_exit(self) -> None:
        """Wait for the exit of a process that is being killed; nobody reads it any more."""
        self._drain.close()
        await self._process.exited()

    async def time_out(self) -> None:
        """Kill it, since its time is over; what it wrote until then is kept."""
        running = True
        with suppress(ConnectionLost):
            try:
                async with asyncio.timeout(END_LIMIT):
                    running = await self._process.terminate(tree=True)
            except TimeoutError:
                pass
            else:
                await self.follow(END_LIMIT)
        verdict = self._drain.verdict
        if verdict is None:
            verdict = self._process.verdict or Verdict(reason=Reason.TIMED_OUT)
            if self._process.verdict is None:
                # The line is broken, or the system did not let us.
                text = "took too long, and its end could not be seen"
            else:
                text = "took too long, and its last output was not taken in time"
            self._timed_out = msgspec.structs.replace(verdict, reason=Reason.TIMED_OUT, detail=text)
        elif running:
            self._timed_out = msgspec.structs.replace(verdict, reason=Reason.TIMED_OUT)
        # Otherwise it ended by itself in the last moment.

    def close(self) -> None:
        """Read no more."""
        self._drain.close()

    def completed(self, command: str | tuple[str, ...]) -> Completed:
        """Return what came of it."""
        drain = self._drain
        verdict = self._timed_out or drain.verdict
        assert verdict is not None  # it is followed until it has one
        seen = drain.verdict is not None
        return Completed(
            command=command,
            verdict=verdict,
            captured_stdout=self._stdout.captured(),
            captured_stderr=self._stderr.captured(),
            # Of an end that was not seen nobody can tell.
            background=seen and not drain.closed,
            duration=(drain.exit_time if seen else self._loop.time()) - self._started,
            last_seq=drain.last_seq,
            process=self._process,
        )


async def _feed(process: ExecProcess, data: bytes) -> None:
    """Write all of it and end it; a process need not read it, and may end before."""
    with suppress(Refused, ConnectionLost, RemoteError):
        for at in range(0, len(data), PIECE):
            if await process.write(data[at : at + PIECE]) is not WriteStatus.ACCEPTED:
                return
        await process.close_stdin()

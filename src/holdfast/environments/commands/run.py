"""
Runs a process to its end: collects output, feeds input and applies the timeout.

A run ends with the exit of the process, although a child may hold the output open for ever;
`holdfast.environments.collect.drain` decides how long to wait for that.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

import msgspec

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectionLost, HoldfastError, Refused, RemoteError
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.collect import QUIET
from holdfast.environments.collect.drain import DRAIN_LIMIT, Drain
from holdfast.environments.collect.head_tail import HeadTail
from holdfast.environments.commands.chunks import Chunk, ChunkDecoder
from holdfast.environments.commands.command_starter import END_LIMIT
from holdfast.environments.commands.completed import Completed
from holdfast.events import Exited, Reason, Verdict
from holdfast.wire.protocol.process import OutputChunk, WriteStatus

__all__ = [
    "DRAIN",
    "END_LIMIT",
    "PIECE",
    "OnOutput",
    "end_process",
    "run_on",
    "run_to_end",
]

OnOutput = Callable[[Chunk], Awaitable[object] | object]
"""Called with each chunk of output; a returned awaitable is awaited."""

DRAIN = QUIET
"""Seconds of silence after the exit that end the wait for more output."""

PIECE = 64 << 10
"""Bytes of input written at a time."""


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
    Follow a process that was just started, and return its result.

    On an error or cancellation, the process is killed and its end awaited.

    Args:
        process: A process whose events have no other reader.
        command: For the result.
        given: Its input, if stdin is open.
        timeout: Seconds until it is killed.
        cap: Bytes to keep of each stream.
        drain: Seconds of silence that end the wait for more output.
        on_output: Called with each chunk; an exception ends the run.
        tasks: Owner of the task that ends the process if the caller is cancelled twice.

    Raises:
        ConnectionLost: The connection was lost for good.
    """
    follower = _Follower(process, cap, drain, on_output)
    feeding: OwnedTasks | None = None
    try:
        if given:
            # Concurrently with reading: a process may block in a write before it reads.
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
            # The process may have ended without reading all input.
            await feeding.aclose()
    return follower.completed(command)


async def end_process(
    process: ExecProcess, see_the_exit: Callable[[], Awaitable[object]], tasks: OwnedTasks
) -> None:
    """
    Kill a process tree and wait for the exit, at most `END_LIMIT` seconds.

    Continues if the caller is cancelled. Does not wait for the close, since a daemon may hold the
    output open for ever.
    """

    async def end() -> None:
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(END_LIMIT):
                await process.terminate(tree=True)
                await see_the_exit()

    # In a task, so that a second cancellation cannot leave the process running.
    await run_on(end(), tasks)


async def run_on(work: Coroutine[object, object, None], tasks: OwnedTasks) -> None:
    """Wait for a coroutine that keeps running if the caller is cancelled."""
    # Not an event set by the task: a task that is cancelled before it begins would not set it.
    await asyncio.wait([tasks.start(work)])


class _Follower:
    """Reads the events of one process."""

    def __init__(
        self, process: ExecProcess, cap: int, drain: float | None, on_output: OnOutput | None
    ) -> None:
        self._process = process
        limit = None if drain is None else max(DRAIN_LIMIT, drain)
        self._drain = Drain(process, quiet=drain, limit=limit)
        self._stdout = HeadTail(cap)
        self._stderr = HeadTail(cap)
        self._on_output = on_output
        self._decoder = ChunkDecoder()
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        # Replaces the verdict of the process after a timeout.
        self._timed_out: Verdict | None = None

    async def follow(self, limit: float | None) -> bool:
        """Collect until the end or for `limit` seconds; return True if the process has exited."""
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                async for event in self._drain:
                    if type(event) is OutputChunk:
                        # A terminal has one stream, which counts as stdout.
                        into = self._stderr if event.stream == "stderr" else self._stdout
                        into.append(event.chunk)
                        if self._on_output is not None:
                            await self._pass_on(self._decoder.decode(event))
                    elif type(event) is Exited:
                        # The timeout applies to the process, not to children that hold its output.
                        deadline.reschedule(None)
                for chunk in self._decoder.finish(self._drain.last_seq):
                    await self._pass_on(chunk)
        except TimeoutError:
            if not deadline.expired():
                # Raised by the callback, not by this deadline.
                raise
        return self._drain.verdict is not None

    async def _pass_on(self, chunk: Chunk) -> None:
        # Chunks are decoded only if there is a callback.
        assert self._on_output is not None
        result = self._on_output(chunk)
        # Awaited before the next event, so that a slow callback slows the command down.
        if inspect.isawaitable(result):
            await result

    async def see_the_exit(self) -> None:
        """Stop reading and wait for the exit of a process that is being killed."""
        self._drain.close()
        await self._process.exited()

    async def time_out(self) -> None:
        """Kill the process after its timeout, and keep its output."""
        running = True
        with suppress(ConnectionLost):
            try:
                async with asyncio.timeout(END_LIMIT):
                    running = await self._process.terminate(tree=True)
            except TimeoutError:
                pass
            else:
                # Collect the output written before the kill.
                await self.follow(END_LIMIT)
        verdict = self._drain.verdict
        if verdict is None:
            verdict = self._process.verdict or Verdict(reason=Reason.TIMED_OUT)
            if self._process.verdict is None:
                # The connection is broken, or the kill failed.
                text = "timed out, and its end could not be observed"
            else:
                text = "timed out, and its last output was not consumed in time"
            self._timed_out = msgspec.structs.replace(verdict, reason=Reason.TIMED_OUT, detail=text)
        elif running:
            self._timed_out = msgspec.structs.replace(verdict, reason=Reason.TIMED_OUT)
        # Otherwise it exited by itself at the last moment.

    def close(self) -> None:
        """Stop reading."""
        self._drain.close()

    def completed(self, command: str | tuple[str, ...]) -> Completed:
        """Return the result."""
        drain = self._drain
        verdict = self._timed_out or drain.verdict
        # `follow` or `time_out` has set one.
        assert verdict is not None
        ended = self._loop.time() if drain.exit_time is None else drain.exit_time
        return Completed(
            command=command,
            verdict=verdict,
            captured_stdout=self._stdout.captured(),
            captured_stderr=self._stderr.captured(),
            # Unknown if the end was not observed.
            background=drain.verdict is not None and not drain.closed,
            duration=ended - self._started,
            last_seq=drain.last_seq,
            process=self._process,
        )


async def _feed(process: ExecProcess, data: bytes) -> None:
    """Write all input and close stdin; the process may exit without reading it."""
    with suppress(Refused, ConnectionLost, RemoteError):
        for at in range(0, len(data), PIECE):
            if await process.write(data[at : at + PIECE]) is not WriteStatus.ACCEPTED:
                return
        await process.close_stdin()

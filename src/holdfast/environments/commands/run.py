"""
Runs one process to its end: output collected, input fed, time limited.

Its exit is what counts. Something that it started may hold its output for ever; that is
waited for only a moment, and told.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import msgspec

from holdfast.backends import ExecProcess
from holdfast.environments.commands.capture import Capture
from holdfast.environments.commands.completed import Completed
from holdfast.errors import ConnectionLost, HoldfastError, RemoteError, StdinClosed
from holdfast.events import Exited, ProcessEvent, Reason, Verdict
from holdfast.protocol.process import OutputChunk, WriteStatus
from holdfast.tasks import OwnedTasks

__all__ = ["DRAIN", "END_LIMIT", "PIECE", "end_process", "run_to_end"]

DRAIN = 0.25
"""Seconds to wait after an exit for the end of the output."""

END_LIMIT = 5.0
"""Seconds to wait for the end of a process that was killed; only a broken line takes longer."""

PIECE = 64 << 10
"""Bytes of input written at once."""


async def run_to_end(
    process: ExecProcess,
    command: str | tuple[str, ...],
    *,
    given: bytes = b"",
    timeout: float | None = None,
    cap: int,
    drain: float = DRAIN,
    tasks: OwnedTasks,
) -> Completed:
    """
    Follow a process that was just started, and tell what came of it.

    When this is cancelled, or fails, the process is killed and its end waited for.

    Args:
        process: Nobody else has asked for its events.
        command: For the result.
        given: Its input, if it has one.
        timeout: Seconds until it is killed.
        cap: Bytes to keep of each stream.
        drain: Seconds to wait for the end of the output after the exit.
        tasks: Where to end it, if the caller is cancelled more than once.

    Raises:
        ConnectionLost: It cannot be reached any more.
    """
    follower = _Follower(process, cap, drain)
    feeding: OwnedTasks | None = None
    try:
        if given:
            # Beside the reading: neither may wait for the other.
            feeding = OwnedTasks()
            feeding.start(_feed(process, given))
        if not await follower.follow(timeout):
            await follower.time_out()
    except BaseException:
        if follower.verdict is None:
            await end_process(process, follower.see_the_exit, tasks)
        raise
    finally:
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
    ended = asyncio.Event()

    async def end() -> None:
        try:
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(END_LIMIT):
                    await process.terminate(tree=True)
                    await see_the_exit()
        finally:
            ended.set()

    tasks.start(end())
    await ended.wait()


class _Follower:
    """Reads the events of one process."""

    def __init__(self, process: ExecProcess, cap: int, drain: float) -> None:
        self.verdict: Verdict | None = None
        self._process = process
        self._events: AsyncIterator[ProcessEvent] = process.events()
        self._stdout = Capture(cap)
        self._stderr = Capture(cap)
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._started = self._exited = self._loop.time()
        self._last_seq = 0
        self._closed = False

    async def follow(self, limit: float | None) -> bool:
        """Collect until the end or for so many seconds; whether it has exited."""
        try:
            async with asyncio.timeout(limit) as deadline:
                async for event in self._events:
                    self._last_seq = event.seq
                    if type(event) is OutputChunk:
                        into = self._stderr if event.stream == "stderr" else self._stdout
                        into.add(event.chunk)
                    elif type(event) is Exited:
                        self.verdict = event.verdict
                        self._exited = self._loop.time()
                        deadline.reschedule(self._exited + self._drain)
                    else:
                        self._closed = True
        except TimeoutError:
            pass
        return self.verdict is not None

    async def see_the_exit(self) -> None:
        """Read on, and keep nothing; the process is being killed."""
        async for event in self._events:
            if type(event) is Exited:
                return

    async def time_out(self) -> None:
        """Kill it, since its time is over; what it wrote until then is kept."""
        running = True
        with suppress(ConnectionLost, TimeoutError):
            async with asyncio.timeout(END_LIMIT):
                running = await self._process.terminate(tree=True)
            await self.follow(END_LIMIT)
        verdict = self.verdict
        if verdict is None:
            # The line is broken, or the system did not let us.
            self._exited = self._loop.time()
            self._closed = True  # as far as anybody can tell
            text = "took too long, and its end could not be seen"
            self.verdict = Verdict(reason=Reason.TIMED_OUT, detail=text)
        elif running:
            self.verdict = msgspec.structs.replace(verdict, reason=Reason.TIMED_OUT)
        # Otherwise it ended by itself in the last moment.

    def completed(self, command: str | tuple[str, ...]) -> Completed:
        """What came of it."""
        assert self.verdict is not None  # it is followed until it has one
        return Completed(
            command=command,
            verdict=self.verdict,
            captured_stdout=self._stdout.captured(),
            captured_stderr=self._stderr.captured(),
            background=not self._closed,
            duration=self._exited - self._started,
            last_seq=self._last_seq,
            process=self._process,
        )


async def _feed(process: ExecProcess, data: bytes) -> None:
    """Write all of it and end it; a process need not read it, and may end before."""
    with suppress(StdinClosed, ConnectionLost, RemoteError):
        for at in range(0, len(data), PIECE):
            if await process.write(data[at : at + PIECE]) is not WriteStatus.ACCEPTED:
                return
        await process.close_stdin()

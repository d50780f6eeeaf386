"""
One process of this machine: its child, its log, and the ways to act on it.

Everything that can be answered at once is an ordinary method. What may have to
wait returns an awaitable instead, and only then. No part of this knows of
connections: whoever wants to hear of output subscribes to the log.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic

from msgspec import UNSET

from holdfast.errors import InvalidRequest, OperationFailed
from holdfast.events import Reason, Verdict, WaitingFor
from holdfast.process.arguments import check_streams
from holdfast.process.child import Child
from holdfast.process.io.epoll import readers_of
from holdfast.process.io.input_budget import InputBudget
from holdfast.process.io.input_wanted import SECOND_LOOK, Polling, look
from holdfast.process.io.log import OutputLog
from holdfast.process.io.reader import OutputReader
from holdfast.process.io.stdin import StdinQueue
from holdfast.process.limits.watchdog import Watchdog
from holdfast.process.observers import sandbox_type
from holdfast.process.pty import set_size
from holdfast.process.start_threads import call_in_daemon
from holdfast.protocol.process import (
    Enforcement,
    ProcessSummary,
    ReadResponse,
    StartParams,
    StreamsAtEnd,
    WriteStatus,
)
from holdfast.system_text import system_text

__all__ = ["LocalProcess", "Outcome"]

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 1e6
"""Seconds; clients may ask for 2**64 milliseconds, which no timer takes."""

Outcome = Callable[[Verdict, OutputLog], Verdict]
"""Says more of how a process ended, by what it wrote."""


class LocalProcess:
    """A child, its log, and the ways to act on it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        params: StartParams,
        child: Child,
        log: OutputLog,
        *,
        exited: Callable[["LocalProcess", Verdict], None],
        closed: Callable[["LocalProcess"], None],
        outcome: Outcome | None = None,
        enforcement: Enforcement | None = None,
        input_budget: InputBudget | None = None,
    ) -> None:
        """
        Args:
            loop: Runs everything here.
            params: As it was asked for.
            child: What was started; it belongs to this object from now on.
            log: Takes its output and its end; nothing is in it yet.
            exited: Called when the process itself is gone, after the log was told.
            closed: Called when nothing more can come of it, likewise.
            outcome: What its sandbox makes of how it ended, if it has one.
            enforcement: What that sandbox enforces.
            input_budget: Bounds the input that waits; one of its own by default.
        """
        self.process_id = params.process_id
        self.argv = params.argv
        self.pid = child.pid
        self.tty = params.tty
        self.enforcement = enforcement
        self.sandbox_type = sandbox_type(params)
        self.log = log
        self.started = monotonic()
        self._loop = loop
        self._readers = readers_of(loop)
        self._exited = exited
        self._closed = closed
        self._child = child
        self._outcome = outcome
        self._terminal = child.terminal
        # Why we killed it, if we did; becomes the reason in the verdict.
        self._killed: Reason | None = None
        # What the kill said of its streams; "close" is final.
        self._streams_at_end: StreamsAtEnd | None = None
        self._limits: Watchdog | None = None
        if params.limits is not None:
            self._limits = Watchdog(self, loop, params.limits, child)
        # Whether its owner is gone, so that nobody will read what is still to come.
        self._abandoned = False
        # Readers that cannot keep up.
        self._holders: set[object] = set()
        self._stdin: StdinQueue | None = None
        if child.stdin is not None:
            self._stdin = StdinQueue(loop, child.stdin, shared=params.tty, budget=input_budget)
        sink = log if self._limits is None else self._limits.before(log)
        self._pumps = [
            OutputReader(loop, fd, stream, sink, self._stream_ended) for stream, fd in child.outputs
        ]
        self._readers.add(child.pidfd, self._child_exited)

    @property
    def running(self) -> bool:
        """Whether the process itself, not its children, is still there."""
        return self.log.verdict is None

    @property
    def left_something(self) -> bool:
        """True after the close if processes of its group may be left."""
        return self._child.left_something

    # -- output

    def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse | Awaitable[ReadResponse]:
        """What was written after a number; an awaitable while there is nothing to tell yet."""
        if wait <= 0 or self.log.has_news(after_seq):
            return self.log.read(after_seq, max_bytes)
        return self._read_later(after_seq, max_bytes, wait)

    async def _read_later(self, after_seq: int, max_bytes: int | None, wait: float) -> ReadResponse:
        deadline = self._loop.time() + min(wait, _LONGEST_WAIT)
        try:
            async with asyncio.timeout_at(deadline):
                while not self.log.has_news(after_seq):
                    woken: asyncio.Future[None] = self._loop.create_future()

                    def wake(future: asyncio.Future[None] = woken) -> None:
                        if not future.done():
                            future.set_result(None)

                    self.log.wake_once(wake)
                    try:
                        await woken
                    finally:
                        self.log.forget_waker(wake)
        except TimeoutError:
            pass
        return self.log.read(after_seq, max_bytes)

    async def wait_exited(self) -> Verdict:
        """Wait for the exit, whatever is still to be read."""
        exited: asyncio.Future[None] = self._loop.create_future()

        def done() -> None:
            if not exited.done():
                exited.set_result(None)

        self.log.when_exited(done)
        try:
            await exited
        finally:
            self.log.forget_exit_callback(done)
        assert self.log.verdict is not None  # what was waited for
        return self.log.verdict

    async def wait_closed(self) -> None:
        """Wait until nothing more can come of it."""
        while not self.log.closed:
            await self._read_later(self.log.next_seq, 0, _LONGEST_WAIT)

    def hold_output(self, holder: object) -> None:
        """
        Stop reading what it writes, so that it waits; for a reader that cannot keep up.

        What is in its pipes at its exit is read all the same. What is left in the background
        waits on.
        """
        self._holders.add(holder)
        for pump in self._pumps:
            pump.hold()

    def release_output(self, holder: object) -> None:
        """Read again, unless somebody else cannot keep up; harmless without a hold."""
        self._holders.discard(holder)
        if not self._holders:
            for pump in self._pumps:
                pump.release()

    # -- input

    def write(self, data: bytes, write_id: str) -> WriteStatus | asyncio.Future[None]:
        """
        Write to its input, once per id; a future while its queue is full.

        Raises:
            StdinClosed: It was terminated.
            InvalidRequest: Too much input waits already, for this process or for others.
        """
        if self._stdin is None:
            return WriteStatus.STDIN_CLOSED
        return self._stdin.write(data, write_id)

    def close_stdin(self) -> None:
        """
        Let it read the end of its input, after what was written before.

        Raises:
            InvalidRequest: A terminal has no such end.
        """
        if self._terminal is not None:
            raise InvalidRequest(
                "a terminal's input has no end to close: write the byte 0x04 (Ctrl-D) instead"
            )
        if self._stdin is not None:
            self._stdin.end()

    def resize(self, rows: int, cols: int) -> None:
        """
        Change the size of its terminal.

        Raises:
            InvalidRequest: It has none.
        """
        if not self.tty:
            raise InvalidRequest(f"process {self.process_id} has no terminal to resize")
        if self._terminal is not None:
            set_size(self._terminal, rows, cols)

    def waiting_for(self) -> WaitingFor | Awaitable[WaitingFor]:
        """
        Look at the kernel whether it waits for input; an awaitable if one look is not enough.

        The look takes less than a millisecond as a rule, and the second comes 80 ms later.
        """
        if not self.running:
            return WaitingFor.NONE
        if not self.tty:
            return WaitingFor.UNKNOWN
        return self._look_twice()

    async def _look_twice(self) -> WaitingFor:
        first = await self._look()
        if isinstance(first, WaitingFor):
            return first
        await asyncio.sleep(SECOND_LOOK)
        return first.confirmed(await self._look())

    async def _look(self) -> WaitingFor | Polling:
        if not self.running or self._terminal is None:
            return WaitingFor.NONE  # it has exited, or nobody has the terminal open any more
        try:
            # Reads the memory of processes, which the file that it is mapped from can hold up.
            return await call_in_daemon(partial(look, self._terminal, self.pid))
        except TimeoutError:
            return WaitingFor.UNKNOWN

    # -- ending

    def signal(self, number: int) -> None:
        """
        Send a signal to its group; nothing happens once it has exited.

        Raises:
            OperationFailed: The system refused.
        """
        if self.running:
            self._send(lambda: self._child.signal(number))

    def ask_to_end(self, reason: Reason) -> None:
        """
        Send `SIGTERM` to its group; whatever it does then, its end has this reason.

        Raises:
            OperationFailed: The system refused.
        """
        if self.running and self._killed is None:
            self._killed = reason
        self.signal(signal.SIGTERM)

    def _send(self, send: Callable[[], bool | None]) -> bool:
        try:
            return bool(send())
        except ProcessLookupError:
            return False  # it has exited and was not noticed yet
        except OSError as error:
            raise OperationFailed(
                f"failed to signal process: {system_text(error)}", errno=error.errno
            ) from error

    def terminate(
        self,
        reason: Reason = Reason.TERMINATED,
        *,
        tree: bool = False,
        left: bool = False,
        streams: StreamsAtEnd = "close",
    ) -> bool:
        """
        Kill its group at once, without grace.

        What is in its pipes when it dies is read first, up to 2 MiB of each stream.

        Args:
            reason: Becomes that of the verdict.
            tree: Also what is below it in other groups.
            left: Also what it left in its group, if it has exited. That works after the
                close, too. In a sandbox there is nothing: all inside ends with the command.
            streams: `close` ends its output then, whoever still has it open; but a terminal
                is read on, as in Codex. `keep` reads on until the end of output. Once the
                process has exited, `close` ends what was kept, and with `left` any output,
                of a terminal too.

        Returns:
            True if there was something to kill. Without `left`, nothing of a process that
            has exited is killed: what it left in the background goes on.

        Raises:
            InvalidParams: `streams` is another word.
            OperationFailed: The system refused.
        """
        check_streams(streams)
        if self.running:
            # First of all: a process that saw the end of its input before might still act on it.
            kill = self._child.kill_tree if tree else partial(self._child.signal, signal.SIGKILL)
            self._send(kill)
            if self._killed is None:
                self._killed = reason
            if self._stdin is not None:
                self._stdin.refuse()
            if self._streams_at_end != "close":
                self._streams_at_end = streams
            return True
        killed = left and self._send(self._child.kill_left)
        if left and self._streams_at_end is None:
            self._streams_at_end = streams
        if streams == "close" and (left or self._streams_at_end == "keep"):
            self._streams_at_end = streams
            for pump in self._pumps:
                pump.drain()
                pump.close()
        return killed

    def end_left(self) -> None:
        """Kill all that it left behind, as far as that can be found, and end its output."""
        try:
            self._send(self._child.kill_all_left)
        except OperationFailed:
            logger.info("what process %s left cannot be killed", self.process_id)
        for pump in self._pumps:
            pump.close()

    def kill_group(self, reason: Reason) -> None:
        """Kill it and what it left in its group, exited or not; for an owner that goes away."""
        self._abandoned = True
        try:
            if self.terminate(reason) or self.log.closed:
                return
            self._child.kill_group()
        except (OperationFailed, PermissionError):
            # It changed its user, as `sudo` does: it is no longer ours to end.
            logger.info("process %s cannot be killed", self.process_id)
        for pump in self._pumps:
            pump.close()

    def _child_exited(self) -> None:
        # It is reaped only at the close: its pid names the group, and a number
        # given back could be somebody else's by the time we signal it.
        try:
            status = self._child.exit_status()
        except ChildProcessError:
            verdict = Verdict(
                reason=Reason.LOST, exit_code=-1, detail="its exit status was taken by another part"
            )
        else:
            if status is None:
                return
            verdict = self._verdict(status)
        self._readers.remove(self._child.pidfd)
        if self._stdin is not None:
            self._stdin.discard()
        # What it wrote before it exited is there by now. Told before the exit it
        # is in the order in which it happened, which the real server does not promise.
        # Readers that are behind do not count here: they get 2 MiB more at the most.
        for pump in self._pumps:
            pump.process_gone = True
            pump.drain()
        if self._limits is not None:
            verdict = self._limits.judge(verdict)
        if self._outcome is not None:
            verdict = self._outcome(verdict, self.log)
        logger.debug("process %s: %s", self.process_id, verdict.reason.value)
        self.log.exit(verdict)
        self._exited(self, verdict)
        if self._abandoned or (self._streams_at_end == "close" and not self.tty):
            # A child that left the group may hold the pipe for ever: it was not
            # asked for any more [terminate.closes-pipes]. On a terminal its output
            # still counts, as long as there is somebody to read it.
            for pump in self._pumps:
                pump.close()
        self._close_if_done()

    def _verdict(self, status: os.waitid_result) -> Verdict:
        if status.si_code == os.CLD_EXITED:
            return Verdict(reason=self._killed or Reason.EXITED, exit_code=status.si_status)
        return Verdict(
            reason=self._killed or Reason.SIGNALED,
            exit_code=self._child.signal_code(status.si_status),
            signal=status.si_status,
        )

    def _stream_ended(self) -> None:
        if self.tty:
            self._terminal = None
            if self._stdin is not None:
                self._stdin.discard()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.running or self.log.closed or any(pump.open for pump in self._pumps):
            return
        if self._child.lingers(self._close_if_done):
            return
        self._child.reap()
        if self._limits is not None:
            self._limits.process_closed()
        # They refer to this object: without them it need not wait for the garbage collector.
        self._pumps = []
        self.log.close()
        self._closed(self)

    def summary(self) -> ProcessSummary:
        """How it stands, for a list."""
        verdict = self.log.verdict
        return ProcessSummary(
            process_id=self.process_id,
            pid=self.pid,
            argv=self.argv,
            tty=self.tty,
            running=self.running,
            closed=self.log.closed,
            exit_code=None if verdict is None else verdict.exit_code,
            reason=None if verdict is None else verdict.reason.value,
            next_seq=self.log.next_seq,
            sandbox_type=self.sandbox_type,
            enforcement=UNSET if self.enforcement is None else self.enforcement,
        )

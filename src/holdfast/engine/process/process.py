"""
One process of this machine: its child, its log, and the ways to act on it.

It knows no connections: readers of output subscribe to the log.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from holdfast.backends import Later, Ready, at_once
from holdfast.base.errors import InvalidParams, InvalidRequest, OperationFailed
from holdfast.base.system_text import system_text
from holdfast.engine.process.child import Child
from holdfast.engine.process.io.input_budget import InputBudget
from holdfast.engine.process.io.input_wanted import SECOND_LOOK, Polling, look
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.io.output_reader import OutputReader, readers_of
from holdfast.engine.process.io.stdin import StdinQueue
from holdfast.engine.process.limits.watchdog import Watchdog
from holdfast.engine.process.logged import ACCEPTED, LoggedProcess
from holdfast.engine.process.pty import set_size
from holdfast.engine.process.start_threads import call_in_daemon
from holdfast.events import Reason, Verdict, WaitingFor
from holdfast.wire.protocol.process import (
    Enforcement,
    StartParams,
    StreamsAtEnd,
    TerminalSize,
    WriteStatus,
    check_input,
    check_streams,
    signal_number,
)

__all__ = ["LocalProcess"]

logger = logging.getLogger(__name__)


class LocalProcess(LoggedProcess):
    """A running or exited child, its log, and the ways to act on it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        params: StartParams,
        child: Child,
        log: OutputLog,
        *,
        exited: Callable[["LocalProcess", Verdict], None],
        closed: Callable[["LocalProcess"], None],
        enforcement: Enforcement | None = None,
        input_budget: InputBudget | None = None,
    ) -> None:
        """
        Args:
            loop: Runs everything here.
            params: The request of its start.
            child: The started child; it belongs to this object from now on.
            log: An empty log, which takes the output, the exit and the close.
            exited: Called at the exit of the process, after the log has it.
            closed: Called at the close, when no more output can come, after the log has it.
            enforcement: Describes the sandbox, if there is one.
            input_budget: Bounds the queued input; by default only that of this process.
        """
        super().__init__(loop, params, log)
        self.pid: int = child.pid
        self.enforcement = enforcement
        self._descriptors = readers_of(loop)
        self._exited = exited
        self._closed = closed
        self._child = child
        self._terminal = child.terminal
        # The `streams` of the kill; "close" is final.
        self._streams_at_end: StreamsAtEnd | None = None
        # Created before the readers: its sink is in front of the log.
        limits = params.limits
        self._limits = None if limits is None else Watchdog(self, loop, limits, child)
        self._stdin: StdinQueue | None = None
        if child.stdin is not None:
            self._stdin = StdinQueue(loop, child.stdin, shared=params.tty, budget=input_budget)
        sink = log if self._limits is None else self._limits.before(log)
        self._outputs = [
            OutputReader(loop, fd, stream, sink, self._stream_ended) for stream, fd in child.outputs
        ]
        log.when_held(self._hold_outputs)
        # Last: from here on the exit may be handled, which needs all of the above.
        self._descriptors.add(child.pidfd, self._child_exited)

    @property
    def left_something(self) -> bool:  # type: ignore[override]  # known late
        return self._child.left_something

    def _hold_outputs(self, held: bool) -> None:
        """Stop reading the pipes, so that the process blocks, or read again."""
        # Descendants that outlive the process stay blocked.
        for output in self._outputs:
            output.hold() if held else output.release()

    # -- input

    def write(self, data: bytes, write_id: str | None = None) -> Coroutine[Any, Any, WriteStatus]:
        try:
            data = check_input(data, write_id)
            if self._stdin is None:
                return Ready(WriteStatus.STDIN_CLOSED)
            status = self._stdin.write(data, write_id or self._stdin.unused_id())
        except (TypeError, InvalidParams, InvalidRequest) as error:
            return Ready.failed(error)
        if status is WriteStatus.ACCEPTED:
            return ACCEPTED
        return Ready(status) if isinstance(status, WriteStatus) else Later(status)

    @at_once
    def close_stdin(self) -> None:
        if self._terminal is not None:
            raise InvalidRequest(
                "a terminal's input has no end to close: write the byte 0x04 (Ctrl-D) instead"
            )
        if self._stdin is not None:
            self._stdin.end()

    @at_once
    def resize(self, rows: int, cols: int) -> None:
        # The wire's type checks the range, so a local process refuses the same sizes.
        try:
            TerminalSize(rows=rows, cols=cols)
        except ValueError as error:
            raise InvalidParams(str(error)) from None
        if not self.tty:
            raise InvalidRequest(f"process {self.process_id} has no terminal to resize")
        if self._terminal is not None:
            set_size(self._terminal, rows, cols)

    @at_once
    def waiting_for(self) -> WaitingFor | Coroutine[Any, Any, WaitingFor]:
        """
        Determine whether the process waits for input; for a terminal this takes a wait.

        One look at `/proc` usually takes less than a millisecond. If it finds a thread in
        `poll`, a second look follows after 80 ms.
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
            # The process has exited, or no process has the terminal open.
            return WaitingFor.NONE
        try:
            # In a thread: it reads the memory of processes, and a page that is mapped from a
            # file on a dead mount would block the loop.
            return await call_in_daemon(partial(look, self._terminal, self.pid))
        except TimeoutError:
            return WaitingFor.UNKNOWN

    # -- ending

    @at_once
    def signal(self, name: str) -> None:
        number = signal_number(name)
        if self.running:
            self._send(lambda: self._child.signal(number))

    def _send(self, send: Callable[[], bool | None]) -> bool:
        try:
            return bool(send())
        except ProcessLookupError:
            # The process has exited, and the event loop has not reached its pidfd yet.
            return False
        except OSError as error:
            raise OperationFailed(
                f"failed to signal process: {system_text(error)}", errno=error.errno
            ) from error

    @at_once
    def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        return self.kill(Reason.TERMINATED, tree=tree, left=left, streams=streams)

    def kill(
        self,
        reason: Reason,
        *,
        tree: bool = False,
        left: bool = False,
        streams: StreamsAtEnd = "close",
    ) -> bool:
        """
        Send SIGKILL to its process group, without a grace period.

        Output in its pipes at that moment is still read, up to 2 MiB of each stream.

        Args:
            reason: Becomes the reason of the verdict.
            tree: Kill its descendants in other groups too.
            left: If the process has exited, kill the processes it left in its group. This
                works after the close too. A sandboxed process never leaves any.
            streams: `close` ends its output after the exit, even if a descendant still has the pipe
                open. Reading a terminal continues. `keep` reads until end of file. For an exited
                process, `close` ends the output that was kept; with `left` it ends any output, that
                of a terminal included.

        Returns:
            True if there was something to kill. Without `left`, nothing is killed once the
            process has exited: its descendants run on.

        Raises:
            InvalidParams: `streams` is not a known value.
            OperationFailed: The kernel refused.
        """
        check_streams(streams)
        if self.running:
            # The kill comes before the end of stdin: a process that reads end of file first
            # could still act on it.
            kill = self._child.kill_tree if tree else partial(self._child.signal, signal.SIGKILL)
            self._send(kill)
            if self._killed is None:
                self._killed = reason
            if self._stdin is not None:
                self.input_refused = True
                self._stdin.refuse()
            # A later `keep` does not take back an earlier `close`.
            if self._streams_at_end != "close":
                self._streams_at_end = streams
            return True
        killed = left and self._send(self._child.kill_left)
        if left and self._streams_at_end is None:
            self._streams_at_end = streams
        if streams == "close" and (left or self._streams_at_end == "keep"):
            self._streams_at_end = streams
            for output in self._outputs:
                output.drain()
                output.close()
        return killed

    def end_left(self) -> None:
        """Kill the descendants that outlived it, as far as they can be found; end its output."""
        try:
            self._send(self._child.kill_all_left)
        except OperationFailed:
            logger.info("what process %s left cannot be killed", self.process_id)
        for output in self._outputs:
            output.close()

    def kill_group(self, reason: Reason) -> None:
        self._abandoned = True
        try:
            if self.kill(reason) or self.log.closed:
                return
            self._child.kill_group()
        except (OperationFailed, PermissionError):
            # It runs as another user now, as `sudo` does, so we may not signal it.
            logger.info("process %s cannot be killed", self.process_id)
        for output in self._outputs:
            output.close()

    def _child_exited(self) -> None:
        # The child is reaped only at the close: its pid names the group, and a reaped pid could
        # be another process's by the time we signal the group.
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
        self._descriptors.remove(self._child.pidfd)
        if self._stdin is not None:
            self._stdin.discard()
        # All that the process wrote is in its pipes by now. Logged before the exit, it is in the
        # order in which it happened, though the protocol does not promise that. Slow readers are
        # not waited for here: `drain` brings them 2 MiB more at the most.
        for output in self._outputs:
            output.process_gone = True
            output.drain()
        # In this order: the denials of a sandbox depend on the reason of the verdict.
        if self._limits is not None:
            verdict = self._limits.judge(verdict)
        verdict = self._child.complete_verdict(verdict, self.log)
        logger.debug("process %s: %s", self.process_id, verdict.reason.value)
        self.log.exit(verdict)
        self._exited(self, verdict)
        if self._abandoned or (self._streams_at_end == "close" and not self.tty):
            # A descendant in another group may hold the pipe open for ever, and its output has no
            # reader [terminate.closes-pipes]. On a terminal its output still counts, as long as
            # there is an owner to read it.
            for output in self._outputs:
                output.close()
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
        if self.running or self.log.closed or any(output.open for output in self._outputs):
            return
        # A sandbox may still hold processes. The close comes after the last of them.
        if self._child.call_when_empty(self._close_if_done):
            return
        self._child.reap()
        if self._limits is not None:
            self._limits.process_closed()
        # The readers refer to this object. Without that cycle it is freed at once, and not
        # by the garbage collector.
        self._outputs = []
        self.log.close()
        self._closed(self)

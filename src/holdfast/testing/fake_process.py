"""A fake `ExecProcess`, controlled by the test."""

import asyncio
from contextlib import suppress

from holdfast.base.errors import (
    HoldfastError,
    InvalidParams,
    InvalidRequest,
    Refused,
    Unsupported,
)
from holdfast.engine.process.event_stream import LogEventStream
from holdfast.events import (
    Verdict,
    WaitingFor,
)
from holdfast.testing.fake_calls import Asked, Call, Termination, as_refused
from holdfast.testing.scripted_process import ScriptedProcess
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.process import (
    ReadResponse,
    StreamsAtEnd,
    TerminalSize,
    WriteStatus,
    check_input,
    check_read,
    check_streams,
    signal_number,
)

__all__ = ["FakeProcess"]

_LONGEST_WAIT = 1e6


class FakeProcess(ScriptedProcess):
    """
    A process that a test controls.

    All calls are recorded; wait for one with `until`. A `FakeBackend` creates it, or the test does
    directly. Needs a running event loop.

    An event arrives immediately unless it is delayed or the connection is lost. A slow reader
    makes the process `held`; `output` still works, while `flow` waits.
    """

    async def exited(self) -> Verdict:
        await self.line.changes.wait(lambda: self.verdict is not None or self._failure is not None)
        if self.verdict is not None:
            return self.verdict
        # Otherwise `verdict` is set.
        assert self._failure is not None
        raise self._failure

    async def wait(self) -> Verdict:
        await self.line.changes.wait(lambda: self._here.closed or self._failure is not None)
        if not self._here.closed:
            # Otherwise it is closed.
            assert self._failure is not None
            raise self._failure
        # A process exits before it is closed.
        assert self.verdict is not None
        return self.verdict

    def events(
        self, after_seq: int = 0, *, gaps: bool = False, stream_ends: bool = False
    ) -> LogEventStream:
        return self._readers.stream(after_seq, gaps=gaps, stream_ends=stream_ends)

    async def read(
        self, after_seq: int = 0, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadResponse:
        check_read(after_seq, max_bytes, wait)
        self._record_call("read", after_seq, max_bytes, wait)
        if self._here.closed:
            return self._here.read(after_seq, max_bytes)
        await self._available()
        if wait > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, _LONGEST_WAIT)):
                    await self.line.changes.wait(
                        lambda: (
                            self._loss is not None
                            or (self.line.up and self._there.has_news(after_seq))
                        )
                    )
            await self._available()
        return self._there.read(after_seq, max_bytes)

    async def write(self, data: bytes, write_id: str | None = None) -> WriteStatus:
        data = check_input(data, write_id)
        self._record_call("write", data, write_id)
        if self._failure is not None:
            raise self._failure
        if self.write_status is not None:
            return self.write_status
        if not self._takes_input():
            return WriteStatus.STDIN_CLOSED
        if write_id is None:
            self._writes += 1
            write_id = f"fake-{self._writes}"
        # A repeated id is accepted and not written again.
        if write_id in self._write_ids:
            return WriteStatus.ACCEPTED
        # Accepted, as by the real client, and delivered when the connection is back.
        if not self.line.up:
            self._write_ids.add(write_id)
            self._unsent.append(lambda: self._take(data))
            return WriteStatus.ACCEPTED
        if self.stdin_closed:
            return WriteStatus.STDIN_CLOSED
        await self.line.changes.wait(lambda: self._has_room or not self._takes_input())
        if not self._takes_input():
            return WriteStatus.STDIN_CLOSED
        self._write_ids.add(write_id)
        self._take(data)
        return WriteStatus.ACCEPTED

    async def close_stdin(self) -> None:
        await self._call("close_stdin", (), supported=self.capabilities.process_close_stdin)
        if self.params.tty:
            raise self._refused(
                InvalidRequest(
                    "a terminal's input has no end to close: write the byte 0x04 (Ctrl-D) instead"
                )
            )
        self.stdin_closed = True
        self.line.changes.notify()

    async def resize(self, rows: int, cols: int) -> None:
        try:
            TerminalSize(rows=rows, cols=cols)
        except ValueError as error:
            raise InvalidParams(str(error)) from None
        await self._call("resize", (rows, cols), supported=self.capabilities.process_resize)
        if not self.params.tty:
            raise self._refused(
                InvalidRequest(f"process {self.process_id} has no terminal to resize")
            )
        self.sizes.append((rows, cols))
        self._pending_signals.append("SIGWINCH")
        self.line.changes.notify()

    async def waiting_for(self) -> WaitingFor:
        self._record_call("waiting_for")
        if not self.capabilities.process_waiting_for:
            return WaitingFor.UNKNOWN
        if self.verdict is not None:
            return WaitingFor.NONE
        await self._available()
        if not self.running:
            return WaitingFor.NONE
        return self.waits_for if self.params.tty else WaitingFor.UNKNOWN

    async def signal(self, name: str) -> None:
        known = name == "interrupt" or self.capabilities.process_signal_names
        await self._call("signal", (name,), supported=known)
        try:
            signal_number(name)
        except InvalidParams as error:
            raise self._refused(error) from error.__cause__
        if self.running:
            self.signals.append(name)
            self._pending_signals.append("SIGINT" if name == "interrupt" else name)
            self.line.changes.notify()

    async def terminate(
        self, *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        check_streams(streams)
        self._record_call("terminate", tree, left, streams)
        if self._failure is not None:
            raise self._failure
        asked = Termination(tree, left, streams)
        self.terminations.append(asked)
        if not self.capabilities.process_terminate_left:
            # A server without our extensions ignores unknown members.
            asked = Termination(tree=False, left=False, streams="close")
        if not self.line.up and (asked.left or not self._here.closed):
            known_to_run = self.verdict is None
            self._terminated = self._terminated or known_to_run
            self._unsent.append(lambda: self._kill(asked))
            self.line.changes.notify()
            return known_to_run
        killed = self._kill(asked)
        self.line.changes.notify()
        return killed

    # -- internal

    async def _call(self, call: Call, arguments: tuple[object, ...], *, supported: bool) -> None:
        """Record a call, check its support, and wait for the connection."""
        self._record_call(call, *arguments)
        if not supported:
            raise Unsupported(codes.METHOD_NOT_FOUND, f"exec-server does not know {call}")
        await self._available()

    @property
    def _loss(self) -> HoldfastError | None:
        """The error if this process or the connection is lost."""
        return self.line.failure if self._failure is None else self._failure

    async def _available(self) -> None:
        """
        Wait until calls get through.

        Raises:
            HoldfastError: The process or the connection is lost.
        """
        await self.line.changes.wait(lambda: self.line.up or self._loss is not None)
        if self._loss is not None:
            raise self._loss

    def _record_call(self, call: Call, *arguments: object) -> None:
        """Record a call, and refuse it if the test asked for that."""
        self.asked.append(Asked(call, arguments))
        self.line.changes.notify()
        error = self._refusals.get(call)
        if error is not None:
            raise error

    def _refused(self, error: Refused) -> Refused:
        return as_refused(error, remote=self.remote)

"""
Runs a command in the foreground, with the streams, signals and terminal of this process.

It only uses the protocols of `holdfast.backends`, so a command on a server behaves in the same way,
as far as the server supports it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import ExitStack, suppress

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectionLost, HoldfastError, Refused, RemoteError
from holdfast.base.late_import import load
from holdfast.engine.supervision.guardian import stop_this_process
from holdfast.events import Exited, Reason, Verdict
from holdfast.front.cli.exit_status import FAILED, Ended, of_signal, of_verdict
from holdfast.front.cli.streams import OutputWriter, is_null, read_chunks
from holdfast.front.cli.terminal import RawTerminal, terminal_size
from holdfast.wire.protocol.process import OutputChunk, WriteStatus

__all__ = ["ForegroundCommand"]

# Signals that end a process by default.
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})

# Seconds within which a second interrupt kills the command.
_TWICE = 2.0

# Seconds to wait for a request whose response is not essential.
_ASK_LIMIT = 2.0

# Seconds after the exit within which most of the output has arrived.
_LAST_OUTPUT = 0.5

# Ctrl-D, the only way to end input on a terminal.
_END_OF_INPUT = b"\x04"

# Seconds between Ctrl-Ds: each ends the read of one process, and the next needs another.
_END_AGAIN = 1.0


class ForegroundCommand:
    """
    Connects a command to this process.

    - Its output is forwarded to the standard streams of this process, as fast as they are read.
    - Input and its end are forwarded to the command.
    - Signals are forwarded to its process group. Before it has started, signals that end a
      process end this one. A second interrupt in a row kills the command.
    - If it has its own terminal, the terminal of this process is raw and both have the same
      size.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        lifeline: int,
        *,
        tty: bool,
        streams: tuple[int, int, int] = (0, 1, 2),
    ) -> None:
        """
        Args:
            tasks: Group for background tasks, until `close`.
            lifeline: Descriptor that delivers a byte for each signal; at its end, this process
                exits at once.
            tty: True if the command has its own terminal.
            streams: Descriptors for its stdin, stdout and stderr.
        """
        self._loop = asyncio.get_running_loop()
        self._group = tasks
        self._tasks: list[asyncio.Task[None]] = []
        self._tty = tty
        self._stdin, self._stdout, self._stderr = streams
        self._terminal: RawTerminal | None = None
        self._process: ExecProcess | None = None
        self._verdict: Verdict | None = None
        # Time of the last interrupt; a second one sets `_killed`.
        self._interrupted = float("-inf")
        self._killed = False
        self.start_task(self._obey(lifeline))

    def start_task(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background, until `close`."""
        task = self._group.create_task(work)
        self._tasks.append(task)
        # Drop finished tasks, so that the list does not grow.
        task.add_done_callback(self._tasks.remove)
        return task

    def close(self) -> None:
        """Cancel background tasks."""
        for task in self._tasks:
            task.cancel()

    async def attend(self, process: ExecProcess) -> int:
        """
        Connect a process until it ends.

        Returns:
            Its exit status.

        Raises:
            ConnectionLost: The connection was lost for good.
        """
        self._process = process
        out, err = OutputWriter(self._stdout), OutputWriter(self._stderr)
        watching = [
            self.start_task(self._watch(out, "stdout")),
            self.start_task(self._watch(err, "stderr")),
        ]
        try:
            with ExitStack() as input_given:
                self._give_input(process, input_given)
                async for event in process.events():
                    if type(event) is OutputChunk:
                        await (err if event.stream == "stderr" else out).write(event.chunk)
                    elif type(event) is Exited:
                        self._verdict = event.verdict
                        self.start_task(self._take_back(input_given))
                out.close()
                err.close()
                await asyncio.gather(*watching)
        except BaseException:
            # If a kill was tried before, a second attempt would only delay the exit.
            if not self._killed:
                await self._terminate(process)
            raise
        finally:
            out.close()
            err.close()
        # A process exits before it is closed.
        assert self._verdict is not None
        verdict = self._verdict
        if verdict.denial or verdict.network_attempts or verdict.reason is Reason.LIMIT:
            line: str | None = load("holdfast.front.cli.sandbox_options:explain_failure")(verdict)
            if line is not None:
                self.say(line)
        if verdict.reason in (Reason.SERVER_STOPPING, Reason.SESSION_EXPIRED):
            self.say(f"the command was {verdict}")
        return of_verdict(verdict)

    def _give_input(self, process: ExecProcess, input_given: ExitStack) -> None:
        """Forward input to the process until the stack is closed."""
        if self._tty:
            if os.isatty(self._stdin):
                self._terminal = input_given.enter_context(RawTerminal(self._stdin))
            # The size may have changed since the request to start.
            self.start_task(self._resize())
        self._loop.add_signal_handler(signal.SIGCONT, self._continued)
        input_given.callback(self._loop.remove_signal_handler, signal.SIGCONT)
        feeding = self.start_task(self._feed(process))
        input_given.callback(feeding.cancel)

    async def _take_back(self, input_given: ExitStack) -> None:
        # Its last output, still in flight, must be shown in raw mode. But if children keep
        # writing, the terminal is restored, so that Ctrl-C works.
        await asyncio.sleep(_LAST_OUTPUT)
        input_given.close()

    # -- streams

    async def _watch(self, writer: OutputWriter, name: str) -> None:
        error = await writer.wait()
        if error is None:
            return
        if not isinstance(error, BrokenPipeError):
            raise Ended(FAILED, f"cannot write to {name}: {error.strerror}")
        # The reader of the output is gone. As in a shell, that ends a command which keeps writing.
        if self._verdict is None:
            raise Ended(of_signal(signal.SIGPIPE))
        raise Ended(of_verdict(self._verdict))

    async def _feed(self, process: ExecProcess) -> None:
        # Ignore errors: the events of the process report them, or it accepts no more input.
        with suppress(HoldfastError):
            last = b"\n"
            if not is_null(self._stdin):
                async for data in read_chunks(self._stdin):
                    if await process.write(data) is not WriteStatus.ACCEPTED:
                        return
                    last = data[-1:]
            if not self._tty:
                await process.close_stdin()
            elif not os.isatty(self._stdin):
                await self._type_end(process, at_line_start=last == b"\n")

    async def _type_end(self, process: ExecProcess, *, at_line_start: bool) -> None:
        if not at_line_start:
            # In the middle of a line, the first Ctrl-D only submits the line.
            await process.write(_END_OF_INPUT)
        while True:
            await process.write(_END_OF_INPUT)
            await asyncio.sleep(_END_AGAIN)

    # -- signals

    async def _obey(self, lifeline: int) -> None:
        async for numbers in read_chunks(lifeline):
            for number in numbers:
                await self._signalled(number)
        # The lifeline has ended: the guardian was killed.
        raise Ended(of_signal(signal.SIGKILL))

    async def _signalled(self, number: int) -> None:
        process = self._process
        if number == signal.SIGTSTP:
            await self._stop()
        elif process is None or self._verdict is not None:
            if number in _ENDING:
                raise Ended(of_signal(number))
        elif number == signal.SIGWINCH:
            if self._tty:
                self.start_task(self._resize())
        # Let the command handle the first interrupt; a second one kills it.
        elif number == signal.SIGINT and self._is_interrupted_again():
            if self._killed:
                # The kill has had no effect.
                raise Ended(of_signal(number))
            self._killed = True
            self.start_task(self._terminate(process))
        else:
            self.start_task(self._send(process, number))

    def _is_interrupted_again(self) -> bool:
        before, self._interrupted = self._interrupted, self._loop.time()
        return self._interrupted - before < _TWICE

    async def _send(self, process: ExecProcess, number: int) -> None:
        name = signal.Signals(number).name
        try:
            await process.signal("interrupt" if number == signal.SIGINT else name)
        except ConnectionLost:
            # The events of the process report it.
            pass
        except RemoteError:
            # A server without Holdfast's extensions can only send an interrupt.
            if number in _ENDING:
                await self._terminate(process)
            else:
                self.say(f"the server cannot send {name}")
        except Refused as error:
            self.say(str(error))

    async def _terminate(self, process: ExecProcess) -> None:
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(_ASK_LIMIT):
                await process.terminate()

    # -- the terminal

    async def _stop(self) -> None:
        """Stop the command, then this process, until a shell continues both."""
        # First the command: once stopped, this process cannot send anything.
        await self._control_job("SIGSTOP")
        if self._terminal is not None:
            # The shell needs a usable terminal while this process is stopped.
            self._terminal.restore()
        stop_this_process()
        self._continued()
        await self._control_job("SIGCONT")

    async def _control_job(self, name: str) -> None:
        if self._process is not None and self._verdict is None:
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(_ASK_LIMIT):
                    await self._process.signal(name)

    def _continued(self) -> None:
        """Restore raw mode and update the size: another job may have changed both."""
        if self._terminal is not None:
            self._terminal.make_raw()
            self.start_task(self._resize())

    async def _resize(self) -> None:
        size = terminal_size()
        if size is not None and self._process is not None:
            with suppress(HoldfastError):
                await self._process.resize(size.rows, size.cols)

    def say(self, text: str) -> None:
        """Write a line to stderr, even while the terminal is raw."""
        # Ignore errors: stderr may be closed.
        with suppress(OSError):
            print(f"holdfast: {text}", end="\r\n" if self._terminal else "\n", file=sys.stderr)

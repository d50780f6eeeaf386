"""A command in the foreground, with a process that does as it is told."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from holdfast.base.errors import (
    ConnectionLost,
    HoldfastError,
    OperationFailed,
    RemoteError,
    StdinClosed,
    Unsupported,
)
from holdfast.events import Reason, Verdict
from holdfast.front.cli.exit_status import Ended
from holdfast.front.cli.foreground import ForegroundCommand
from holdfast.front.cli.streams import read_chunks
from holdfast.testing import FakeProcess
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams, TerminalSize, WriteStatus


def tty_params() -> StartParams:
    return StartParams(
        process_id="p", argv=["fake"], cwd=PathUri.parse("file:///"), env={}, tty=True
    )


class Stage:
    """A process in the foreground of four pipes."""

    def __init__(self, *, tty: bool = False) -> None:
        self.process = FakeProcess(tty_params() if tty else None)
        self._expected = 0
        self._tty = tty
        self._stdin, self._type = os.pipe()
        self._stdout_read, self._stdout = os.pipe()
        self._stderr_read, self._stderr = os.pipe()
        self._lifeline, self._guardian = os.pipe()
        self._open = {
            self._stdin,
            self._type,
            self._stdout_read,
            self._stdout,
            self._stderr_read,
            self._stderr,
            self._lifeline,
            self._guardian,
        }

    async def run(self, *, attend: bool = True) -> int:
        """The status it ends with; what it is ended by is raised."""
        status = -1
        try:
            async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
                streams = (self._stdin, self._stdout, self._stderr)
                foreground = ForegroundCommand(
                    tasks, self._lifeline, tty=self._tty, streams=streams
                )
                if attend:
                    status = await foreground.attend(self.process)
                else:
                    await asyncio.Event().wait()
                foreground.close()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return status

    async def outcome(self) -> int | Ended:
        """The same, with an end of our own as a result."""
        try:
            return await self.run()
        except Ended as end:
            return end

    async def expect(self, words: str) -> None:
        """Wait for the next thing that is asked of the process, with its first argument."""
        asked, number = self.process.asked, self._expected
        await self.process.until(lambda: len(asked) > number)
        self._expected += 1
        call, arguments = asked[number]
        match call:
            case "terminate" | "close_stdin":
                assert words == call
            case "write":
                assert words == f"write {arguments[0]!r}"
            case _:
                assert words == " ".join([call, *map(str, arguments)])

    @property
    def asked_no_more(self) -> bool:
        """True if nothing was asked of the process that was not expected."""
        return len(self.process.asked) == self._expected

    def type(self, keys: bytes) -> None:
        os.write(self._type, keys)

    def end_input(self) -> None:
        self._close(self._type)

    def stop_reading(self) -> None:
        self._close(self._stdout_read)

    def kill_guardian(self) -> None:
        self._close(self._guardian)

    def signal(self, *numbers: int) -> None:
        os.write(self._guardian, bytes(numbers))

    def output(self) -> tuple[bytes, bytes]:
        """Return the output on stdout and stderr."""
        self._close(self._stdout)
        self._close(self._stderr)
        return os.read(self._stdout_read, 1 << 20), os.read(self._stderr_read, 1 << 20)

    async def first_output(self) -> bytes:
        """Wait for something on stdout."""
        async with asyncio.timeout(5):
            return await anext(read_chunks(self._stdout_read))

    def _close(self, fd: int) -> None:
        self._open.discard(fd)
        os.close(fd)

    def close(self) -> None:
        for fd in list(self._open):
            self._close(fd)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    found = Stage()
    yield found
    found.close()


@pytest.fixture
async def tty_stage() -> AsyncIterator[Stage]:
    found = Stage(tty=True)
    yield found
    found.close()


# -- streams


async def test_output_goes_where_it_belongs(stage: Stage) -> None:
    stage.process.output(b"out ")
    stage.process.output(b"err", "stderr")
    stage.process.output(b"terminal", "pty")
    stage.process.end(Verdict(reason=Reason.EXITED, exit_code=3))
    assert await stage.run() == 3
    assert stage.output() == (b"out terminal", b"err")


async def test_output_after_the_exit_is_output(stage: Stage) -> None:
    stage.process.exit()
    stage.process.output(b"late")
    stage.process.close()
    assert await stage.run() == 0
    assert stage.output()[0] == b"late"


async def test_input_and_its_end_are_forwarded(stage: Stage) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        stage.type(b"hello")
        await stage.expect("write b'hello'")
        stage.end_input()
        await stage.expect("close_stdin")
        stage.process.end()
    assert running.result() == 0


@pytest.mark.parametrize(
    "status", [WriteStatus.STDIN_CLOSED, WriteStatus.UNKNOWN_PROCESS, StdinClosed("gone")]
)
async def test_input_that_is_not_taken_is_left_alone(
    stage: Stage, status: WriteStatus | HoldfastError
) -> None:
    if isinstance(status, WriteStatus):
        stage.process.write_status = status
    else:
        stage.process.refuse("write", status)
    stage.type(b"hello")
    stage.end_input()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await stage.expect("write b'hello'")
        stage.process.end()
    assert running.result() == 0
    assert stage.asked_no_more


async def test_a_server_that_cannot_end_input_leaves_it_open(stage: Stage) -> None:
    stage.process.refuse("close_stdin", Unsupported(-32601, "unknown method"))
    stage.end_input()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await stage.expect("close_stdin")
        stage.process.output(b"still here")
        stage.process.end()
    assert running.result() == 0
    assert stage.output() == (b"still here", b"")


@pytest.mark.parametrize(("typed", "ends"), [(b"line\n", 1), (b"half a line", 2), (b"", 1)])
async def test_the_end_of_input_of_a_terminal_is_a_key(
    tty_stage: Stage, typed: bytes, ends: int
) -> None:
    tty_stage.type(typed)
    tty_stage.end_input()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(tty_stage.run())
        if typed:
            await tty_stage.expect(f"write {typed!r}")
        for _ in range(ends):
            await tty_stage.expect("write b'\\x04'")
        assert tty_stage.asked_no_more
        tty_stage.process.end()
    assert running.result() == 0


async def test_a_reader_that_left_ends_the_command(stage: Stage) -> None:
    stage.stop_reading()
    stage.process.output(b"more")
    with pytest.raises(Ended) as end:
        await stage.run()
    assert (end.value.status, end.value.text) == (141, None)
    await stage.expect("terminate")


async def test_a_reader_that_left_after_the_exit_does_not_change_the_status(stage: Stage) -> None:
    stage.stop_reading()
    stage.process.exit(Verdict(reason=Reason.EXITED, exit_code=4))
    stage.process.output(b"more")
    stage.process.close()
    with pytest.raises(Ended) as end:
        await stage.run()
    assert (end.value.status, end.value.text) == (4, None)


async def test_a_lost_connection_is_the_callers_to_hear(stage: Stage) -> None:
    stage.process = FakeProcess(remote=True)
    stage.process.lose_for_good(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        await stage.run()


# -- signals


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGINT, "interrupt"),
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGHUP, "SIGHUP"),
        (signal.SIGQUIT, "SIGQUIT"),
        (signal.SIGUSR1, "SIGUSR1"),
        (signal.SIGUSR2, "SIGUSR2"),
    ],
)
async def test_a_signal_goes_to_the_command(stage: Stage, number: int, name: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await asyncio.sleep(0)  # it attends the process
        stage.signal(number)
        await stage.expect(f"signal {name}")
        stage.process.end()
    assert running.result() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
async def test_a_server_without_that_signal_terminates_instead(stage: Stage, number: int) -> None:
    stage.process.refuse("signal", RemoteError(-32602, "unknown variant, expected `interrupt`"))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await asyncio.sleep(0)
        stage.signal(number)
        await stage.expect(f"signal {signal.Signals(number).name}")
        await stage.expect("terminate")
    assert running.result() == 137


async def test_a_server_without_a_harmless_signal_is_only_told_of(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.process.refuse("signal", RemoteError(-32602, "unknown variant, expected `interrupt`"))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await asyncio.sleep(0)
        stage.signal(signal.SIGUSR1)
        await stage.expect("signal SIGUSR1")
        stage.process.end()
    assert running.result() == 0
    assert capsys.readouterr().err == "holdfast: the server cannot send SIGUSR1\n"


async def test_a_signal_that_the_system_refuses_is_told_of(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.process.refuse(
        "signal", OperationFailed("failed to signal process: Operation not permitted")
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await asyncio.sleep(0)
        stage.signal(signal.SIGTERM)
        await stage.expect("signal SIGTERM")
        stage.process.end()
    assert running.result() == 0
    assert capsys.readouterr().err == (
        "holdfast: failed to signal process: Operation not permitted\n"
    )


async def test_a_signal_into_a_lost_connection_is_no_error_of_its_own(stage: Stage) -> None:
    stage.process.refuse("signal", ConnectionLost("for now"))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await asyncio.sleep(0)
        stage.signal(signal.SIGTERM)
        await stage.expect("signal SIGTERM")
        stage.process.end()
    assert running.result() == 0


async def test_two_interrupts_in_a_row_terminate(stage: Stage) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await asyncio.sleep(0)
        stage.signal(signal.SIGINT, signal.SIGINT)
        await stage.expect("signal interrupt")
        await stage.expect("terminate")
    assert running.result() == 137


async def test_a_third_interrupt_leaves_a_command_that_nothing_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(stage.process, "terminate", never)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.outcome())
        await asyncio.sleep(0)
        stage.signal(signal.SIGINT, signal.SIGINT, signal.SIGINT)
    end = running.result()
    assert isinstance(end, Ended)
    assert end.status == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
async def test_without_a_command_a_signal_ends_the_run(stage: Stage, number: int) -> None:
    stage.signal(signal.SIGUSR1, signal.SIGWINCH, number)
    with pytest.raises(Ended) as end:
        await stage.run(attend=False)
    assert (end.value.status, end.value.text) == (128 + number, None)


async def test_after_the_exit_a_signal_ends_the_wait(stage: Stage) -> None:
    stage.process.exit()
    stage.process.output(b"seen")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.outcome())
        # Once that is out, the exit before it was seen.
        assert await stage.first_output() == b"seen"
        stage.signal(signal.SIGTERM)
    end = running.result()
    assert isinstance(end, Ended)
    assert end.status == 143


async def test_a_guardian_that_is_gone_ends_the_command(stage: Stage) -> None:
    stage.kill_guardian()
    with pytest.raises(Ended) as end:
        await stage.run()
    assert end.value.status == 137
    await stage.expect("terminate")


# -- sizes


async def test_a_new_size_is_passed_on(tty_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([TerminalSize(rows=1, cols=2), TerminalSize(rows=3, cols=4)])
    monkeypatch.setattr("holdfast.front.cli.foreground.terminal_size", lambda: next(sizes))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(tty_stage.run())
        await tty_stage.expect("resize 1 2")
        tty_stage.process.refuse("resize", Unsupported(-32601, "unknown method"))
        tty_stage.signal(signal.SIGWINCH)
        await tty_stage.expect("resize 3 4")
        tty_stage.process.end()
    assert running.result() == 0


async def test_without_a_terminal_of_its_own_a_command_has_no_size(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = TerminalSize(rows=1, cols=2)
    monkeypatch.setattr("holdfast.front.cli.foreground.terminal_size", lambda: size)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stage.run())
        await asyncio.sleep(0)
        stage.signal(signal.SIGWINCH, signal.SIGUSR1)
        await stage.expect("signal SIGUSR1")
        stage.process.end()
    assert running.result() == 0

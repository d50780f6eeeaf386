"""Every order around the end of a command, in virtual time [command-exec.end.*]."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.base.errors import ConnectionLost, RemoteProtocolError
from holdfast.engine.process.event_stream import HIGH_WATER
from holdfast.front.app_server.command_exec import (
    Command,
    CommandExec,
    CommandLost,
    Done,
    DrainPolicy,
    DuplicateCommand,
    NoLongerRunning,
    StdinAlreadyClosed,
    UnknownCommand,
)
from holdfast.testing import FakeBackend, FakeEnvironment, FakeProcess

pytestmark = pytest.mark.virtual_time

WINDOW = 0.05
LIMIT = 2.0


async def started(
    commands: CommandExec, env: FakeEnvironment, **options: object
) -> tuple[Command, FakeProcess]:
    command = await commands.start(["fake"], process_id="c", **options)  # type: ignore[arg-type]
    return command, env.backend.processes[-1]


async def timed(command: Command) -> tuple[Done, float]:
    """Return the end, and the virtual time at which it came."""
    done = await command.wait()
    return done, round(asyncio.get_running_loop().time(), 3)


async def everything(command: Command) -> bytes:
    return b"".join([delta.data async for delta in command.output()])


@pytest.mark.requirement("command-exec.end.late-bytes")
async def test_each_late_byte_begins_the_quiet_window_anew(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake)
        process.exit()
        for piece in (b"ta", b"i", b"l"):
            process.output(piece)
            await asyncio.sleep(0.03)
        done, when = await timed(command)
        assert (done.stdout, done.exit_code, done.drain_timed_out) == (b"tail", 0, True)
        assert when == 0.06 + WINDOW


@pytest.mark.requirement("command-exec.end.silent")
async def test_a_silent_holder_costs_the_quiet_window(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake)
        process.output(b"all")
        process.exit(3)
        done, when = await timed(command)
        assert (done.stdout, done.exit_code, done.drain_timed_out) == (b"all", 3, True)
        assert when == WINDOW


@pytest.mark.requirement("command-exec.end.chatty")
async def test_a_chatty_holder_costs_the_limit(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake)
        process.exit()
        talking = asyncio.create_task(chat(process, "stdout"))
        done, when = await timed(command)
        talking.cancel()
        assert when == LIMIT
        assert len(done.stdout) == int(LIMIT / 0.03)
        assert done.drain_timed_out


async def chat(process: FakeProcess, stream: str) -> None:
    while True:
        await asyncio.sleep(0.03)
        process.output(b".", stream)  # type: ignore[arg-type]


@pytest.mark.requirement("command-exec.end.per-stream")
async def test_one_stream_is_over_while_the_other_drains(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake)
        process.exit()
        talking = asyncio.create_task(chat(process, "stderr"))
        await asyncio.sleep(0.1)
        process.output(b"too late")
        done, when = await timed(command)
        talking.cancel()
        assert (done.stdout, when) == (b"", LIMIT)
        assert done.stderr


@pytest.mark.parametrize("end_first", [True, False])
async def test_the_end_of_both_streams_is_the_end(fake: FakeEnvironment, end_first: bool) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake)
        if end_first:
            process.stream_ended("stderr")
        process.exit()
        process.output(b"late")
        process.close()
        done, when = await timed(command)
        assert (done.stdout, done.drain_timed_out, when) == (b"late", False, 0.0)


async def test_the_ends_of_streams_are_enough_where_a_server_tells_them() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env)
        process.stream_ended("stderr")
        process.exit()
        process.stream_ended("stdout")
        done, when = await timed(command)
        assert (done.drain_timed_out, when) == (False, 0.0)


@pytest.mark.requirement("command-exec.end.ready-bytes")
@pytest.mark.parametrize("quiet", [0.0, WINDOW, None])
@pytest.mark.parametrize("limit", [0.0, 0.001])
async def test_ready_bytes_win_over_both_deadlines(
    fake: FakeEnvironment, quiet: float | None, limit: float
) -> None:
    async with CommandExec(fake, drain=DrainPolicy(quiet=quiet, limit=limit)) as commands:
        command, process = await started(commands, fake)
        process.exit()
        for _ in range(10):
            process.output(b"o", "stdout")
            process.output(b"e", "stderr")
        done, _ = await timed(command)
        assert (done.stdout, done.stderr) == (b"o" * 10, b"e" * 10)


async def test_bytes_that_become_ready_with_the_deadline_win(fake: FakeEnvironment) -> None:
    async with CommandExec(fake, drain=DrainPolicy(quiet=WINDOW, limit=0.1)) as commands:
        command, process = await started(commands, fake)
        loop = asyncio.get_running_loop()
        process.exit()
        loop.call_at(loop.time() + WINDOW, process.output, b"a")  # set before the window's timer
        loop.call_at(loop.time() + 0.1, process.output, b"b")
        done, when = await timed(command)
        assert (done.stdout, when) == (b"ab", 0.1)


@pytest.mark.requirement("command-exec.end.last-pass")
@pytest.mark.parametrize("last_pass", [0, 1, 256])
async def test_the_last_pass_takes_a_number_of_pieces(
    fake: FakeEnvironment, last_pass: int
) -> None:
    policy = DrainPolicy(limit=0.0, last_pass=last_pass)
    async with CommandExec(fake, drain=policy) as commands:
        command, process = await started(commands, fake)
        process.output(b"own")
        process.exit()
        for _ in range(300):
            process.output(b"o", "stdout")
            process.output(b"e", "stderr")
        done, _ = await timed(command)
        assert (len(done.stdout), len(done.stderr)) == (3 + last_pass, last_pass)


@pytest.mark.requirement("command-exec.end.capped")
@pytest.mark.parametrize(("late", "answered"), [(False, WINDOW), (True, 0.03 + WINDOW)])
async def test_a_stream_at_its_cap_is_not_waited_for(
    fake: FakeEnvironment, late: bool, answered: float
) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake, cap=3)
        process.output(b"abc")
        process.exit()
        talking = asyncio.create_task(chat(process, "stdout"))
        if late:
            await asyncio.sleep(0.03)
            process.output(b"e", "stderr")
        done, when = await timed(command)
        talking.cancel()
        assert (done.stdout, done.stderr) == (b"abc", b"e" if late else b"")
        assert (done.stdout_cap_reached, done.stderr_cap_reached) == (True, False)
        assert when == answered


async def test_with_both_streams_at_their_caps_the_exit_is_the_end(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake, cap=1)
        process.output(b"out", "stdout")
        process.output(b"err", "stderr")
        await asyncio.sleep(1)
        assert command.running
        process.exit()
        done, when = await timed(command)
        assert (done.stdout, done.stderr, when) == (b"o", b"e", 1.0)
        assert not done.drain_timed_out


@pytest.mark.requirement("command-exec.end.pending")
async def test_the_answer_is_pending_while_the_tail_drains(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake)
        process.exit()
        waiting = asyncio.create_task(command.wait())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        assert not command.running
        process.output(b"tail")
        await asyncio.sleep(0.02)
        assert not waiting.done()
        assert (await waiting).stdout == b"tail"


# -- controls


Control = Callable[[Command], Awaitable[None]]

CONTROLS: dict[str, Control] = {
    "write": lambda command: command.write(b"x"),
    "close": lambda command: command.write(close=True),
    "resize": lambda command: command.resize(10, 20),
    "terminate": lambda command: command.terminate(),
}


@pytest.fixture(params=CONTROLS)
def control(request: pytest.FixtureRequest) -> Control:
    return CONTROLS[request.param]


async def interactive(commands: CommandExec, env: FakeEnvironment) -> tuple[Command, FakeProcess]:
    return await started(commands, env, tty=True, cap=None, hold_id=True)


async def refused(control: Control, command: Command) -> None:
    with pytest.raises(NoLongerRunning, match=r'^command/exec "c" is no longer running$'):
        await control(command)


@pytest.mark.requirement("command-exec.control.after-exit")
async def test_a_control_is_taken_before_the_exit_and_refused_after_it(control: Control) -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await interactive(commands, env)
        process.dies_when_killed = False
        await control(command)  # one step before the exit
        process.exit()
        await refused(control, command)  # between the exit and the drain
        reading = asyncio.create_task(everything(command))
        await asyncio.sleep(0.01)
        await refused(control, command)  # in the quiet window
        process.output(b"tail")
        assert await reading == b"tail"
        await refused(control, command)  # after the drain
        assert (await command.wait()).exit_code == 0
        await refused(control, command)  # after the answer
        command.release()
        with pytest.raises(UnknownCommand, match=r'^no active command/exec for process id "c"$'):
            commands.get("c")


async def test_a_control_in_the_last_pass_is_refused(control: Control) -> None:
    policy = DrainPolicy(quiet=None, limit=0.01)
    async with FakeEnvironment() as env, CommandExec(env, drain=policy) as commands:
        command, process = await interactive(commands, env)
        process.exit()
        deltas = command.output()
        first = asyncio.create_task(anext(deltas))
        await asyncio.sleep(0.01)
        process.output(b"1")
        process.output(b"2")
        await first
        await refused(control, command)
        assert [delta.data async for delta in deltas] == [b"2"]


@pytest.mark.requirement("command-exec.control.behind")
async def test_a_reader_that_is_behind_does_not_hide_the_exit(control: Control) -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await interactive(commands, env)
        piece = b"x" * 65536
        count = HIGH_WATER // len(piece) + 1
        for _ in range(count):
            process.output(piece)
        assert process.held
        process.exit()
        assert not command.running
        await refused(control, command)
        await asyncio.sleep(3.0)  # the limit passes while nobody reads
        process.output(b"ready")
        assert await everything(command) == piece * count + b"ready"
        assert (await command.wait()).drain_timed_out
        assert asyncio.get_running_loop().time() == 3.0


@pytest.mark.requirement("command-exec.id.until-answer")
async def test_the_id_is_taken_until_the_answer_is_sent(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake, hold_id=True)
        process.exit()
        with pytest.raises(DuplicateCommand, match=r'^duplicate active command/exec .*: "c"$'):
            await started(commands, fake)
        await command.wait()
        with pytest.raises(DuplicateCommand):
            await started(commands, fake)
        waiting = asyncio.create_task(command.released())
        await asyncio.sleep(0)
        assert not waiting.done()
        command.release()
        await waiting
        again, other = await started(commands, fake)
        command.release()  # a second time, when the id is another's
        assert commands.get("c") is again
        other.end()
        assert (await again.wait()).exit_code == 0
        with pytest.raises(UnknownCommand):
            commands.get("c")


async def test_a_write_of_data_after_the_close_is_refused() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stdin=True)
        await command.write(b"in", close=True)
        await command.write(close=True)
        await command.write(b"")
        with pytest.raises(StdinAlreadyClosed, match=r"^stdin is already closed$"):
            await command.write(b"more")
        assert (process.written, process.stdin_closed) == (b"in", True)
        process.end()
        await command.wait()


# -- the way to this side


async def test_bytes_on_their_way_are_waited_for(far: FakeEnvironment) -> None:
    async with CommandExec(far) as commands:
        command, process = await started(commands, far)
        process.delay()
        process.exit()
        process.arrive(1)  # the exit comes first, as Codex may send it
        process.delay()
        process.output(b"own")
        process.output(b"err", "stderr")
        waiting = asyncio.create_task(command.wait())
        await asyncio.sleep(5.0)
        assert not waiting.done()
        process.arrive()
        done = await waiting
        assert (done.stdout, done.stderr) == (b"own", b"err")


async def test_a_stream_is_given_up_though_another_is_always_on_its_way(
    far: FakeEnvironment,
) -> None:
    async with CommandExec(far) as commands:
        command, process = await started(commands, far, cap=4)
        process.exit()
        talking = asyncio.create_task(chat(process, "stderr"))
        done, when = await timed(command)
        talking.cancel()
        assert (done.stderr, when) == (b"....", 0.12)


@pytest.mark.requirement("command-exec.compat.drain")
async def test_as_codex_a_silent_holder_costs_the_limit(fake: FakeEnvironment) -> None:
    async with CommandExec(fake, compat="codex-0.166.0") as commands:
        command, process = await started(commands, fake)
        process.exit()
        done, when = await timed(command)
        assert (when, done.drain_timed_out) == (LIMIT, True)


async def test_the_windows_can_be_given_with_compat() -> None:
    policy = DrainPolicy(quiet=0.2)
    async with (
        FakeEnvironment() as env,
        CommandExec(env, compat="codex-0.166.0", drain=policy) as commands,
    ):
        command, process = await started(commands, env)
        process.exit()
        assert (await timed(command))[1] == 0.2


async def test_there_is_no_other_compat() -> None:
    async with FakeEnvironment() as env:
        with pytest.raises(ValueError, match=r"codex-0\.1"):
            CommandExec(env, compat="codex-0.1")  # type: ignore[arg-type]


async def test_a_lost_line_fails_whoever_waits(far: FakeEnvironment) -> None:
    async with CommandExec(far) as commands:
        command, process = await started(
            commands, far, stream=True, stdin=True, accept_missing=["closeStdin"]
        )
        process.output(b"x")
        backend: FakeBackend = far.backend
        reading = asyncio.create_task(everything(command))
        await asyncio.sleep(0)
        backend.lose_for_good()
        lost = r'^command/exec "c" on environment `fake` is lost: the fake server is lost$'
        for waiting in (reading, command.wait(), command.write(b"x"), command.terminate()):
            with pytest.raises(CommandLost, match=lost):
                await waiting
        assert not command.running
        with pytest.raises(UnknownCommand):
            commands.get("c")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_command_that_a_server_has_lost_track_of_is_lost(
    far: FakeEnvironment, stream: bool
) -> None:
    async with CommandExec(far) as commands:
        command, process = await started(commands, far, stream=stream)
        process.lose_for_good(RemoteProtocolError("output is missing"))
        with pytest.raises(CommandLost, match=r"is lost: output is missing$"):
            await command.wait()


async def test_a_control_on_a_lost_line_names_its_command(far: FakeEnvironment) -> None:
    async with CommandExec(far) as commands:
        command, process = await started(commands, far, stdin=True, accept_missing=["closeStdin"])
        process.refuse("write", ConnectionLost("the line is lost"))
        with pytest.raises(CommandLost, match='"c" on environment `fake` is lost: the line'):
            await command.write(b"x")

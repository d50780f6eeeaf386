"""Starts, caps, timeouts, kills and readers of commands, on fake processes."""

import asyncio
import gc
from typing import Any

import pytest

from holdfast.base.errors import InvalidParams, OperationFailed, SpawnFailed
from holdfast.environments.commands.run import END_LIMIT
from holdfast.events import LimitKind, Reason, Verdict
from holdfast.front.app_server.command_exec import (
    Command,
    CommandExec,
    CommandExecClosed,
    Delta,
    DrainPolicy,
    DuplicateCommand,
    EmptyCommand,
    ExtensionMissing,
    InvalidSize,
    NegativeTimeout,
    NotATerminal,
    SizeNeedsTerminal,
    SpawnRefused,
    StdinAlreadyClosed,
    StdinNotStreamed,
    UnknownCommand,
)
from holdfast.testing import FakeBackend, FakeEnvironment, FakeProcess, Termination
from holdfast.wire.protocol.process import ProcessLimits

pytestmark = pytest.mark.virtual_time


async def started(
    commands: CommandExec, env: FakeEnvironment, /, **options: Any
) -> tuple[Command, FakeProcess]:
    command = await commands.start(["fake"], process_id="c", **options)
    return command, env.backend.processes[-1]


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


# -- caps


@pytest.mark.requirement("command-exec.output.cap")
@pytest.mark.parametrize(
    ("cap", "kept", "reached"),
    [
        (0, b"", True),
        (1, b"a", True),
        (5, b"abcde", True),
        (6, b"abcdef", True),
        (7, b"abcdef", False),
        (None, b"abcdef", False),
        (1 << 70, b"abcdef", False),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_piece_that_reaches_the_cap_is_cut(
    cap: int | None, kept: bytes, reached: bool, stream: bool
) -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, cap=cap, stream=stream)
        for piece in (b"abc", b"def"):
            process.output(piece)
        process.end()
        if stream:
            deltas = [delta async for delta in command.output()]
            assert b"".join(delta.data for delta in deltas) == kept
            assert [delta.cap_reached for delta in deltas] == [
                reached and delta is deltas[-1] for delta in deltas
            ]
            kept = b""
        done = await command.wait()
        assert (done.stdout, done.stdout_cap_reached) == (kept, reached)
        assert not done.stderr_cap_reached


async def test_a_cap_of_nothing_sends_one_empty_piece_as_soon_as_there_is_output() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, cap=0, stream=True)
        deltas = command.output()
        process.output(b"a", "stderr")
        assert await anext(deltas) == Delta("stderr", b"", cap_reached=True)
        process.output(b"a", "stderr")
        process.end()
        assert [delta async for delta in deltas] == []


@pytest.mark.requirement("command-exec.output.never-blocks")
async def test_a_command_at_its_cap_is_read_on() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        for stream in (False, True):
            command, process = await started(commands, env, cap=10, stream=stream)
            reading = asyncio.create_task(command.wait())
            await process.flow(b"x" * (8 << 20))
            process.end()
            assert (await reading).stdout_cap_reached
            assert process.pipe_bytes == 0


async def test_a_slow_reader_makes_its_command_wait_and_no_other() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        slow, process = await started(commands, env, stream=True, cap=None)
        deltas = slow.output()
        flow = asyncio.create_task(process.flow(b"x" * (4 << 20)))
        await asyncio.sleep(1)
        assert process.held
        assert not flow.done()
        other = await commands.start(["other"])
        env.backend.processes[-1].output(b"quick")
        env.backend.processes[-1].end()
        assert (await other.wait()).stdout == b"quick"
        size = 0
        async for delta in deltas:
            size += len(delta.data)
            if flow.done() and process.running:
                process.end()
        assert size == 4 << 20


# -- readers


@pytest.mark.requirement("command-exec.output.joined")
async def test_pieces_that_are_waiting_are_joined_for_each_stream(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake, stream=True)
        for number in range(100):
            process.output(b"%02d" % number)
            process.output(b".", "stderr")
        process.end()
        assert [delta async for delta in command.output()] == [
            Delta("stdout", b"".join(b"%02d" % number for number in range(100))),
            Delta("stderr", b"." * 100),
        ]


async def test_joined_pieces_have_64_kib_at_most(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake, stream=True, cap=230_000)
        for _ in range(30):
            process.output(b"x" * 8000)
        process.end()
        deltas = [delta async for delta in command.output()]
        assert [len(delta.data) for delta in deltas] == [64_000, 64_000, 64_000, 38_000]
        assert [delta.cap_reached for delta in deltas] == [False, False, False, True]


async def test_a_piece_that_is_alone_is_not_held_back() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stream=True)
        deltas = command.output()
        for piece in (b"one", b"two"):
            process.output(piece)
            assert await anext(deltas) == Delta("stdout", piece)


async def test_joined_pieces_of_another_stream_wait_for_the_next_reader() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stream=True)
        process.output(b"out")
        process.output(b"err", "stderr")
        process.end()
        first = command.output()
        assert await anext(first) == Delta("stdout", b"out")
        first.close()
        assert [delta async for delta in command.output()] == [Delta("stderr", b"err")]


async def test_output_that_nobody_reads_is_dropped_by_wait() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stream=True, cap=None)
        waiters = [asyncio.create_task(command.wait()) for _ in range(3)]
        await process.flow(b"x" * (4 << 20))
        process.end(7)
        assert [(await waiter).exit_code for waiter in waiters] == [7, 7, 7]
        assert [delta async for delta in command.output()] == []


async def test_a_reader_gets_the_piece_that_wait_was_waiting_for() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stream=True)
        waiting = asyncio.create_task(command.wait())
        await asyncio.sleep(0)
        deltas = command.output()
        with pytest.raises(RuntimeError, match="already has a reader"):
            command.output()
        first = asyncio.create_task(anext(deltas))
        await asyncio.sleep(0)
        process.output(b"one")
        assert (await first).data == b"one"
        process.output(b"two")
        process.end()
        assert not waiting.done()
        assert [delta.data async for delta in deltas] == [b"two"]
        await waiting


async def test_a_reader_that_is_dropped_does_not_hold_up_wait() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stream=True)
        process.output(b"one")
        async for _ in command.output():
            break
        gc.collect()
        process.output(b"two")
        process.end()
        assert (await command.wait()).exit_code == 0


async def test_a_reader_that_died_with_its_task_does_not_hold_up_wait() -> None:
    """Though the task is still known, and with it the traceback of its end."""
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stream=True)

        async def read() -> None:
            async for _ in command.output():
                pass

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        reading.cancel()
        await asyncio.wait([reading])
        process.output(b"one")
        process.end()
        async with asyncio.timeout(1):
            assert (await command.wait()).exit_code == 0
        assert reading.cancelled()


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stream=True)
        deltas = command.output()
        reading = asyncio.create_task(anext(deltas))
        await asyncio.sleep(0.1)
        process.output(b"one")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        process.end()
        assert [delta.data async for delta in deltas] == [b"one"]


@pytest.mark.requirement("command-exec.output.kept")
async def test_output_that_is_kept_can_be_read_as_it_comes_too() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env)
        process.output(b"one")
        process.output(b"err", "stderr")
        await asyncio.sleep(0.1)
        early, second = command.output(), command.output()
        assert await anext(early) == Delta("stdout", b"one")
        assert await anext(early) == Delta("stderr", b"err")
        more = asyncio.create_task(anext(early))
        await asyncio.sleep(0.1)
        process.output(b"two", "stderr")
        assert await more == Delta("stderr", b"two")
        process.end()
        done = await command.wait()  # which does not wait for its readers
        assert (done.stdout, done.stderr) == (b"one", b"errtwo")
        assert [delta async for delta in early] == []
        everything = [Delta("stdout", b"one"), Delta("stderr", b"errtwo")]
        assert [delta async for delta in second] == everything
        assert [delta async for delta in command.output()] == everything


@pytest.mark.requirement("command-exec.output.kept")
@pytest.mark.parametrize(
    ("cap", "pieces"),
    [
        (0, [Delta("stdout", b"", True), Delta("stderr", b"", True)]),
        (2, [Delta("stdout", b"a"), Delta("stderr", b"b"), Delta("stdout", b"c", True)]),
        (3, [Delta("stdout", b"a"), Delta("stderr", b"b"), Delta("stdout", b"cd", True)]),
    ],
)
async def test_pieces_of_kept_output_have_its_order_and_its_caps(
    cap: int, pieces: list[Delta]
) -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, cap=cap)
        process.output(b"a")
        process.output(b"b", "stderr")
        process.output(b"c")
        process.output(b"de")
        process.end()
        done = await command.wait()
        assert done.cap_reached
        assert [delta async for delta in command.output()] == pieces


@pytest.mark.requirement("command-exec.output.kept")
async def test_a_large_kept_output_is_read_in_pieces() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, cap=None)
        await process.flow(b"x" * 200_000)
        process.end()
        assert [len(delta.data) async for delta in command.output()] == [65536] * 3 + [3392]
        assert not (await command.wait()).cap_reached


# -- the timeout


@pytest.mark.requirement("command-exec.timeout")
async def test_a_timeout_kills_the_tree_and_has_its_own_exit_code(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake, timeout=3)
        child = process.child(own_session=True)
        process.output(b"so far")
        done = await command.wait()
        assert (done.exit_code, done.stdout, now()) == (124, b"so far", 3.0)
        assert (done.verdict.reason, done.verdict.limit) == (Reason.LIMIT, LimitKind.WALL_TIME)
        assert done.verdict.detail == "ran for more than 3 seconds"
        assert process.terminations[0] == Termination(tree=True)
        assert child.alive is not fake.backend.capabilities.process_terminate_left
        child.exit()


async def test_a_timeout_of_nothing_kills_at_once() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, _ = await started(commands, env, timeout=0)
        assert (await command.wait()).exit_code == 124
        assert now() == 0.0


@pytest.mark.parametrize("timeout", [None, 2**63 / 1000, 2**63])
async def test_a_timeout_may_be_very_far(timeout: float | None) -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, timeout=timeout)
        await asyncio.sleep(3e6)
        assert command.running
        process.end()
        assert (await command.wait()).exit_code == 0


async def test_a_timeout_of_weeks_is_kept() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, _ = await started(commands, env, timeout=3.5e6)
        assert (await command.wait()).exit_code == 124
        assert now() == 3.5e6


async def test_the_timeout_does_not_count_the_drain() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, timeout=1)
        await asyncio.sleep(0.99)
        process.exit(5)
        assert (await command.wait()).exit_code == 5
        assert not process.terminations


async def test_a_process_that_ends_in_the_last_moment_has_not_timed_out(
    fake: FakeEnvironment,
) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake, timeout=1)
        process.dies_when_killed = False
        await asyncio.sleep(1.001)
        assert process.terminations
        process.exit(Verdict(reason=Reason.EXITED, exit_code=5))
        assert (await command.wait()).exit_code == 5


@pytest.mark.requirement("command-exec.timeout.server")
async def test_a_server_that_can_keeps_the_timeout_too(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        command, process = await started(commands, fake, timeout=1.5)
        kept = fake.is_remote and fake.backend.capabilities.process_limits
        assert process.params.limits == (ProcessLimits(wall_time_ms=2500) if kept else None)
        process.exit(
            Verdict(reason=Reason.LIMIT, limit=LimitKind.WALL_TIME, exit_code=137, signal=9)
        )
        process.close()
        done = await command.wait()
        assert (done.exit_code, done.verdict.exit_code) == (124, 137)


async def test_an_exit_that_cannot_be_seen_is_not_waited_for(far: FakeEnvironment) -> None:
    async with CommandExec(far) as commands:
        command, process = await started(commands, far, timeout=1, stream=True)
        process.output(b"before")
        reading = asyncio.create_task(_read(command))
        await asyncio.sleep(0)
        process.lose_line()
        assert await reading == [b"before"]
        done = await command.wait()
        assert (done.exit_code, now()) == (124, 1 + END_LIMIT)
        assert done.verdict.detail == (
            "ran for more than 1 seconds, and its end could not be observed"
        )
        process.restore_line()


async def _read(command: Command) -> list[bytes]:
    return [delta.data async for delta in command.output()]


async def test_a_process_that_cannot_be_killed_is_not_waited_for() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, timeout=1)
        process.refuse("terminate", OperationFailed("Operation not permitted"))
        assert (await command.wait()).exit_code == 124
        assert now() == 1 + END_LIMIT
        process.refuse("terminate", None)


async def test_after_a_kill_by_others_the_code_is_that_of_the_signal() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        for tty, code in ((False, 137), (True, 1)):
            command, _ = await started(commands, env, tty=tty)
            await command.terminate()
            assert (await command.wait()).exit_code == code


@pytest.mark.requirement("command-exec.compat.kill")
async def test_as_codex_a_kill_reaches_the_group_and_keeps_the_streams() -> None:
    async with FakeEnvironment() as env, CommandExec(env, compat="codex-0.166.0") as commands:
        command, process = await started(commands, env)
        child = process.child(own_session=True)
        await command.terminate()
        assert process.terminations == [Termination(streams="keep")]
        process.output(b"late")
        done = await command.wait()
        assert (done.exit_code, done.stdout, now()) == (137, b"late", 2.0)
        child.exit()


# -- starts


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"argv": []}, EmptyCommand, "command must not be empty"),
        ({"size": (0, 0)}, SizeNeedsTerminal, "command/exec size requires tty: true"),
        (
            {"size": (0, 80), "tty": True},
            InvalidSize,
            "command/exec size rows and cols must be greater than 0",
        ),
        (
            {"size": (1, 65536), "tty": True},
            InvalidSize,
            "command/exec size rows and cols must be at most 65535, got 1 and 65536",
        ),
        (
            {"timeout": -0.001},
            NegativeTimeout,
            "command/exec timeoutMs must be non-negative, got -1",
        ),
        ({"timeout": float("nan")}, InvalidParams, None),
        ({"timeout": float("-inf")}, InvalidParams, None),
        ({"timeout": "1"}, TypeError, None),
        ({"cap": -1}, InvalidParams, None),
        ({"cap": 1.5}, TypeError, None),
        ({"cap": True}, TypeError, None),
        ({"argv": "echo"}, TypeError, None),
        ({"argv": ["echo", 1]}, TypeError, None),
        ({"env": {"A": 1}}, TypeError, None),
        ({"env": ["A"]}, TypeError, None),
        ({"process_id": 1}, TypeError, None),
        ({"size": (1.5, 2), "tty": True}, TypeError, None),
        ({"size": 3, "tty": True}, TypeError, None),
        ({"sandbox": "nonsense"}, InvalidParams, None),
        ({"cwd": 5}, TypeError, "cwd must be a path, not int"),
        ({"env_policy": "all"}, TypeError, "env_policy must be an EnvPolicy, not str"),
        (
            {"accept_missing": "resize"},
            TypeError,
            "accept_missing must be a list of names, not 'resize'",
        ),
        (
            {"accept_missing": ["close_stdin"]},
            ValueError,
            "accept_missing has unknown name 'close_stdin'; known: closeStdin, resize, size, unset",
        ),
    ],
)
async def test_a_wrong_argument_is_refused_and_nothing_started(
    options: dict[str, Any], error: type[Exception], text: str | None
) -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        argv = options.pop("argv", ["echo"])
        with pytest.raises(error) as raised:
            await commands.start(argv, **options)
        assert text is None or str(raised.value) == text
        assert env.backend.starts == []


@pytest.mark.requirement("command-exec.spawn-failed")
async def test_a_failed_start_frees_the_id(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        error = SpawnFailed("No such file or directory (os error 2)", errno=2, program="fake")
        fake.backend.refuse_next_start(error)
        with pytest.raises(SpawnRefused) as raised:
            await started(commands, fake)
        assert str(raised.value) == (
            "failed to spawn command: No such file or directory (os error 2)"
        )
        assert (raised.value.reason, raised.value.errno) == (str(error), 2)
        command, process = await started(commands, fake)
        process.end()
        await command.wait()


async def test_the_id_is_taken_while_the_command_is_being_started() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        env.backend.hold_starts()
        starting = asyncio.create_task(started(commands, env))
        await env.backend.until(lambda: len(env.backend.starts) == 1)
        with pytest.raises(DuplicateCommand):
            await started(commands, env)
        with pytest.raises(UnknownCommand):
            commands.get("c")
        env.backend.let_start()
        command, process = await starting
        assert commands.get("c") is command
        process.end()
        await command.wait()


async def test_a_start_that_is_cancelled_frees_the_id() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        env.backend.hold_starts()
        starting = asyncio.create_task(started(commands, env))
        await env.backend.until(lambda: len(env.backend.starts) == 1)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        env.backend.let_start()
        _, process = await started(commands, env)
        process.end()


async def test_ids_belong_to_one_client_and_may_be_any_text() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as one, CommandExec(env) as other:
        for text in ("", 'é"\\\n', "1"):
            first = await one.start(["a"], process_id=text)
            second = await other.start(["b"], process_id=text)
            assert (one.get(text), other.get(text)) == (first, second)
            assert first.process_id == text
        hidden = await one.start(["c"])
        assert hidden.process_id is None
        with pytest.raises(DuplicateCommand) as raised:
            await one.start(["a"], process_id='é"\\\n')
        assert str(raised.value).endswith(': "é\\"\\\\\\n"')


@pytest.mark.requirement("command-exec.remote.refused")
@pytest.mark.parametrize(
    ("options", "extension"),
    [
        ({"stdin": True}, "closeStdin"),
        ({"tty": True}, "resize"),
        ({"tty": True, "size": (3, 4), "accept_missing": ["resize", "size"]}, "size"),
        ({"env": {"A": None}, "accept_missing": ["unset"]}, "unset"),
    ],
)
async def test_what_a_server_lacks_is_refused_before_the_start(
    options: dict[str, Any], extension: str
) -> None:
    async with FakeEnvironment(FakeBackend.codex()) as env, CommandExec(env) as commands:
        with pytest.raises(ExtensionMissing, match=f"`fake` .*\\({extension}\\)") as raised:
            await started(commands, env, **options)
        assert raised.value.extension == extension
        assert env.backend.starts == []


async def test_what_a_server_lacks_can_be_done_without() -> None:
    async with FakeEnvironment(FakeBackend.codex()) as env, CommandExec(env) as commands:
        command, process = await started(commands, env, tty=True, accept_missing=["resize"])
        with pytest.raises(ExtensionMissing, match="resize"):
            await command.resize(3, 4)
        process.end()
        await command.wait()
        command, process = await started(commands, env, stdin=True, accept_missing=["closeStdin"])
        await command.write(b"in")
        with pytest.raises(ExtensionMissing, match="closeStdin"):
            await command.write(close=True)
        assert process.written == b"in"
        process.end()
        await command.wait()


# -- controls


async def test_controls_of_a_command_that_has_not_what_they_need() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env)
        for data, close in ((b"x", False), (b"", False), (b"", True)):
            with pytest.raises(StdinNotStreamed, match=r"not enabled for this command/exec$"):
                await command.write(data, close=close)
        with pytest.raises(NotATerminal, match=r"^failed to resize PTY: process is not attached"):
            await command.resize(3, 4)
        with pytest.raises(InvalidSize):
            await command.resize(0, 4)
        with pytest.raises(TypeError):
            await command.write(3)  # type: ignore[arg-type]
        process.end()
        await command.wait()


async def test_closing_the_input_of_a_terminal_types_the_end() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, tty=True)
        await command.write(b"in", close=True)
        await command.resize(3, 4)
        assert process.written == b"in\n\x04"
        assert process.sizes == [(3, 4)]
        process.output(b"out")
        process.end()
        assert [delta async for delta in command.output()] == [Delta("stdout", b"out")]


async def test_a_close_that_was_cancelled_can_be_tried_again() -> None:
    async with FakeEnvironment(FakeBackend(remote=True)) as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stdin=True)
        process.input_limit = 1
        await command.write(b"x")
        writing = asyncio.create_task(command.write(b"y", close=True))
        await asyncio.sleep(1)
        writing.cancel()
        await asyncio.wait([writing])
        assert writing.cancelled()
        await process.next_input()
        await command.write(close=True)
        assert process.stdin_closed
        with pytest.raises(StdinAlreadyClosed):
            await command.write(b"z")


async def test_two_writes_do_not_mix() -> None:
    async with FakeEnvironment() as env, CommandExec(env) as commands:
        command, process = await started(commands, env, stdin=True)
        process.input_limit = 1000
        writes = [asyncio.create_task(command.write(letter * 200_000)) for letter in (b"a", b"b")]
        taken = b""
        while len(taken) < 400_000:
            taken += await process.next_input()
        await asyncio.gather(*writes)
        assert taken == b"a" * 200_000 + b"b" * 200_000
        process.end()
        await command.wait()


# -- an owner that goes


@pytest.mark.requirement("command-exec.disconnect")
async def test_closing_kills_what_runs_and_what_is_left(fake: FakeEnvironment) -> None:
    async with CommandExec(fake) as commands:
        running, process = await started(commands, fake)
        streamed = await commands.start(["fake"], stream=True)
        draining = await commands.start(["fake"])
        ended = await commands.start(["fake"])
        _, second, third, fourth = fake.backend.processes
        child = process.child(own_session=True)
        for one in (third, fourth):
            one.child()
        fourth.end()
        assert (await ended.wait()).drain_timed_out
        third.end()
        reading = asyncio.create_task(_read(streamed))
        await asyncio.sleep(0)
    assert process.terminations[0] == Termination(tree=True)
    assert second.terminations[0] == Termination(tree=True)
    for one in (third, fourth):
        assert one.terminations == [Termination(left=True)]
    for command in (running, streamed, draining):
        assert not command.running
    assert await asyncio.gather(reading, return_exceptions=True)
    with pytest.raises(CommandExecClosed):
        await commands.start(["fake"])
    child.exit()
    for one in (third, fourth):
        one.children[0].exit()


async def test_closing_does_not_wait_for_ever(far: FakeEnvironment) -> None:
    async with CommandExec(far) as commands:
        command, process = await started(commands, far)
        waiting = asyncio.create_task(command.wait())
        process.lose_line()
    assert now() == END_LIMIT
    with pytest.raises(CommandExecClosed):
        await waiting
    process.restore_line()
    assert not process.running


async def test_a_command_that_ends_with_the_close_leaves_nothing(fake: FakeEnvironment) -> None:
    """It ends in the same turn of the event loop, after the close has begun."""
    commands = CommandExec(fake)
    command, process = await started(commands, fake, cap=0)
    for stream in ("stdout", "stderr"):
        process.output(b"x", stream)
    await asyncio.sleep(0.01)  # both are at their caps: the exit is the end
    closing = asyncio.create_task(commands.aclose())
    process.exit()
    await closing
    assert command.ended
    assert [one.left for one in process.terminations] == [True]


async def test_a_start_that_is_late_for_the_close_leaves_nothing() -> None:
    async with FakeEnvironment() as env:
        async with CommandExec(env) as commands:
            env.backend.hold_starts()
            starting = asyncio.create_task(commands.start(["fake"]))
            await env.backend.until(lambda: len(env.backend.starts) == 1)
            asyncio.get_running_loop().call_later(1, env.backend.let_start)
        with pytest.raises(CommandExecClosed):
            await starting
        assert not env.backend.processes[0].running


@pytest.mark.requirement("command-exec.end.leftovers")
async def test_who_writes_after_the_answer_is_killed(fake: FakeEnvironment) -> None:
    """As a pipe that nobody reads would do; somebody silent lives on."""
    async with CommandExec(fake, drain=DrainPolicy(quiet=0.01)) as commands:
        command, process = await started(commands, fake)
        child = process.child()
        process.end()
        assert (await command.wait()).drain_timed_out
        await asyncio.sleep(100)
        assert child.alive
        process.output(b"late")
        await asyncio.sleep(0.001)
        assert process.terminations == [Termination(left=True)]
        child.exit()
        await asyncio.sleep(0.001)


async def test_closing_does_not_wait_for_ever_for_a_start(far: FakeEnvironment) -> None:
    async with CommandExec(far) as commands:
        await commands.start(["fake"])
        far.backend.hold_starts()
        starting = asyncio.create_task(commands.start(["late"]))
        await far.backend.until(lambda: len(far.backend.starts) == 2)
    assert now() == END_LIMIT
    assert not far.backend.processes[0].running
    far.backend.let_start()
    with pytest.raises(CommandExecClosed):
        await starting
    assert not far.backend.processes[1].running

"""
`command_exec` on every subject: this machine, behind our transports, on the real Codex server.

`HOLDFAST_COMMAND_RUNS=1000` repeats what depends on the order of things so often.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.environments.environment import Environment
from holdfast.front.app_server.command_exec import (
    Command,
    CommandExec,
    CommandLost,
    DrainPolicy,
    ExtensionMissing,
    NoLongerRunning,
    SpawnRefused,
)
from tests.contract.conftest import Subject
from tests.e2e.wire import Fifo, gone

RUNS = int(os.environ.get("HOLDFAST_COMMAND_RUNS", "4"))
AT_ONCE = 2
WINDOW = DrainPolicy().quiet or 0.0
LATE_WRITER = str(Path(__file__).with_name("late_writer.py"))


@pytest.fixture
async def commands(env: Environment) -> AsyncIterator[CommandExec]:
    async with CommandExec(env) as commands:
        yield commands


async def sh(commands: CommandExec, script: str, **options: object) -> Command:
    return await commands.start(["/bin/sh", "-c", script], **options)  # type: ignore[arg-type]


async def streamed(command: Command) -> dict[str, bytes]:
    found = {"stdout": b"", "stderr": b""}
    async for delta in command.output():
        found[delta.stream] += delta.data
    return found


async def test_a_command_is_run_to_its_end(commands: CommandExec) -> None:
    command = await sh(commands, "echo out; echo err >&2; exit 3")
    done = await command.wait()
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert await done.stdout_text() == "out\n"
    assert await done.stderr_text() == "err\n"
    assert (done.stdout_cap_reached, done.stderr_cap_reached) == (False, False)
    assert not done.drain_timed_out
    assert await command.wait() is done
    with pytest.raises(NoLongerRunning):
        await command.terminate()


async def test_it_has_no_input_unless_asked_for(commands: CommandExec) -> None:
    assert (await (await commands.start(["cat"])).wait()).exit_code == 0


async def test_a_folder_is_relative_to_that_of_the_environment(
    commands: CommandExec, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    command = await commands.start(["pwd"], cwd="sub")
    assert (await command.wait()).stdout == f"{tmp_path}/sub\n".encode()


@pytest.mark.parametrize(
    ("argv", "cwd", "reason"),
    [
        (["/does/not/exist"], None, "No such file or directory (os error 2)"),
        (["true"], "missing", "No such file or directory (os error 2)"),
        (["/etc/passwd"], None, "Permission denied (os error 13)"),
        (["true"], "/etc/passwd", "Not a directory (os error 20)"),
        ([""], None, "missing program for pipe spawn"),
        (["true", "a\0b"], None, "nul byte found in provided data"),
    ],
)
async def test_a_failed_start_says_why(
    commands: CommandExec, argv: list[str], cwd: str | None, reason: str
) -> None:
    with pytest.raises(SpawnRefused) as raised:
        await commands.start(argv, cwd=cwd, process_id="p")
    assert raised.value.reason == reason
    command = await commands.start(["true"], process_id="p")
    assert (await command.wait()).exit_code == 0


async def test_the_output_of_a_killed_command_is_kept(commands: CommandExec) -> None:
    command = await sh(commands, "trap '' TERM; echo ready; while :; do sleep 1; done", stream=True)
    deltas = command.output()
    assert (await anext(deltas)).data == b"ready\n"
    await command.terminate()
    assert [delta async for delta in deltas] == []
    done = await command.wait()
    assert (done.exit_code, command.running) == (137, False)


@pytest.mark.slow
async def test_a_timeout_kills_what_it_started(
    commands: CommandExec, subject: Subject, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "pids") as pids:
        command = await sh(
            commands,
            "printf so; sleep 100 & echo $! >pids;"
            " setsid sh -c 'echo $$ >pids; exec sleep 100' & wait",
            timeout=0.5,
        )
        child, escaped = int(await pids.line()), int(await pids.line())
        done = await command.wait()
    assert (done.exit_code, done.stdout) == (124, b"so")
    await gone(child)
    if subject.real:
        os.kill(escaped, signal.SIGKILL)  # a Codex server kills groups only
    await gone(escaped)


@pytest.mark.slow
async def test_as_codex_a_timeout_kills_the_group(env: Environment, tmp_path: Path) -> None:
    policy = DrainPolicy(quiet=None, limit=0.2)
    with Fifo(tmp_path / "pids") as pids:
        async with CommandExec(env, compat="codex-0.166.0", drain=policy) as commands:
            script = "setsid sh -c 'echo $$ >pids; exec sleep 100' & wait"
            command = await sh(commands, script, timeout=0.5)
            escaped = int(await pids.line())
            done = await command.wait()
            assert done.exit_code == 124
            os.kill(escaped, signal.SIGKILL)  # it lives
            await gone(escaped)


SIZE = 2_000_000
FLOOD = f"head -c {SIZE} /dev/zero & head -c {SIZE} /dev/zero >&2; wait"


@pytest.mark.slow
@pytest.mark.parametrize("cap", [0, 100_000, SIZE, None])
async def test_both_streams_can_be_flooded(
    commands: CommandExec, subject: Subject, cap: int | None
) -> None:
    kept = SIZE if cap is None else cap
    reached = cap is not None
    try:
        done = await (await sh(commands, FLOOD, cap=cap)).wait()
        assert (len(done.stdout), len(done.stderr)) == (kept, kept)
        assert (done.stdout_cap_reached, done.stderr_cap_reached) == (reached, reached)
        command = await sh(commands, FLOOD, cap=cap, stream=True)
        found = await streamed(command)
        assert (len(found["stdout"]), len(found["stderr"])) == (kept, kept)
        done = await command.wait()
        assert (done.exit_code, done.stdout) == (0, b"")
    except CommandLost as error:
        # A Codex server numbers the bytes of a flood in one order and sends them in another:
        # now and then more than is kept for putting them in order.
        if not subject.real or "reorder buffer exceeds" not in str(error):
            raise


async def test_one_stream_may_be_closed_and_the_other_flooded(commands: CommandExec) -> None:
    command = await sh(commands, "exec 1>&-; head -c 2000000 /dev/zero >&2", cap=None)
    done = await command.wait()
    assert (done.stdout, len(done.stderr)) == (b"", 2_000_000)


@pytest.mark.slow
@pytest.mark.requirement("command-exec.end.helper")
@pytest.mark.timeout(60 + RUNS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_tail_of_a_child_is_in_the_answer(
    commands: CommandExec, tmp_path: Path, stream: bool
) -> None:
    """The quiet window ends the wait long before the child lets go of stdout."""
    turns = iter(range(RUNS))

    async def repeat() -> None:
        for turn in turns:
            with Fifo(tmp_path / str(turn)) as report:
                argv = [sys.executable, "-S", "-E", LATE_WRITER, "5", str(report.path)]
                command = await commands.start(argv, stream=stream, timeout=None)
                found = await streamed(command) if stream else {}
                done = await command.wait()
                first, second = map(float, (await report.line()).split())
            assert done.exit_code == 0
            data = found.get("stdout", done.stdout)
            if first < WINDOW and second < WINDOW:
                assert data == b"tail"
            else:
                assert b"tail".startswith(data)  # the machine was busy, and it too late
            assert done.drain_timed_out

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(repeat())


@pytest.mark.slow
async def test_a_child_that_writes_for_ever_is_not_waited_for(
    env: Environment, subject: Subject, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "pids") as pids, Fifo(tmp_path / "go") as go:
        async with CommandExec(env, drain=DrainPolicy(limit=0.3)) as commands:
            script = "(while :; do echo x; sleep 0.01; done) & echo $! >pids; read x <go"
            command = await sh(commands, script)
            # Before the exit: after it, the child may be too slow for the quiet window.
            assert (await anext(command.output())).data.startswith(b"x\n")
            go.write()
            done = await command.wait()
            assert (done.exit_code, done.drain_timed_out) == (0, True)
            assert done.stdout.startswith(b"x\n")
            child = int(await pids.line())
            if subject.real:
                os.kill(child, signal.SIGKILL)  # a Codex server leaves it
            await gone(child)


async def test_closing_ends_what_runs(env: Environment, tmp_path: Path) -> None:
    with Fifo(tmp_path / "pids") as told:
        async with CommandExec(env) as some:
            for number in range(5):
                stream = number % 2 == 0
                await sh(some, "echo $$ >pids; sleep 100", stream=stream, timeout=None)
            pids = [int(await told.line()) for _ in range(5)]
        for pid in pids:
            await gone(pid)


async def test_many_run_at_once(commands: CommandExec) -> None:
    running = await asyncio.gather(*(sh(commands, f"echo {n}") for n in range(50)))
    done = await asyncio.gather(*(command.wait() for command in running))
    assert [one.stdout for one in done] == [b"%d\n" % n for n in range(50)]


# -- what a Codex server cannot do


async def refused(commands: CommandExec, extension: str, **options: object) -> None:
    with pytest.raises(ExtensionMissing) as raised:
        await sh(commands, "true", **options)
    assert raised.value.extension == extension


async def test_input_is_written_and_closed(commands: CommandExec, subject: Subject) -> None:
    if subject.real:
        await refused(commands, "closeStdin", stdin=True)
        return
    command = await commands.start(["cat"], stdin=True, stream=True, cap=None)
    data = bytes(range(256)) * 4096
    reading = asyncio.create_task(streamed(command))
    await command.write(data)
    await command.write(b"end", close=True)
    assert (await reading)["stdout"] == data + b"end"
    assert (await command.wait()).exit_code == 0


async def test_a_closed_reader_is_not_reported(commands: CommandExec, subject: Subject) -> None:
    if subject.real:
        return
    command = await sh(commands, "exec 0<&-; echo closed; exec sleep 100", stdin=True, stream=True)
    deltas = command.output()
    assert (await anext(deltas)).data == b"closed\n"
    for _ in range(3):
        await command.write(b"x" * 100)
    await command.terminate()
    deltas.close()
    assert (await command.wait()).exit_code == 137


async def test_a_terminal_has_a_size_and_an_end(commands: CommandExec, subject: Subject) -> None:
    if subject.real:
        await refused(commands, "resize", tty=True)
        await refused(commands, "size", tty=True, size=(3, 4), accept_missing=["resize"])
        return
    script = "stty size; trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.1; done"
    command = await sh(commands, script, tty=True, size=(33, 44))
    deltas = command.output()
    seen = b""
    while b"ready" not in seen:
        seen += (await anext(deltas)).data
    assert b"33 44" in seen
    await command.resize(55, 66)
    seen = b"".join([delta.data async for delta in deltas])
    assert b"55 66" in seen
    assert (await command.wait()).exit_code == 4

    command = await commands.start(["cat"], tty=True)
    await command.write(b"line", close=True)
    assert b"line\r\nline\r\n" in (await streamed(command))["stdout"]
    assert (await command.wait()).exit_code == 0

    command = await commands.start(["sleep", "100"], tty=True)
    await command.terminate()
    assert (await command.wait()).exit_code == 1


async def test_variables_are_set_and_removed_by_their_exact_names(
    commands: CommandExec, subject: Subject
) -> None:
    given: dict[str, str | None] = {"ONE": "1", "NODE_REPL_AUTH_TOKEN": "secret", "TOKEN": "kept"}
    if subject.real:
        await refused(commands, "unset", env={"HOME": None})
    else:
        given |= {"HOME": None, "path": None}
    done = await (await commands.start(["env"], env=given)).wait()
    lines = done.stdout.decode().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert {"ONE=1", "TOKEN=kept", "CODEX_APPLY_PATCH_PRESERVE_LINE_ENDINGS=1"} <= {*lines}
    assert "PATH" in names
    assert "NODE_REPL_AUTH_TOKEN" not in names
    assert ("HOME" in names) == subject.real


async def test_without_its_variables_nothing_of_codex_is_set(commands: CommandExec) -> None:
    done = await (await commands.start(["env"], codex_variables=False)).wait()
    assert b"CODEX_APPLY_PATCH" not in done.stdout

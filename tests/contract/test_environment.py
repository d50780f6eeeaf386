"""
Contract of `run`, `start` and `files`, in every kind of environment.

Nothing here says where: on this machine, behind any of our transports, or on the real
Codex server behind our client.
"""

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Self

import pytest

from holdfast.base.errors import (
    CommandFailed,
    DuplicateProcess,
    InvalidParams,
    NotFound,
    OperationFailed,
    PatternNotFound,
    PatternTimedOut,
    Refused,
    SpawnFailed,
    StdinClosed,
    UnknownProcess,
    Unsupported,
)
from holdfast.environments.commands.chunks import Chunk
from holdfast.environments.commands.running import Running
from holdfast.environments.environment import Environment
from holdfast.environments.tree_transfer import TransferProgress, Transferred
from holdfast.events import Reason
from tests.contract.conftest import Subject
from tests.e2e.wire import LIMIT, Fifo, readable


class Lifeline:
    """Tells when a script and all that it started are gone, whoever they belong to."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.hold = f"exec 9>{path}; echo >&9"
        """Begins a script: whatever it starts holds the other end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)

    async def held(self) -> None:
        """The script has begun."""
        async with asyncio.timeout(LIMIT):
            await readable(self._descriptor)
        assert os.read(self._descriptor, 1)

    async def let_go(self) -> None:
        """Nothing of it is left."""
        async with asyncio.timeout(LIMIT):
            await readable(self._descriptor)
        assert os.read(self._descriptor, 1) == b""


async def read_until(process: Running, text: str) -> str:
    """Return the output of a process up to the end of a text."""
    read = ""
    async with asyncio.timeout(LIMIT):
        async for chunk in process.output():
            read += chunk.text
            if text in read:
                return read
    raise AssertionError(f"{text!r} is not in {read!r}")


# -- run


async def test_a_text_is_run_by_the_shell(env: Environment) -> None:
    done = await env.run("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    assert (done.reason, done.ok, done.background) == (Reason.EXITED, False, False)
    assert (done.truncated, done.omitted) == (False, 0)


async def test_arguments_are_passed_as_they_are(env: Environment) -> None:
    done = await env.run(["printf", "%s|", "a b", "$HOME", "", "*", "ä\n"])
    assert done.stdout == "a b|$HOME||*|ä\n|"
    assert done.ok


async def test_a_command_runs_in_the_folder_of_the_environment_or_below_it(
    env: Environment, tmp_path: Path
) -> None:
    (tmp_path / "below").mkdir()
    assert (await env.run("pwd")).stdout == f"{tmp_path}\n"
    assert (await env.run("pwd", cwd="below")).stdout == f"{tmp_path}/below\n"
    assert (await env.run("pwd", cwd=Path("/"))).stdout == "/\n"


async def test_a_command_has_the_variables_of_its_place_and_its_own(env: Environment) -> None:
    done = await env.run('echo "$OWN"; test -n "$PATH"', env={"OWN": "a b"})
    assert (done.stdout, done.exit_code) == ("a b\n", 0)


async def test_without_input_a_command_reads_the_end_at_once(env: Environment) -> None:
    done = await env.run(["cat"], timeout=LIMIT)
    assert (done.stdout, done.ok) == ("", True)


async def test_input_reaches_a_command_and_ends(env: Environment) -> None:
    done = await env.run(["sort"], input="pear\napple\n", timeout=LIMIT)
    assert (done.stdout, done.ok) == ("apple\npear\n", True)
    done = await env.run("cat; exit 7", input=b"\0\xff", timeout=LIMIT)
    assert (done.stdout_bytes, done.exit_code) == (b"\0\xff", 7)


@pytest.mark.parametrize(
    "wrong", [["a"], 5, {"a": "b"}, object()], ids=lambda wrong: type(wrong).__name__
)
async def test_input_that_is_neither_text_nor_bytes_is_refused(
    env: Environment, wrong: object
) -> None:
    async with asyncio.timeout(LIMIT):
        with pytest.raises(
            TypeError, match=f"input must be a string or bytes, not {type(wrong).__name__}"
        ):
            await env.run("cat", input=wrong)  # type: ignore[arg-type]


async def test_bytes_of_any_kind_are_input(env: Environment) -> None:
    for given in (bytearray(b"abc"), memoryview(b"abc")):
        assert (await env.run(["cat"], input=given, timeout=LIMIT)).stdout == "abc"


async def test_what_a_child_writes_right_after_the_exit_is_there(env: Environment) -> None:
    done = await env.run("(sleep 0.03; echo late) & echo early", timeout=LIMIT)
    assert (done.stdout, done.background) == ("early\nlate\n", False)


@pytest.mark.slow
async def test_something_that_writes_for_ever_after_the_exit_is_not_waited_for(
    env: Environment,
) -> None:
    async with asyncio.timeout(4 * LIMIT):
        done = await env.run("while echo more; do sleep 0.02; done & echo $! >&2", cap=100)
    os.kill(int(done.stderr), signal.SIGKILL)
    assert (done.exit_code, done.background, done.truncated) == (0, True, True)


async def test_output_is_told_as_it_comes(env: Environment, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        told: list[tuple[str, str]] = []

        def take(chunk: Chunk) -> None:
            told.append((chunk.stream, chunk.text))
            if chunk.text == "one\n":
                go.write()  # it has come before the end

        done = await env.run(f"echo one; read x < {go.path}; echo two >&2", on_output=take)
    assert told == [("stdout", "one\n"), ("stderr", "two\n")]
    assert (done.stdout, done.stderr) == ("one\n", "two\n")


async def test_one_who_takes_output_slowly_gets_all_of_it(env: Environment) -> None:
    size = 0

    async def take(chunk: Chunk) -> None:
        nonlocal size
        await asyncio.sleep(0)
        size += len(chunk.data)

    done = await env.run("head -c 3000000 /dev/zero", on_output=take, timeout=4 * LIMIT)
    assert (done.ok, size) == (True, 3_000_000)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_error_of_one_who_takes_output_ends_the_command(
    env: Environment, tmp_path: Path, asynchronous: bool
) -> None:
    async def fail_later(chunk: Chunk) -> None:
        await asyncio.sleep(0)
        raise TimeoutError(chunk.text)  # which is not that of the run

    def fail(chunk: Chunk) -> None:
        raise TimeoutError(chunk.text)

    with Lifeline(tmp_path / "life") as life:
        with pytest.raises(TimeoutError, match="begun"):
            await env.run(
                f"{life.hold}; echo begun; sleep 600 & sleep 600",
                on_output=fail_later if asynchronous else fail,
                timeout=600,
            )
        await life.held()
        await life.let_go()


async def test_variables_are_unset_by_their_exact_names(env: Environment) -> None:
    script = 'echo "${ONE-none} ${one-none} ${TWO-none} ${HOME-none}"'
    variables = {"ONE": "1", "one": "2", "TWO": "3"}
    if not (await env.capabilities()).process_unset:
        with pytest.raises(Unsupported, match="cannot unset variables"):
            await env.run(script, env=variables, unset=["ONE"])
        with pytest.raises(Unsupported, match="cannot unset variables"):
            await env.start(script, env=variables, unset=["ONE"])
    else:
        done = await env.run(script, env=variables, unset=["ONE", "HOME"])
        assert done.stdout == "none 2 3 none\n"
        async with env.start(script, env=variables, unset={"TWO", "HOME"}) as process:
            assert await read_until(process, "\n") == "1 2 none none\n"
    for wrong in ("", "A=B", "A\0"):
        with pytest.raises(InvalidParams, match="has an invalid name"):
            await env.run(script, unset=[wrong])
    with pytest.raises(TypeError, match="unset must be a list of names, not str"):
        await env.run(script, unset="HOME")


@pytest.mark.every_transport
@pytest.mark.slow
async def test_input_is_fed_while_output_floods(env: Environment) -> None:
    given = b"0123456789abcdef" * (4 << 16)
    done = await env.run("tee /dev/stderr", input=given, timeout=4 * LIMIT)
    assert done.ok
    for kept in (done.captured_stdout, done.captured_stderr):
        assert kept.size == len(given)
        assert kept.head == given[: 1 << 19]
        assert kept.tail == given[-1 << 19 :]


async def test_a_command_may_end_without_reading_its_input(env: Environment) -> None:
    done = await env.run("exit 4", input=b"x" * (1 << 20), timeout=LIMIT)
    assert (done.exit_code, done.reason) == (4, Reason.EXITED)


async def test_what_is_no_text_is_replaced_and_kept_as_bytes(env: Environment) -> None:
    done = await env.run(r"printf 'a\377b'")
    assert done.stdout == "a\ufffdb"
    assert done.stdout_bytes == b"a\xffb"


async def test_of_much_output_the_beginning_and_the_end_are_kept(env: Environment) -> None:
    done = await env.run("seq 1 200000; echo short >&2", cap=1000, timeout=2 * LIMIT)
    everything = "".join(f"{number}\n" for number in range(1, 200001))
    kept = done.captured_stdout
    assert (kept.head.decode(), kept.tail.decode()) == (everything[:500], everything[-500:])
    assert (done.omitted, done.truncated) == (len(everything) - 1000, True)
    assert f"\n[... {done.omitted} bytes left out ...]\n" in done.stdout
    assert done.stderr == "short\n"


async def test_more_than_was_kept_can_be_read_from_the_log(env: Environment) -> None:
    done = await env.run("seq 1 1000", cap=10)
    log = await done.process.read()
    expected = "".join(f"{number}\n" for number in range(1, 1001))
    assert b"".join(chunk.chunk for chunk in log.chunks).decode() == expected


@pytest.mark.slow
async def test_a_command_that_takes_too_long_is_ended_and_what_it_wrote_is_kept(
    env: Environment, tmp_path: Path
) -> None:
    with Lifeline(tmp_path / "life") as life:
        script = f"{life.hold}; echo partial; echo trouble >&2; sleep 600 & sleep 600"
        done = await env.run(script, timeout=1.0)
        assert done.reason is Reason.TIMED_OUT
        assert (done.stdout, done.stderr) == ("partial\n", "trouble\n")
        assert not done.ok
        assert "took too long" in str(done)
        await life.held()
        await life.let_go()


@pytest.mark.slow
async def test_what_left_the_group_of_a_command_is_ended_with_it(
    env: Environment, subject: Subject, tmp_path: Path
) -> None:
    with Lifeline(tmp_path / "life") as life:
        script = f"{life.hold}; setsid -w sh -c 'echo $$; exec sleep 600'"
        done = await env.run(script, timeout=1.0)
        assert done.reason is Reason.TIMED_OUT
        await life.held()
        if subject.real:
            os.kill(int(done.stdout), signal.SIGKILL)  # it knows groups only
        await life.let_go()


async def test_an_exit_is_told_from_a_child_that_holds_the_output(
    env: Environment, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        script = f"(read x; echo late) < {go.path} & echo early"
        done = await env.run(script, timeout=LIMIT, drain=0.05)
        assert (done.stdout, done.exit_code, done.background) == ("early\n", 0, True)
        go.write()
        later = await done.process.read(after_seq=done.last_seq, wait=LIMIT)
    assert [chunk.chunk for chunk in later.chunks] == [b"late\n"]


async def test_a_cancelled_run_ends_its_command(env: Environment, tmp_path: Path) -> None:
    with Lifeline(tmp_path / "life") as life:
        task = asyncio.ensure_future(env.run(f"{life.hold}; sleep 600 & sleep 600"))
        await life.held()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await life.let_go()


async def test_a_cancelled_run_ends_a_command_that_floods(env: Environment, tmp_path: Path) -> None:
    with Lifeline(tmp_path / "life") as life:
        task = asyncio.ensure_future(env.run(f"{life.hold}; exec cat /dev/zero", cap=10))
        await life.held()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await life.let_go()


async def test_commands_run_beside_each_other(env: Environment, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "both")
    async with asyncio.timeout(LIMIT):
        # Either waits for the other.
        reader, writer = await asyncio.gather(env.run("cat both"), env.run("echo met > both"))
    assert (reader.stdout, writer.ok) == ("met\n", True)


@pytest.mark.parametrize("command", ["", " \n", [], [""]], ids=repr)
async def test_an_empty_command_is_refused(env: Environment, command: str | list[str]) -> None:
    with pytest.raises(InvalidParams, match="the command is empty"):
        await env.run(command)


async def test_a_program_that_is_not_there_is_named(env: Environment) -> None:
    with pytest.raises(SpawnFailed, match=r"cannot run `no-such-program`: .*os error 2") as caught:
        await env.run(["no-such-program"])
    assert caught.value.errno == 2


async def test_a_folder_that_is_not_there_is_named(env: Environment, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(SpawnFailed, match=f"in `{missing}`: there is no such directory"):
        await env.run("true", cwd="missing")
    (tmp_path / "file").touch()
    with pytest.raises(SpawnFailed, match="it is not a directory"):
        await env.run("true", cwd="file")
    with pytest.raises(SpawnFailed, match="there is no such directory"):
        await env.start("true", cwd="missing", tty=True)


async def test_arguments_that_are_too_long_are_refused(env: Environment) -> None:
    with pytest.raises(SpawnFailed, match=r"Argument list too long .*pass long data in a"):
        await env.run(["echo", "x" * (1 << 20)])
    assert (await env.run("echo still here")).ok


async def test_many_arguments_reach_a_command(env: Environment) -> None:
    done = await env.run(["/bin/sh", "-c", "echo $#", *map(str, range(20_001))])
    assert done.stdout == "20000\n"


async def test_a_failure_can_be_raised_with_all_that_is_known_of_it(env: Environment) -> None:
    with pytest.raises(CommandFailed, match="exited with code 5") as caught:
        await env.run("echo why >&2; exit 5", check=True)
    assert caught.value.completed.exit_code == 5
    assert "why" in str(caught.value)
    assert (await env.run("true", check=True)).ok


# -- start


async def test_a_process_is_written_to_and_read(env: Environment) -> None:
    async with env.start("while read line; do echo got $line; done") as process:
        await process.write("one\n")
        assert await read_until(process, "got one\n") == "got one\n"
        await process.write(b"two\n")
        # It goes on where the last reading stopped.
        assert await read_until(process, "got two\n") == "got two\n"


async def test_the_end_of_a_block_ends_the_process(env: Environment, tmp_path: Path) -> None:
    with Lifeline(tmp_path / "life") as life:
        async with env.start(f"{life.hold}; sleep 600 & sleep 600") as process:
            await life.held()
        await life.let_go()
    assert process.verdict is not None
    assert process.verdict.reason is Reason.TERMINATED


async def test_an_error_in_a_block_ends_the_process(env: Environment, tmp_path: Path) -> None:
    with Lifeline(tmp_path / "life") as life:

        async def fail() -> None:
            async with env.start(f"{life.hold}; cat /dev/zero"):
                await life.held()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        await life.let_go()


async def test_chunks_tell_their_stream_and_their_text(env: Environment) -> None:
    async with env.start("echo out; echo err >&2") as process:
        chunks = [chunk async for chunk in process.output()]
        verdict = await process.wait()
    assert {(chunk.stream, chunk.text) for chunk in chunks} == {
        ("stdout", "out\n"),
        ("stderr", "err\n"),
    }
    assert verdict.ok
    assert [str(chunk) for chunk in chunks] == [chunk.text for chunk in chunks]


async def test_a_letter_that_comes_in_two_parts_is_put_together(
    env: Environment, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        async with env.start(rf"printf '\303'; read x < {go.path}; printf '\244\n\303'") as process:
            output = process.output()
            first = await anext(output)
            assert (first.data, first.text) == (b"\xc3", "")
            go.write()
            rest = [chunk async for chunk in output]
    assert first.text + "".join(chunk.text for chunk in rest) == "ä\n\ufffd"


async def test_waiting_for_a_process_keeps_its_output_for_later(env: Environment) -> None:
    async with env.start("echo first; echo second; exit 2") as process:
        async with asyncio.timeout(LIMIT):
            assert (await process.wait()).exit_code == 2
        assert "".join([c.text async for c in process.output()]) == "first\nsecond\n"


async def test_waiting_for_a_process_that_floods_comes_to_an_end(env: Environment) -> None:
    async with env.start("head -c 8000000 /dev/zero; echo end") as process:
        await anext(process.output())  # it has a reader, who went away
        async with asyncio.timeout(2 * LIMIT):
            assert (await process.wait()).ok
        last = [chunk async for chunk in process.output()][-1]
    assert last.data.endswith(b"end\n")


async def test_output_ends_soon_after_the_exit_if_a_child_holds_it(
    env: Environment, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        async with env.start(f"(read x; echo late) < {go.path} & echo early") as process:
            async with asyncio.timeout(LIMIT):
                text = "".join([chunk.text async for chunk in process.output(drain=0.05)])
                assert (text, (await process.wait()).exit_code) == ("early\n", 0)
            go.write()
            async with asyncio.timeout(LIMIT):
                text = "".join([chunk.text async for chunk in process.output(drain=None)])
    assert text == "late\n"


async def test_a_process_on_a_terminal_has_one(env: Environment) -> None:
    async with env.start("stty size; read line; echo got $line", tty=True) as process:
        await read_until(process, "24 80")
        await process.write("this\n")
        assert "got this" in await read_until(process, "got this")
        assert (await process.wait()).ok


async def test_a_terminal_has_the_size_it_was_given(env: Environment, subject: Subject) -> None:
    sized = env.start("stty size; read line; stty size", tty=True, size=(50, 132))
    if subject.real:  # it would ignore the size without a word
        with pytest.raises(Unsupported):
            await sized
        return
    async with sized as process:
        await read_until(process, "50 132")
        await process.resize(60, 100)
        await process.write("\n")
        await read_until(process, "60 100")
    with pytest.raises(InvalidParams, match="terminal size"):
        await env.start("true", tty=True, size=(0, 80))


async def test_a_process_without_an_input_cannot_be_written_to(env: Environment) -> None:
    async with env.start("sleep 600", stdin=False) as process:
        with pytest.raises(StdinClosed):
            await process.write("x")


async def test_a_process_can_be_interrupted_and_terminated(env: Environment) -> None:
    async with env.start('trap "echo caught; exit 9" INT; echo ready; read x') as process:
        await read_until(process, "ready")
        await process.signal("SIGINT")
        async with asyncio.timeout(LIMIT):
            assert (await process.wait()).exit_code == 9
    async with env.start(["sleep", "600"]) as process:
        assert process.verdict is None
        assert await process.terminate()
        assert (await process.wait()).reason is Reason.TERMINATED
        assert process.verdict is not None


async def test_a_process_tells_its_number_and_its_end(env: Environment, subject: Subject) -> None:
    async with env.start("echo $$; read x; exit 7") as process:
        pid = int(await read_until(process, "\n"))
        if subject.real:
            assert process.pid is None  # it does not tell
        elif not subject.remote:
            assert process.pid == pid
        else:
            assert process.pid in (pid, None)  # None: a server without that extension
        assert (process.verdict, process.exit_code) == (None, None)
        await process.write("\n")
        async with asyncio.timeout(LIMIT):
            verdict = await process.process.exited()  # nobody reads
        assert (process.verdict, process.exit_code) == (verdict, 7)


async def test_the_processes_that_run_are_listed(env: Environment) -> None:
    assert env.processes() == []
    async with env.start("read x") as first, env.start("read x") as second:
        assert env.processes() == [first, second]
        await first.write("\n")
        await first.wait()
        assert env.processes() == [second]
    assert env.processes() == []


async def test_a_process_that_nobody_has_any_more_is_listed(env: Environment) -> None:
    process_id = (await env.start(["sleep", "600"])).process_id
    (found,) = env.processes()
    assert found.process_id == process_id
    await found.aclose()
    assert found.verdict is not None


async def test_a_pattern_is_waited_for_and_reading_goes_on_behind_it(env: Environment) -> None:
    script = r"echo one; echo two; read x; printf 'gr\303\274n 12 ready>'; read x; echo done"
    async with env.start(script) as process:
        found = await process.expect("one\n")
        assert (found.before, found.text, found.match) == ("", "one\n", None)
        await process.write("\n")
        found = await process.expect(re.compile(r"(\w+) (\d+)"))
        assert (found.before, found.text) == ("two\n", "grün 12")
        assert found.match is not None
        assert found.match.groups() == ("grün", "12")
        with pytest.raises(PatternTimedOut, match="' ready>'") as caught:
            await process.expect(b"done", timeout=0.05)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.seen == " ready>"
        await process.write("\n")
        found = await process.expect(re.compile(rb"d[n-p]"))
        assert found.before == " ready>"
        rest = "".join([chunk.text async for chunk in process.output()])
        assert rest == "ne\n"
        with pytest.raises(PatternNotFound, match="ended without 'more'"):
            await process.expect("more")


async def test_what_was_not_found_can_still_be_read(env: Environment) -> None:
    async with env.start("echo one; echo two") as process:
        with pytest.raises(PatternNotFound) as caught:
            await process.expect("three")
        assert caught.value.seen == "one\ntwo\n"
        assert "".join([chunk.text async for chunk in process.output()]) == "one\ntwo\n"


@pytest.mark.every_transport
async def test_the_shell_of_a_place_is_told(env: Environment, subject: Subject) -> None:
    shell = await env.shell()
    assert (await env.run([shell.path, "-c", "echo works"])).stdout == "works\n"
    assert await env.shell(shell.name) == shell
    assert await env.shell(f"/some/where/{shell.name}") == shell
    other = "zsh" if shell.name != "zsh" else "bash"
    if subject.remote:
        with pytest.raises(
            InvalidParams, match=f"environment `client` only supports `{shell.name}`"
        ):
            await env.shell(other)
    else:
        assert (await env.shell("python3")).path == "/bin/sh"
        assert (await env.shell("sh")).name == "sh"


@pytest.mark.every_transport
async def test_a_place_can_be_prepared(env: Environment) -> None:
    await env.prepare()
    with pytest.raises(InvalidParams, match="no-such-profile"):
        await env.prepare("no-such-profile")
    assert env.processes() == []


@pytest.mark.slow
async def test_a_sandbox_can_be_prepared(env: Environment) -> None:
    await env.prepare("read-only")
    assert env.processes() == []
    done = await env.run("echo works", sandbox="read-only")
    assert done.stdout == "works\n"


async def test_the_end_of_the_input_can_be_told(env: Environment, subject: Subject) -> None:
    async with env.start("cat") as process:
        await process.write("x" * 200_000)
        if subject.real:
            with pytest.raises(Unsupported):
                await process.close_stdin()
            return
        await process.close_stdin()
        chunks = [chunk async for chunk in process.output()]
    assert sum(len(chunk.data) for chunk in chunks) == 200_000


async def test_of_starts_by_one_name_at_once_one_succeeds(env: Environment) -> None:
    started = await asyncio.gather(
        *(env.start("read x", detach="job") for _ in range(3)), return_exceptions=True
    )
    running = [one for one in started if not isinstance(one, BaseException)]
    assert [type(one) for one in started if isinstance(one, BaseException)] == (
        [DuplicateProcess] * 2
    )
    assert env.attach("job") is running[0]
    await running[0].aclose()


async def test_a_detached_process_outlives_its_block_and_is_found_by_its_name(
    env: Environment, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        async with env.start(f"echo up; read x < {go.path}; echo on", detach="job") as process:
            await read_until(process, "up\n")
        with pytest.raises(DuplicateProcess, match="`job` is running"):
            await env.start("true", detach="job")
        async with env.attach("job") as found:
            go.write()
            assert await read_until(found, "on\n") == "on\n"
            assert (await found.wait()).ok
    assert env.attach("job").verdict is not None  # it is found after its end too
    await (await env.start("true", detach="job")).wait()  # and its name is free
    with pytest.raises(UnknownProcess, match="no process was detached as `other` here"):
        env.attach("other")
    with pytest.raises(InvalidParams, match="detach must not be empty"):
        await env.start("true", detach="")


# -- files


async def test_files_are_written_read_listed_and_removed(env: Environment, tmp_path: Path) -> None:
    files = env.files
    await files.write("notes.txt", "grüße\n")
    assert await files.read_text("notes.txt") == "grüße\n"
    assert await files.read_bytes(tmp_path / "notes.txt") == "grüße\n".encode()
    assert (await files.stat("notes.txt")).size == 8

    with pytest.raises(NotFound):
        await files.write("a/b/deep.bin", b"\xff")
    await files.write("a/b/deep.bin", b"\xff", parents=True)
    with pytest.raises(UnicodeDecodeError):
        await files.read_text("a/b/deep.bin")
    assert await files.read_text("a/b/deep.bin", errors="replace") == "\ufffd"

    await files.mkdir("c/d")
    await files.copy("a", "c/copy", recursive=True)
    assert [(entry.file_name, entry.is_directory) for entry in await files.list()] == [
        ("a", True),
        ("c", True),
        ("notes.txt", False),
    ]
    walked = await files.walk("c")
    here = await env.uri("c")
    assert {(str(entry.path).removeprefix(f"{here}/"), entry.kind) for entry in walked.entries} == {
        ("d", "directory"),
        ("copy", "directory"),
        ("copy/b", "directory"),
        ("copy/b/deep.bin", "file"),
    }

    assert await files.exists("c/copy/b/deep.bin")
    await files.remove("c", recursive=True)
    assert not await files.exists("c")
    with pytest.raises(NotFound):
        await files.remove("c")
    await files.remove("c", missing_ok=True)


async def test_a_write_that_is_refused_leaves_no_folder_that_it_made(
    env: Environment, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("old")
    too_long = "x" * 300
    for path in (
        f"new/deep/{too_long}",
        f"new/{too_long}/file",
        f"old/new/{too_long}",
        f"link/new/{too_long}",
        "dangling/new/file",
    ):
        with pytest.raises(Refused):
            await env.files.write(path, "", parents=True)
    assert sorted(os.listdir(tmp_path)) == ["dangling", "link", "old"]
    assert os.listdir(tmp_path / "old") == []


async def test_a_folder_that_is_not_empty_is_removed_only_on_request(env: Environment) -> None:
    await env.files.write("full/x", "", parents=True)
    with pytest.raises(Exception, match="not empty"):
        await env.files.remove("full")
    assert await env.files.exists("full/x")


async def test_files_go_up_and_down(
    env: Environment, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("here")
    data = os.urandom(3_000_000)
    (here / "up").write_bytes(data)
    await env.files.upload(here / "up", "there")
    assert (tmp_path / "there").read_bytes() == data
    await env.files.download("there", here / "down")
    assert (here / "down").read_bytes() == data
    assert sorted(os.listdir(here)) == ["down", "up"]
    with pytest.raises(NotFound):
        await env.files.download("missing", here / "never")
    with pytest.raises(FileNotFoundError):
        await env.files.upload(here / "missing", "never")
    with pytest.raises(IsADirectoryError):
        await env.files.download("there", here)
    assert sorted(os.listdir(here)) == ["down", "up"]
    assert not (tmp_path / "never").exists()


def make_tree(root: Path) -> dict[str, bytes]:
    """A folder with files of all sizes; returns what is in it."""
    files = {
        "empty": b"",
        "one.txt": b"one\n",
        "deep/er/two.bin": os.urandom(2_500_000),
        "deep/grüße.txt": "grüße".encode(),
        ".hidden/x": b"x",
        **{f"many/{number}": b"%d" % number for number in range(20)},
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "no-files").mkdir()
    return files


def read_tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


async def test_folders_go_up_and_down(
    env: Environment, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("here")
    files = make_tree(here / "up")
    told: list[TransferProgress] = []
    done = await env.files.upload(here / "up", "there", on_progress=told.append)
    assert read_tree(tmp_path / "there") == files
    assert (tmp_path / "there/no-files").is_dir()
    size = sum(map(len, files.values()))
    assert done == Transferred(len(files), size)
    last = told[-1]
    assert (last.files, last.files_total, last.size, last.size_total) == (
        len(files),
        len(files),
        size,
        size,
    )
    assert [progress.size for progress in told] == sorted(progress.size for progress in told)

    told.clear()
    (tmp_path / "link").symlink_to("there")
    assert await env.files.download("link", here / "down", on_progress=told.append) == done
    assert read_tree(here / "down") == files
    assert (here / "down/no-files").is_dir()
    assert (told[-1].files, told[-1].size, told[-1].size_total) == (len(files), size, None)


async def test_links_are_not_followed_out_of_a_folder(
    env: Environment, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("here")
    (here / "secret").write_text("secret")
    tree = here / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "file").write_text("inside")
    (tree / "below/inside").symlink_to("../file")
    (tree / "outside").symlink_to("../secret")
    (tree / "folder").symlink_to("below")
    (tree / "nowhere").symlink_to("gone")
    os.mkfifo(tree / "pipe")
    async with asyncio.timeout(LIMIT):
        done = await env.files.upload(tree, "there")
    assert sorted(done.skipped) == ["folder", "nowhere", "outside", "pipe"]
    assert read_tree(tmp_path / "there") == {"file": b"inside", "below/inside": b"inside"}

    (tmp_path / "there/out").symlink_to(here / "secret")
    (tmp_path / "there/up").symlink_to("..")
    await env.files.download("there", here / "down")
    assert read_tree(here / "down") == {"file": b"inside", "below/inside": b"inside"}


async def test_a_file_of_a_folder_that_fails_is_named_and_not_half_there(
    env: Environment, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("here")
    (here / "up").mkdir()
    (here / "up/name").write_text("a file here, a folder there")
    (tmp_path / "there/name/x").mkdir(parents=True)
    with pytest.raises(OperationFailed, match=f"{here}/up/name: "):
        await env.files.upload(here / "up", "there")
    (here / "down/name").mkdir(parents=True)
    (tmp_path / "from").mkdir()
    (tmp_path / "from/name").write_text("a file there, a folder here")
    with pytest.raises(IsADirectoryError, match=f"it is a directory: .*{here}/down/name"):
        await env.files.download("from", here / "down")
    assert os.listdir(here / "down/name") == []
    assert os.listdir(here / "down") == ["name"]


async def test_an_error_of_one_who_is_told_of_progress_ends_a_transfer(
    env: Environment, subject: Subject, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("here")
    (here / "file").write_bytes(b"x" * 3_000_000)
    (tmp_path / "there").write_text("old")

    def fail(progress: TransferProgress) -> None:
        raise ZeroDivisionError(progress.path)

    if (await env.capabilities()).file_write_streaming:
        with pytest.raises(ZeroDivisionError, match="file"):
            await env.files.upload(here / "file", "there", on_progress=fail)
        if not subject.real:  # which writes in place
            assert (tmp_path / "there").read_text() == "old"
    with pytest.raises(TypeError, match="on_progress must not be a coroutine function"):
        await env.files.upload(here / "file", "there", on_progress=asyncio.sleep)  # type: ignore[arg-type]

"""A command that serves on its streams ends with its client, however that ends."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed, ConnectionLost, SpawnFailed
from holdfast.client import supervised_command
from holdfast.client.client import ExecServerClient
from holdfast.client.serving_command import ServingCommand
from holdfast.client.supervised_command import SupervisedCommand
from holdfast.client.target import CommandTarget
from holdfast.engine.process.spawn import spawn
from holdfast.engine.supervision import child_supervisor
from tests.e2e.wire import LIMIT, Fifo, children, gone, is_alive, readable, stopped

pytestmark = pytest.mark.slow

CLIENT = """
import asyncio, sys
from holdfast.client.serving_command import ServingCommand

async def main():
    command = await ServingCommand.start(sys.argv[1:])
    await asyncio.sleep(600)

asyncio.run(main())
"""

STUBBORN = "trap '' HUP INT TERM"


def family(fifo: Path) -> str:
    """A command that ignores everything, with all kinds of processes below it; tells their pids."""
    return (
        f"{STUBBORN}; exec 3>{fifo};"
        " sleep 600 & echo $! >&3;"
        f" setsid sh -c '{STUBBORN}; echo $$ >&3; exec sleep 600' &"
        f" (setsid sh -c '{STUBBORN}; (sleep 600 & echo $! >&3) & wait' &);"
        # A shell that waits hears a signal at once; one in whose foreground a process has just
        # been forked may hear of it only when that ends.
        " echo $$ >&3; while :; do sleep 600 & wait $!; done"
    )


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    with Fifo(tmp_path / "fifo") as fifo:
        yield fifo


@pytest.fixture
async def watched() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def all_gone(pids: dict[int, int]) -> None:
    async with asyncio.timeout(2 * LIMIT):
        for descriptor in pids.values():
            await readable(descriptor)


async def hear(fifo: Fifo, watched: AsyncExitStack, *, count: int = 4) -> dict[int, int]:
    """The pids that are told; each is held, so that no number can be given to another process."""
    pids = {}
    for _ in range(count):
        pid = int(await fifo.line())
        pids[pid] = os.pidfd_open(pid)
        watched.callback(os.close, pids[pid])
    assert all(map(is_alive, pids))
    return pids


@contextmanager
def client(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", CLIENT, *command])
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT)


async def test_everything_below_a_command_ends_when_its_client_is_killed(
    fifo: Fifo, watched: AsyncExitStack
) -> None:
    with client("/bin/sh", "-c", family(fifo.path)) as process:
        pids = await hear(fifo, watched)
        process.kill()
        await all_gone(pids)


async def test_a_client_that_is_only_asked_to_end_leaves_nothing_either(
    fifo: Fifo, watched: AsyncExitStack
) -> None:
    with client("/bin/sh", "-c", family(fifo.path)) as process:
        pids = await hear(fifo, watched)
        process.send_signal(signal.SIGINT)
        await all_gone(pids)


async def test_no_signal_is_ignored_or_blocked_in_it(tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = f"grep -E '^Sig(Blk|Ign)' /proc/self/status > {note}"
    command = await ServingCommand.start(["/bin/sh", "-c", script])
    try:
        await command.wait(LIMIT)
    finally:
        await command.aclose()
    assert [int(line.split()[1], 16) for line in note.read_text().splitlines()] == [0, 0]


@pytest.mark.requirement("client.stdio")
async def test_a_command_is_asked_to_end_and_what_is_left_then_is_killed(
    fifo: Fifo, watched: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_command, "GRACE", 2 * LIMIT)  # time enough on a busy machine
    note = tmp_path / "note"
    script = family(fifo.path).replace(STUBBORN, f"trap ': >{note}; exit' TERM", 1)
    command = await ServingCommand.start(["/bin/sh", "-c", script])
    try:
        pids = await hear(fifo, watched)
        assert not note.exists()
    finally:
        await command.aclose()
    assert note.exists()
    await all_gone(pids)


async def test_a_stopped_command_is_asked_to_end_as_well(
    fifo: Fifo, watched: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_command, "GRACE", 60.0)
    note = tmp_path / "note"
    script = f"trap ': >{note}; exit' TERM; echo $$ >{fifo.path}; kill -STOP $$"
    command = await ServingCommand.start(["/bin/sh", "-c", script])
    try:
        (pid,) = await hear(fifo, watched, count=1)
        await stopped(pid)
    finally:
        async with asyncio.timeout(LIMIT):
            await command.aclose()
    assert note.exists()


@pytest.mark.requirement("client.stdio")
async def test_a_command_that_does_not_listen_is_killed_two_seconds_later(
    fifo: Fifo, watched: AsyncExitStack
) -> None:
    assert supervised_command.GRACE == 2.0
    command = await ServingCommand.start(["/bin/sh", "-c", family(fifo.path)])
    try:
        pids = await hear(fifo, watched)
    finally:
        await command.aclose()
    await all_gone(pids)


@pytest.mark.requirement("environments.command-group")
async def test_what_a_command_leaves_in_its_group_ends_with_it(
    fifo: Fifo, watched: AsyncExitStack
) -> None:
    script = f"exec 3>{fifo.path}; sleep 600 & echo $! >&3; setsid sleep 600 & echo $! >&3; read x"
    command = await SupervisedCommand.start(["/bin/sh", "-c", script])
    try:
        pids = await hear(fifo, watched, count=2)
        os.write(command.stdin, b"\n")
        async with asyncio.timeout(LIMIT):
            await command.wait()
        await all_gone(pids)
    finally:
        command.close_streams()
        os.close(command.stderr)
        await command.aclose()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_command_does_not_outlive_its_supervisor(
    fifo: Fifo, watched: AsyncExitStack, number: signal.Signals
) -> None:
    before = set(children(os.getpid()))
    command = await ServingCommand.start(
        ["/bin/sh", "-c", f"{STUBBORN}; echo $$ >{fifo.path}; while :; do sleep 600; done"]
    )
    try:
        (supervisor,) = set(children(os.getpid())) - before
        pids = await hear(fifo, watched, count=1)
        os.kill(supervisor, number)
        await all_gone(pids)
    finally:
        await command.aclose()


async def test_a_supervisor_whose_client_dies_while_it_starts_does_its_duty() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    supervisor = [
        sys.executable,
        "-I",
        "-S",
        child_supervisor.__file__,
    ]
    command = [str(os.getpid()), "1", "/bin/sleep", "sleep", "600"]
    with theirs:
        pid = spawn(
            supervisor[0],
            supervisor + command,
            cwd="/",
            env=os.environ,
            stdio=(-1, -1, -1),
            pass_fds=(theirs.fileno(),),
        )
    async with asyncio.timeout(LIMIT):
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert status == 0  # so it came to the end of what it does


async def test_orphans_of_a_command_are_reaped_while_it_runs(fifo: Fifo) -> None:
    before = set(children(os.getpid()))
    script = f"exec 3>{fifo.path}; (sh -c 'echo $$ >&3' &); read x"
    command = await ServingCommand.start(["/bin/sh", "-c", script])
    try:
        (supervisor,) = set(children(os.getpid())) - before
        orphan = int(await fifo.line())
        await gone(orphan)
        async with asyncio.timeout(LIMIT):
            while orphan in children(supervisor):  # noqa: ASYNC110 - a zombie; nobody tells its end
                await asyncio.sleep(0)
    finally:
        await command.aclose()


async def test_cancelling_a_close_leaves_nothing_behind(
    fifo: Fifo, watched: AsyncExitStack
) -> None:
    command = await ServingCommand.start(["/bin/sh", "-c", family(fifo.path)])
    pids = await hear(fifo, watched)
    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(command.aclose())
        await asyncio.sleep(0)
        closing.cancel()
    await all_gone(pids)


@pytest.mark.requirement("environments.spawn-failure")
@pytest.mark.parametrize(
    ("argv", "cwd", "why"),
    [
        (["no-such-program"], None, "No such file or directory (os error 2)"),
        (["/no/such/program"], None, "No such file or directory (os error 2)"),
        (["/bin/true"], "/no/such/folder", "No such file or directory (os error 2)"),
        (["/etc/passwd"], None, "Permission denied (os error 13)"),
    ],
)
async def test_a_command_that_cannot_be_started_is_told_in_the_systems_words(
    argv: list[str], cwd: str | None, why: str
) -> None:
    with pytest.raises(ConnectFailed) as caught:
        await ExecServerClient.connect(CommandTarget(argv, cwd=cwd))
    where = "" if cwd is None else f" in `{cwd}`"
    assert str(caught.value) == f"failed to spawn exec-server `{argv[0]}`{where}: {why}"


async def test_a_file_that_is_no_program_is_told_too(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    with pytest.raises(SpawnFailed, match="No such file or directory"):
        await SupervisedCommand.start([str(program)])


def all_lines(descriptor: int) -> list[str]:
    os.set_blocking(descriptor, True)
    with open(descriptor, closefd=False) as file:
        return file.read().splitlines()


@pytest.mark.requirement("environments.command-variables")
async def test_a_command_gets_the_environment_but_for_the_secrets_of_its_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secrets = (
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "NODE_REPL_AUTH_TOKEN",
        "OPENAI_FEDERATION_RULE_ID",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    )
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.delenv("LC_CTYPE", raising=False)
    # A locale that Python would change for itself.
    env = {"ADDED": "too", "LC_ALL": "", "LANG": "C"}
    script = "env; pwd; exec 1>&-; read x"
    command = await SupervisedCommand.start(["/bin/sh", "-c", script], env=env, cwd=str(tmp_path))
    try:
        lines = await asyncio.to_thread(all_lines, command.stdout)
    finally:
        command.close_streams()
        os.close(command.stderr)
        await command.aclose()
    assert lines[-1] == str(tmp_path)
    assert {"INHERITED=yes", "ADDED=too", "LANG=C"} <= set(lines)
    names = {line.partition("=")[0] for line in lines}
    assert names.isdisjoint((*secrets, "LC_CTYPE"))


async def test_a_command_that_dies_at_once_is_quoted() -> None:
    argv = ["/bin/sh", "-c", "echo one >&2; echo no route to host >&2; exit 255"]
    with pytest.raises(ConnectionLost) as caught:
        await ExecServerClient.connect(argv)
    assert str(caught.value) == "exec-server transport disconnected: no route to host"


async def test_a_command_that_prints_noise_is_quoted_and_ended(
    fifo: Fifo, watched: AsyncExitStack
) -> None:
    script = f"echo $$ >{fifo.path}; echo Welcome to this machine; while :; do sleep 600; done"
    async with asyncio.TaskGroup() as tasks:
        told = tasks.create_task(hear(fifo, watched, count=1))
        with pytest.raises(ConnectFailed) as caught:
            await ExecServerClient.connect(["/bin/sh", "-c", f"{STUBBORN}; {script}"])
    assert str(caught.value) == (
        "exec-server transport disconnected: it sent `Welcome to this machine`,"
        " which is not a message"
    )
    await all_gone(told.result())


async def test_a_command_that_never_answers_is_given_up_and_ended(
    fifo: Fifo, watched: AsyncExitStack
) -> None:
    script = f"echo busy >&2; echo $$ >{fifo.path}; while :; do sleep 600; done"
    async with asyncio.TaskGroup() as tasks:
        told = tasks.create_task(hear(fifo, watched, count=1))
        with pytest.raises(ConnectFailed) as caught:
            await ExecServerClient.connect(["/bin/sh", "-c", script], initialize_timeout=1)
    assert str(caught.value) == (
        "timed out waiting for exec-server initialize handshake after 1s: busy"
    )
    await all_gone(told.result())

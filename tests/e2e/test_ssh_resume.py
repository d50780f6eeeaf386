"""A lost ssh connection behind a real `sshd`: the same server is reached again, nothing is lost."""

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed, ConnectionLost
from holdfast.base.version import __version__
from holdfast.environments.commands.running import Running
from holdfast.environments.environment import Environment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.environments.ssh.address import SERVE, SshAddress, SshCommand
from holdfast.environments.ssh.ssh_target import SshTarget
from tests.e2e.sshd import OWN_PATH, Host, host, ssh_environment
from tests.e2e.test_ssh import INSTALL_LIMIT, SYSTEM_PATH, Cli, add_program, bare_python
from tests.e2e.wire import LIMIT, Fifo, children, gone, is_alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

STUBBORN = "trap '' HUP INT TERM; echo $$; while :; do sleep 600; done"

COUNT = """
n=0; while [ $n -lt 2000 ]; do echo $n; n=$((n+1)); [ $((n % 10)) != 0 ] || sleep 0.02; done; exit 9
"""


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Host]:
    """A host that has this version of Holdfast."""
    with host(tmp_path) as found:
        yield found


def named(comm: str, *, below: int | None = None) -> list[int]:
    """Descendants of a process, of this one unless told, that run a program."""
    found: list[int] = []
    waiting = [os.getpid() if below is None else below]
    while waiting:
        try:
            below_it = children(waiting.pop())
        except FileNotFoundError:
            continue
        waiting += below_it
        for pid in below_it:
            name = Path(f"/proc/{pid}/comm")
            if name.exists() and name.read_text().strip() == comm:
                found.append(pid)
    return found


def cut() -> int:
    """Kill the one ssh of this process."""
    (ssh,) = named("ssh")
    os.kill(ssh, signal.SIGKILL)
    return ssh


def servers(there: Host) -> list[str]:
    """The folders of servers on a host."""
    return sorted(os.listdir(there.runtime))


def server_pids(there: Host) -> list[int]:
    """Everybody who holds the folder of a server open: guardians and servers."""
    folders = {str(there.runtime / name) for name in servers(there)}
    found = []
    for entry in Path("/proc").iterdir():
        try:
            held = {os.readlink(it) for it in (entry / "fd").iterdir()}
        except OSError:
            continue
        if folders & held:
            found.append(int(entry.name))
    return found


async def all_gone(*pids: int, limit: float = 3 * LIMIT) -> None:
    for pid in pids:
        await gone(pid, limit=limit)


async def first_line(running: Running) -> str:
    async with asyncio.timeout(2 * LIMIT):
        return str(await anext(aiter(running.output()))).strip()


def target_of(there: Host, *, install: bool = False) -> SshTarget:
    return SshTarget(SshCommand(SshAddress.of_url(there.url, ssh=there.ssh)), install=install)


async def cut_and_notice(environment: Environment) -> None:
    """Kill ssh and wait until the client knows: a start that is under way would fail."""
    assert isinstance(environment, RemoteEnvironment)
    states = environment.connection_states()
    async with asyncio.timeout(2 * LIMIT):
        assert await anext(states)
        cut()
        await anext(states)


# -- nothing is lost


async def test_output_goes_on_without_loss_however_often_ssh_is_killed(ready: Host) -> None:
    cuts = [200, 700, 1200, 1700]
    async with ssh_environment(ready.url, ssh=ready.ssh) as environment:
        running = await environment.start(COUNT)
        text, killed = "", []
        async for chunk in running.output():
            text += str(chunk)
            if cuts and text.count("\n") > cuts[0]:
                del cuts[0]
                killed.append(cut())
        assert text == "".join(f"{number}\n" for number in range(2000))
        assert (await running.wait()).exit_code == 9
        assert len(set(killed)) == 4
    assert named("ssh") == []


async def test_input_arrives_once(ready: Host) -> None:
    async with ssh_environment(ready.url, ssh=ready.ssh) as environment:
        running = await environment.start("cat", stdin=True)
        for number in range(60):
            await running.write(f"{number}\n")
            if number % 20 == 10:
                await environment.wait_ready()  # a write does not wait for the line
                cut()
        await running.close_stdin()
        text = "".join([str(chunk) async for chunk in running.output()])
        assert text == "".join(f"{number}\n" for number in range(60))
        assert (await running.wait()).exit_code == 0


async def test_calls_made_while_ssh_is_down_wait(ready: Host) -> None:
    async with ssh_environment(ready.url, ssh=ready.ssh) as environment:
        assert (await environment.run("echo 1")).stdout == "1\n"
        before = servers(ready)
        await cut_and_notice(environment)
        assert (await environment.run("echo 2")).stdout == "2\n"
        assert servers(ready) == before


async def test_ssh_that_is_killed_while_it_connects_is_tried_again(
    ready: Host, tmp_path: Path
) -> None:
    """The first two attempts to come back fail in different ways, and leave nothing."""
    log, real = tmp_path / "log", " ".join(ready.ssh)
    program = add_program(
        tmp_path,
        "ssh",
        f"echo $$ >> {log}; case $(wc -l < {log}) in 2) exec sleep 0.2;; 3) kill -9 $$;; esac;"
        f' exec {real} "$@"',
    )
    async with ssh_environment(ready.url, ssh=(program,)) as environment:
        running = await environment.start("cat", stdin=True)
        cut()
        await running.write("still here\n")
        assert await first_line(running) == "still here"
    pids = [int(line) for line in log.read_text().split()]
    assert len(pids) == 4
    assert not any(map(is_alive, pids))


async def test_a_network_that_fails_is_tried_again(ready: Host, tmp_path: Path) -> None:
    """Then the reason may be gone; here the port is another one for a moment."""
    log, real = tmp_path / "log", " ".join(ready.ssh)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nothing listens there
        wrong = f"exec {real} -p {taken.getsockname()[1]}"
        program = add_program(
            tmp_path,
            "ssh",
            f'echo x >> {log}; case $(wc -l < {log}) in 2|3) {wrong} "$@";; esac; exec {real} "$@"',
        )
        async with ssh_environment(ready.url, ssh=(program,)) as environment:
            running = await environment.start("cat", stdin=True)
            cut()
            await running.write("still here\n")
            assert await first_line(running) == "still here"
    assert log.read_text() == 4 * "x\n"


def _change_key(there: Host, folder: Path) -> None:
    known = folder / "known_hosts"
    other = (folder / "key.pub").read_text()
    known.write_text(f"[127.0.0.1]:{there.port} {other}")


REFUSALS: dict[str, tuple[Callable[[Host, Path], object], str]] = {
    "another host key": (_change_key, r"Host key verification failed\."),
    "an unknown host": (
        lambda _, folder: (folder / "known_hosts").write_text(""),
        r"Host key verification failed\.",
    ),
    "a login that fails": (
        lambda _, folder: (folder / "authorized_keys").write_text(""),
        r".*: Permission denied \(publickey\)\.",
    ),
    "a mistake in the settings of ssh": (
        lambda _, folder: (folder / "ssh_config").write_text("NoSuchOption yes\n"),
        r".*: terminating, 1 bad configuration options",
    ),
    "a program that cannot be executed": (
        lambda there, _: there.program.write_text("#!/etc/passwd\n"),
        r".*: .*Permission denied",
    ),
    "a program without its interpreter": (
        lambda there, _: there.program.write_text("#!/no/such/program\n"),
        r".*: .*not found",
    ),
}


@pytest.mark.both_loops
@pytest.mark.parametrize("why", REFUSALS)
async def test_what_ssh_is_refused_is_not_tried_again(
    ready: Host, tmp_path: Path, why: str
) -> None:
    log, real = tmp_path / "log", " ".join(ready.ssh)
    program = add_program(tmp_path, "ssh", f'echo x >> {log}; exec {real} "$@"')
    ready.provide()
    refuse, said = REFUSALS[why]
    async with ssh_environment(ready.url, ssh=(program,)) as environment:
        running = await environment.start("cat", stdin=True)
        refuse(ready, tmp_path)
        cut()
        with pytest.raises(ConnectionLost, match=rf": cannot connect to 127\.0\.0\.1: {said}$"):
            await running.wait()
        assert log.read_text() == "x\nx\n"
        # A person may have put it right meanwhile, so the next use is one more attempt.
        with pytest.raises(ConnectFailed, match=said):
            await environment.run("true")
        assert log.read_text() == "x\nx\nx\n"


async def ssh(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL)
    async with asyncio.timeout(3 * LIMIT):
        assert await process.wait() == 0


async def test_a_master_connection_may_carry_it(ready: Host) -> None:
    path = f"/tmp/hf-{os.getpid()}.sock"
    shared = (*ready.ssh, "-S", path)
    there = ("-p", str(ready.port), "127.0.0.1")
    await ssh(*shared, "-M", "-N", "-f", *there)
    try:
        async with ssh_environment(ready.url, ssh=shared) as environment:
            running = await environment.start("cat", stdin=True)
            cut()
            await running.write("still here\n")
            assert await first_line(running) == "still here"
    finally:
        await ssh(*shared, "-q", "-O", "exit", *there)


# -- whose server it is


@pytest.mark.requirement("security.kept.server")
async def test_two_environments_have_two_servers(ready: Host) -> None:
    async with (
        ssh_environment(ready.url, ssh=ready.ssh) as one,
        ssh_environment(ready.url, ssh=ready.ssh) as two,
    ):
        parent = "ps -o ppid= -p $$"
        assert (await one.run(parent)).stdout != (await two.run(parent)).stdout
        assert len(servers(ready)) == 2
        await one.aclose()
        assert len(servers(ready)) == 1
        assert (await two.run("echo 2")).stdout == "2\n"


async def test_a_server_that_is_gone_is_not_looked_for_again_and_again(ready: Host) -> None:
    async with ssh_environment(ready.url, ssh=ready.ssh) as environment:
        running = await environment.start(STUBBORN)
        pid = int(await first_line(running))
        before = servers(ready)
        pids = server_pids(ready)
        (server,) = [it for it in pids if not set(children(it)) & set(pids)]
        os.kill(server, signal.SIGKILL)
        with pytest.raises(ConnectionLost, match=r"the server on 127\.0\.0\.1 is gone: "):
            await running.wait()
        # The next use has a new one.
        assert (await environment.run("echo again")).stdout == "again\n"
        await all_gone(pid, *pids)
        assert len(servers(ready)) == 1
        assert servers(ready) != before


# -- nothing is left


async def test_nothing_is_left_after_a_close(ready: Host) -> None:
    async with ssh_environment(ready.url, ssh=ready.ssh) as environment:
        running = await environment.start(STUBBORN)
        pid = int(await first_line(running))
        await cut_and_notice(environment)
        assert (await environment.run("echo 1")).stdout == "1\n"
        pids = server_pids(ready)
        assert len(pids) == 2
    # When the close is over, so is the session; what is below the guardian follows at once.
    assert not is_alive(pid)
    await all_gone(*pids)
    assert servers(ready) == []
    assert named("ssh") == []


async def test_nothing_is_left_after_a_close_in_the_middle_of_a_flood(ready: Host) -> None:
    async with ssh_environment(ready.url, ssh=ready.ssh) as environment:
        running = await environment.start("exec yes")
        await first_line(running)
        pids = server_pids(ready)
    await all_gone(*pids)
    assert servers(ready) == []


async def test_a_close_while_ssh_is_down_leaves_no_ssh(ready: Host, tmp_path: Path) -> None:
    down, real = tmp_path / "down", " ".join(ready.ssh)
    with Fifo(tmp_path / "fifo") as fifo:
        hang = f"if [ -e {down} ]; then echo $$ > {fifo.path}; exec sleep 600; fi"
        program = add_program(tmp_path, "ssh", f'{hang}; exec {real} "$@"')
        environment = ssh_environment(ready.url, ssh=(program,))
        assert (await environment.run("echo 1")).stdout == "1\n"
        down.touch()
        cut()
        hanging = int(await fifo.line())
        await environment.aclose()
        assert not is_alive(hanging)


CLIENT = """
import asyncio, sys
from holdfast.environments.remote import RemoteEnvironment
from holdfast.environments.ssh.address import SshAddress, SshCommand
from holdfast.environments.ssh.ssh_target import SshTarget

async def main():
    target = SshTarget(SshCommand(SshAddress.of_url(sys.argv[1], ssh=sys.argv[2:])))
    async with RemoteEnvironment("host", target) as environment:
        running = await environment.start(sys.stdin.read())
        async for chunk in running.output():
            print(chunk, end="", flush=True)

asyncio.run(main())
"""


SHORT = """\
import sys
from holdfast.server import sessions
sessions.EXPIRY = 1.0
from holdfast.front.cli.__main__ import main
sys.exit(main())
"""
"""The command line of a server that keeps a session for a second, not for 80."""


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Host]:
    """A host whose servers soon forget a session."""
    programs = tmp_path / "programs"
    programs.mkdir()
    add_program(programs, "holdfast", f'exec {sys.executable} -c {shlex.quote(SHORT)} "$@"')
    with host(tmp_path, path=f"{programs}:{OWN_PATH}") as there:
        yield there


@pytest.mark.timeout(60 + LIMIT)
@pytest.mark.long
async def test_nothing_is_left_after_a_client_was_killed(forgetful: Host) -> None:
    """It takes the ten seconds for which a server without sessions waits, and a little more."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, forgetful.url, *forgetful.ssh),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(STUBBORN.encode())
    client.stdin.close()
    async with asyncio.timeout(4 * LIMIT):
        pid = int(await client.stdout.readline())
    (there,) = named("ssh", below=client.pid)
    client.kill()
    await client.communicate()
    await gone(there)
    await all_gone(pid, *server_pids(forgetful), limit=30 + LIMIT)
    assert servers(forgetful) == []


# -- what the far side can do


async def test_an_older_far_side_serves_one_connection(tmp_path: Path) -> None:
    """Argparse of a version without the option ends with status 2 and reads nothing."""
    programs = tmp_path / "programs"
    programs.mkdir()
    refuse = 'case "$*" in *--keep*|*--attach*) echo "unrecognized arguments" >&2; exit 2;; esac'
    add_program(programs, "holdfast", f'{refuse}; exec {Path(sys.executable).parent}/holdfast "$@"')
    with host(tmp_path, path=f"{programs}:{OWN_PATH}") as there:
        target = target_of(there)
        async with RemoteEnvironment("old", target) as environment:
            running = await environment.start(STUBBORN)
            pid = int(await first_line(running))
            assert not target.can_reconnect
            cut()
            with pytest.raises(ConnectionLost, match=r"^exec-server transport disconnected: "):
                await running.wait()
            await gone(pid, limit=2 * LIMIT)
        assert servers(there) == []


async def test_what_was_installed_can_do_it_too(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    add_program(programs, "python3", f'exec {bare_python()} "$@"')
    with host(tmp_path, path=f"{programs}:{SYSTEM_PATH}") as there:
        done = Cli(tmp_path / "config", there).connect("--yes", there.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert "just installed" in done.stdout
        target = target_of(there)
        async with RemoteEnvironment("bare", target) as environment, asyncio.timeout(INSTALL_LIMIT):
            running = await environment.start("cat", stdin=True)
            assert target.program == str(there.deployed / __version__ / "bin/holdfast")
            assert target.can_reconnect
            cut()
            await running.write("still here\n")
            assert await first_line(running) == "still here"
        assert servers(there) == []


async def test_a_start_that_fails_there_is_told(ready: Host) -> None:
    command = SshCommand(
        SshAddress.of_url(ready.url, ssh=ready.ssh), (*SERVE, "--ws-auth", "capability-token")
    )
    environment = RemoteEnvironment("bad", SshTarget(command))
    with pytest.raises(ConnectFailed, match=r"cannot connect to 127\.0\.0\.1: Error: "):
        await environment.wait_ready()
    await environment.aclose()
    assert servers(ready) == []

"""A host behind a real `sshd`: what is there is used, what is missing can be installed."""

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed
from holdfast.base.version import __version__
from holdfast.environments.config.snapshot import Entry, ServingProgram
from holdfast.environments.remote import RemoteEnvironment
from holdfast.environments.ssh import bundle, installer
from holdfast.environments.ssh.address import SshAddress, SshCommand
from holdfast.environments.ssh.installer import Offer
from holdfast.environments.ssh.ssh_target import SshTarget
from tests.e2e.sshd import OWN_PATH, Host, host, ssh_environment
from tests.e2e.terminals import terminal
from tests.e2e.wheels import write_wheels
from tests.e2e.wire import HOLDFAST, LIMIT, gone, is_alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

INSTALL_LIMIT = 6 * LIMIT
"""Seconds; packing, sending and trying out take a while on a busy machine."""

SYSTEM_PATH = "/usr/bin:/bin"

SHELLS = ["sh", *filter(shutil.which, ("bash", "csh", "dash", "fish", "tcsh", "zsh"))]
"""The shells of this machine; they differ in how they read a command line."""


def bare_python() -> str:
    """A Python of the same kind as ours that has none of our packages."""
    about = 'import sysconfig; print(sysconfig.get_config_var("SOABI"))'
    debian = "/usr/bin/python3"
    if os.path.exists(debian):
        told = subprocess.run([debian, "-I", "-c", about], capture_output=True, text=True)
        if told.stdout.strip() == sysconfig.get_config_var("SOABI"):
            return debian
    return os.path.realpath(sys.executable)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder that a host looks for programs in before those of the system."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


def add_program(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(tmp_path: Path, programs: Path) -> Iterator[Host]:
    """A host that has Python and nothing of ours."""
    python = bare_python()
    add_program(programs, "python3", f'exec {python} "$@"')
    check = subprocess.run([python, "-I", "-c", "import msgspec"], capture_output=True)
    assert check.returncode != 0, "that Python has our packages"
    with host(tmp_path, path=f"{programs}:{SYSTEM_PATH}") as found:
        yield found


@pytest.fixture(autouse=True)
def packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack what is sent once for all tests: it takes a second."""
    monkeypatch.setattr(installer, "pack_files", _pack_files)


@functools.cache
def _pack_files() -> bundle.Bundle | None:
    return bundle.pack_files()


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Host]:
    """A host that has this version of Holdfast."""
    with host(tmp_path) as found:
        yield found


STUBBORN = "trap '' HUP TERM; echo $$; while :; do sleep 600; done"


async def hello(there: Host, *, ssh: tuple[str, ...] | None = None, install: bool = False) -> str:
    """Run something there."""
    async with ssh_environment(there.url, ssh=ssh or there.ssh, install=install) as environment:
        return (await environment.run("echo $((6*7)); echo $HOME")).stdout


# -- what is there is used


async def test_a_holdfast_on_the_path_of_a_host_is_used(ready: Host) -> None:
    assert await hello(ready) == f"42\n{ready.home}\n"
    assert ready.files() == []


async def test_what_a_shell_prints_first_does_no_harm(tmp_path: Path) -> None:
    shell = 'printf "Welcome\\n\\nYou have no mail"; exec sh -c "$SSH_ORIGINAL_COMMAND"'
    with host(tmp_path, shell=shell) as there:
        assert await hello(there) == f"42\n{there.home}\n"


@pytest.mark.parametrize("shell", SHELLS)
async def test_the_shell_of_the_user_may_be_any(tmp_path: Path, shell: str) -> None:
    with host(tmp_path, shell=f'exec {shell} -c "$SSH_ORIGINAL_COMMAND"') as there:
        assert await hello(there) == f"42\n{there.home}\n"


async def test_another_version_on_the_path_is_not_used(bare: Host, programs: Path) -> None:
    add_program(programs, "holdfast", "echo holdfast 0.0.1")
    with pytest.raises(ConnectFailed, match=f"holdfast {re.escape(__version__)} is not on "):
        await hello(bare)


async def test_what_runs_on_a_host_ends_with_the_connection(ready: Host) -> None:
    async with ssh_environment(ready.url, ssh=ready.ssh) as environment:
        running = await environment.start(STUBBORN)
        pid = int((await anext(aiter(running.output()))).data)
        assert is_alive(pid)
    await gone(pid, limit=2 * LIMIT)


def pid_of_killed_client(command: list[str]) -> int:
    """Kill a client as soon as what it runs has told its pid."""
    client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert client.stdout is not None
    with client.stdout:
        pid = int(client.stdout.readline())
    client.kill()
    client.wait(LIMIT)
    return pid


async def test_what_runs_on_a_host_ends_when_the_client_is_killed(ready: Host) -> None:
    there = shlex.join([*ready.ssh, "-p", str(ready.port), "127.0.0.1"])
    run = [*HOLDFAST, "run", "--cmd", f"{there} holdfast serve --listen stdio", "--"]
    pid = pid_of_killed_client([*run, "sh", "-c", STUBBORN])
    await gone(pid, limit=3 * LIMIT)


# -- what is missing is installed


async def test_holdfast_is_installed_with_consent_found_the_next_time_and_removed(
    bare: Host, tmp_path: Path
) -> None:
    """One life of an installation, since each takes seconds: what comes before it and after."""
    address = SshAddress.of_url(bare.url, ssh=bare.ssh)
    assert await installer.remove(address) == (False, str(bare.deployed))
    await _break_a_transfer_off(bare, tmp_path)
    assert bare.files() == []
    written = _ssh_of_a_file(bare)
    with pytest.raises(ConnectFailed, match=r"to install it there, run `holdfast connect .*`"):
        await written.wait_ready()
    await written.aclose()

    await _install_with_consent(bare)

    async with _ssh_of_a_file(bare) as environment:
        assert (await environment.run("echo hello")).stdout == "hello\n"
    (bare.home / "notes").write_text("mine")
    assert await installer.remove(address) == (True, str(bare.deployed))
    assert bare.files() == [".local", ".local/share", "notes"]


async def _break_a_transfer_off(there: Host, folder: Path) -> None:
    cut = 'case "$*" in *sys.stdin.buffer*) head -c 1000000 | ssh "$@";; *) exec ssh "$@";; esac'
    ssh = (add_program(folder, "ssh", f"PATH={SYSTEM_PATH}; {cut}"), *there.ssh[1:])
    with pytest.raises(
        ConnectFailed, match=r"the connection broke off after [0-9]+ of [0-9]+ bytes"
    ):
        await hello(there, ssh=ssh, install=True)


def _ssh_of_a_file(there: Host) -> RemoteEnvironment:
    """Return an environment as a file describes it: with a command of ssh."""
    args = (*there.ssh[1:], "-p", str(there.port), "127.0.0.1", "holdfast serve --listen stdio")
    entry = Entry(id="bare", transport=ServingProgram(program="ssh", args=args))
    return RemoteEnvironment.of(entry)


async def _install_with_consent(bare: Host) -> None:
    offers: list[Offer] = []

    async def agree(offer: Offer) -> bool:
        offers.append(offer)
        return True

    command = SshCommand(SshAddress.of_url(bare.url, ssh=bare.ssh))
    first = RemoteEnvironment("bare", SshTarget(command, install=agree))
    async with first:
        assert (await first.run(["echo", "hello"])).stdout == "hello\n"
    (offer,) = offers
    folder = bare.deployed / __version__
    assert f"into {folder}" in offer.text
    assert "copied from this machine" in offer.text
    assert "--remove" in offer.text
    assert [path.name for path in bare.deployed.iterdir()] == [__version__]
    assert bare.deployed.stat().st_mode & 0o777 == 0o700
    second = SshTarget(command)
    async with RemoteEnvironment("bare", second) as environment:
        assert (await environment.run("echo again")).stdout == "again\n"
    assert second.program == str(folder / "bin/holdfast")
    assert len(offers) == 1


async def test_without_consent_nothing_is_written(bare: Host) -> None:
    with pytest.raises(ConnectFailed) as caught:
        await hello(bare)
    ssh = shlex.join(bare.ssh)
    assert str(caught.value).endswith(
        f"holdfast {__version__} is not on 127.0.0.1;"
        f" to install it there, run `holdfast connect --ssh '{ssh}' {bare.url}`"
    )
    assert bare.files() == []


async def test_a_program_that_does_not_run_there_is_not_left(
    bare: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "pack_files", bundle.pack_files)
    monkeypatch.setattr(bundle, "_dependencies", list)
    with pytest.raises(ConnectFailed, match=r"it does not run with .*: .*No module named"):
        await hello(bare, install=True)
    assert list(bare.deployed.iterdir()) == []


async def test_a_host_whose_python_is_too_old_is_told_so(tmp_path: Path, programs: Path) -> None:
    for name in ("python3", *(f"python3.{minor}" for minor in range(11, 16))):
        add_program(programs, name, '[ "$1" != --version ] || echo Python 3.9.2; exit 1')
    with host(tmp_path, path=f"{programs}:{SYSTEM_PATH}") as there:
        with pytest.raises(ConnectFailed) as caught:
            await hello(there, install=True)
        assert str(caught.value).endswith(
            f"holdfast {__version__} is not on 127.0.0.1, and cannot be installed: the host"
            f" has no Python 3.11 or newer on PATH ({programs}/python3 is Python 3.9.2)"
        )
        assert there.files() == []


async def test_a_host_without_any_python_is_told_so(tmp_path: Path, programs: Path) -> None:
    for name in ("sh", "uname"):
        (programs / name).symlink_to(f"/bin/{name}")
    with (
        host(tmp_path, path=str(programs)) as there,
        pytest.raises(ConnectFailed, match=r"newer on PATH$"),
    ):
        await hello(there, install=True)


async def test_a_host_of_another_kind_uses_its_own_pip(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real wheels in a folder: a package index is nothing that tests can count on."""
    wheels = tmp_path / "wheels"
    write_wheels(wheels)
    pip = f"PIP_NO_INDEX=1 PIP_FIND_LINKS={wheels} PIP_CONFIG_FILE=/dev/null"
    add_program(programs, "python3", f'{pip} exec {sys.executable} "$@"')
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: "cpython-399-vax-netbsd")
    with host(tmp_path, path=f"{programs}:{SYSTEM_PATH}") as there:
        offers: list[Offer] = []

        def agree(offer: Offer) -> bool:
            offers.append(offer)
            return True

        address = SshAddress.of_url(there.url, ssh=there.ssh)
        target = SshTarget(SshCommand(address), install=agree)
        async with RemoteEnvironment("other", target) as environment:
            assert (await environment.run("echo hello")).stdout == "hello\n"
        assert "the host's pip" in offers[0].text
        lib = there.deployed / __version__ / "lib"
        assert (lib / "msgspec").is_dir()
        assert (lib / "holdfast/front/cli/__main__.py").is_file()


async def test_a_pip_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = f"PIP_NO_INDEX=1 PIP_FIND_LINKS={programs} PIP_CONFIG_FILE=/dev/null"
    add_program(programs, "python3", f'{empty} exec {sys.executable} "$@"')
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: "cpython-399-vax-netbsd")
    with host(tmp_path, path=f"{programs}:{SYSTEM_PATH}") as there:
        with pytest.raises(ConnectFailed, match=r"the pip of .* could not install it: ERROR: "):
            await hello(there, install=True)
        assert list(there.deployed.iterdir()) == []


# -- what cannot be reached


async def test_why_ssh_gave_up_is_told(ready: Host, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    with pytest.raises(ConnectFailed, match=r"cannot connect to 127\.0\.0\.1: Host key verif"):
        await hello(ready)


async def test_an_ssh_that_is_not_there_is_told(ready: Host) -> None:
    with pytest.raises(ConnectFailed, match=r"failed to spawn exec-server `.*`: No such file"):
        await hello(ready, ssh=("no-such-ssh",))


async def test_a_host_that_never_answers_is_given_up(ready: Host, tmp_path: Path) -> None:
    silent = add_program(tmp_path, "ssh", "echo slow >&2; exec sleep 600")
    environment = ssh_environment(ready.url, ssh=(silent,), connect_timeout=0.5)
    with pytest.raises(ConnectFailed, match=r"cannot connect to 127\.0\.0\.1: slow"):
        await environment.wait_ready()
    await environment.aclose()


# -- the command line


class Cli:
    """`holdfast connect` with a home of its own."""

    def __init__(self, home: Path, there: Host) -> None:
        self.env = {**os.environ, "HOLDFAST_HOME": str(home), "PATH": OWN_PATH}
        self.there = there

    def argv(self, *options: str) -> list[str]:
        return [*HOLDFAST, "connect", "--ssh", shlex.join(self.there.ssh), *options]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT,
        )

    def connect(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run(*self.argv(*options))


@pytest.fixture
def cli(tmp_path: Path, bare: Host) -> Cli:
    return Cli(tmp_path / "config", bare)


def test_nobody_is_there_to_be_asked(cli: Cli) -> None:
    done = cli.connect(cli.there.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"holdfast: Holdfast {__version__} is not on 127.0.0.1 (Linux")
    assert done.stderr.endswith("Use --yes to install it.\n")
    assert cli.there.files() == []


def test_a_person_agrees_saves_it_by_a_name_uses_and_removes_it(cli: Cli) -> None:
    with terminal(*cli.argv("--save", "box", cli.there.url), env=cli.env) as screen:
        screen.expect("Install it? [y/N] ", limit=INSTALL_LIMIT)
        screen.type("y\n")
        screen.expect("just installed", limit=INSTALL_LIMIT)
        screen.expect("saved      `box` in")
        assert screen.wait() == 0
    again = cli.run(*HOLDFAST, "connect", "box")
    assert again.returncode == 0, again.stderr
    assert "just installed" not in again.stdout
    removed = cli.run(*HOLDFAST, "connect", "--remove", "box")
    assert (removed.returncode, removed.stdout) == (0, f"removed {cli.there.deployed}\n")
    nothing = cli.run(*HOLDFAST, "connect", "--remove", "box")
    assert nothing.stdout == f"nothing is installed in {cli.there.deployed}\n"


@pytest.mark.parametrize("answer", ["\n", "no\n"])
def test_a_person_does_not_agree(cli: Cli, answer: str) -> None:
    with terminal(*cli.argv(cli.there.url), env=cli.env) as screen:
        screen.expect("Install it? [y/N] ", limit=INSTALL_LIMIT)
        screen.type(answer)
        screen.expect("nothing was installed", limit=INSTALL_LIMIT)
        assert screen.wait() == 1
    assert cli.there.files() == []


def test_a_question_can_be_interrupted(cli: Cli) -> None:
    with terminal(*cli.argv(cli.there.url), env=cli.env) as screen:
        screen.expect("Install it? [y/N] ", limit=INSTALL_LIMIT)
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 130
    assert cli.there.files() == []


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["nowhere"], 1, "`nowhere` is not in "),
        (["ssh://"], 1, "`ssh://` is not the URL of a host: it names no host"),
        (["ws://127.0.0.1:1"], 1, "failed to connect to exec-server websocket"),
        (["--remove", "ws://127.0.0.1:1"], 1, "--remove only applies to hosts"),
        (["--save", "local", "ssh://x"], 1, "environment id `local` is reserved"),
        (["--remove", "--yes", "ssh://x"], 2, "--remove cannot be used with"),
    ],
)
def test_mistakes_are_told(cli: Cli, options: list[str], status: int, text: str) -> None:
    done = cli.run(*HOLDFAST, "connect", *options)
    assert (done.returncode, done.stdout) == (status, "")
    assert text in done.stderr

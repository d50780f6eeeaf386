"""
A real `sshd` on loopback, with keys, a port and a configuration of its own.

It runs as whoever runs the tests and lets nobody else in. What its sessions have as home
and as `PATH` is up to a test, so one machine can play a host that has nothing.
"""

import getpass
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from holdfast.base.version import __version__
from holdfast.environments.remote import RemoteEnvironment
from holdfast.environments.ssh.address import SshAddress, SshCommand
from holdfast.environments.ssh.ssh_target import CONNECT_TIMEOUT, SshTarget
from tests.e2e.wire import LIMIT, PATH
from tests.warm import HOLDFAST

__all__ = ["Host", "host", "missing_parts", "need_ssh", "ssh_environment"]

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"

_PRIVILEGE_SEPARATION = Path("/run/sshd")
"""A folder that an sshd of root insists on; systemd makes it where it starts one."""

OWN_PATH = f"{Path(sys.executable).parent}:{PATH}"
"""`PATH` on which the `holdfast` that is tested comes first."""


def ssh_environment(
    url: str,
    *,
    ssh: Sequence[str],
    install: bool = False,
    connect_timeout: float = CONNECT_TIMEOUT,
) -> RemoteEnvironment:
    """The environment of a host, by an ssh with options of its own."""
    command = SshCommand(SshAddress.of_url(url, ssh=ssh))
    target = SshTarget(command, install=install, timeout=connect_timeout)
    return RemoteEnvironment(command.address.destination, target)


@dataclass(frozen=True)
class Host:
    """A host that can be reached."""

    port: int
    ssh: tuple[str, ...]
    """The program with the options that lead there."""
    home: Path
    """Of the user there."""
    runtime: Path
    """The runtime directory of the user there: servers that outlive a connection are in it."""

    @property
    def url(self) -> str:
        return f"ssh://127.0.0.1:{self.port}"

    @property
    def deployed(self) -> Path:
        """Directory of what is installed for that user."""
        return self.home / ".local/share/holdfast/deployed"

    @property
    def program(self) -> Path:
        """What is installed of this version."""
        return self.deployed / __version__ / "bin/holdfast"

    def provide(self) -> None:
        """As if this very version had been installed there."""
        self.program.parent.mkdir(parents=True)
        _write_program(self.program)

    def files(self) -> list[str]:
        """Everything there is in that home."""
        return sorted(str(path.relative_to(self.home)) for path in self.home.rglob("*"))


def missing_parts() -> list[str]:
    """Return the programs of OpenSSH that this machine lacks."""
    return [name for name in ("sshd", "ssh", "ssh-keygen") if _find(name) is None]


def need_ssh() -> None:
    """Skip a test where there is no OpenSSH; where everything is required, that is a failure."""
    missing = missing_parts()
    if not missing:
        return
    text = f"{' and '.join(missing)} not found: install openssh-server and openssh-client"
    if os.environ.get("CI") == "true" or os.environ.get("HOLDFAST_REQUIRE_REAL") == "1":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@contextmanager
def host(folder: Path, *, path: str | None = None, shell: str | None = None) -> Iterator[Host]:
    """
    Start one.

    Args:
        folder: An empty one for its keys; the home of the user is in it.
        path: What its sessions find programs in; without it, the `holdfast` of `tests.warm`
            and the programs of the system.
        shell: What to start for a session instead of the user's own shell.
    """
    need_ssh()
    home, runtime = folder / "home", folder / "run"
    home.mkdir()
    runtime.mkdir(mode=0o700)
    for name in ("host_key", "key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    if os.geteuid() == 0:
        _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    if path is None:
        (folder / "bin").mkdir()
        _write_program(folder / "bin/holdfast")
        path = f"{folder}/bin:{OWN_PATH}"
    server, port = _start(folder, f"HOME={home} PATH={path} XDG_RUNTIME_DIR={runtime}", shell)
    known = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {known}")
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/key\n"
        "IdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known_hosts\n"
        "GlobalKnownHostsFile none\n"
        "StrictHostKeyChecking yes\n"
        "BatchMode yes\n"
        "LogLevel ERROR\n"
        f"User {getpass.getuser()}\n"
    )
    try:
        yield Host(port, ("ssh", "-F", str(folder / "ssh_config")), home, runtime)
    finally:
        server.terminate()
        server.wait(2 * LIMIT)
        assert server.stderr is not None
        server.stderr.close()


def _write_program(path: Path) -> None:
    """Write a program that does what `holdfast` does."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(HOLDFAST)} "$@"\n')
    path.chmod(0o755)


def _start(folder: Path, variables: str, shell: str | None) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(5):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = folder / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1:{port}\n"
            f"HostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\n"
            f"AllowUsers {getpass.getuser()}\n"
            "AuthenticationMethods publickey\n"
            "PermitRootLogin yes\n"
            "PidFile none\n"
            "StrictModes no\n"
            "UsePAM no\n"
            "MaxStartups 100\n"
            f"SetEnv {variables}\n" + ("" if shell is None else f"ForceCommand {shell}\n")
        )
        sshd = _find("sshd")
        assert sshd is not None  # looked for above
        server = subprocess.Popen(
            [sshd, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if (said := _listens(server)) is None:
            return server, port
        server.wait(LIMIT)
        assert server.stderr is not None
        server.stderr.close()
        # Somebody else may have been given the port meanwhile.
        assert "Address already in use" in said, said
    raise AssertionError("no port is free")


def _listens(server: subprocess.Popen[bytes]) -> str | None:
    """Wait until it listens; else all that it said instead."""
    assert server.stderr is not None
    said = b""
    deadline = monotonic() + 2 * LIMIT
    while b"Server listening on" not in said:
        left = max(deadline - monotonic(), 0)
        assert select.select([server.stderr], [], [], left)[0], f"sshd is silent: {said!r}"
        data = os.read(server.stderr.fileno(), 4096)
        if not data:
            return said.decode(errors="replace")
        said += data
    return None


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=LIMIT, stdin=subprocess.DEVNULL)

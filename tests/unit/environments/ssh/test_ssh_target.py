"""Errors of ssh: those that another attempt may get past, and those that it will not."""

from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed, ConnectRefused
from holdfast.environments.ssh.address import SshAddress, SshCommand
from holdfast.environments.ssh.ssh_target import SshTarget
from tests.unit.wire.transports.recorder import Recorder

NETWORK = [
    "ssh: connect to host build port 22: Connection refused",
    "ssh: Could not resolve hostname build: Temporary failure in name resolution",
    "kex_exchange_identification: Connection closed by remote host",
    "Timeout, server build not responding.",
    # Of the shell there, and not of ssh.
    "bash: /etc/profile.d/site.sh: Permission denied",
    "Host key verification failed. (of another host)",
]

REFUSALS = [
    "Host key verification failed.",
    "Permission denied (publickey).",
    "me@build: Permission denied (publickey,gssapi-with-mic,keyboard-interactive).",
    "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
    "Unable to negotiate with 10.0.0.1 port 22: no matching host key type found."
    " Their offer: ssh-rsa",
    "Bad owner or permissions on /home/me/.ssh/config",
    "/home/me/.ssh/config: terminating, 2 bad configuration options",
]


async def failure(folder: Path, *lines: str, status: int = 255) -> ConnectFailed:
    """Return the error of a connection whose ssh prints these lines."""
    program = folder / "ssh"
    program.write_text(
        "\n".join(["#!/bin/sh", "cat >&2 << 'END'", *lines, "END", f"exit {status}"])
    )
    program.chmod(0o755)
    target = SshTarget(SshCommand(SshAddress("build", (str(program),))))
    with pytest.raises(ConnectFailed) as caught:
        await target.open(Recorder().accept)
    return caught.value


@pytest.mark.parametrize("line", NETWORK)
async def test_a_failure_of_the_network_is_worth_another_attempt(tmp_path: Path, line: str) -> None:
    error = await failure(tmp_path, "Warning: this is a private host", line)
    assert not isinstance(error, ConnectRefused)
    assert str(error) == f"cannot connect to build: {line}"


@pytest.mark.parametrize("line", REFUSALS)
async def test_a_refusal_is_quoted_also_if_a_jump_host_says_more(tmp_path: Path, line: str) -> None:
    error = await failure(tmp_path, line, "Connection closed by UNKNOWN port 65535")
    assert isinstance(error, ConnectRefused)
    assert str(error) == f"cannot connect to build: {line}"


@pytest.mark.parametrize(("status", "refuses"), [(1, False), (126, True), (127, True)])
async def test_a_shell_that_cannot_execute_anything_counts_as_a_refusal(
    tmp_path: Path, status: int, refuses: bool
) -> None:
    error = await failure(tmp_path, "sh: not found", status=status)
    assert isinstance(error, ConnectRefused) is refuses

"""
A host behind `ssh`: one connection starts the right `holdfast` there and speaks to it.

Where there is none of this version, it can be installed first, with consent (`deploy.py`).
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast._version import __version__
from holdfast.client.command import ServingCommand
from holdfast.client.target import CommandTarget, Target
from holdfast.environments.ssh.address import SERVE, SshAddress, SshCommand
from holdfast.environments.ssh.probe import MARK, Missing, Ready, launch_line, read_report
from holdfast.errors import ConnectFailed
from holdfast.transports.base import Receiver, Transport

if TYPE_CHECKING:
    from holdfast.environments.environment import Environment
    from holdfast.environments.ssh.deploy import Consent

__all__ = ["SshTarget", "program_target", "ssh_environment"]

CONNECT_TIMEOUT = 30.0
"""Seconds from the start of ssh until the shell of the host has answered."""

_NOISE_LIMIT = 64 << 10
"""Bytes that start-up files of a shell may print before our line."""


def ssh_environment(
    url: str,
    *,
    ssh: Sequence[str] = ("ssh",),
    install: "Consent" = False,
    environment_id: str | None = None,
    connect_timeout: float = CONNECT_TIMEOUT,
    initialize_timeout: float = 10.0,
) -> "Environment":
    """
    A host as a place to run.

    Args:
        url: `ssh://[user@]host[:port]`.
        ssh: The program, and options for it.
        install: Whether Holdfast may be installed on the host if it is not there, or
            whom to ask: a function that gets the `Offer`.
        environment_id: Its name; else the host's.
        connect_timeout: Seconds ssh may take.
        initialize_timeout: Seconds the server may take to answer.

    Raises:
        ConnectFailed: The URL is none of a host.
    """
    from holdfast.environments.remote import RemoteEnvironment

    address = SshAddress.of_url(url, ssh=ssh)
    target = SshTarget(SshCommand(address), install=install, timeout=connect_timeout)
    return RemoteEnvironment(
        environment_id or address.destination, target, initialize_timeout=initialize_timeout
    )


def program_target(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    install: "Consent" = False,
) -> Target:
    """
    The target of a command that somebody has configured.

    If that is an `ssh` which starts a `holdfast` on a host, the one that was installed
    there by us is found too, and can be offered; any other command is taken as it is.
    """
    command = SshCommand.of_argv(argv)
    if command is None:
        return CommandTarget(argv, env=env, cwd=cwd)
    return SshTarget(command, install=install, env=env, cwd=cwd)


class SshTarget(Target):
    """A `holdfast` on a host, which serves one connection; it cannot be resumed."""

    can_reconnect = False

    def __init__(
        self,
        command: SshCommand,
        *,
        install: "Consent" = False,
        timeout: float = CONNECT_TIMEOUT,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.address = command.address
        self.program: str | None = None
        """The one that serves on the host, once there is a connection."""
        self.installed = False
        """Whether it had to be installed for that."""
        self._argv = self.address.argv(launch_line(__version__, command.arguments or SERVE))
        self._install = install
        self._timeout = timeout
        self._env = env
        self._cwd = cwd
        self._command: ServingCommand | None = None

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        found = await self._launch()
        if isinstance(found, Missing):
            from holdfast.environments.ssh.deploy import offer  # seldom needed

            await self.aclose()
            if await offer(self.address, found, self._install) is None:
                raise ConnectFailed(
                    f"holdfast {__version__} is not on {self.address.destination};"
                    f" `{self.address.connect_command}` installs it there, if you want that"
                )
            self.installed = True
            found = await self._launch()
        if isinstance(found, Missing):
            raise ConnectFailed(
                f"holdfast {__version__} was installed on {self.address.destination},"
                " but is not found there"
            )
        self.program = found.program
        assert self._command is not None  # it has just been launched
        return await self._command.speak(accept)

    async def last_words(self) -> str | None:
        return None if self._command is None else await self._command.last_words()

    async def aclose(self) -> None:
        command, self._command = self._command, None
        if command is not None:
            await command.aclose()

    async def _launch(self) -> Ready | Missing:
        """Start ssh and wait for what the host says first."""
        self._command = await ServingCommand.start(self._argv, env=self._env, cwd=self._cwd)
        try:
            async with asyncio.timeout(self._timeout):
                report = await _first_report(self._command.stdout)
        except TimeoutError:
            raise await self._failed(f"no answer within {self._timeout:g}s") from None
        if report is None:
            raise await self._failed("ssh ended, or something else answered")
        return report

    async def _failed(self, why: str) -> ConnectFailed:
        words = await self.last_words()
        return ConnectFailed(f"cannot connect to {self.address.destination}: {words or why}")


async def _first_report(stdout: int) -> Ready | Missing | None:
    """The first line that is for us; nothing if there is an end, or too much else, before it."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(stdout, readable.set)
    heard = b""
    try:
        while len(heard) < _NOISE_LIMIT:
            await readable.wait()
            readable.clear()
            try:
                # Nothing follows our line until we have spoken, so nothing is taken away.
                data = os.read(stdout, 4096)
            except BlockingIOError:
                continue
            if not data:
                return None
            heard += data
            for line in heard.split(b"\n")[:-1]:
                if line.startswith(MARK.encode()):
                    return read_report(line.decode("utf-8", "replace").rstrip("\r"))
    finally:
        loop.remove_reader(stdout)
    return None

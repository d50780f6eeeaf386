"""
Connects to a host behind `ssh`: starts the right `holdfast` there and uses its streams.

If the host lacks this version, it can be installed first, with consent (`installer.py`).

The server on the host outlives the connection (`holdfast serve --listen stdio --keep`). If ssh is
lost, the next one reaches the same server, and the session is resumed:

    first connection                           next connection
    ssh host sh -c '... serve --keep'          ssh host sh -c '... serve --attach FOLDER'
    <- @holdfast ready PROGRAM                 <- @holdfast ready PROGRAM
                                               -> TOKEN
    <- @holdfast kept FOLDER TOKEN             <- @holdfast kept FOLDER TOKEN   (or: gone WHY)
    -> initialize                              -> initialize, with the session to resume
    ...                                        ...
    (lost)                                     -> @holdfast end                 (closed for good)
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.base.errors import ConnectFailed, ConnectRefused, ServerGone
from holdfast.base.late_import import late_module
from holdfast.base.version import __version__
from holdfast.client.serving_command import ServingCommand
from holdfast.client.target import CommandTarget, Target, TargetOptions
from holdfast.environments.ssh.address import SERVE, SshAddress, SshCommand
from holdfast.environments.ssh.bootstrap import (
    MARK,
    Gone,
    Missing,
    Once,
    ProgramReady,
    Report,
    ServerKept,
    launch_line,
    read_report,
)
from holdfast.wire.transports.handover import END
from holdfast.wire.transports.transport import Receiver, Transport

if TYPE_CHECKING:
    from holdfast.environments.ssh import installer
    from holdfast.environments.ssh.installer import Consent
else:
    # Imports archive modules, which only an installation needs.
    installer = late_module("holdfast.environments.ssh.installer")

__all__ = ["CONNECT_TIMEOUT", "SshTarget", "program_target"]

# Seconds from the start of ssh to the first line from the host's shell.
CONNECT_TIMEOUT = 30.0

# Seconds between attempts to reach a host: each is a process and a login.
RETRY_INTERVAL = 1.0

# Seconds after a farewell for the host to end its server, and with it ssh.
_END_LIMIT = 5.0

# Messages of OpenSSH for failures that a retry cannot fix: host key, login, algorithms, its own
# configuration. With a jump host, they are not the last lines. Any other failure, such as one of
# the network, is worth another attempt.
_REFUSALS = re.compile(
    r"Host key verification failed\."
    r"|(?:.*: )?Permission denied \([^ ]*\)\."
    r"|.*: Too many authentication failures"
    r"|Unable to negotiate with .*: no matching .*"
    r"|Bad owner or permissions on .*"
    r"|.*: terminating, \d+ bad configuration options"
)

# Exit statuses of a shell that cannot execute, or cannot find, a program.
_CANNOT_EXECUTE = (126, 127)

# Bytes that startup files of a shell may print before the first report.
_NOISE_LIMIT = 64 << 10


def program_target(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    install: "Consent" = False,
) -> Target:
    """
    Return the target of a configured command.

    For an `ssh` that starts `holdfast`, the private installation on the host is found too, or can
    be offered. Any other command is used unchanged.
    """
    command = SshCommand.of_argv(argv)
    if command is None:
        return CommandTarget(argv, env=env, cwd=cwd)
    return SshTarget(command, install=install, env=env, cwd=cwd)


class SshTarget(Target):
    """
    A `holdfast` on a host, with a separate server.

    The server outlives a lost connection, and `open` reaches it again, until `aclose`. An older
    version that cannot do this serves one connection.
    """

    retry_interval = RETRY_INTERVAL

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
        self.name = command.address.destination
        self.label = f"ssh://{self.name}"
        self.program: str | None = None
        """Path of the serving program on the host, once connected."""
        self.installed = False
        """True if this target installed it."""
        self.can_reconnect = False
        """True if the server on the host can be reached again; known after `open`."""
        self._arguments = command.arguments or SERVE
        self._keep = SshCommand(self.address, self._arguments).can_keep
        self._install = install
        self._timeout = timeout
        self._env = env
        self._cwd = cwd
        self._command: ServingCommand | None = None
        self._reports = _Reports()
        # Server to reconnect to, from the first connection until `aclose`.
        self._kept: ServerKept | None = None
        self._farewell: _Farewell | None = None

    @classmethod
    def of_url(cls, url: str, options: TargetOptions) -> "SshTarget":
        return cls(
            SshCommand(SshAddress.of_url(url)),
            install=options.install,
            timeout=CONNECT_TIMEOUT if options.timeout is None else options.timeout,
        )

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        # The previous ssh may still be connected to the server.
        await self._drop_command()
        try:
            await self._connect()
            # `_connect` has launched it.
            assert self._command is not None
            if self._kept is None:
                return await self._command.speak(accept)
            return await self._command.speak(lambda it: accept(self._ending(it)))
        except BaseException:
            # Nothing else ends ssh before the next attempt.
            await self._drop_command()
            raise

    async def last_words(self) -> str | None:
        return None if self._command is None else await self._command.last_words()

    async def aclose(self) -> None:
        """Close the connection and end the server on the host."""
        self._kept = None
        if self._command is not None and self._farewell is not None and self._farewell.said:
            # ssh exits after the server and all its processes have ended.
            await self._command.wait(_END_LIMIT)
        await self._drop_command()

    async def _connect(self) -> None:
        """Start ssh and reach the server of the previous connection, or a new one."""
        before = self._kept
        found = await self._launch()
        if isinstance(found, Missing) and before is None:
            await self._drop_command()
            if await installer.offer(self.address, found, self._install) is None:
                raise ConnectFailed(
                    f"holdfast {__version__} is not on {self.address.destination};"
                    f" to install it there, run `{self.address.connect_command}`"
                )
            self.installed = True
            found = await self._launch()
            if isinstance(found, Missing):
                raise ConnectFailed(
                    f"holdfast {__version__} was installed on {self.address.destination},"
                    " but cannot be found there"
                )
        if isinstance(found, Missing):
            raise ServerGone(f"holdfast is no longer on {self.address.destination}")
        self.program = found.program
        if self._keep:
            await self._find_server(before)

    async def _find_server(self, before: ServerKept | None) -> None:
        """Read the report on the server that was started or, after a lost connection, reached."""
        # `_launch` has just set it.
        assert self._command is not None
        if before is not None:
            # The server gives its session only to a client that knows its token.
            self._command.say(before.token)
        match await self._report():
            case ServerKept() as kept:
                self._kept = kept
                self.can_reconnect = True
            case Once() if before is None:
                self.can_reconnect = False
            case Gone(why):
                raise ServerGone(f"the server on {self.address.destination} is gone: {why}")
            case _:
                raise await self._failed("it sent no report about its server")

    async def _launch(self) -> ProgramReady | Missing:
        """Start ssh and wait for the first report of the host."""
        if self._kept is None:
            line = launch_line(__version__, self._arguments, keep=self._keep)
        else:
            line = launch_line(__version__, (*SERVE, "--attach", self._kept.folder))
        argv = self.address.argv(line)
        self._command = await ServingCommand.start(argv, env=self._env, cwd=self._cwd)
        self._reports = _Reports()
        report = await self._report()
        if not isinstance(report, ProgramReady | Missing):
            raise await self._failed("another program answered")
        return report

    async def _report(self) -> Report:
        """Wait for the next report."""
        # `_launch` has set it.
        assert self._command is not None
        try:
            async with asyncio.timeout(self._timeout):
                report = await self._reports.next(self._command.stdout)
        except TimeoutError:
            raise await self._failed(f"no answer within {self._timeout:g} s") from None
        if report is None:
            raise await self._failed("ssh ended, or another program answered")
        return report

    async def _failed(self, why: str) -> ConnectFailed:
        """Return the error for an ssh that has ended or does not answer."""
        # `_launch` has set it.
        assert self._command is not None
        said = await self._command.last_lines()
        refusal = next((line for line in said if _REFUSALS.fullmatch(line)), None)
        words = refusal or next(reversed(said), why)
        text = f"cannot connect to {self.address.destination}: {words}"
        if refusal is not None or await self._command.exit_status() in _CANNOT_EXECUTE:
            return ConnectRefused(text)
        return ConnectFailed(text)

    async def _drop_command(self) -> None:
        """End ssh if it runs; the server on the host stays for a while."""
        command, self._command = self._command, None
        self._farewell = None
        if command is not None:
            await command.aclose()

    def _ending(self, transport: Transport) -> "_Farewell":
        self._farewell = _Farewell(transport)
        return self._farewell


class _Farewell:
    """A transport that notifies the server of a deliberate close, but not of an abort."""

    def __init__(self, inner: Transport) -> None:
        self.kind = inner.kind
        self.label = inner.label
        self.credential = inner.credential
        self.text_only = inner.text_only
        self.send = inner.send
        self.send_parts = inner.send_parts
        self.pause_receiving = inner.pause_receiving
        self.resume_receiving = inner.resume_receiving
        self.expect_heartbeats = inner.expect_heartbeats
        self.excuse_silence = inner.excuse_silence
        self.abort = inner.abort
        self.wait_closed = inner.wait_closed
        self.said = False
        self._inner = inner

    @property
    def went_silent(self) -> bool:
        return self._inner.went_silent

    @property
    def was_closed(self) -> bool:
        return self._inner.was_closed

    def close(self) -> None:
        self.said = True
        # Makes the server end at once instead of waiting for a reconnection.
        self._inner.send(END)
        self._inner.close()


class _Reports:
    """Reads the reports before the protocol begins."""

    def __init__(self) -> None:
        self._received = b""
        self._noise = 0

    async def next(self, stdout: int) -> Report | None:
        """Return the next report; None at the end or after too much other output."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(stdout, readable.set)
        try:
            while self._noise < _NOISE_LIMIT:
                line, newline, rest = self._received.partition(b"\n")
                if newline:
                    self._received = rest
                    if line.startswith(MARK.encode()):
                        return read_report(line.decode("utf-8", "replace").rstrip("\r"))
                    continue
                await readable.wait()
                readable.clear()
                try:
                    # The server sends nothing before the client does, so no message is consumed.
                    data = os.read(stdout, 4096)
                except BlockingIOError:
                    continue
                if not data:
                    return None
                self._received += data
                self._noise += len(data)
        finally:
            loop.remove_reader(stdout)
        return None

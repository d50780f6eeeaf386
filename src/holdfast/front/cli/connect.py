"""`holdfast connect`: tries a server, and installs Holdfast on an ssh host with consent."""

import argparse
import asyncio
import os
import shlex
import subprocess
import sys
from time import perf_counter

from holdfast.base.errors import ConnectFailed, HoldfastError, InvalidConfig
from holdfast.base.suggestions import did_you_mean, listed
from holdfast.base.url_schemes import scheme_of
from holdfast.client.client import ExecServerClient
from holdfast.client.target import Target
from holdfast.environments.config import config_file as config
from holdfast.environments.config import edit
from holdfast.environments.config.home import environments_file
from holdfast.environments.config.snapshot import Entry, ServerUrl, ServingProgram
from holdfast.environments.path_uris import folder_of_server
from holdfast.environments.ssh.address import SERVE, SshAddress, SshCommand
from holdfast.environments.ssh.installer import Offer, remove
from holdfast.environments.ssh.ssh_target import SshTarget, program_target
from holdfast.front.cli.exit_status import Ended, text_with_advice
from holdfast.front.cli.latency import answer_time, server_version
from holdfast.front.cli.server_options import split_command
from holdfast.front.cli.token import bearer_token

__all__ = ["connect"]


def connect(options: argparse.Namespace) -> int:
    """Connect, install, save or remove according to the options; return the exit status."""
    try:
        if options.save is not None:
            # Before connecting, so that nothing is installed if the name is invalid.
            config.check_id(options.save)
        server = _ConnectTarget(options)
        if options.remove:
            return _remove(server)
        program = _set_up(server, options)
        if options.save is not None:
            path = environments_file(os.environ)
            edit.add(path, server.entry(options.save, program))
            print(f"saved      `{options.save}` in {path}")
    except Ended as end:
        print(f"holdfast: {end.text}", file=sys.stderr)
        return 1
    except HoldfastError as error:
        print(f"holdfast: {text_with_advice(error)}", file=sys.stderr)
        return 1
    return 0


class _ConnectTarget:
    """The server named by the options."""

    def __init__(self, options: argparse.Namespace) -> None:
        where: str = options.where
        self.ssh: SshCommand | None = None
        self.transport: ServerUrl | ServingProgram | None = None
        self._where = where
        self._token: str | None = None
        scheme = scheme_of(where)
        if scheme is not None and not scheme.listens:
            ssh = _ssh(options.ssh) if options.ssh else ["ssh"]
            self.ssh = SshCommand(SshAddress.of_url(where, ssh=ssh))
        elif options.ssh:
            raise Ended(1, "--ssh can only be used with ssh:// URLs")
        elif "://" in where:
            self._token = bearer_token(options)
        else:
            self.transport = _configured(where)
            if isinstance(self.transport, ServingProgram):
                argv = [self.transport.program, *self.transport.args]
                self.ssh = SshCommand.of_argv(argv)

    def target(self, offers: list[Offer], *, consent: bool) -> Target:
        """
        Return the target to connect to.

        Args:
            offers: Collects declined offers to install.
            consent: True to accept them.
        """

        def decline(offer: Offer) -> bool:
            offers.append(offer)
            return False

        install = consent or decline
        match self.transport:
            case ServingProgram() as it:
                argv = [it.program, *it.args]
                return program_target(argv, env=it.env, cwd=it.cwd, install=install)
            case ServerUrl() as it:
                return Target.of(it.url, bearer_token=it.bearer_token, timeout=it.connect_timeout)
        if self.ssh is not None:
            return SshTarget(self.ssh, install=install)
        return Target.of(self._where, bearer_token=self._token)

    def entry(self, name: str, program: str | None) -> Entry:
        """
        Return the entry to save.

        Raises:
            Ended: It is already saved, or cannot be saved.
        """
        if self.ssh is not None and self.transport is None:
            # The full path, so that other programs that read the file find it too.
            found = shlex.join([program or "holdfast", *SERVE])
            ssh, *more = self.ssh.address.argv(found)
            return Entry(id=name, transport=ServingProgram(program=ssh, args=tuple(more)))
        if self.transport is None and scheme_of(self._where) is not None:
            return Entry(id=name, transport=ServerUrl(url=self._where, bearer_token=self._token))
        raise Ended(1, f"`{self._where}` cannot be saved under another name")


def _configured(name: str) -> ServerUrl | ServingProgram:
    path = environments_file(os.environ)
    entries = config.load(path).entries if path.exists() else ()
    for entry in entries:
        if entry.id == name:
            return entry.transport
    ids = [entry.id for entry in entries]
    raise InvalidConfig(
        f"`{name}` is not in {path}" + did_you_mean(name, ids),
        f"there: {listed(ids)}; a host behind ssh is written `ssh://{name}`",
    )


def _set_up(server: _ConnectTarget, options: argparse.Namespace) -> str | None:
    """Connect, asking for consent if necessary; return the program on an ssh host."""
    offers: list[Offer] = []
    # Questions need a terminal.
    person = sys.stdin.isatty() and sys.stderr.isatty()
    try:
        # The first attempt declines any offer, to find out whether consent is needed.
        return asyncio.run(_try(server.target(offers, consent=options.yes)))
    except ConnectFailed:
        if offers:
            if not person:
                raise Ended(
                    1, f"{' '.join(offers[0].text.split())} Use --yes to install it."
                ) from None
            if not _asked(offers[0]):
                raise Ended(1, "nothing was installed") from None
        # ssh may only need the user to confirm a host key, which a serving ssh cannot ask.
        elif not (person and server.ssh and _greet(server.ssh.address)):
            raise
    return asyncio.run(_try(server.target(offers, consent=options.yes or bool(offers))))


def _asked(offer: Offer) -> bool:
    print(offer.text, file=sys.stderr)
    print("Install it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _greet(address: SshAddress) -> bool:
    """Let ssh ask the user, for example about a new host key; return True if it connected."""
    # Only here does ssh have a terminal: a serving ssh must not wait for the user.
    command = [*address.ssh, "--", address.destination, "exit 0"]
    return subprocess.run(command, check=False).returncode == 0


async def _try(target: Target) -> str | None:
    began = perf_counter()
    async with await ExecServerClient.connect(target) as client:
        connected = perf_counter() - began
        answers = await answer_time(client.status)
        info = client.environment
    program = None
    if isinstance(target, SshTarget):
        program = target.program
        print(f"host       {target.address.destination}")
        print(f"program    {program}" + (", just installed" if target.installed else ""))
    print(f"server     {server_version(info)}")
    print(f"speaks     exec-server {info.executor_version or 'of an unknown version'}")
    print(f"system     {info.platform_os or 'unknown'}, {info.shell.path}")
    print(f"folder     {folder_of_server(info).native}")
    print(f"connected  in {connected * 1000:.0f} ms, answers in {answers * 1000:.1f} ms")
    return program


def _remove(server: _ConnectTarget) -> int:
    if server.ssh is None:
        raise Ended(1, "--remove only applies to hosts behind ssh")
    removed, folder = asyncio.run(remove(server.ssh.address))
    print(f"removed {folder}" if removed else f"nothing is installed in {folder}")
    return 0


def _ssh(command: str) -> list[str]:
    words = split_command(command)
    if not words:
        raise Ended(1, "--ssh is empty")
    return words

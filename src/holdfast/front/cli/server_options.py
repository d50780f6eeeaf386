"""Opens the environment that `--on`, `--url` or `--cmd` names, or the default one."""

import argparse
import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import holdfast
from holdfast.base.errors import (
    ConnectionLost,
    InvalidConfig,
    InvalidParams,
)
from holdfast.base.late_import import load
from holdfast.environments.config.home import (
    environments_file,
    holdfast_home,
    ignored_variable,
    is_configured,
)
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.front.cli.exit_status import FAILED, Ended, text_with_advice

if TYPE_CHECKING:
    from holdfast.client import ExecServerClient
    from holdfast.environments.environment import Environment
    from holdfast.environments.remote import RemoteEnvironment

__all__ = [
    "choose_environment",
    "is_remote",
    "opened",
    "say_ignored_variable",
    "split_command",
]

# Seconds between messages about retries of a lost connection.
_STILL_TRYING = 5.0


def choose_environment(options: argparse.Namespace) -> None:
    """
    Fill in the default environment if the options name none; call this first.

    Raises:
        Ended: There is no default, the configuration is invalid, or the options contradict each
            other.
    """
    named = options.on is not None or options.url is not None or options.cmd is not None
    options.by_default = not named
    if not named and is_configured(os.environ):
        _choose_default(options)
    # The token would be sent to the wrong server.
    if options.token_file is not None and options.url is None:
        environment = "this machine" if not is_remote(options) else f"`{options.on or options.cmd}`"
        raise Ended(
            FAILED,
            f"--token-file requires --url, and cannot be used for {environment};"
            " the token of a named environment is set by `holdfast env add`",
        )


def _choose_default(options: argparse.Namespace) -> None:
    try:
        provider = load("holdfast.environments.config.providers:provider_from_env")(
            os.environ, holdfast_home(os.environ)
        )
        snapshot = provider.snapshot()
    except InvalidConfig as error:
        raise Ended(FAILED, text_with_advice(error)) from error
    if snapshot.default is None:
        raise Ended(
            FAILED, "there is no default environment: use --on NAME, or --on local for this machine"
        )
    entry = snapshot.entry(snapshot.default)
    if entry is None:
        # The default is this machine.
        return
    is_url = isinstance(entry.transport, load("holdfast.environments.config.snapshot:ServerUrl"))
    if is_url and isinstance(provider, load("holdfast.environments.config.providers:UrlProvider")):
        # As a URL, so that `--token-file` is allowed.
        options.url = entry.transport.url
    else:
        options.on = entry.id


def say_ignored_variable(say: Callable[[str], None]) -> None:
    """If a variable with a URL is ignored, say so; for `--verbose`."""
    name = ignored_variable(os.environ)
    if name is not None:
        say(f"{name} is ignored: {environments_file(os.environ)} sets the default")


def is_remote(options: argparse.Namespace) -> bool:
    """Return True if the options name another machine."""
    named = options.on is not None and options.on != "local"
    return named or options.url is not None or options.cmd is not None


@asynccontextmanager
async def opened(
    options: argparse.Namespace, say: Callable[[str], None]
) -> "AsyncIterator[Environment]":
    """
    Open the environment of the options for a block, connected if it is a server.

    Args:
        options: The command line, after `choose_environment`.
        say: Prints a line to the user at once, such as on a lost connection.

    Raises:
        Ended: The command cannot be parsed, its server is lost, or the name is unknown.
        ConnectFailed: The URL is invalid, or a token would cross a network unencrypted.
    """
    if not is_remote(options):
        # The guardian of `holdfast run` kills what commands leave behind; `holdfast fs` starts no
        # commands.
        async with LocalEnvironment(guarded=True) as here:
            yield here
        return
    environment = _environment_of(options)
    client = await _client_of(environment, options)
    try:
        async with environment:
            with _LossTeller(client, say):
                yield environment
    except ConnectionLost as error:
        # For a command such as ssh, only its last line shows the reason.
        words = await client.target.last_words()
        raise Ended(FAILED, ": ".join(filter(None, [str(error), words]))) from error


def _environment_of(options: argparse.Namespace) -> "RemoteEnvironment":
    """Return the environment of the options, unconnected."""
    if options.on is not None:
        return _named(options.on)
    # Imported on first use: a local command does not need the client.
    environment_class: type[RemoteEnvironment] = load(
        "holdfast.environments.remote:RemoteEnvironment"
    )
    if options.url is not None:
        target = load("holdfast.client.target:Target").of(
            options.url, bearer_token=load("holdfast.front.cli.token:bearer_token")(options)
        )
        return environment_class(options.url, target)
    return environment_class(
        options.cmd,
        load("holdfast.environments.ssh.ssh_target:program_target")(split_command(options.cmd)),
    )


class _LossTeller:
    """Reports a lost connection, the retries and the recovery."""

    def __init__(self, client: "ExecServerClient", say: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._lost_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        # Chained, since the environment may listen too.
        self._before = self._client.connection_changed
        self._client.connection_changed = self._changed

    def __exit__(self, *exc: object) -> None:
        self._client.connection_changed = self._before
        self._stop_timer()

    def _changed(self) -> None:
        self._before()
        client = self._client
        if client.is_connected:
            if self._lost_at is not None:
                seconds = self._loop.time() - self._lost_at
                self._say(f"reconnected to {client.target.label} after {seconds:.1f} s")
            self._lost_at = None
            self._stop_timer()
        elif client.lost_for_good:
            # The error of the command has the reason.
            self._stop_timer()
        elif self._lost_at is None and client.recovers:
            self._lost_at = self._loop.time()
            self._say(f"the connection to {client.target.label} was lost: reconnecting")
            self._timer = self._loop.call_later(_STILL_TRYING, self._still_trying)

    def _still_trying(self) -> None:
        # The timer only runs while the connection is lost.
        assert self._lost_at is not None
        seconds = self._loop.time() - self._lost_at
        self._say(f"no connection to {self._client.target.label} for {seconds:.0f} s: still trying")
        self._timer = self._loop.call_later(_STILL_TRYING, self._still_trying)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _client_of(
    environment: "RemoteEnvironment", options: argparse.Namespace
) -> "ExecServerClient":
    """
    Connect to an environment; errors name it.

    Raises:
        Ended: The connection failed.
    """
    try:
        return await environment.client()
    except ConnectionLost as error:
        # Its ssh or serving command may still be running.
        await environment.aclose()
        reason = str(error.__cause__ or error)
        if options.cmd is not None:
            reason = f"no server responds through `{options.cmd}`: {reason}"
        elif options.on is not None:
            name, advice = f"environment `{options.on}`", ""
            if options.by_default:
                name, advice = f"the default {name}", "; use `--on local` for this machine"
            reason = f"cannot reach {name}: {reason}{advice}"
        raise Ended(FAILED, reason) from error


def _named(where: str) -> "RemoteEnvironment":
    try:
        environment = holdfast.connect(where)
    except (InvalidConfig, InvalidParams) as error:
        raise Ended(FAILED, text_with_advice(error)) from error
    # Not the local environment: the caller has checked `is_remote`.
    return cast("RemoteEnvironment", environment)


def split_command(command: str) -> list[str]:
    """
    Split a command as a shell does.

    Raises:
        Ended: A quote is not closed.
    """
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Ended(FAILED, f"cannot parse the command `{command}`: {error}") from error

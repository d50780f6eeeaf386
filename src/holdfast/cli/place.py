"""The server that `--on`, `--url` or `--cmd` names."""

import argparse
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.cli.status import FAILED, Ended
from holdfast.cli.token import bearer_token
from holdfast.errors import ConnectionLost, InvalidConfig, InvalidParams

if TYPE_CHECKING:
    from holdfast.client import ExecServerClient
    from holdfast.environments.remote import RemoteEnvironment

__all__ = ["connected", "is_remote", "split_command"]


def is_remote(options: argparse.Namespace) -> bool:
    """Whether the options name another place than this machine."""
    named = options.on is not None and options.on != "local"
    return named or options.url is not None or options.cmd is not None


@asynccontextmanager
async def connected(options: argparse.Namespace) -> "AsyncIterator[ExecServerClient]":
    """
    Connect to the server of the options, and disconnect at the end.

    Raises:
        Ended: The command cannot be read, its server is lost, or there is no such name.
        ConnectionLost: The server of the URL is lost, or was never reached, or the
            command does not serve.
    """
    from holdfast.client import ExecServerClient  # not needed for what happens here

    if options.url is not None:
        token = bearer_token(options)
        async with await ExecServerClient.connect(options.url, bearer_token=token) as client:
            yield client
        return
    if options.on is not None:
        async with _named(options.on) as environment, _last_words(await environment.client()) as it:
            yield it
        return
    from holdfast.environments.ssh.target import program_target

    target = program_target(split_command(options.cmd))
    async with (
        await ExecServerClient.connect(target) as client,
        _last_words(client) as client,
    ):
        yield client


def _named(where: str) -> "RemoteEnvironment":
    from holdfast.environments.connect import connect
    from holdfast.environments.remote import RemoteEnvironment

    try:
        environment = connect(where)
    except (InvalidConfig, InvalidParams) as error:
        advice = getattr(error, "advice", None)
        raise Ended(FAILED, f"{error}; {advice}" if advice else str(error)) from error
    assert isinstance(environment, RemoteEnvironment)  # `is_remote` was asked
    return environment


@asynccontextmanager
async def _last_words(client: "ExecServerClient") -> "AsyncIterator[ExecServerClient]":
    """Why a command such as ssh gave up is in what it wrote, and nowhere else."""
    try:
        yield client
    except ConnectionLost as error:
        words = await client.target.last_words()
        raise Ended(FAILED, ": ".join(filter(None, [str(error), words]))) from error


def split_command(command: str) -> list[str]:
    """
    The words of a command, as a shell would take them.

    Raises:
        Ended: A quote is not closed.
    """
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Ended(FAILED, f"cannot read the command `{command}`: {error}") from error

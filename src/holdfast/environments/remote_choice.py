"""Remote environments for `holdfast.connect`, by URL, command or name."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.base.errors import InvalidConfig, InvalidParams
from holdfast.base.suggestions import did_you_mean, listed
from holdfast.base.url_schemes import SCHEMES
from holdfast.client.target import CommandTarget, TargetOptions, meant_url, target_of_url
from holdfast.environments.config.home import holdfast_home
from holdfast.environments.config.providers import provider_from_env
from holdfast.environments.config.server_urls import check_token
from holdfast.environments.config.snapshot import LOCAL
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment

if TYPE_CHECKING:
    from holdfast.environments.ssh.installer import Consent

__all__ = ["by_name", "default_environment", "on_server"]


def on_server(
    where: str | Sequence[str],
    bearer_token: str | None,
    install: "Consent",
    connect_timeout: float | None,
    initialize_timeout: float,
) -> Environment:
    """
    Return the environment of a URL, or of a command that serves on its standard streams.

    Raises:
        InvalidParams: The command is empty.
        InvalidConfig: The token would cross a network unencrypted.
        ConnectFailed: The URL of a host is malformed.
    """
    if bearer_token is not None:
        # Before anything is sent.
        check_token(str(where), bearer_token)
    _check_kind(where)
    if not where:
        raise InvalidParams("the command to connect by is empty")
    if isinstance(where, str):
        options = TargetOptions(bearer_token, connect_timeout, install=install)
        target = target_of_url(where, options)
        name = target.name or where
    else:
        target = CommandTarget(where)
        name = target.label
    return RemoteEnvironment(name, target, initialize_timeout=initialize_timeout)


def _check_kind(where: object) -> None:
    if not isinstance(where, Sequence) or not all(isinstance(word, str) for word in where):
        raise TypeError(f"where must be a string, or a command as a list of strings, not {where!r}")


def default_environment() -> Environment:
    """
    Return the default environment of the file or the variables.

    Raises:
        InvalidConfig: The configuration is invalid, or disables the default.
    """
    snapshot = provider_from_env(os.environ, holdfast_home(os.environ)).snapshot()
    if snapshot.default is None:
        known = listed(snapshot.ids)
        raise InvalidConfig(
            "there is no default environment",
            f"name an environment: `local` for this machine, or one of: {known}",
        )
    # Without an entry, the default is this machine.
    entry = snapshot.entry(snapshot.default)
    return LocalEnvironment() if entry is None else RemoteEnvironment.of(entry)


def by_name(name: str) -> Environment:
    """
    Return an environment of `environments.toml`.

    Raises:
        InvalidParams: It is not a valid name.
        InvalidConfig: No environment has that name.
    """
    if not name.strip() or "://" in name:
        urls = ", ".join(scheme.form for scheme in SCHEMES)
        raise InvalidParams(
            f"`{name}` is not an environment{meant_url(name)}: expected `local`, {urls},"
            " the name of an environment, or a command as a list"
        )
    home = holdfast_home(os.environ)
    snapshot = provider_from_env(os.environ, home).snapshot()
    entry = snapshot.entry(name)
    if entry is None:
        # List all names: the usual cause is a typo.
        known = listed(snapshot.ids)
        # A path or `HOST:PORT` is usually a URL without its scheme.
        hint = did_you_mean(name, [LOCAL, *snapshot.ids]) or meant_url(name)
        raise InvalidConfig(
            f"unknown environment id `{name}`{hint}",
            f"configured in `{home}` or by a variable: {known}",
        )
    return RemoteEnvironment.of(entry)

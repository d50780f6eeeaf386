"""`holdfast.connect`: from a name, URL or command to the environment that is meant."""

import os
from collections.abc import Sequence
from shlex import join
from typing import TYPE_CHECKING

from holdfast.environments.config.home import holdfast_home, is_configured
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT, LOCAL
from holdfast.environments.environment import Environment
from holdfast.environments.folder import AnyPath
from holdfast.environments.sandbox import AnySandbox, as_profile
from holdfast.errors import InvalidConfig, InvalidParams
from holdfast.suggestions import did_you_mean

if TYPE_CHECKING:
    from holdfast.environments.ssh.deploy import Consent

__all__ = ["connect"]

_TOKEN_ELSEWHERE = "a bearer token goes with a ws:// or wss:// URL only"  # noqa: S105 - a text


def connect(
    where: str | Sequence[str] | None = None,
    *,
    bearer_token: str | None = None,
    cwd: AnyPath | None = None,
    sandbox: AnySandbox | None = None,
    install: "Consent" = False,
    connect_timeout: float | None = None,
    initialize_timeout: float = DEFAULT_TIMEOUT,
) -> Environment:
    """
    Return an environment; use it as `async with holdfast.connect() as env`.

    The block connects at its beginning; without a block the first use does. At the end of the
    block everything that was started there is ended.

    Args:
        where: None for the default environment, which is this machine unless
            `environments.toml` or `HOLDFAST_EXEC_SERVER_URL` names another; `local` for this
            machine; the URL of a server (`ws://`, `wss://`, `unix:///`);
            `ssh://[user@]host[:port]`; a command, as a list, that serves on its standard
            streams; or a name in `environments.toml`.
        bearer_token: Token for a server with a `ws` URL. The token of a local server of the
            same user is found by its URL.
        cwd: The directory for relative paths; by default that of the server, or of this
            process.
        sandbox: The sandbox of commands and `files`: the name of a profile, a profile, or the
            path of a file with one. A command may have another.
        install: True to install Holdfast, in a directory of its own, on a host behind `ssh://`
            that lacks it; or a function that is asked with the `Offer`.
        connect_timeout: Seconds, for a URL.
        initialize_timeout: Seconds to wait for the server's first answer.

    Raises:
        InvalidParams: It names no environment, or there is no such sandbox.
        InvalidConfig: It is not in the file, or the file cannot be used; or a token would cross
            a network unencrypted.
    """
    confined = None if sandbox is None else as_profile(sandbox)
    if isinstance(where, str) and where.startswith("ssh://"):
        environment = _host(where, bearer_token, install, connect_timeout, initialize_timeout)
    elif install:
        raise InvalidParams("Holdfast is installed on hosts behind ssh:// only")
    else:
        environment = _place(where, bearer_token, connect_timeout, initialize_timeout)
    environment.cwd = cwd
    environment.sandbox = confined
    return environment


def _place(
    where: str | Sequence[str] | None,
    bearer_token: str | None,
    connect_timeout: float | None,
    initialize_timeout: float,
) -> Environment:
    # Each kind of place is loaded only by those who want it.
    if bearer_token is not None and not _is_url(where, "ws://", "wss://"):
        raise InvalidParams(_TOKEN_ELSEWHERE)
    if bearer_token is not None:
        from holdfast.environments.config.urls import check_token

        check_token(str(where), bearer_token)
    if where is None and is_configured(os.environ):
        return _default()
    if where is None or where == LOCAL:
        from holdfast.environments.local import LocalEnvironment

        return LocalEnvironment()
    if isinstance(where, str) and not _is_url(where, "ws://", "wss://", "unix:///"):
        return _by_name(where)
    _check_kind(where)
    if not where:
        raise InvalidParams("the command to connect by is empty")

    from holdfast.environments.remote import RemoteEnvironment

    return RemoteEnvironment(
        where if isinstance(where, str) else join(where),
        where,
        bearer_token=bearer_token,
        connect_timeout=DEFAULT_TIMEOUT if connect_timeout is None else connect_timeout,
        initialize_timeout=initialize_timeout,
    )


def _check_kind(where: object) -> None:
    if not isinstance(where, Sequence) or not all(isinstance(word, str) for word in where):
        raise TypeError(f"a place is a text, or a command as a list of texts, not {where!r}")


def _is_url(where: object, *schemes: str) -> bool:
    return isinstance(where, str) and where.startswith(schemes)


def _host(
    url: str,
    bearer_token: str | None,
    install: "Consent",
    connect_timeout: float | None,
    initialize_timeout: float,
) -> Environment:
    if bearer_token is not None:
        raise InvalidParams(_TOKEN_ELSEWHERE)
    from holdfast.environments.ssh.target import CONNECT_TIMEOUT, ssh_environment

    return ssh_environment(
        url,
        install=install,
        connect_timeout=CONNECT_TIMEOUT if connect_timeout is None else connect_timeout,
        initialize_timeout=initialize_timeout,
    )


def _default() -> Environment:
    """
    Return the environment that the file or a variable makes the default.

    Raises:
        InvalidConfig: They say that there is none, or cannot be used.
    """
    from holdfast.environments.config.providers import provider_from_env
    from holdfast.environments.local import LocalEnvironment
    from holdfast.environments.remote import RemoteEnvironment

    snapshot = provider_from_env(os.environ, holdfast_home(os.environ)).snapshot()
    if snapshot.default is None:
        known = ", ".join(f"`{name}`" for name in snapshot.ids) or "nothing"
        raise InvalidConfig(
            "there is no default environment",
            f"name the place to run in; `local` is this machine, and configured is: {known}",
        )
    entry = snapshot.entry(snapshot.default)
    return LocalEnvironment() if entry is None else RemoteEnvironment.of(entry)


def _by_name(name: str) -> Environment:
    if not name.strip() or "://" in name:
        from holdfast.client.target import meant_url

        raise InvalidParams(
            f"`{name}` is no place to run{meant_url(name)}: expected `local`, ws://HOST:PORT, wss://HOST,"
            " unix:///PATH, ssh://HOST, the name of an environment, or a command as a list"
        )
    from holdfast.environments.config.providers import provider_from_env
    from holdfast.environments.remote import RemoteEnvironment

    home = holdfast_home(os.environ)
    snapshot = provider_from_env(os.environ, home).snapshot()
    entry = snapshot.entry(name)
    if entry is None:
        known = ", ".join(f"`{known}`" for known in snapshot.ids) or "nothing"
        raise InvalidConfig(
            f"unknown environment id `{name}`" + did_you_mean(name, [LOCAL, *snapshot.ids]),
            f"configured in `{home}` or by a variable: {known}",
        )
    return RemoteEnvironment.of(entry)

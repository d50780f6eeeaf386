"""`holdfast.connect`: finds the environment for a name, URL or command."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast import environments
from holdfast.base.errors import InvalidParams
from holdfast.base.url_schemes import scheme_of
from holdfast.environments import LOCAL
from holdfast.environments.config.home import is_configured
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.path_uris import AnyPath
from holdfast.environments.sandbox import AnySandbox, as_profile

if TYPE_CHECKING:
    from holdfast.environments.ssh.installer import Consent

__all__ = ["connect"]

_TOKEN_ELSEWHERE = "a bearer token can only be used with a ws:// or wss:// URL"  # noqa: S105 - a text


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

    Entering the block connects; without a block the first use does. Leaving it ends everything
    that was started in the environment.

    Args:
        where: None for the default environment, which is this machine unless
            `environments.toml` or `HOLDFAST_EXEC_SERVER_URL` names another; `local` for this
            machine; the URL of a server (`ws://`, `wss://`, `unix:///`);
            `ssh://[user@]host[:port]`; a command, as a list, that serves on its standard
            streams; or a name in `environments.toml`.
        bearer_token: Token for a server with a `ws` URL. For a local server of the same user the
            token is found by the URL.
        cwd: Directory for relative paths; by default that of the server, or of this process.
        sandbox: Default sandbox of commands and `files`: a profile, its name, or the path of a
            file with one. Each command can override it.
        install: True to install Holdfast, in a separate directory, on a host behind `ssh://` that
            lacks it; or a function that is called with the `Offer` and decides.
        connect_timeout: Seconds, for a URL.
        initialize_timeout: Seconds to wait for the server's first response.

    Raises:
        InvalidParams: `where` cannot name an environment, or the sandbox does not exist.
        InvalidConfig: The name is not in the file, the file is invalid, or a token would cross a
            network unencrypted.
    """
    # First, so that a wrong name is reported before anything is connected.
    confined = None if sandbox is None else as_profile(sandbox)
    environment = _choose(where, bearer_token, install, connect_timeout, initialize_timeout)
    environment.cwd = cwd
    environment.sandbox = confined
    return environment


def _choose(
    where: str | Sequence[str] | None,
    bearer_token: str | None,
    install: "Consent",
    connect_timeout: float | None,
    initialize_timeout: float,
) -> Environment:
    scheme = scheme_of(where)
    if install and (scheme is None or scheme.listens):
        raise InvalidParams("install is only possible on hosts behind ssh://")
    if bearer_token is not None and (scheme is None or not scheme.takes_token):
        raise InvalidParams(_TOKEN_ELSEWHERE)
    if where == LOCAL or (where is None and not is_configured(os.environ)):
        return LocalEnvironment()
    # Loaded now: programs that stay on this machine do not need the client.
    remote_choice = environments.remote_choice
    if where is None:
        return remote_choice.default_environment()
    if isinstance(where, str) and scheme is None:
        return remote_choice.by_name(where)
    return remote_choice.on_server(
        where, bearer_token, install, connect_timeout, initialize_timeout
    )

"""Addresses of servers, and how to open a connection to each kind."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from shlex import join

from holdfast.client.command import ServingCommand
from holdfast.errors import ConnectFailed, InvalidConfig
from holdfast.local_servers import find_token
from holdfast.suggestions import closest
from holdfast.token_file import BadTokenFile
from holdfast.transports.base import SIGN_INTERVAL, Receiver, Transport
from holdfast.transports.memory import connect_memory
from holdfast.transports.token_urls import check_token, may_carry_token
from holdfast.transports.unix import connect_unix

__all__ = [
    "CommandTarget",
    "MemoryTarget",
    "Target",
    "UnixTarget",
    "WebSocketTarget",
    "meant_url",
]


class Target(ABC):
    """A server to connect to; more than once if `can_reconnect`."""

    can_reconnect = True

    label = "a server"
    """Address for people to read: a URL, or the command that leads to the server."""

    retry_interval = 0.0
    """Seconds between two attempts to reconnect, if longer than the client's own interval."""

    @abstractmethod
    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        """
        Open a connection; an earlier one is closed.

        Raises:
            ConnectFailed: With the reason; `ServerGone` if no other attempt can succeed.
        """

    async def last_words(self) -> str | None:
        """
        Return the last text that the server wrote outside of the protocol, such as its stderr.
        """
        return None

    async def aclose(self) -> None:  # noqa: B027 - most targets have nothing to let go of
        """Release the process that serves the connections, if this target has started one."""

    @staticmethod
    def of(
        where: str | Sequence[str],
        *,
        bearer_token: str | None = None,
        timeout: float = 10.0,
        ping_interval: float = SIGN_INTERVAL,
    ) -> "Target":
        """
        Return the target for a URL or a command.

        Raises:
            ConnectFailed: It is neither, or the token would cross a network unencrypted.
        """
        if not isinstance(where, str):
            return CommandTarget(where)
        if where.startswith(("ws://", "wss://")):
            headers = {}
            if bearer_token is not None:
                _check_token(where, bearer_token)
                headers = {"Authorization": f"Bearer {bearer_token}"}
            return WebSocketTarget(
                where, headers=headers, timeout=timeout, ping_interval=ping_interval
            )
        if where.startswith("unix:///"):
            return UnixTarget(where.removeprefix("unix://"), timeout=timeout)
        raise ConnectFailed(
            f"`{where}` is no URL of an exec-server{meant_url(where)};"
            " expected `ws://HOST:PORT`, `wss://HOST` or `unix:///PATH`"
        )


def _check_token(url: str, token: str) -> None:
    try:
        check_token(url, token)
    except InvalidConfig as error:
        raise ConnectFailed(f"{error}: {error.advice}" if error.advice else str(error)) from error


def meant_url(where: str) -> str:
    """Return a hint for a text that is no URL, as part of a sentence; empty without one."""
    scheme, separator, rest = where.partition("://")
    if not separator:
        if where.startswith("/"):
            return f" (did you mean `unix://{where}`?)"
        scheme, _, rest = where.partition(":")
        if scheme in ("ws", "wss", "unix"):
            start = "unix:///" if scheme == "unix" else f"{scheme}://"
            return f" (did you mean `{start}{rest.lstrip('/')}`?)"
        return f" (did you mean `ws://{where}`?)" if ":" in where else ""
    if scheme == "ssh":
        return " (a host behind ssh is given to `--on`, or to `holdfast.connect`)"
    if scheme == "unix":
        return f" (did you mean `unix:///{rest}`?)"
    known = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
    found = closest(scheme.lower(), known, 0.5)
    return f" (did you mean `{known[found]}://{rest}`?)" if found else ""


class WebSocketTarget(Target):
    """
    A server that listens on a WebSocket.

    Without a token in `headers`, the token file of a server of the same user on this machine is
    used.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        ping_interval: float = SIGN_INTERVAL,
    ) -> None:
        """
        Take the address; nothing is connected before `open`.

        Args:
            url: `ws://` or `wss://`.
            headers: Sent with the request.
            timeout: Seconds to connect.
            ping_interval: Seconds between two pings; a server silent for two is lost.
        """
        scheme, separator, rest = url.partition("://")
        # Without user name and password, since labels are logged.
        self.label = f"{scheme}{separator}{rest.rpartition('@')[2]}"
        self._ping_interval = ping_interval
        self._url = url
        self._headers = headers
        self._timeout = timeout

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        # Late, because the WebSocket library is an extension that other targets do without.
        from holdfast.transports.websocket_client import connect_websocket

        return await connect_websocket(
            self._url,
            accept,
            headers=self._headers or self._own_headers(),
            timeout=self._timeout,
            ping_interval=self._ping_interval,
        )

    def _own_headers(self) -> Mapping[str, str]:
        """Return the header with the token of a local server."""
        # Looked up for each connection: a restarted server has another token.
        if not may_carry_token(self._url):
            return {}
        try:
            token = find_token(self._url, os.environ)
        except BadTokenFile as error:
            raise ConnectFailed(str(error), errno=error.errno, path=error.path) from error
        return {} if token is None else {"Authorization": f"Bearer {token}"}


class UnixTarget(Target):
    """A server on a unix socket, an extension of Holdfast."""

    def __init__(self, path: str, *, timeout: float) -> None:
        self.label = f"unix://{path}"
        self._path = path
        self._timeout = timeout

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        return await connect_unix(self._path, accept, timeout=self._timeout)


class MemoryTarget(Target):
    """A server in this process: `MemoryTarget(server.accept)`."""

    label = "this process"

    def __init__(self, serve: Callable[[Transport], Receiver]) -> None:
        self._serve = serve

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        return connect_memory(accept, self._serve)


class CommandTarget(Target):
    """
    A command that serves one connection on its stdin and stdout; its session cannot be resumed.
    """

    # Its session ends with the process.
    can_reconnect = False

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        """
        Take the command as it is; it is started by `open`.

        Args:
            argv: The program and its arguments; no shell is involved.
            env: Variables added to those of this process.
            cwd: Its folder; a relative one begins in the folder of this process.
        """
        self.label = join(argv)
        self._argv = argv
        self._env = {} if env is None else env
        self._cwd = cwd
        self._command: ServingCommand | None = None

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        self._command = await ServingCommand.start(self._argv, env=self._env, cwd=self._cwd)
        return await self._command.speak(accept)

    async def last_words(self) -> str | None:
        return None if self._command is None else await self._command.last_words()

    async def aclose(self) -> None:
        if self._command is not None:
            await self._command.aclose()

"""Addresses of servers, and how to open a connection to each kind."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import join
from typing import TYPE_CHECKING, cast

from holdfast.base.dialect import limits
from holdfast.base.errors import ConnectFailed, InvalidConfig
from holdfast.base.suggestions import closest
from holdfast.base.url_schemes import SCHEMES, Scheme, listening, scheme_of, socket_path, spelled
from holdfast.client.serving_command import ServingCommand
from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.token_urls import check_token, without_password
from holdfast.wire.transports.transport import SIGN_INTERVAL, Receiver, Transport
from holdfast.wire.transports.unix import connect_unix

if TYPE_CHECKING:
    # For tools that follow imports: the table of schemes names this module as a string.
    from holdfast.client import websocket_target as websocket_target

__all__ = [
    "CONNECT_TIMEOUT",
    "CommandTarget",
    "MemoryTarget",
    "Target",
    "TargetOptions",
    "UnixTarget",
    "meant_url",
    "target_of_url",
]

CONNECT_TIMEOUT = limits.CONNECT_TIMEOUT
"""Seconds to connect to a server that listens, by default."""


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of the connections to a URL; a target uses those that apply to it."""

    bearer_token: str | None = field(default=None, repr=False)
    timeout: float | None = None
    """Seconds to connect; None for the default of the scheme."""
    ping_interval: float = SIGN_INTERVAL
    """Seconds between two pings; a server that is silent for two is lost."""
    install: bool | Callable[..., bool | Awaitable[bool]] = False
    """Consent to install Holdfast where it is missing; see `holdfast.connect`."""


class Target(ABC):
    """A server to connect to; more than once if `can_reconnect`."""

    can_reconnect = True

    label = "a server"
    """Address for people to read: a URL, or the command that leads to the server."""

    retry_interval = 0.0
    """Seconds between two attempts to reconnect, if longer than the client's own interval."""

    name: str | None = None
    """Short name of the machine, if the target has one."""

    @classmethod
    def of_url(cls, url: str, options: TargetOptions) -> "Target":
        """
        Return the target of a URL of its scheme; see `url_schemes`.

        Raises:
            ConnectFailed: The URL is malformed.
        """
        raise NotImplementedError(f"{cls.__name__} has no URL")

    @abstractmethod
    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        """
        Open a connection; an earlier one is closed.

        Raises:
            ConnectFailed: With the reason; `ServerGone` if no other attempt can succeed.
        """

    async def last_words(self) -> str | None:
        """Return the last text of the server outside the protocol, as from its stderr."""
        return None

    async def aclose(self) -> None:  # noqa: B027 - most targets have nothing to release
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
        scheme = scheme_of(where)
        if scheme is None or not scheme.listens:
            raise ConnectFailed(
                f"`{without_password(where)}` is not a URL of an exec-server{meant_url(where)};"
                f" expected {spelled(listening())}"
            )
        # Checked before anything is sent: a token on a plain connection can be intercepted.
        if bearer_token is not None and scheme.takes_token:
            _check_token(where, bearer_token)
        return target_of_url(
            where,
            TargetOptions(bearer_token=bearer_token, timeout=timeout, ping_interval=ping_interval),
        )


def target_of_url(url: str, options: TargetOptions) -> Target:
    """
    Return the target of a URL by the class of its scheme.

    Any other string counts as the URL of a WebSocket, which fails when it is used.
    """
    # The usual scheme has the error text for one of another kind.
    scheme = scheme_of(url) or SCHEMES[0]
    # The table names subclasses of `Target`, which a test checks.
    return cast("type[Target]", scheme.load_target()).of_url(url, options)


def _check_token(url: str, token: str) -> None:
    try:
        check_token(url, token)
    except InvalidConfig as error:
        raise ConnectFailed(f"{error}: {error.advice}" if error.advice else str(error)) from error


def meant_url(where: str) -> str:
    """Return a hint for a string that is not a URL, as part of a sentence, or an empty string."""
    scheme, separator, rest = where.partition("://")
    if not separator:
        # An absolute path can only be a socket file.
        if where.startswith("/"):
            return f" (did you mean `unix://{where}`?)"
        # A slash may be missing, as in `ws:/host`; otherwise it is a host with its port.
        scheme, _, rest = where.partition(":")
        for known in listening():
            if scheme == known.name:
                return f" (did you mean `{known.start}{rest.lstrip('/')}`?)"
        return f" (did you mean `ws://{where}`?)" if ":" in where else ""
    spellings: dict[str, Scheme] = {}
    for one in SCHEMES:
        if scheme == one.name and not one.listens:
            return f" (a host behind {scheme} is given to `--on`, or to `holdfast.connect`)"
        if scheme == one.name and one.address == "path":
            return f" (did you mean `{one.start}{rest}`?)"
        if one.listens and one.address == "host":
            spellings |= dict.fromkeys((one.name, *one.mistaken), one)
    # Schemes are short, so one wrong letter is a large part of one: half has to match.
    found = closest(scheme.lower(), spellings, 0.5)
    return f" (did you mean `{spellings[found].start}{rest}`?)" if found else ""


class UnixTarget(Target):
    """A server on a unix socket, an extension of Holdfast."""

    def __init__(self, path: str, *, timeout: float) -> None:
        self.label = f"unix://{path}"
        self._path = path
        self._timeout = timeout

    @classmethod
    def of_url(cls, url: str, options: TargetOptions) -> "UnixTarget":
        path = socket_path(url)
        # The table chose this class by the beginning of the URL.
        assert path is not None
        return cls(path, timeout=CONNECT_TIMEOUT if options.timeout is None else options.timeout)

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
    """A command that serves one connection on its stdin and stdout, without resumption."""

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
        Store the command; `open` starts it.

        Args:
            argv: The program and its arguments; no shell is involved.
            env: Variables added to those of this process.
            cwd: Its working directory; a relative one is below that of this process.
        """
        self.label = join(argv)
        self._argv = argv
        self._env = {} if env is None else env
        self._cwd = cwd
        # None until `open`; kept afterwards, for its last words.
        self._command: ServingCommand | None = None

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        self._command = await ServingCommand.start(self._argv, env=self._env, cwd=self._cwd)
        return await self._command.speak(accept)

    async def last_words(self) -> str | None:
        return None if self._command is None else await self._command.last_words()

    async def aclose(self) -> None:
        if self._command is not None:
            await self._command.aclose()

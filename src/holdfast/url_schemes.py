"""
The URL schemes of servers, one row for each: every other module asks here.

A row names the class that makes the connections. The class is loaded when a URL of its scheme is
used, so that a program pays only for the transports that it uses.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Final, Literal, NamedTuple

__all__ = ["SCHEMES", "Scheme", "is_stdio", "listening", "scheme_of", "socket_path", "spelled"]


class Scheme(NamedTuple):
    """One kind of URL."""

    name: str
    start: str
    """The characters that every URL of this scheme begins with."""
    form: str
    """The URL with placeholders, for help and errors."""
    target: str
    """Subclass of `client.target.Target` that makes connections, as `module:class`."""
    address: Literal["host", "path"] = "host"
    """Kind of address in the URL: a host with a port, or the path of a socket."""
    listens: bool = True
    """True if a server listens there; False if connecting starts the server."""
    takes_token: bool = False
    """True if a bearer token can be sent to such a URL."""
    mistaken: tuple[str, ...] = ()
    """Other schemes that people write where they mean this one."""

    def load_target(self) -> object:
        """Import the class that makes connections."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)


SCHEMES: Final[tuple[Scheme, ...]] = (
    Scheme(
        "ws",
        "ws://",
        "ws://HOST:PORT",
        "holdfast.client.websocket_target:WebSocketTarget",
        takes_token=True,
        mistaken=("http",),
    ),
    Scheme(
        "wss",
        "wss://",
        "wss://HOST",
        "holdfast.client.websocket_target:WebSocketTarget",
        takes_token=True,
        mistaken=("https",),
    ),
    Scheme("unix", "unix:///", "unix:///PATH", "holdfast.client.target:UnixTarget", address="path"),
    Scheme(
        "ssh",
        "ssh://",
        "ssh://[USER@]HOST[:PORT]",
        "holdfast.environments.ssh.target:SshTarget",
        listens=False,
    ),
)
"""All schemes, in the order in which they are listed to people; the first is the usual one."""


def scheme_of(where: object) -> Scheme | None:
    """Return the scheme of a URL; None for anything else."""
    if isinstance(where, str):
        for scheme in SCHEMES:
            if where.startswith(scheme.start):
                return scheme
    return None


def listening() -> list[Scheme]:
    """Return the schemes of servers that listen."""
    return [scheme for scheme in SCHEMES if scheme.listens]


def spelled(schemes: Iterable[Scheme]) -> str:
    """Return the forms of some schemes as an enumeration for errors."""
    *forms, last = (f"`{scheme.form}`" for scheme in schemes)
    return f"{', '.join(forms)} or {last}" if forms else last


def socket_path(url: str) -> str | None:
    """Return the path in the URL of a unix socket; None for any other URL."""
    return url.removeprefix("unix://") if url.startswith("unix:///") else None


def is_stdio(listen: str) -> bool:
    """Return True if a value of `--listen` means the standard streams."""
    return listen in ("stdio", "stdio://")

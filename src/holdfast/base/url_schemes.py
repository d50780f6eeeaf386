"""
The URL schemes of servers, one row for each; all other modules ask this one.

A row names the class that makes the connections. The class is loaded when a URL of its scheme is
used, so that a program pays only for the transports that it uses.
"""

from holdfast.base.late_import import load

# Not `typing.TYPE_CHECKING`: loading `typing` would make every guardian larger.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

__all__ = ["SCHEMES", "Scheme", "is_stdio", "listening", "scheme_of", "socket_path", "spelled"]


class Scheme:
    """One kind of URL."""

    def __init__(
        self,
        name: str,
        start: str,
        form: str,
        target: str,
        *,
        address: "Literal['host', 'path']" = "host",
        listens: bool = True,
        takes_token: bool = False,
        mistaken: tuple[str, ...] = (),
    ) -> None:
        """
        Args:
            name: The scheme itself.
            start: The characters that every URL of this scheme begins with.
            form: The URL with placeholders, for help and errors.
            target: Subclass of `client.target.Target` that makes connections, as
                `module:class`.
            address: Kind of address in the URL: a host with a port, or the path of a socket.
            listens: True if a server listens there; False if connecting starts the server.
            takes_token: True if a bearer token can be sent to such a URL.
            mistaken: Other schemes that people write where they mean this one.
        """
        self.name = name
        self.start = start
        self.form = form
        self.target = target
        self.address = address
        self.listens = listens
        self.takes_token = takes_token
        self.mistaken = mistaken

    def load_target(self) -> object:
        """Import the class that makes connections."""
        target: object = load(self.target)
        return target


SCHEMES = (
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
        "holdfast.environments.ssh.ssh_target:SshTarget",
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


def spelled(schemes: "Iterable[Scheme]") -> str:
    """Return the forms of some schemes as an enumeration for errors."""
    *forms, last = (f"`{scheme.form}`" for scheme in schemes)
    return f"{', '.join(forms)} or {last}" if forms else last


def socket_path(url: str) -> str | None:
    """Return the path in the URL of a unix socket; None for any other URL."""
    return url.removeprefix("unix://") if url.startswith("unix:///") else None


def is_stdio(listen: str) -> bool:
    """Return True if a value of `--listen` means the standard streams."""
    return listen in ("stdio", "stdio://")

"""What can be said about the URL of a server without connecting to it (environments spec 3)."""

import ipaddress
import re
from typing import Final

from holdfast.client.target import meant_url
from holdfast.errors import InvalidConfig

__all__ = ["check_token", "check_url"]

_NOT_IN_AUTHORITY: Final = re.compile(r'[^!-~]|["<>\\^`{|}]')
_NOT_IN_PATH: Final = re.compile(r'[\x00-\x20\x7f"<>\\^`]')
_NOT_IN_HEADER: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def check_url(url: str) -> None:
    """
    Refuse what is no URL of a listening server; ports and names are left to the connection.

    Raises:
        InvalidConfig: With the reason.
    """
    if not url:
        raise InvalidConfig("environment url cannot be empty")
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "unix":
        _check_socket(url, rest)
        return
    if not separator or scheme not in ("ws", "wss"):
        raise InvalidConfig(f"environment url `{url}` must use ws:// or wss://", _other_scheme(url))
    fault = _fault(rest)
    if fault is not None:
        raise InvalidConfig(
            f"environment url `{url}` is invalid: HTTP format error: {fault}",
            "expected `ws://HOST:PORT` or `wss://HOST`, with a path if the server wants one",
        )


def check_token(url: str, token: str) -> None:
    """
    Refuse a token that would be read on its way, or that no header can hold.

    Raises:
        InvalidConfig: With the reason.
    """
    if not url.startswith("wss://") and not (url.startswith("ws://") and _is_loopback(url)):
        raise InvalidConfig(
            "exec-server WebSocket headers require wss:// or a loopback destination",
            "use wss://, or tunnel to the server (`ssh -L`) and use ws://127.0.0.1:PORT;"
            " a token would cross the network in the clear",
        )
    if _NOT_IN_HEADER.search(token):
        raise InvalidConfig(
            "invalid value for exec-server WebSocket header `authorization`",
            "the bearer token has a line break or another control character in it",
        )


def _check_socket(url: str, path: str) -> None:
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidConfig(
            f"environment url `{url}` names no socket file",
            "expected `unix:///PATH`, with three slashes and an absolute path",
        )


def _other_scheme(url: str) -> str:
    if url.startswith(("http://", "https://")):
        return f"try `ws{url.removeprefix('http')}`"
    if url.startswith("ssh://"):
        return 'use `program = "ssh"` with `args` for a host behind ssh'
    meant = meant_url(url).strip(" ()")
    if meant:
        return meant
    return "a server that does not listen is reached with `program` instead of `url`"


def _fault(rest: str) -> str | None:
    """What is wrong behind the scheme, in the words of the real client's library."""
    if not rest:
        return "empty string"
    authority = _authority(rest)
    if not authority:
        return "invalid format"
    if _NOT_IN_AUTHORITY.search(authority) or _NOT_IN_PATH.search(rest):
        return "invalid uri character"
    host = _host(authority)
    if host.count("[") != host.count("]") or authority.endswith("@"):
        return "invalid authority"
    return None


def _authority(rest: str) -> str:
    return re.split(r"[/?#]", rest, maxsplit=1)[0]


def _host(authority: str) -> str:
    host = authority.rpartition("@")[2]
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _is_loopback(url: str) -> bool:
    host = _host(_authority(url.removeprefix("ws://"))).strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

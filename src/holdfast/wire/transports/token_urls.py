"""Secrets and URLs: where a token may be sent, and how a URL with a password is shown."""

import ipaddress
import re
from typing import Final

from holdfast.base.errors import InvalidConfig

__all__ = ["authority_of", "check_token", "host_of", "may_carry_token", "without_password"]

_NOT_IN_HEADER: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def check_token(url: str, token: str) -> None:
    """
    Refuse a token that could be intercepted, or that no header can hold.

    Raises:
        InvalidConfig: With the reason.
    """
    if not may_carry_token(url):
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


def may_carry_token(url: str) -> bool:
    """Return True for `wss://`, and for `ws://` to this machine."""
    return url.startswith("wss://") or (url.startswith("ws://") and _is_loopback(url))


def authority_of(rest: str) -> str:
    """Return the part with the host from the rest of a URL after its scheme."""
    return re.split(r"[/?#]", rest, maxsplit=1)[0]


def host_of(authority: str) -> str:
    """Return the host of such a part, without user and port."""
    host = authority.rpartition("@")[2]
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def without_password(url: str) -> str:
    """Return a URL as it may be shown: the password of `USER:PASSWORD@` is replaced by `***`."""
    scheme, found, rest = url.partition("://")
    authority = authority_of(rest)
    user, _, host = authority.rpartition("@")
    name, colon, _ = user.partition(":")
    if not (found and colon):
        return url
    return f"{scheme}://{name}:***@{host}{rest.removeprefix(authority)}"


def _is_loopback(url: str) -> bool:
    host = host_of(authority_of(url.removeprefix("ws://"))).strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Checks of a server's URL that need no connection [environments.file.texts]."""

import re
from typing import Final

from holdfast.client.target import meant_url
from holdfast.errors import InvalidConfig
from holdfast.transports.token_urls import authority_of, check_token, host_of

__all__ = ["check_token", "check_url"]

_NOT_IN_AUTHORITY: Final = re.compile(r'[^!-~]|["<>\\^`{|}]')
_NOT_IN_PATH: Final = re.compile(r'[\x00-\x20\x7f"<>\\^`]')


def check_url(url: str) -> None:
    """
    Refuse a URL that is not one of a listening server; host and port are not resolved.

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
    """Return the fault after the scheme, in the words of the real client's library, or None."""
    if not rest:
        return "empty string"
    authority = authority_of(rest)
    if not authority:
        return "invalid format"
    if _NOT_IN_AUTHORITY.search(authority) or _NOT_IN_PATH.search(rest):
        return "invalid uri character"
    host = host_of(authority)
    if host.count("[") != host.count("]") or authority.endswith("@"):
        return "invalid authority"
    return None

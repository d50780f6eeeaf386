"""Validation of server URLs without connecting [environments.file.texts]."""

import re
from typing import Final

from holdfast.base.errors import InvalidConfig
from holdfast.base.url_schemes import listening, scheme_of
from holdfast.client.target import meant_url
from holdfast.wire.transports.token_urls import authority_of, check_token, host_of, without_password

__all__ = ["check_token", "check_url"]

_NOT_IN_AUTHORITY: Final = re.compile(r'[^!-~]|["<>\\^`{|}]')
_NOT_IN_PATH: Final = re.compile(r'[\x00-\x20\x7f"<>\\^`]')


def check_url(url: str) -> None:
    """
    Refuse a URL that cannot be that of a listening server; host and port are not resolved.

    Raises:
        InvalidConfig: The URL is invalid; the message says why.
    """
    if not url:
        raise InvalidConfig("environment url cannot be empty")
    shown = without_password(url)
    name, separator, rest = url.partition("://")
    # By name only: a URL whose path is not absolute gets an error about the path.
    scheme = next((one for one in listening() if separator and one.name == name), None)
    if scheme is None:
        raise InvalidConfig(
            f"environment url `{shown}` must use ws:// or wss://", _other_scheme(shown)
        )
    if scheme.address == "path":
        _check_socket(url, rest)
        return
    fault = _fault(rest)
    if fault is not None:
        raise InvalidConfig(
            f"environment url `{shown}` is invalid: HTTP format error: {fault}",
            "expected `ws://HOST:PORT` or `wss://HOST`, with a path if the server needs one",
        )


def _check_socket(url: str, path: str) -> None:
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidConfig(
            f"environment url `{url}` does not name a socket file",
            "expected `unix:///PATH`, with three slashes and an absolute path",
        )


def _other_scheme(url: str) -> str:
    if url.startswith(("http://", "https://")):
        return f"try `ws{url.removeprefix('http')}`"
    if (scheme := scheme_of(url)) is not None and not scheme.listens:
        return 'use `program = "ssh"` with `args` for a host behind ssh'
    meant = meant_url(url).strip(" ()")
    if meant:
        return meant
    return "use `program` instead of `url` for a server that does not listen"


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

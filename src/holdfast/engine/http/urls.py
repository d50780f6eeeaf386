"""
URLs of HTTP requests: WHATWG rules, and error texts that clients know.

The rules are those of a library (ada, the parser of Node.js), which reports invalid URLs without a
reason. This module finds the reason.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import can_ada

__all__ = ["InvalidUrl", "Url"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SPECIAL = frozenset({"http", "https", "ws", "wss", "ftp"})
# Longest URL to cache, in characters; longer ones are rarely repeated and cost memory.
_SHORT = 1024

_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


class InvalidUrl(ValueError):
    """Error for an invalid URL; the message says why."""


class Url:
    """An absolute URL of any scheme. Only http and https have a host to call."""

    __slots__ = ("_parsed", "authority", "credentials", "host", "href", "port", "scheme", "target")

    def __init__(self, parsed: can_ada.URL) -> None:
        """Use `parse` and `join` instead."""
        self.credentials = _credentials(parsed)
        """User and password as bytes, `user:password`, or None."""
        if parsed.has_credentials():
            parsed.username = parsed.password = ""
        self._parsed = parsed
        self.scheme = parsed.protocol[:-1]
        self.href = parsed.href
        """The URL without its credentials, but with its fragment."""
        self.authority = parsed.host
        """Host and, unless it is the default, port: the value of the `host` header."""
        self.host = parsed.hostname.strip("[]")
        """The name or address for the resolver."""
        self.port = int(parsed.port or _DEFAULT_PORTS.get(self.scheme, 0))
        self.target = parsed.pathname + parsed.search
        """The request target: path and query."""

    @staticmethod
    def parse(text: str) -> Url:
        """
        Read an absolute URL.

        Raises:
            InvalidUrl: The URL is invalid.
        """
        return _parse_again(text) if len(text) <= _SHORT else _parse(text)

    def join(self, reference: str) -> Url:
        """
        Read a URL that may be relative to this one.

        Raises:
            InvalidUrl: The result is not a valid URL.
        """
        try:
            return Url(self._parsed + reference)
        except ValueError:
            raise InvalidUrl(_fault(reference)) from None

    @property
    def is_http(self) -> bool:
        """True for http and https."""
        return self.scheme in _DEFAULT_PORTS

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def without_fragment(self) -> str:
        return self.origin + self.target

    def same_host(self, other: Url) -> bool:
        """Return True if headers for one host may be sent to the other."""
        return self.host == other.host and self.port == other.port


def _parse(text: str) -> Url:
    try:
        return Url(can_ada.parse(text))
    except ValueError:
        raise InvalidUrl(_fault(text)) from None


# Most calls go to the same few URLs, and parsing is a fifth of the work of a call.
_parse_again = lru_cache(128)(_parse)


def _credentials(parsed: can_ada.URL) -> bytes | None:
    if not parsed.has_credentials():
        return None
    try:
        user = unquote_to_bytes(parsed.username).decode()
        password = unquote_to_bytes(parsed.password).decode()
    except UnicodeDecodeError:
        # Credentials that are not UTF-8 are not sent; the request is sent without them.
        return None
    return f"{user}:{password}".encode()


def _fault(text: str) -> str:
    """Return the reason why a URL is invalid; the host is checked before the port."""
    text = re.sub(r"[\t\n\r]", "", text.strip("".join(map(chr, range(33)))))
    found = _SCHEME.match(text)
    if found is None:
        return "relative URL without a base"
    special = found[1].lower() in _SPECIAL
    rest = text[found.end() :]
    authority = re.split(r"[/\\?#]" if special else r"[/?#]", rest.lstrip("/\\"), maxsplit=1)[0]
    host, _, _ = _split_port(authority.rpartition("@")[2])
    if not host:
        return "empty host"
    if can_ada.can_parse(f"{found[1]}://{host}/"):
        return "invalid port number"
    if host.startswith("["):
        return "invalid IPv6 address"
    if not special:
        return "invalid domain character"
    if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        return "invalid IPv4 address"
    return "invalid international domain name"


def _split_port(authority: str) -> tuple[str, str, str]:
    if authority.startswith("["):
        end = authority.find("]") + 1 or len(authority)
        return authority[:end], authority[end : end + 1], authority[end + 1 :]
    return authority.partition(":")

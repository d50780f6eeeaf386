"""Proxies for URLs, from environment variables [http.request.proxy]."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping

from holdfast.engine.http.urls import InvalidUrl, Url

__all__ = ["Proxies", "Proxy"]


class Proxy:
    """A proxy. If its scheme is not supported, calls fail instead of bypassing it."""

    __slots__ = ("credentials", "url")

    def __init__(self, url: Url) -> None:
        self.url = url
        self.credentials = (
            None
            if url.credentials is None
            else "Basic " + base64.b64encode(url.credentials).decode()
        )
        """The value of `proxy-authorization`."""


class Proxies:
    """The proxies of an environment, read once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        every = _proxy(environ, "ALL_PROXY")
        # Under CGI, HTTP_PROXY is the caller's `Proxy:` header and must not be trusted.
        plain = None if "REQUEST_METHOD" in environ else _proxy(environ, "HTTP_PROXY")
        self._by_scheme = {
            "http": plain or every,
            "https": _proxy(environ, "HTTPS_PROXY") or every,
        }
        self._except = _Exceptions(_variable(environ, "NO_PROXY"))

    def find(self, url: Url) -> Proxy | None:
        """Return the proxy for a URL, loopback addresses included; None for a direct connection."""
        proxy = self._by_scheme[url.scheme]
        return None if proxy is None or url.host in self._except else proxy


class _Exceptions:
    """The hosts of `NO_PROXY`: names with their subdomains, addresses, networks, or `*`."""

    def __init__(self, text: str) -> None:
        self._names: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in filter(None, (part.strip().lower() for part in text.split(","))):
            try:
                self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                self._names.append(entry.lstrip("."))

    def __contains__(self, host: str) -> bool:
        if not self._names and not self._networks:
            return False
        if "*" in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return any(host == name or host.endswith(f".{name}") for name in self._names)
        return any(address in network for network in self._networks)


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower()) or ""


def _proxy(environ: Mapping[str, str], name: str) -> Proxy | None:
    text = _variable(environ, name)
    if not text:
        return None
    try:
        return Proxy(Url.parse(text if "://" in text else f"http://{text}"))
    except InvalidUrl:
        # An invalid URL is ignored, like a variable that is not set.
        return None

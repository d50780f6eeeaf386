"""
A request before it is sent: checked, redirected, and encoded.

Checks run in a fixed order, with fixed texts [http.request.refused]. There is no I/O;
variables are read because a header may name one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams, OperationFailed
from holdfast.engine.http.urls import InvalidUrl, Url
from holdfast.wire.protocol.http import HttpHeader, HttpRequestParams
from holdfast.wire.protocol.secret_variables import HEADER_SECRETS

__all__ = ["Headers", "OutgoingRequest", "prepare"]

Headers = dict[str, list[bytes]]
"""Lower-case names in order of first occurrence, each with all its values."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\0-\x08\x0a-\x1f\x7f]")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

# Headers that are dropped when a redirect drops the body.
_OF_THE_BODY = ("transfer-encoding", "content-encoding", "content-type", "content-length")

# Headers that are not sent to another host.
_OF_THE_HOST = ("authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate")

# Methods that can safely be repeated (RFC 9110, 9.2.2).
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


class OutgoingRequest:
    """One request to one URL."""

    __slots__ = ("body", "headers", "method", "url")

    def __init__(self, method: str, url: Url, headers: Headers, body: bytes) -> None:
        self.method = method
        self.url = url
        self.headers = headers
        self.body = body

    @property
    def repeatable(self) -> bool:
        """True if it may be sent again when the outcome of the first attempt is unknown."""
        return self.method in _IDEMPOTENT

    @property
    def wants_close(self) -> bool:
        """True if its headers close the connection."""
        return any(b"close" in value.lower() for value in self.headers.get("connection", ()))

    def encode(self, *, proxy_credentials: str | None = None, absolute: bool = False) -> bytes:
        """
        Return the bytes to send.

        Args:
            proxy_credentials: `proxy-authorization` for a proxy that reads this request.
            absolute: Use the absolute URL, as proxies need it.
        """
        url = self.url
        if self.method == "CONNECT":
            target = f"{url.authority.removesuffix(f':{url.port}')}:{url.port}"
        else:
            target = url.without_fragment if absolute else url.target
        lines = [f"{self.method} {target} HTTP/1.1\r\n".encode()]
        for name, values in self.headers.items():
            field = name.encode()
            lines += [b"%b: %b\r\n" % (field, value) for value in values]
        if "accept" not in self.headers:
            lines.append(b"accept: */*\r\n")
        if proxy_credentials is not None and "proxy-authorization" not in self.headers:
            lines.append(f"proxy-authorization: {proxy_credentials}\r\n".encode())
        if "host" not in self.headers:
            lines.append(f"host: {url.authority}\r\n".encode())
        if not self.body:
            lines.append(b"\r\n")
        elif "transfer-encoding" in self.headers:
            lines.append(b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(self.body), self.body))
        elif "content-length" in self.headers:
            lines += (b"\r\n", self.body)
        else:
            lines += (b"content-length: %d\r\n\r\n" % len(self.body), self.body)
        return b"".join(lines)

    def redirected(self, status: int, locations: list[bytes]) -> OutgoingRequest | None:
        """
        Return the request that a redirect asks for, or None [http.request.redirects].

        Raises:
            OperationFailed: It leads to another scheme than HTTP.
        """
        if status not in _REDIRECTS or not locations:
            return None
        try:
            # Of several, the first one applies.
            url = self.url.join(locations[0].decode("ascii"))
        except (InvalidUrl, UnicodeDecodeError):
            return None
        if not url.is_http:
            raise OperationFailed(texts.http_redirect_scheme(url.scheme))
        method, body = self.method, self.body
        headers = dict(self.headers)
        if status == 303 or (status in (301, 302) and method == "POST"):
            method = "HEAD" if method == "HEAD" else "GET"
            body = b""
            for name in _OF_THE_BODY:
                headers.pop(name, None)
        if not self.url.same_host(url):
            for name in _OF_THE_HOST:
                headers.pop(name, None)
        referer = self._referer(url)
        if referer is not None:
            headers["referer"] = [referer.encode()]
        return OutgoingRequest(method, url, headers, body)

    def _referer(self, to: Url) -> str | None:
        if self.url.scheme == "https" and to.scheme == "http":
            # A secret URL must not be sent in cleartext.
            return None
        if self.url.origin == to.origin:
            return self.url.without_fragment
        return f"{self.url.origin}/"


def prepare(params: HttpRequestParams, environ: Mapping[str, str]) -> OutgoingRequest:
    """
    Check a request and prepare it.

    Raises:
        InvalidParams: It is invalid.
    """
    body = b"" if params.body_base64 is None else params.body_base64.data
    if not _TOKEN.fullmatch(params.method):
        raise InvalidParams(texts.HTTP_METHOD)
    try:
        url = Url.parse(params.url)
    except InvalidUrl as fault:
        raise InvalidParams(texts.http_url(fault)) from None
    if not url.is_http:
        raise InvalidParams(texts.http_scheme(url.scheme))
    headers = _headers(params.headers, environ)
    if url.credentials is not None and "authorization" not in headers:
        basic = b"Basic " + base64.b64encode(url.credentials)
        headers = {"authorization": [basic], **headers}
    _frame(headers, body)
    return OutgoingRequest(params.method, url, headers, body)


def _headers(given: Iterable[HttpHeader], environ: Mapping[str, str]) -> Headers:
    headers: Headers = {}
    for header in given:
        if not _TOKEN.fullmatch(header.name):
            raise InvalidParams(texts.HTTP_HEADER_NAME)
        value = header.value + _from_environment(header, environ)
        if _CONTROL.search(value):
            raise InvalidParams(texts.http_header_value(header.name))
        headers.setdefault(header.name.lower(), []).append(value.encode())
    return headers


def _from_environment(header: HttpHeader, environ: Mapping[str, str]) -> str:
    variable = header.value_env_var
    if variable is None:
        return ""
    if variable.upper() in HEADER_SECRETS:
        raise InvalidParams(texts.http_secret_variable(header.name, variable))
    value = environ.get(variable)
    if value is None or not _is_text(value):
        raise InvalidParams(texts.http_no_variable(header.name, variable))
    if not value:
        raise InvalidParams(texts.http_empty_variable(header.name, variable))
    return value


def _is_text(value: str) -> bool:
    """Return True if a variable was valid UTF-8; other bytes are lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _frame(headers: Headers, body: bytes) -> None:
    """Make the headers state the true length of the body."""
    # A caller could otherwise hide a second request in the body, on a connection that others use
    # later.
    codings = headers.get("transfer-encoding")
    if codings is not None:
        headers.pop("content-length", None)
        if not body:
            del headers["transfer-encoding"]
        elif codings[-1].rpartition(b",")[2].strip().lower() != b"chunked":
            codings[-1] += b", chunked"
    elif headers.get("content-length", [b"%d" % len(body)]) != [b"%d" % len(body)]:
        raise InvalidParams(
            "http/request header value is invalid for content-length: "
            f"the body has {len(body)} bytes"
        )

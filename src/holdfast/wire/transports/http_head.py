"""The head of an HTTP request, as far as a WebSocket listener needs it [http.upgrade.*]."""

import base64
import binascii
import re
from http import HTTPStatus

import msgspec

__all__ = ["MAX_HEAD", "MAX_HEADERS", "BadHead", "RequestHead", "Response", "upgrade_fault"]

MAX_HEAD = 16 << 10
"""Largest size of a request line and its headers in bytes."""

MAX_HEADERS = 128
"""Most headers of a request: thousands would take milliseconds before a token is checked."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class BadHead(Exception):
    """Not an HTTP/1.1 request."""


class RequestHead(msgspec.Struct, frozen=True):
    """Method, path and headers; names in lower case, in order of arrival."""

    method: str
    path: str
    """Without its query."""
    headers: list[tuple[str, str]]

    @classmethod
    def parse(cls, head: bytes) -> "RequestHead":
        """
        Read the bytes before the empty line.

        Raises:
            BadHead: They are not a request.
        """
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1]:
            raise BadHead
        if len(lines) > MAX_HEADERS:
            raise BadHead
        headers: list[tuple[str, str]] = []
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not _TOKEN.fullmatch(name):
                raise BadHead
            headers.append((name.lower(), value.strip(" \t")))
        return cls(parts[0], parts[1].partition("?")[0], headers)

    def get(self, name: str) -> str | None:
        """Return the first header of that name."""
        return next((value for found, value in self.headers if found == name), None)

    def lists(self, name: str, token: str) -> bool:
        """Return True if a comma-separated header contains a token, ignoring case."""
        return any(
            part.strip().lower() == token
            for found, value in self.headers
            if found == name
            for part in value.split(",")
        )


class Response(msgspec.Struct, frozen=True):
    """A complete response; the connection ends with it."""

    status: HTTPStatus
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, head_only: bool = False) -> bytes:
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}"]
        if self.body and not any(name == "content-type" for name, _ in self.headers):
            lines.append("content-type: text/plain; charset=utf-8")
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"content-length: {len(self.body)}", "connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1") + (b"" if head_only else self.body)


def upgrade_fault(head: RequestHead) -> Response | None:
    """Return the error response for an invalid WebSocket upgrade, or None."""
    if head.method != "GET":
        return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"Request method must be `GET`")
    if not head.lists("connection", "upgrade"):
        return _bad(b"Connection header did not include 'upgrade'")
    if not head.lists("upgrade", "websocket"):
        return _bad(b"`Upgrade` header did not include 'websocket'")
    if head.get("sec-websocket-version") != "13":
        return _bad(b"`Sec-WebSocket-Version` header did not include '13'")
    try:
        key = base64.b64decode(head.get("sec-websocket-key") or "", validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != 16:
        return _bad(b"`Sec-WebSocket-Key` header missing")
    return None


def _bad(body: bytes) -> Response:
    return Response(HTTPStatus.BAD_REQUEST, body)

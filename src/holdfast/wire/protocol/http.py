"""`http/request`: HTTP calls made by the executor (docs/protocol.md#httprequest)."""

from typing import Literal

from holdfast.wire.protocol.wire_types import U64, U64_MAX, Base64, Wire

__all__ = ["BodyDeltaEvent", "HttpHeader", "HttpRequestParams", "HttpResponse", "RedirectPolicy"]

RedirectPolicy = Literal["follow", "stop"]


class HttpHeader(Wire, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    value: str
    value_env_var: str | None = None
    """A variable of the server whose value is appended to `value`; in requests only."""


class HttpRequestParams(Wire, frozen=True, kw_only=True):
    method: str
    url: str
    request_id: str
    headers: tuple[HttpHeader, ...] = ()
    body_base64: Base64 | None = None
    timeout_ms: U64 | None = None
    redirect_policy: RedirectPolicy = "follow"
    stream_response: bool = False

    def __post_init__(self) -> None:
        if self.timeout_ms is not None and self.timeout_ms > U64_MAX:
            raise ValueError("invalid number")


class HttpResponse(Wire, frozen=True, kw_only=True):
    """A response; with `streamResponse` the body is empty here and follows in deltas."""

    status: int
    headers: list[HttpHeader]
    body_base64: bytes


class BodyDeltaEvent(Wire, frozen=True, kw_only=True):
    """A piece of a streamed body; the last one is empty and `done`."""

    request_id: str
    seq: int
    delta_base64: bytes
    done: bool
    error: str | None = None

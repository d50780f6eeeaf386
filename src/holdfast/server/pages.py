"""
Pages of a listener for plain HTTP: a page is a function and a row of `PAGES`.

A listener answers them before it looks at an upgrade to WebSocket [serve.listen.*].
"""

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

from holdfast.server.listen import PlainPage
from holdfast.server.operate.metrics import CONTENT_TYPE, metrics_text
from holdfast.server.state import ServerState
from holdfast.wire.transports.http_head import Response

__all__ = ["PAGES", "served_pages"]


class _PageRow(NamedTuple):
    answer: Callable[[ServerState], Response]
    token: bool
    """True if only clients that may connect can read it."""
    always: bool = False
    """True if it is served without `Server(pages=True)`, too."""


def _ready(state: ServerState) -> Response:
    return Response(HTTPStatus.SERVICE_UNAVAILABLE if state.draining else HTTPStatus.OK)


def _alive(_: ServerState) -> Response:
    return Response(HTTPStatus.OK)


def _metrics(state: ServerState) -> Response:
    text = metrics_text(state.principals)
    return Response(HTTPStatus.OK, text, (("content-type", CONTENT_TYPE),))


# Load balancers and systemd, which ask for the first two, have no token.
PAGES: Final[Mapping[str, _PageRow]] = {
    "/readyz": _PageRow(_ready, token=False, always=True),
    "/healthz": _PageRow(_alive, token=False),
    "/metrics": _PageRow(_metrics, token=True),
}


def served_pages(state: ServerState, *, every: bool) -> Mapping[str, PlainPage]:
    """Return the pages of a server by their paths, all of them or those of every server."""
    return {
        path: PlainPage(partial(row.answer, state), row.token)
        for path, row in PAGES.items()
        if every or row.always
    }

"""
A server that listens on a WebSocket, as a target.

A separate module: the WebSocket library is an extension module that other targets do not need. The
table of URL schemes names this module, which is loaded with the first URL.
"""

import os
from collections.abc import Callable, Mapping

from holdfast.base.errors import ConnectFailed
from holdfast.base.local_servers import find_token
from holdfast.base.token_file import BadTokenFile
from holdfast.client.target import CONNECT_TIMEOUT, Target, TargetOptions
from holdfast.wire.transports.token_urls import may_carry_token, without_password
from holdfast.wire.transports.transport import SIGN_INTERVAL, Receiver, Transport
from holdfast.wire.transports.websocket_client import connect_websocket

__all__ = ["WebSocketTarget"]


class WebSocketTarget(Target):
    """
    A server that listens on a WebSocket.

    Without a token in `headers`, the target uses the token file of a server of the same user on
    this machine.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        ping_interval: float = SIGN_INTERVAL,
    ) -> None:
        """
        Store the address; `open` connects.

        Args:
            url: `ws://` or `wss://`.
            headers: Sent with the request.
            timeout: Seconds to connect.
            ping_interval: Seconds between two pings; a server silent for two is lost.
        """
        # The label is logged.
        self.label = without_password(url)
        self._ping_interval = ping_interval
        self._url = url
        self._headers = headers
        self._timeout = timeout

    @classmethod
    def of_url(cls, url: str, options: TargetOptions) -> "WebSocketTarget":
        token = options.bearer_token
        return cls(
            url,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=CONNECT_TIMEOUT if options.timeout is None else options.timeout,
            ping_interval=options.ping_interval,
        )

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        return await connect_websocket(
            self._url,
            accept,
            # A given token is meant for this server; a found one is a guess.
            headers=self._headers or self._own_headers(),
            timeout=self._timeout,
            ping_interval=self._ping_interval,
        )

    def _own_headers(self) -> Mapping[str, str]:
        """Return the header with the token of a local server."""
        # Looked up for each connection: a restarted server has another token.
        if not may_carry_token(self._url):
            return {}
        try:
            token = find_token(self._url, os.environ)
        except BadTokenFile as error:
            # Without a token the result would be a 401 that names another cause.
            raise ConnectFailed(str(error), errno=error.errno, path=error.path) from error
        return {} if token is None else {"Authorization": f"Bearer {token}"}

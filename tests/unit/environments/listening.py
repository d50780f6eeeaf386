"""A scripted server that listens: what the manager connects to by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.wire.protocol.envelope import Request
from holdfast.wire.transports.http_head import RequestHead, Response
from holdfast.wire.transports.transport import Credential, Transport
from holdfast.wire.transports.websocket_listener import listen_websocket


class ListeningServer(ScriptedServer):
    """A scripted server on a port."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.heads: list[RequestHead] = []
        """Request heads of the connections, before they were upgraded."""
        self.answers["environment/status"] = _ready

    def gate(self, head: RequestHead) -> Response | Credential:
        self.heads.append(head)
        return Credential("somebody")

    def accept(self, transport: Transport) -> ScriptedPeer:
        peer = ScriptedPeer(transport, self.answers)
        self.peers.append(peer)
        self._connected.set()
        return peer


def _ready(peer: ScriptedPeer, request: Request) -> None:
    peer.reply(request, {"status": "ready"})


@asynccontextmanager
async def listening() -> AsyncIterator[ListeningServer]:
    """Listen on a free port of this machine."""
    server = ListeningServer()
    listener = await listen_websocket("127.0.0.1", 0, gate=server.gate, accept=server.accept)
    server.url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for peer in server.peers:
            peer.cut()

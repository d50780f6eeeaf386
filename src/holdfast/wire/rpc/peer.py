"""
One side of a JSON-RPC conversation, without I/O.

Pass received bytes to `receive()` and act on the message it returns; send the bytes that
`request()` returns. Sockets, tasks and clocks belong to the caller, so a test needs none of them.
"""

from holdfast.base.errors import LocalProtocolError, RemoteProtocolError
from holdfast.wire.protocol.envelope import ErrorReply, Message, Reply, Request, RequestId, Trace
from holdfast.wire.rpc.encode import encode_request
from holdfast.wire.rpc.server_kind import EXEC_SERVER, ServerKind

__all__ = ["Peer"]


class Peer:
    """Numbering of our requests, and the check that a reply belongs to one of them."""

    def __init__(self, server_kind: ServerKind = EXEC_SERVER) -> None:
        self._decode = server_kind.decode_message
        self.decode_patiently = server_kind.decode_patiently
        """Only decode a message; safe in any thread."""
        self._ignores_stray_replies = server_kind.ignores_stray_replies
        self._next_id = 1
        # Requests we sent that the peer has not answered yet.
        self._pending: set[RequestId] = set()
        # Those of them whose answer no caller waits for.
        self._forgotten: set[RequestId] = set()

    @property
    def pending(self) -> int:
        """The number of our requests that are unanswered, including forgotten ones."""
        return len(self._pending) + len(self._forgotten)

    def request(self, method: str, params: object, trace: Trace | None = None) -> tuple[int, bytes]:
        """Make a request; return its id and the bytes to send."""
        request_id = self._next_id
        self._next_id += 1
        self._pending.add(request_id)
        return request_id, encode_request(request_id, method, params, trace)

    def forget(self, request_id: int) -> None:
        """Stop waiting for an answer; if it still arrives, it is ignored."""
        if request_id not in self._pending:
            raise LocalProtocolError(f"request {request_id} is not waiting for an answer")
        self._pending.discard(request_id)
        self._forgotten.add(request_id)

    def receive(self, data: bytes) -> Message | None:
        """
        Decode a message of the peer.

        Returns:
            The message, or `None` for the late answer to a forgotten request.

        Raises:
            MalformedMessage: It cannot be read; the conversation can go on.
            RemoteProtocolError: It answers a request that was never made; the connection must end.
        """
        message = self._decode(data)
        return message if type(message) is Request else self.receive_decoded(message)

    def receive_few_values(self, data: bytes) -> Message | None:
        """As `receive`, for a large message with few values; see `may_have_many_values`."""
        return self.receive_decoded(self._decode(data, few_values=True))

    def receive_decoded(self, message: Message) -> Message | None:
        """As `receive`, for a message that `decode_patiently` returned before."""
        if type(message) is Reply or type(message) is ErrorReply:
            return message if self._answers(message.id) else None
        return message

    def _answers(self, request_id: RequestId) -> bool:
        if request_id in self._pending:
            self._pending.discard(request_id)
            return True
        # An id below `_next_id` was ours: its caller was cancelled, and the answer is late.
        if type(request_id) is int and 0 < request_id < self._next_id:
            self._forgotten.discard(request_id)
            return False
        if self._ignores_stray_replies:
            return False
        raise RemoteProtocolError(f"reply to unknown request {request_id!r}")

"""Error codes [envelope.codes]."""

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "NOT_FOUND",
    "OVERLOADED",
    "SESSION_ATTACHED",
    "TRANSPORT_CLOSED",
    "UNPARSED_ID",
]

# The first four are JSON-RPC's own, the others this protocol's.
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_FOUND = -32004
SESSION_ATTACHED = -32010
OVERLOADED = -32001

TRANSPORT_CLOSED = -32000
"""Code of a peer whose own transport has ended; a client treats it as a lost connection."""

UNPARSED_ID = -1
"""The id in the response to a message whose own id could not be read."""

"""Error codes and the exact texts that clients may compare [envelope.codes]."""

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "NOT_FOUND",
    "NO_MXC",
    "OVERLOADED",
    "SESSION_ATTACHED",
    "TRANSPORT_CLOSED",
    "UNPARSED_ID",
    "client_lacks_method",
    "duration",
    "initialize_first",
    "initialize_only_once",
    "initialized_first",
    "server_lacks_method",
    "unknown_session",
]

# The first four are JSON-RPC's own; the others are Codex's.
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

NO_MXC = "native MXC is unavailable on this executor"
"""Error text for a client that asks for the sandbox of Windows."""


def server_lacks_method(method: str) -> str:
    return f"exec-server stub does not implement `{method}` yet"


def client_lacks_method(method: str) -> str:
    return f"exec-server client does not implement `{method}` yet"


def initialize_first(family: str) -> str:
    return f"client must call initialize before using {family} methods"


def initialized_first(family: str) -> str:
    return f"client must send initialized before using {family} methods"


def unknown_session(session_id: str) -> str:
    return f"unknown session id {session_id}"


def duration(seconds: float) -> str:
    """Return a time limit as text: `500ms`, `1.5s`, `10s`."""
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


# A constant, since the text has no parameter.
initialize_only_once = "initialize may only be sent once per connection"

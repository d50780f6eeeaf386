"""
Times, sizes and counts of Codex that its peers rely on.

Plain data. Holdfast's own limits are where they are enforced.
"""

__all__ = [
    "APPROVAL_REVIEW",
    "BODY_PIECE",
    "BODY_PIECES",
    "CONNECT_TIMEOUT",
    "EXEC_OUTPUT",
    "EXEC_TIMED_OUT",
    "EXEC_TIMEOUT",
    "FILE_BLOCK",
    "FILE_HANDLES",
    "FILE_HANDLE_ID",
    "FILE_LISTED",
    "FILE_READ",
    "INFO_TIMEOUT",
    "JWT_SKEW",
    "MESSAGE_BYTES",
    "MESSAGE_DEPTH",
    "MESSAGE_FRAME",
    "MESSAGE_VALUES",
    "NO_PROXY_STATUS",
    "OUTPUT_KEPT",
    "PROCESS_KEPT",
    "QUEUED_REQUESTS",
    "RECOVERY",
    "RECOVERY_INTERVAL",
    "SECRET_BYTES",
    "SESSION_KEPT",
    "SNAPSHOT_SCOPE",
    "STATUS_TIMEOUT",
    "STREAM_DRAIN",
    "TERMINAL_SIZE",
    "TOOL_BYTES_PER_TOKEN",
    "TOOL_DELTAS",
    "TOOL_DELTA_BYTES",
    "TOOL_DENIAL_TOKENS",
    "TOOL_END_OF_OUTPUT",
    "TOOL_GRACE",
    "TOOL_INPUT_PAUSE",
    "TOOL_LONGEST_POLL",
    "TOOL_LONGEST_WAIT",
    "TOOL_OUTPUT_ALLOWANCE",
    "TOOL_OUTPUT_TOKENS",
    "TOOL_SESSIONS",
    "TOOL_SESSIONS_CROWDED",
    "TOOL_SESSIONS_PROTECTED",
    "TOOL_SESSION_IDS",
    "TOOL_SHORTEST_POLL",
    "TOOL_SHORTEST_WAIT",
    "TOOL_UNKNOWN_EXIT",
    "TOOL_WAIT_MS",
    "TOOL_WRITE_WAIT_MS",
    "WALK_BUDGET",
    "WALK_DEPTH",
    "WALK_DIRECTORIES",
    "WALK_ENTRIES",
    "WALK_ITEM",
]

# -- sessions and processes

SESSION_KEPT = 80.0
"""
Seconds for which a server keeps a session without a connection.

The client tries to resume it for `RECOVERY` seconds. Older versions kept sessions for 30 seconds.
A longer time does not affect their clients, which never reuse an id.
"""

PROCESS_KEPT = 80.0
"""Seconds for which a closed process can be read and its id stays in use."""

OUTPUT_KEPT = 1 << 20
"""Most bytes of output of one process kept for readers; the oldest chunks are dropped first."""

TERMINAL_SIZE = (24, 80)
"""Rows and columns of a terminal if its start gives no size."""

NO_PROXY_STATUS = 101
"""Exit status of a command in a managed network without a proxy: that of a Rust panic."""

SNAPSHOT_SCOPE = 256
"""Most bytes of the scope id of a shell snapshot."""

RECOVERY = 45.0
"""
Seconds for which a client tries to resume its session, from the loss of the connection on.

A refusal is always final: an older server forgets a session after 30 seconds.
"""

RECOVERY_INTERVAL = 0.1
"""Seconds between attempts to resume."""

CONNECT_TIMEOUT = 10.0
"""Seconds to connect to a listening server."""

INFO_TIMEOUT = 30.0
"""Timeout of `environment/info` in seconds."""

STATUS_TIMEOUT = 10.0
"""Timeout of `environment/status` in seconds."""

# -- messages

QUEUED_REQUESTS = 128
"""Most queued messages of one connection; reading stops at this number."""

MESSAGE_BYTES = 64 << 20
"""Most bytes of a message, as in Codex's WebSocket library; a longer one ends the connection."""

MESSAGE_FRAME = 16 << 20
"""Most bytes of a WebSocket frame, as in the same library."""

MESSAGE_VALUES = 262_144
"""Most JSON values in one message: scalars, arrays and objects count, keys do not."""

MESSAGE_DEPTH = 127
"""Most levels of nesting for serde, including the root object."""

# -- files and HTTP

FILE_HANDLES = 128
"""Most open files of one connection."""

FILE_HANDLE_ID = 32
"""Most bytes of the id of an open file."""

FILE_BLOCK = 1 << 20
"""Most bytes of one block of an open file."""

FILE_READ = 512 << 20
"""Most bytes of a file to read as a whole."""

FILE_LISTED = 50_000
"""Most entries in a listing of a directory."""

WALK_DEPTH = 64
"""Most levels that a walk may request."""

WALK_DIRECTORIES = 10_000
"""Most directories that a walk may request."""

WALK_ENTRIES = 50_000
"""Most entries that a walk may request."""

WALK_BUDGET = 4 << 20
"""Most bytes of the response to a walk; an item counts as its strings plus `WALK_ITEM`."""

WALK_ITEM = 64
"""Bytes counted for an item of a walk in addition to its strings."""

BODY_PIECE = 1 << 20
"""Most bytes of an HTTP body in one notification, before base64."""

BODY_PIECES = 256
"""Most queued pieces of a body; one more makes the stream fail."""

# -- tokens and sandboxes

SECRET_BYTES = 32
"""Least bytes of a shared secret, since HS256 is only as strong as its key (RFC 7518)."""

JWT_SKEW = 30
"""Seconds by which the clocks of a server and of the issuer of its tokens may differ."""

# -- command/exec of the app-server

EXEC_TIMEOUT = 10.0
"""Timeout of a command in seconds if the request gives none."""

EXEC_OUTPUT = 1 << 20
"""Most bytes of each stream to keep or send if the request gives no cap."""

EXEC_TIMED_OUT = 124
"""Exit code of a command that timed out."""

STREAM_DRAIN = 2.0
"""Seconds after an exit to read the rest of a stream that another process holds open."""

# -- the tools exec_command and write_stdin

TOOL_WAIT_MS = 10_000
"""Milliseconds that `exec_command` waits by default."""

TOOL_WRITE_WAIT_MS = 250
"""Milliseconds that `write_stdin` waits by default."""

TOOL_SHORTEST_WAIT = 0.25
"""Least seconds that a call waits."""

TOOL_LONGEST_WAIT = 30.0
"""Most seconds that a call with input waits."""

TOOL_SHORTEST_POLL = 5.0
"""Least seconds that a call without input waits, so that a model does not poll constantly."""

TOOL_LONGEST_POLL = 300.0
"""Most seconds that a call without input waits."""

TOOL_GRACE = 0.15
"""Seconds after a start in which an exit is reported immediately, before any clock starts."""

TOOL_END_OF_OUTPUT = 0.05
"""Seconds to wait for the end of the output after an exit: a child may hold it forever."""

TOOL_INPUT_PAUSE = 0.1
"""Seconds for a program to react to input before the clock of the call starts."""

TOOL_UNKNOWN_EXIT = -1
"""Exit code of a command that the tools killed or whose end is unknown."""

TOOL_BYTES_PER_TOKEN = 4
"""Bytes that count as one token."""

TOOL_OUTPUT_TOKENS = 10_000
"""Tokens of output to show in a call by default."""

TOOL_DENIAL_TOKENS = 262_144
"""Tokens of output in the message about a denial: all of `OUTPUT_KEPT`."""

TOOL_OUTPUT_ALLOWANCE = 1.2
"""Factor by which a complete answer, including the header, may exceed the model's budget."""

TOOL_DELTA_BYTES = 8_192
"""Most bytes of one piece of live output."""

TOOL_DELTAS = 10_000
"""Most pieces of live output per command; the transcript continues."""

TOOL_SESSIONS = 64
"""Most running commands; starting one more ends another."""

TOOL_SESSIONS_CROWDED = 60
"""Number of commands from which results warn that there are many."""

TOOL_SESSIONS_PROTECTED = 8
"""Number of most recently used commands that are never ended to make room."""

TOOL_SESSION_IDS = (1_000, 99_999)
"""The first and the last session number."""

# -- approvals

APPROVAL_REVIEW = 90.0
"""Timeout of an automatic reviewer in seconds."""

"""
Times, sizes and counts that Codex has and its peers rely on.

Plain data. Limits that Holdfast chose by itself are where they are enforced.
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
Seconds that a server keeps a session without a connection.

Its client tries for `RECOVERY` to come back. Older versions kept one for 30 seconds; more does
them no harm, since no client uses an id again.
"""

PROCESS_KEPT = 80.0
"""Seconds that a closed process can be read and its id stays taken: as long as a session."""

OUTPUT_KEPT = 1 << 20
"""Bytes of output of one process that are kept for readers; the oldest chunks go first."""

TERMINAL_SIZE = (24, 80)
"""Rows and columns of a terminal whose start gives no size."""

NO_PROXY_STATUS = 101
"""Exit status of a command in a managed network without a proxy: that of a panic in Rust."""

SNAPSHOT_SCOPE = 256
"""Bytes of the scope id of a shell's snapshot."""

RECOVERY = 45.0
"""
Seconds in which a client tries to resume its session, counted from the loss of the connection.

A refusal is final, whenever it comes: an older server forgets a session after 30.
"""

RECOVERY_INTERVAL = 0.1
"""Seconds between two attempts to resume."""

CONNECT_TIMEOUT = 10.0
"""Seconds to connect to a server that listens."""

INFO_TIMEOUT = 30.0
"""Seconds that `environment/info` may take."""

STATUS_TIMEOUT = 10.0
"""Seconds that `environment/status` may take."""

# -- messages

QUEUED_REQUESTS = 128
"""Messages of one connection that wait for their turn; beyond them nothing is read."""

MESSAGE_BYTES = 64 << 20
"""Bytes of one message, the bound of the WebSocket library; one more ends the connection."""

MESSAGE_FRAME = 16 << 20
"""Bytes of one WebSocket frame, the bound of the same library."""

MESSAGE_VALUES = 262_144
"""JSON values in one message: every scalar, array and object counts, keys do not."""

MESSAGE_DEPTH = 127
"""Levels of nesting that serde reads, the root object included."""

# -- files and HTTP

FILE_HANDLES = 128
"""Open files of one connection."""

FILE_HANDLE_ID = 32
"""Bytes of the id of an open file."""

FILE_BLOCK = 1 << 20
"""Bytes of one block of an open file."""

FILE_READ = 512 << 20
"""Bytes of a file that is read as a whole."""

FILE_LISTED = 50_000
"""Entries of one directory that are listed."""

WALK_DEPTH = 64
"""Levels that a walk may ask for."""

WALK_DIRECTORIES = 10_000
"""Directories that a walk may ask for."""

WALK_ENTRIES = 50_000
"""Entries that a walk may ask for."""

WALK_BUDGET = 4 << 20
"""Bytes of the response to a walk, where an item counts its texts and `WALK_ITEM`."""

WALK_ITEM = 64
"""Bytes that an item of a walk counts in addition to its texts."""

BODY_PIECE = 1 << 20
"""Bytes of an HTTP body in one notification, before base64."""

BODY_PIECES = 256
"""Pieces of one body that wait for their reader; one more and the stream fails."""

# -- tokens and sandboxes

SECRET_BYTES = 32
"""Bytes of a shared secret, at least: HS256 is no stronger than its key, as RFC 7518 has it."""

JWT_SKEW = 30
"""Seconds by which the clocks of a server and of whoever signs its tokens may differ."""

# -- command/exec of the app-server

EXEC_TIMEOUT = 10.0
"""Seconds that a command may take if the request gives no timeout."""

EXEC_OUTPUT = 1 << 20
"""Bytes of each stream that are kept or sent if the request gives no cap."""

EXEC_TIMED_OUT = 124
"""Exit code of a command that took too long."""

STREAM_DRAIN = 2.0
"""Seconds after an exit in which the rest of a stream is read, whoever still holds it open."""

# -- the tools exec_command and write_stdin

TOOL_WAIT_MS = 10_000
"""Milliseconds that `exec_command` waits by default."""

TOOL_WRITE_WAIT_MS = 250
"""Milliseconds that `write_stdin` waits by default."""

TOOL_SHORTEST_WAIT = 0.25
"""Seconds that a call waits at least."""

TOOL_LONGEST_WAIT = 30.0
"""Seconds that a call with input waits at most."""

TOOL_SHORTEST_POLL = 5.0
"""Seconds that a call without input waits at least, so that a model does not poll all the time."""

TOOL_LONGEST_POLL = 300.0
"""Seconds that a call without input waits at most."""

TOOL_GRACE = 0.15
"""Seconds after a start in which an exit is reported at once, before any clock runs."""

TOOL_END_OF_OUTPUT = 0.05
"""Seconds to wait for the end of the output after an exit: a child may hold it for ever."""

TOOL_INPUT_PAUSE = 0.1
"""Seconds that a program gets to react to input before the clock of the call runs."""

TOOL_UNKNOWN_EXIT = -1
"""Exit code of a command that the tools killed, or whose end is unknown."""

TOOL_BYTES_PER_TOKEN = 4
"""Bytes that count as a token of a model."""

TOOL_OUTPUT_TOKENS = 10_000
"""Tokens of output that a call shows if it names no number."""

TOOL_DENIAL_TOKENS = 262_144
"""Tokens of output in the message about a denial: the whole of `OUTPUT_KEPT`."""

TOOL_OUTPUT_ALLOWANCE = 1.2
"""Factor by which a whole answer, its header included, may exceed the model's budget."""

TOOL_DELTA_BYTES = 8_192
"""Bytes of one piece of live output."""

TOOL_DELTAS = 10_000
"""Pieces of live output of one command; its transcript goes on."""

TOOL_SESSIONS = 64
"""Commands that are held; one more ends another."""

TOOL_SESSIONS_CROWDED = 60
"""Commands from which on a result says that there are many."""

TOOL_SESSIONS_PROTECTED = 8
"""Commands used last, which are never ended for others."""

TOOL_SESSION_IDS = (1_000, 99_999)
"""The first and the last number of a session."""

# -- approvals

APPROVAL_REVIEW = 90.0
"""Seconds that an automatic reviewer has."""

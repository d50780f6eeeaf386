"""
Texts of Codex that clients compare, or that models know and act on.

Plain data. What Holdfast says in its own words is where it is said. `serde_text` and `rust_text`
have the wording of faults in JSON.
"""

__all__ = [
    "ALREADY_INITIALIZED",
    "ASK_NEVER",
    "ASK_NO_RULES",
    "ASK_NO_SANDBOX",
    "DANGEROUS",
    "INITIALIZE_ONCE",
    "INPUT_OUTSIDE",
    "JUSTIFICATION_ALONE",
    "LOGIN_DISABLED",
    "NOT_INITIALIZED",
    "NO_ABSOLUTE_PATH",
    "NO_ENVIRONMENT",
    "NO_LANDLOCK",
    "NO_MANAGED_NETWORK",
    "NO_MXC",
    "NO_PERSON",
    "ONLY_REVIEWED",
    "PERMISSIONS_MISSING",
    "PERMISSIONS_OFF",
    "PERMISSIONS_REFUSED",
    "PROCESS_FAILED",
    "PROCESS_NOT_CREATED",
    "RETRY_OUTSIDE",
    "STDIN_CLOSED",
    "STDIN_FAILED",
    "TRY_WITH_TOKEN",
    "client_lacks_method",
    "duration",
    "initialize_first",
    "initialized_first",
    "needs_experimental_api",
    "recovery_failed",
    "server_lacks_method",
    "try_without_token",
    "unknown_environment",
    "unknown_process",
    "unknown_session",
]

# -- the exec-server and its clients

INITIALIZE_ONCE = "initialize may only be sent once per connection"


def initialize_first(family: str) -> str:
    return f"client must call initialize before using {family} methods"


def initialized_first(family: str) -> str:
    return f"client must send initialized before using {family} methods"


def unknown_session(session_id: str) -> str:
    return f"unknown session id {session_id}"


def server_lacks_method(method: str) -> str:
    return f"exec-server stub does not implement `{method}` yet"


def client_lacks_method(method: str) -> str:
    return f"exec-server client does not implement `{method}` yet"


def recovery_failed(limit: float) -> str:
    """Return the reason of a client that gave up; a model reads it."""
    return f"recovery timed out after {limit:g}s"


def duration(seconds: float) -> str:
    """Return a time as Rust writes one: `500ms`, `1.5s`, `10s`."""
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


TRY_WITH_TOKEN = '  A real Codex needs its token: README.md, "Point a real Codex at it"\n'  # noqa: S105 - a hint
"""A hint of `scripts/serve`, which shows how to use its server."""


def try_without_token(url: str) -> str:
    """Return the same hint for a server without tokens."""
    return f"  CODEX_EXEC_SERVER_URL={url} codex\n"


# -- sandboxes

NO_MXC = "native MXC is unavailable on this executor"
"""To a client that asks for the sandbox of Windows."""

NO_LANDLOCK = "filesystem-restricted execution requires bubblewrap to isolate app-server sockets"
"""To a client that asks for Landlock instead of mounts [sandbox.legacy-landlock]."""

NO_MANAGED_NETWORK = "managed networking is not supported by this exec-server"

# -- the app-server

NOT_INITIALIZED = "Not initialized"
ALREADY_INITIALIZED = "Already initialized"

NO_ABSOLUTE_PATH = "AbsolutePathBuf deserialized without a base path"
"""About a relative path where only an absolute one fits."""


def needs_experimental_api(what: str) -> str:
    """Return the error text for a method or member that needs `experimentalApi`."""
    return f"{what} requires experimentalApi capability"


# -- the tools exec_command and write_stdin

NO_ENVIRONMENT = (
    "No usable execution environment is available. Wait for an environment to become"
    " available before using this tool."
)
"""Both tools say so if there is nowhere to run."""

LOGIN_DISABLED = "login shell is disabled by config; omit `login` or set it to false."

JUSTIFICATION_ALONE = (
    "`justification` requires an explicit `sandbox_permissions`; use"
    ' `sandbox_permissions: "require_escalated"` for unsandboxed execution, or omit'
    " `justification`."
)

PROCESS_NOT_CREATED = "Failed to create unified exec process: "
"""Stands before the reason."""

PROCESS_FAILED = "Unified exec process failed: "
"""Stands before the reason."""

STDIN_FAILED = "failed to write to stdin"

STDIN_CLOSED = (
    "stdin is closed for this session; rerun exec_command with tty=true to keep stdin open"
)


def unknown_process(process_id: int) -> str:
    return f"Unknown process id {process_id}"


def unknown_environment(environment_id: str) -> str:
    return f"unknown turn environment id `{environment_id}`"


# -- approvals

DANGEROUS = "rm -f style commands are not permitted. Use a safer approach"

ASK_NEVER = "approval required by policy, but AskForApproval is set to Never"
ASK_NO_RULES = "approval required by policy rule, but AskForApproval::Granular.rules is false"
ASK_NO_SANDBOX = (
    "approval required by policy, but AskForApproval::Granular.sandbox_approval is false"
)

NO_PERSON = "approval request failed"
"""About a command that only a person may allow, if the approver does not reach any."""

ONLY_REVIEWED = (
    "Managed command policy requires human approval, but this session requires automatic review."
)

RETRY_OUTSIDE = "command failed; retry without sandbox?"
"""The question after a denial."""

INPUT_OUTSIDE = (
    "Send input to an existing terminal. This terminal was launched outside the sandbox,"
    " bypassing any managed network proxy. The cwd is its launch directory; the terminal's"
    " current directory and state may have changed."
)
"""The question before input for a command that runs without a sandbox."""

PERMISSIONS_OFF = (
    "additional permissions are disabled; enable `features.exec_permission_approvals` before"
    " using `with_additional_permissions`"
)

PERMISSIONS_MISSING = (
    "missing `additional_permissions`; provide at least one of `network` or `file_system` when"
    " using `with_additional_permissions`"
)

PERMISSIONS_REFUSED = "permission requests are not allowed by the approval policy"

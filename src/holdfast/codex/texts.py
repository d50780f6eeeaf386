"""
Texts of Codex that clients compare, or that models act on.

Plain data. Holdfast's own texts are where they are used. `serde_text` and `rust_text` have the
wording of JSON errors.
"""

__all__ = [
    "ABORTED",
    "ALREADY_INITIALIZED",
    "ANSWER_EXITED",
    "ARGV_EMPTY",
    "ASK_NEVER",
    "ASK_NO_RULES",
    "ASK_NO_SANDBOX",
    "COMMAND_EMPTY",
    "DANGEROUS",
    "DIRECTORY_EXISTS",
    "EXEC_FAILED",
    "FOUND_DIRECTORY",
    "FOUND_NOT_EXECUTABLE",
    "HANDLE_EMPTY",
    "HTTP_DECODING",
    "HTTP_HEADER_NAME",
    "HTTP_METHOD",
    "HTTP_REDIRECTS",
    "INITIALIZE_ONCE",
    "INPUT_OUTSIDE",
    "IS_DIRECTORY",
    "JUSTIFICATION_ALONE",
    "LOGIN_DISABLED",
    "MISSING_ABSOLUTE",
    "MISSING_FILE",
    "NAMED_EACCES",
    "NAMED_ENOENT",
    "NOT_EXECUTABLE",
    "NOT_EXECUTABLE_ABSOLUTE",
    "NOT_INITIALIZED",
    "NOT_IN_PATH",
    "NOT_REGULAR",
    "NOT_SPAWNED",
    "NO_ABSOLUTE_PATH",
    "NO_ENVIRONMENT",
    "NO_IMAGE",
    "NO_LANDLOCK",
    "NO_MANAGED_NETWORK",
    "NO_MXC",
    "NO_PATH",
    "NO_PERSON",
    "NO_PROCESS_ID",
    "NO_PROXIES",
    "NO_PROXY_VARIABLES",
    "NO_RECURSIVE_REMOVAL",
    "NO_SANDBOX_CWD",
    "NUL_IN_NAME",
    "ONLY_REVIEWED",
    "PATCH_REJECTED",
    "PERMISSIONS_MISSING",
    "PERMISSIONS_OFF",
    "PERMISSIONS_REFUSED",
    "PROCESS_FAILED",
    "PROCESS_NOT_CREATED",
    "RECOVERING",
    "RETRY_OUTSIDE",
    "SERVER_OVERLOADED",
    "STDIN_CLOSED",
    "STDIN_FAILED",
    "TRANSPORT_CLOSED",
    "TRANSPORT_LOST",
    "TRY_WITH_TOKEN",
    "TWO_CAPS",
    "TWO_SANDBOXES",
    "TWO_TIMEOUTS",
    "WALK_ZERO",
    "WRITE_FAILED",
    "WRITE_ID_EMPTY",
    "WRITE_RANGE",
    "WRITE_REJECTED",
    "aborted_input",
    "aborted_start",
    "answer_header",
    "bad_arguments",
    "bad_params",
    "block_length",
    "client_lacks_method",
    "content_not_base64",
    "delta_missing",
    "delta_not_base64",
    "duration",
    "foreign_cwd",
    "foreign_directory",
    "foreign_root",
    "glob_matches",
    "handle_exists",
    "handle_id_too_long",
    "http_body",
    "http_certificates",
    "http_empty_variable",
    "http_header_value",
    "http_no_variable",
    "http_not_sent",
    "http_redirect_scheme",
    "http_scheme",
    "http_secret_variable",
    "http_stream_active",
    "http_url",
    "image_not_a_file",
    "image_not_found",
    "image_not_read",
    "image_not_resolved",
    "initialize_first",
    "initialized_first",
    "mxc_not_prepared",
    "needs_experimental_api",
    "negative_timeout",
    "no_program",
    "not_a_file",
    "not_resumed",
    "permission_path",
    "process_starting",
    "recovery_failed",
    "server_lacks_method",
    "size_without_tty",
    "snapshot_scope",
    "snapshot_shell",
    "start_cancelled",
    "too_large_to_read",
    "too_many_entries",
    "too_many_handles",
    "truncated",
    "try_without_token",
    "unknown_environment",
    "unknown_handle",
    "unknown_process",
    "unknown_profile",
    "unknown_session",
    "unknown_signal",
    "unsafe_glob",
    "unsupported_call",
    "walk_exceeds",
    "writable_link",
]

# -- the exec-server and its clients

INITIALIZE_ONCE = "initialize may only be sent once per connection"

TRANSPORT_CLOSED = "exec-server transport closed"
TRANSPORT_LOST = "exec-server transport disconnected"
RECOVERING = "exec-server environment is recovering"


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


def not_resumed(lost: str, why: object) -> str:
    """Return the error text of calls on a session that could not be resumed."""
    return f"{lost}; failed to resume exec-server session: {why}"


def recovery_failed(limit: float) -> str:
    """Return the reason for `not_resumed` if it took too long; a model reads it."""
    return f"recovery timed out after {limit:g}s"


def duration(seconds: float) -> str:
    """Return a time in the format of Rust: `500ms`, `1.5s`, `10s`."""
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


TRY_WITH_TOKEN = '  A real Codex needs its token: README.md, "Point a real Codex at it"\n'  # noqa: S105 - a hint
"""A hint from `scripts/serve` on how to use its server."""


def try_without_token(url: str) -> str:
    """Return the same hint for a server without tokens."""
    return f"  CODEX_EXEC_SERVER_URL={url} codex\n"


# -- processes

ARGV_EMPTY = "argv must not be empty"
WRITE_ID_EMPTY = "writeId must not be empty"
NO_PROXIES = "network proxies are not supported by this exec-server"

NO_PROXY_VARIABLES = (
    "failed to prepare host proxy routing bridge:"
    " managed proxy mode requires proxy environment variables"
)


def process_starting(process_id: str) -> str:
    return f"process id {process_id} is starting"


def start_cancelled(process_id: str) -> str:
    return f"process {process_id} start was cancelled"


def foreign_cwd(uri: object, why: object) -> str:
    return f"cwd URI `{uri}` is not valid on this exec-server host: {why}"


def unknown_signal(name: str) -> str:
    return f"unknown variant `{name}`, expected `interrupt`"


def snapshot_scope(most: int) -> str:
    return f"shell snapshot scope must be non-empty and at most {most} bytes"


def snapshot_shell(name: str) -> str:
    return f"shell snapshots are unsupported for shell `{name}`"


# -- errors for programs on a terminal: one line for a path, or for each candidate in PATH

NOT_SPAWNED = "Unable to spawn "
"""The beginning, before the program."""

NAMED_ENOENT = "(ENOENT: No such file or directory)"
NAMED_EACCES = "(EACCES: Permission denied)"
MISSING_FILE = "it does not exist"
MISSING_ABSOLUTE = f"it doesn't exist on the filesystem {NAMED_ENOENT}"
IS_DIRECTORY = "it is a directory"
NOT_EXECUTABLE = "it is not executable"
NOT_EXECUTABLE_ABSOLUTE = f"{NOT_EXECUTABLE} {NAMED_EACCES}"
FOUND_DIRECTORY = "exists but is a directory."
FOUND_NOT_EXECUTABLE = "exists but is not executable."
NOT_IN_PATH = "No viable candidates found in PATH"
NO_PATH = "Unable to resolve the PATH"


def no_program(kind: str) -> str:
    return f"missing program for {kind} spawn"


# -- files

NOT_REGULAR = "path is not a regular file"
DIRECTORY_EXISTS = "directory already exists"
NO_RECURSIVE_REMOVAL = "recursive no-follow removal is unsupported"
"""For removal without following links."""
NUL_IN_NAME = "file name contained an unexpected NUL byte"
WRITE_RANGE = "file write range exceeds the signed 64-bit file offset limit"
WALK_ZERO = "filesystem walk limits must be greater than zero"


def walk_exceeds(depth: int, directories: int, entries: int) -> str:
    return (
        f"filesystem walk limits exceed maximums: depth={depth}, "
        f"directories={directories}, entries={entries}"
    )


def too_many_entries(found: int, most: int) -> str:
    return f"fs/readDirectory returned {found} entries; limit is {most}"


def too_large_to_read(most: int) -> str:
    return f"file is too large to read: limit is {most} bytes"


def not_a_file(path: str) -> str:
    return f"path `{path}` is not a file"


def block_length(what: str, most: int) -> str:
    return f"file {what} block length must be between 1 and {most}"


def handle_id_too_long(most: int) -> str:
    return f"file handle ID must not exceed {most} bytes"


def handle_exists(handle_id: str) -> str:
    return f"file handle `{handle_id}` already exists"


def too_many_handles(most: int) -> str:
    return f"at most {most} file handles may be open per connection"


def unknown_handle(handle_id: str) -> str:
    return f"unknown file handle `{handle_id}`"


def content_not_base64(why: object) -> str:
    return f"fs/writeFile requires valid base64 dataBase64: {why}"


# -- HTTP

HTTP_METHOD = "http/request method is invalid: invalid HTTP method"
HTTP_HEADER_NAME = "http/request header name is invalid: invalid HTTP header name"
HTTP_REDIRECTS = "http/request failed: too many redirects"
HTTP_DECODING = "error decoding response body"


def http_url(why: object) -> str:
    return f"http/request url is invalid: {why}"


def http_scheme(scheme: str) -> str:
    return f"http/request only supports http and https URLs, got {scheme}"


def http_redirect_scheme(scheme: str) -> str:
    return f"http/request failed: redirect target uses unsupported URL scheme: {scheme}"


def http_header_value(name: str) -> str:
    return f"http/request header value is invalid for {name}: failed to parse header value"


def http_secret_variable(name: str, variable: str) -> str:
    return f"http/request header {name} cannot use executor environment variable {variable}"


def http_no_variable(name: str, variable: str) -> str:
    return f"http/request header {name} requires executor environment variable {variable}"


def http_empty_variable(name: str, variable: str) -> str:
    return (
        f"http/request header {name} requires a non-empty executor environment variable {variable}"
    )


def http_not_sent(url: str) -> str:
    return f"http/request failed: error sending request for url ({url})"


def http_body(why: object) -> str:
    return f"failed to read http/request response body: {why}"


def http_stream_active(request_id: str) -> str:
    return f"http/request streamResponse requestId `{request_id}` is already active"


def http_certificates(path: str, name: str, why: str, names: str) -> str:
    return (
        f"http/request failed: Failed to read CA certificate file {path} selected by {name}: "
        f"{why}. If you set {names}, ensure it points to a PEM "
        "file containing one or more CERTIFICATE blocks, or unset it to use system roots."
    )


# -- sandboxes

NO_MXC = "native MXC is unavailable on this executor"
"""For a client that requests the Windows sandbox."""

NO_LANDLOCK = "filesystem-restricted execution requires bubblewrap to isolate app-server sockets"
"""For a client that requests Landlock instead of mounts [sandbox.legacy-landlock]."""

NO_MANAGED_NETWORK = "managed networking is not supported by this exec-server"

NO_SANDBOX_CWD = "file system sandbox context with dynamic permissions requires cwd"


def mxc_not_prepared() -> str:
    return f"failed to prepare fs sandbox: failed to prepare MXC sandbox: {NO_MXC}"


def permission_path(why: object) -> str:
    return f"invalid sandbox permission path URI: {why}"


def foreign_root(why: object) -> str:
    return f"file system sandbox workspace root is not native to this exec-server host: {why}"


def foreign_directory(what: str, uri: object, why: object) -> str:
    return f"sandbox {what} URI `{uri}` is not valid on this exec-server host: {why}"


def writable_link(access: str, path: str, link: str) -> str:
    return f"cannot enforce sandbox {access} path {path} because it crosses writable symlink {link}"


def unsafe_glob(pattern: str) -> str:
    return (
        f"unreadable glob `{pattern}` cannot be safely expanded; "
        "use a pattern with a non-root directory prefix"
    )


def glob_matches(pattern: str) -> str:
    return f"unreadable glob `{pattern}` matches too many files"


# -- the app-server

NOT_INITIALIZED = "Not initialized"
ALREADY_INITIALIZED = "Already initialized"

NO_ABSOLUTE_PATH = "AbsolutePathBuf deserialized without a base path"
"""For a relative path where an absolute one is required."""


def needs_experimental_api(what: str) -> str:
    """Return the error text for a method or member that needs `experimentalApi`."""
    return f"{what} requires experimentalApi capability"


SERVER_OVERLOADED = "Server overloaded; retry later."
COMMAND_EMPTY = "command must not be empty"
HANDLE_EMPTY = "processHandle must not be empty"
TWO_SANDBOXES = "`permissionProfile` cannot be combined with `sandboxPolicy`"
TWO_CAPS = "command/exec cannot set both outputBytesCap and disableOutputCap"
TWO_TIMEOUTS = "command/exec cannot set both timeoutMs and disableTimeout"
NO_PROCESS_ID = "command/exec tty or streaming requires a client-supplied processId"


def size_without_tty(method: str) -> str:
    return f"{method} size requires tty: true"


def negative_timeout(method: str, timeout_ms: int) -> str:
    return f"{method} timeoutMs must be non-negative, got {timeout_ms}"


def bad_params(why: object) -> str:
    return f"Invalid request: {why}"


def unknown_profile(why: str) -> str:
    return f"invalid permission profile: default_permissions {why}"


def delta_missing(method: str) -> str:
    return f"{method} requires deltaBase64 or closeStdin"


def delta_not_base64(why: object) -> str:
    return f"invalid deltaBase64: {why}"


# -- the tools exec_command and write_stdin

NO_ENVIRONMENT = (
    "No usable execution environment is available. Wait for an environment to become"
    " available before using this tool."
)
"""For both tools, if there is no environment."""

LOGIN_DISABLED = "login shell is disabled by config; omit `login` or set it to false."

JUSTIFICATION_ALONE = (
    "`justification` requires an explicit `sandbox_permissions`; use"
    ' `sandbox_permissions: "require_escalated"` for unsandboxed execution, or omit'
    " `justification`."
)

PROCESS_NOT_CREATED = "Failed to create unified exec process: "
"""Precedes the reason."""

PROCESS_FAILED = "Unified exec process failed: "
"""Precedes the reason."""

STDIN_FAILED = "failed to write to stdin"

STDIN_CLOSED = (
    "stdin is closed for this session; rerun exec_command with tty=true to keep stdin open"
)


def unknown_process(process_id: int) -> str:
    return f"Unknown process id {process_id}"


def unknown_environment(environment_id: str) -> str:
    return f"unknown turn environment id `{environment_id}`"


# The lines of an answer, before the output.
ANSWER_EXITED = "Process exited with code "

ABORTED = "aborted by user"
PATCH_REJECTED = "patch rejected: "
EXEC_FAILED = "exec_command failed: "
WRITE_FAILED = "write_stdin failed: "
WRITE_REJECTED = "write_stdin rejected: "
NO_IMAGE = "unable to process image: invalid or unsupported image data"


def answer_header(
    *,
    chunk_id: str,
    wall_time: float,
    exit_code: int | None,
    session_id: int | None,
    original_tokens: int | None,
) -> str:
    """
    Return the lines before the output, without the last newline.

    Args:
        chunk_id: Id of this piece of output; empty to leave out its line.
        wall_time: Seconds that the call waited.
        exit_code: Set if the command has ended.
        session_id: Set while the command runs.
        original_tokens: Tokens of the output before truncation; None to leave out its line.
    """
    lines = [f"Chunk ID: {chunk_id}"] if chunk_id else []
    lines.append(f"Wall time: {wall_time:.4f} seconds")
    if exit_code is not None:
        lines.append(f"{ANSWER_EXITED}{exit_code}")
    if session_id is not None:
        lines.append(f"Process running with session ID {session_id}")
    if original_tokens is not None:
        lines.append(f"Original token count: {original_tokens}")
    lines.append("Output:")
    return "\n".join(lines)


def aborted_start(seconds: float) -> str:
    return f"Wall time: {seconds:.1f} seconds\n{ABORTED}"


def aborted_input(seconds: float) -> str:
    return f"{ABORTED} after {seconds:.1f}s"


def truncated(tokens: int) -> str:
    return f"Warning: truncated output (original token count: {tokens})\n"


def bad_arguments(why: object) -> str:
    return f"failed to parse function arguments: {why}"


def unsupported_call(name: str) -> str:
    return f"unsupported call: {name}"


def image_not_found(path: str, why: object) -> str:
    return f"unable to locate image at `{path}`: {why}"


def image_not_a_file(path: str) -> str:
    return f"image path `{path}` is not a file"


def image_not_read(path: str, why: object) -> str:
    return f"unable to read image at `{path}`: {why}"


def image_not_resolved(path: str, directory: object, why: object) -> str:
    return f"unable to resolve image path `{path}` against environment cwd `{directory}`: {why}"


# -- approvals

DANGEROUS = "rm -f style commands are not permitted. Use a safer approach"

ASK_NEVER = "approval required by policy, but AskForApproval is set to Never"
ASK_NO_RULES = "approval required by policy rule, but AskForApproval::Granular.rules is false"
ASK_NO_SANDBOX = (
    "approval required by policy, but AskForApproval::Granular.sandbox_approval is false"
)

NO_PERSON = "approval request failed"
"""For a command that only a person may approve, if the approver cannot reach one."""

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

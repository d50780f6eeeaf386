"""
Names of files, variables and telemetry in Codex that its peers look for.

Plain data.
"""

from typing import Final

__all__ = [
    "CERTIFICATE_VARIABLE",
    "DAEMON_DIRECTORY",
    "EXIT_WITH_STDIN",
    "HOME_DIRECTORY",
    "HOME_VARIABLE",
    "LINE_ENDINGS",
    "LISTED_NAMES",
    "NOISE_VARIABLES",
    "NOT_INHERITED",
    "NO_NETWORK",
    "PROJECT_ROOTS",
    "PROTECTED_NAMES",
    "TELEMETRY_PROGRAMS",
    "TELEMETRY_SCOPE",
    "TELEMETRY_SERVER",
    "TELEMETRY_SPAWN",
    "THREAD_ID",
    "TOOL_CALL_ID",
    "TOOL_SESSION",
    "TOOL_VARIABLES",
    "TOOL_VERSION",
    "URL_VARIABLE",
]

# -- files

HOME_DIRECTORY: Final = ".codex"
"""Directory of a user's settings in the home directory; overridden by `HOME_VARIABLE`."""

PROTECTED_NAMES: Final = (".git", ".agents", HOME_DIRECTORY, ".aws")
"""Names directly below a writable root that stay read-only: they affect what runs later."""

LISTED_NAMES: Final = (".git", ".agents", HOME_DIRECTORY)
"""Names that clients list in a profile. Servers always protect these and `.aws`."""

PROJECT_ROOTS: Final = "codex-project-roots://"
"""Prefix of a pattern that applies to each project root."""

DAEMON_DIRECTORY: Final = "/tmp/codex-daemon-{uid}"  # noqa: S108 (the place is Codex's choice)
"""Directory for sockets of the daemon that starts programs."""

# -- variables

HOME_VARIABLE: Final = "CODEX_HOME"
URL_VARIABLE: Final = "CODEX_EXEC_SERVER_URL"

NOISE_VARIABLES: Final = (
    "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL",
    "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
)
"""Names a server that is reached through a relay."""

CERTIFICATE_VARIABLE: Final = "CODEX_CA_CERTIFICATE"
"""A file with the certificates that a server trusts for HTTP calls."""

THREAD_ID: Final = "CODEX_THREAD_ID"
TOOL_CALL_ID: Final = "CODEX_TOOL_CALL_ID"
"""The metadata of a start, for its command."""

EXIT_WITH_STDIN: Final = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE"
"""Setting of a server started by another program; its commands must not inherit it."""

LINE_ENDINGS: Final = "CODEX_APPLY_PATCH_PRESERVE_LINE_ENDINGS"
"""`1` makes the program `apply_patch` preserve line endings."""

NO_NETWORK: Final = "CODEX_SANDBOX_NETWORK_DISABLED"
"""`1` indicates to a command that its sandbox has no network."""

TOOL_SESSION: Final = "CODEX_SESSION_ID"
"""The id of the conversation whose model runs the command."""

TOOL_VERSION: Final = "CODEX_VERSION"

TOOL_VARIABLES: Final = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "LC_CTYPE": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "COLORTERM": "",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "CODEX_CI": "1",
}
"""
Set for a model's commands, overriding all others, even on a terminal.

They request plain text, and no pager that waits for a key.
"""

NOT_INHERITED: Final = (
    "CODEX_PERMISSION_PROFILE",
    TOOL_VERSION,
    LINE_ENDINGS,
    "CODEX_PLUGIN_METRICS_OUTPUT",
)
"""Variables that a model's commands do not inherit, since they are about another command."""

# -- telemetry

TELEMETRY_SCOPE: Final = "codex"
"""Instrumentation scope, by which dashboards select."""

TELEMETRY_SERVER: Final = "codex.exec_server"
"""The span of a server, and the prefix of its other spans and of its log events."""

TELEMETRY_SPAWN: Final = "codex.process.spawn"
"""The span for starting a program."""

TELEMETRY_PROGRAMS: Final = "codex.process.start"
"""The counter of starts."""

"""
The one list of environment variables that hold secrets, by the programs that must not get them.

Names are compared without regard to case, except for a program that serves an environment.
This module imports nothing, since the start of every command needs it.
"""

__all__ = [
    "COMMAND_SECRETS",
    "HEADER_SECRETS",
    "PROGRAM_SECRETS",
    "SECRET_PATTERNS",
    "TOKEN_VARIABLE",
]

TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105 - its name, not a token
"""
Token for a Holdfast server. No command inherits it, and it is never given to a sandboxed one: a
command with a network could use it to run anything outside its sandbox.
"""

SECRET_PATTERNS = ("*KEY*", "*SECRET*", "*TOKEN*")
"""Not inherited unless the policy of a start says `ignoreDefaultExcludes` [env.*]."""

_IDENTITY = frozenset(
    {
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "OPENAI_FEDERATION_RULE_ID",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    }
)

PROGRAM_SECRETS = _IDENTITY | {"NODE_REPL_AUTH_TOKEN"}
"""
Not passed to a program that serves an environment [environments.command-variables], and not set
by `command/exec` [command-exec.env.secrets].
"""

COMMAND_SECRETS = PROGRAM_SECRETS | {"CODEX_GUARDIAN_DECISIONS_API_KEY"}
"""Neither inherited by a process nor set for one [env.reserved]."""

HEADER_SECRETS = _IDENTITY | {
    TOKEN_VARIABLE,
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "CODEX_ACCESS_TOKEN",
    "CODEX_CONNECTORS_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Refused as the value of a header of `http/request` [http.request.variables.secret]."""

"""The variables of a command [command-exec.env.*]."""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.protocol.process import EnvPolicy
from holdfast.protocol.sandbox import ExternalProfile, ManagedProfile, SandboxContext

__all__ = ["EVERYTHING", "Variables", "command_variables"]

EVERYTHING = EnvPolicy(
    inherit="all", ignore_default_excludes=True, exclude=[], set={}, include_only=[]
)
"""A command inherits all variables of its environment, whatever their names."""

_SECRETS = frozenset(
    {
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "NODE_REPL_AUTH_TOKEN",
        "OPENAI_FEDERATION_RULE_ID",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    }
)
"""Secrets of a server. No command sees them, in whatever case they are written."""

_LINE_ENDINGS = "CODEX_APPLY_PATCH_PRESERVE_LINE_ENDINGS"
_NO_NETWORK = "CODEX_SANDBOX_NETWORK_DISABLED"


class Variables(NamedTuple):
    """What a start says about variables, besides those that are inherited."""

    env: dict[str, str]
    """To set."""
    unset: list[str]
    """To remove, by their exact names."""


def command_variables(
    given: Mapping[str, str | None], sandbox: SandboxContext | None, *, codex: bool = True
) -> Variables:
    """
    Return the variables that a command gets or loses.

    Inherited secrets are not named here: whoever starts a process removes them.

    Args:
        given: Values to set, and `None` for names to remove.
        sandbox: The sandbox of the command.
        codex: Also set what Codex sets; the client cannot change those.
    """
    env = {
        name: value
        for name, value in given.items()
        if value is not None and name.upper() not in _SECRETS
    }
    # No variable has such a name, so there is nothing to remove.
    unset = [
        name
        for name, value in given.items()
        if value is None and name and "=" not in name and "\0" not in name
    ]
    if codex:
        forced = {_LINE_ENDINGS: "1"}
        if sandbox is not None and _without_network(sandbox):
            forced[_NO_NETWORK] = "1"
        env |= forced
        unset = [name for name in unset if name not in forced]
    return Variables(env, unset)


def _without_network(sandbox: SandboxContext) -> bool:
    permissions = sandbox.permissions
    if isinstance(permissions, ManagedProfile | ExternalProfile):
        return permissions.network != "enabled"
    return False

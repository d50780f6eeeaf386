"""The variables of a command [command-exec.env.*]."""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.base.dialect import names
from holdfast.wire.protocol.process import EnvPolicy
from holdfast.wire.protocol.sandbox import ExternalProfile, ManagedProfile, SandboxContext
from holdfast.wire.protocol.secret_variables import PROGRAM_SECRETS

__all__ = ["EVERYTHING", "Variables", "command_variables"]

EVERYTHING = EnvPolicy(
    inherit="all", ignore_default_excludes=True, exclude=[], set={}, include_only=[]
)
"""Policy by which a command inherits all variables of its environment."""


class Variables(NamedTuple):
    """Variables of a start, besides the inherited ones."""

    env: dict[str, str]
    """Variables to set."""
    unset: list[str]
    """Variables to remove, by exact name."""


def command_variables(
    given: Mapping[str, str | None], sandbox: SandboxContext | None, *, forced: bool = True
) -> Variables:
    """
    Return the variables that a command gets or loses.

    Inherited secrets are not listed: the process engine removes them.

    Args:
        given: Values to set, and None for names to remove.
        sandbox: The sandbox of the command.
        forced: Also set the variables of the protocol, which the client cannot change.
    """
    env = {
        name: value
        for name, value in given.items()
        if value is not None and name.upper() not in PROGRAM_SECRETS
    }
    # Invalid names cannot exist, so there is nothing to remove.
    unset = [
        name
        for name, value in given.items()
        if value is None and name and "=" not in name and "\0" not in name
    ]
    if forced:
        always = {names.LINE_ENDINGS: "1"}
        if sandbox is not None and _without_network(sandbox):
            always[names.NO_NETWORK] = "1"
        env |= always
        # A client cannot remove what is always set.
        unset = [name for name in unset if name not in always]
    return Variables(env, unset)


def _without_network(sandbox: SandboxContext) -> bool:
    permissions = sandbox.permissions
    if isinstance(permissions, ManagedProfile | ExternalProfile):
        return permissions.network != "enabled"
    return False

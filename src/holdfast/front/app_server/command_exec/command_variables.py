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
"""Policy for inheriting all variables of the environment."""


class Variables(NamedTuple):
    """Variables of a start, in addition to inherited ones."""

    env: dict[str, str]
    """Variables to set."""
    unset: list[str]
    """Variables to remove, by exact name."""


def command_variables(
    given: Mapping[str, str | None], sandbox: SandboxContext | None, *, forced: bool = True
) -> Variables:
    """
    Return the variables to set and to remove for a command.

    The process engine removes inherited secrets, which are not listed.

    Args:
        given: Values to set, and None for names to remove.
        sandbox: The sandbox of the command.
        forced: True to also set the protocol's variables, which the client cannot change.
    """
    env = {
        name: value
        for name, value in given.items()
        if value is not None and name.upper() not in PROGRAM_SECRETS
    }
    # Variables with invalid names cannot exist.
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
        # A client cannot remove variables that are always set.
        unset = [name for name in unset if name not in always]
    return Variables(env, unset)


def _without_network(sandbox: SandboxContext) -> bool:
    permissions = sandbox.permissions
    if isinstance(permissions, ManagedProfile | ExternalProfile):
        return permissions.network != "enabled"
    return False

"""The variables of a command that a model runs."""

from collections.abc import Iterable, Mapping

from holdfast.base.dialect import names, versions
from holdfast.wire.protocol.process import EnvPolicy
from holdfast.wire.protocol.sandbox import ManagedProfile, SandboxContext

__all__ = ["FORCED", "POLICY", "command_variables"]

FORCED = names.TOOL_VARIABLES
"""Set over everything else, also on a terminal: plain text, and no program that waits for a key."""

POLICY = EnvPolicy(
    inherit="all",
    ignore_default_excludes=True,
    exclude=list(names.NOT_INHERITED),
    set={},
    include_only=[],
)
"""Commands inherit all variables of their environment, but for those about another command."""


def command_variables(
    given: Mapping[str, str],
    unset: Iterable[str],
    *,
    session_id: str,
    sandbox: SandboxContext | None,
) -> dict[str, str]:
    """
    Return the variables to set for one command, besides those it inherits.

    The ids of the thread and of the call are not here: they go with the start's metadata.

    Args:
        given: Variables the owner of the tools wants set.
        unset: Names the owner does not want set, not even by force.
        session_id: The id of the conversation.
        sandbox: The sandbox of the command.
    """
    variables = {
        **given,
        names.TOOL_SESSION: session_id,
        names.TOOL_VERSION: versions.FOLLOWED,
        names.LINE_ENDINGS: "1",
        **FORCED,
    }
    if sandbox is not None and not _has_network(sandbox):
        variables[names.NO_NETWORK] = "1"
    for name in unset:
        variables.pop(name, None)
    return variables


def _has_network(sandbox: SandboxContext) -> bool:
    permissions = sandbox.permissions
    return not isinstance(permissions, ManagedProfile) or permissions.network == "enabled"

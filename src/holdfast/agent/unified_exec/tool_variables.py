"""The variables of a command that a model runs."""

from collections.abc import Iterable, Mapping

from holdfast.wire.protocol.process import EnvPolicy
from holdfast.wire.protocol.sandbox import ManagedProfile, SandboxContext
from holdfast.wire.protocol.version import CODEX_VERSION

__all__ = ["FORCED", "POLICY", "command_variables"]

FORCED = {
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
"""Set over everything else, also on a terminal: plain text, and no program that waits for a key."""

# Tells the `apply_patch` of Codex to leave line endings as they are.
_LINE_ENDINGS = "CODEX_APPLY_PATCH_PRESERVE_LINE_ENDINGS"

_NOT_INHERITED = [
    "CODEX_PERMISSION_PROFILE",
    "CODEX_VERSION",
    _LINE_ENDINGS,
    "CODEX_PLUGIN_METRICS_OUTPUT",
]

POLICY = EnvPolicy(
    inherit="all",
    ignore_default_excludes=True,
    exclude=_NOT_INHERITED,
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
        "CODEX_SESSION_ID": session_id,
        "CODEX_VERSION": CODEX_VERSION,
        _LINE_ENDINGS: "1",
        **FORCED,
    }
    if sandbox is not None and not _has_network(sandbox):
        variables["CODEX_SANDBOX_NETWORK_DISABLED"] = "1"
    for name in unset:
        variables.pop(name, None)
    return variables


def _has_network(sandbox: SandboxContext) -> bool:
    permissions = sandbox.permissions
    return not isinstance(permissions, ManagedProfile) or permissions.network == "enabled"

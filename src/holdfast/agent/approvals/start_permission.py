"""
Commands that somebody wants to start, the decision about them, and the permission to start.

Nobody is asked here: `ApprovalFlow` asks, and makes a `Clearance` of a request.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.agent.approvals.amendments import is_banned
from holdfast.agent.approvals.approval_cache import CommandKey, canonical_command
from holdfast.agent.approvals.decide import Judgement, SandboxPermissions, decide
from holdfast.agent.approvals.permissions import (
    NO_PERMISSIONS,
    AddedPermissions,
    denies_paths,
    is_restricted,
    with_permissions,
)
from holdfast.agent.approvals.policies import ApprovalPolicy
from holdfast.agent.approvals.real_program import RealProgram, StaysInside, real_program
from holdfast.agent.approvals.rules import RuleSet
from holdfast.agent.approvals.split.simple_command import Split, split_command
from holdfast.base.errors import HoldfastError
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = [
    "CallCancelled",
    "Clearance",
    "CommandDeclined",
    "CommandRefused",
    "CommandRequest",
    "EscalationRefused",
    "InputRefused",
    "InputToSend",
    "judge",
    "key_of",
    "program_outside",
]


class CommandRefused(HoldfastError):
    """A command may not run; the text is the reason that the model reads."""


class CommandDeclined(CommandRefused):
    """Somebody was asked about a command and said no."""


class EscalationRefused(HoldfastError):
    """A call may not ask for more permissions, or not for these; the model reads the text."""


class InputRefused(HoldfastError):
    """Input may not be sent; the text is the reason that the model reads."""


class CallCancelled(HoldfastError):
    """Somebody was asked and cancelled the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command that somebody wants to start."""

    call_id: str
    environment_id: str
    argv: tuple[str, ...]
    cwd: str
    tty: bool = False
    sandbox: SandboxContext | None = None
    """The sandbox of commands unless somebody decides otherwise; None for none."""
    script: str | None = None
    """The text that the model gave."""
    shell: str | None = None
    """The path of the shell that is configured."""
    variables: Mapping[str, str] | None = None
    """
    The variables that it will have on this machine; None if it runs elsewhere.

    Elsewhere, no rule lets it out of its sandbox: what its name stands for cannot be checked.
    """
    permissions: SandboxPermissions | None = None
    """The sandbox that the call asks for; None if it does not say."""
    added: AddedPermissions | None = None
    """The permissions it wants beyond the sandbox. Paths are absolute."""
    justification: str | None = None
    prefix_rule: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputToSend:
    """Input for a command that runs outside of the sandbox."""

    call_id: str
    environment_id: str
    session_id: int
    chars: str
    cwd: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """The permission to start one command, bound to exactly that command."""

    request: CommandRequest
    judgement: Judgement
    key: CommandKey
    digest: str
    """Stands for what may run; `verify` compares it."""
    sandbox: SandboxContext | None
    """The files and the network that the command has in this run."""
    program: RealProgram | None = None
    """The program to execute in place of the shell; set if a rule let it out of its sandbox."""
    left_sandbox: bool = False
    """True if it runs outside of the sandbox that holds for other commands."""
    approved: bool = False
    """True if somebody accepted it, now or for the session."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The arguments to start it with."""
        return self.request.argv if self.program is None else self.program.argv

    def outside(self, sandbox: SandboxContext | None, *, was_restricted: bool) -> "Clearance":
        """
        Return the permission to start the same command outside of its sandbox.

        Args:
            sandbox: What still holds for it; None for nothing.
            was_restricted: True if its sandbox had kept it from anything.
        """
        return replace(self, sandbox=sandbox, left_sandbox=was_restricted)


def judge(
    request: CommandRequest,
    *,
    policy: ApprovalPolicy,
    rules: RuleSet,
    rules_leave_sandbox: bool = False,
    unreadable_runs: bool = False,
    held: str | None = None,
) -> tuple[Split, Judgement]:
    """Return what a command was split into, and the decision about it; see `decide`."""
    split = split_command(request.argv, shell=request.shell)
    judgement = decide(
        request.argv,
        split=split,
        policy=policy,
        rules=rules,
        restricted=is_restricted(request.sandbox),
        permissions=request.permissions or "use_default",
        prefix_rule=request.prefix_rule,
        rules_leave_sandbox=rules_leave_sandbox,
        unreadable_runs=unreadable_runs,
        held=held,
        cwd=request.cwd,
        acceptable=lambda prefix: not is_banned(prefix),
    )
    return split, judgement


def program_outside(
    request: CommandRequest,
    split: Split,
    rules: RuleSet,
    *,
    opened: AddedPermissions = NO_PERMISSIONS,
) -> RealProgram:
    """
    Return what to execute for a command that a rule lets out of its sandbox.

    Blocks while it looks at files.

    Args:
        request: The command.
        split: What it was split into: a single segment.
        rules: All rules.
        opened: The permissions that commands have had beyond the sandbox.

    Raises:
        StaysInside: It has to stay in its sandbox; the text says why.
    """
    # Its prohibitions would be lifted as well.
    if denies_paths(request.sandbox):
        raise StaysInside("the profile denies paths")
    if request.variables is None:
        raise StaysInside("what its name stands for on another machine is not known")
    (words,) = split.segments
    # A path was compared with the rules already.
    listed = None if "/" in words[0] else rules.host_executables.get(words[0])
    return real_program(
        words,
        cwd=request.cwd,
        variables=request.variables,
        sandbox=with_permissions(request.sandbox, opened),
        listed=listed,
        tty=request.tty,
    )


def key_of(request: CommandRequest, split: Split) -> CommandKey:
    """Return what a command is remembered by, once it was accepted for the session."""
    argv = request.argv
    return CommandKey(
        environment_id=request.environment_id,
        executable=argv[0] if argv else "",
        command=canonical_command(argv, split.segments, plain=split.plain),
        cwd=request.cwd,
        tty=request.tty,
        sandbox_permissions=request.permissions or "use_default",
        permissions=request.added or NO_PERMISSIONS,
    )

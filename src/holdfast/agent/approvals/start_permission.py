"""
Requests to start commands, decisions about them, and permissions to start.

`ApprovalFlow` asks the approver, and turns a request into a `Clearance`.
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
    """A command may not run; the model reads the reason."""


class CommandDeclined(CommandRefused):
    """The approver declined a command."""


class EscalationRefused(HoldfastError):
    """A call may not request more permissions, or not these; the model reads the text."""


class InputRefused(HoldfastError):
    """Input may not be sent; the model reads the reason."""


class CallCancelled(HoldfastError):
    """The approver cancelled the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A request to start a command."""

    call_id: str
    environment_id: str
    argv: tuple[str, ...]
    cwd: str
    tty: bool = False
    sandbox: SandboxContext | None = None
    """The default sandbox of commands; None for no sandbox."""
    script: str | None = None
    """The script as the model wrote it."""
    shell: str | None = None
    """The path of the configured shell."""
    variables: Mapping[str, str] | None = None
    """
    Its variables on this machine; None if it runs elsewhere.

    Elsewhere, no rule lifts its sandbox, since the file behind its name cannot be checked.
    """
    permissions: SandboxPermissions | None = None
    """The sandbox that the call requests; None if not given."""
    added: AddedPermissions | None = None
    """The requested permissions beyond the sandbox. Paths are absolute."""
    justification: str | None = None
    prefix_rule: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputToSend:
    """Input for a command that runs outside the sandbox."""

    call_id: str
    environment_id: str
    session_id: int
    chars: str
    cwd: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """Permission to start exactly one command."""

    request: CommandRequest
    judgement: Judgement
    key: CommandKey
    digest: str
    """Identifies what may run; `verify` compares it."""
    sandbox: SandboxContext | None
    """The sandbox of this run."""
    program: RealProgram | None = None
    """The program to execute instead of the shell, if a rule permits it outside its sandbox."""
    left_sandbox: bool = False
    """True if it runs outside the sandbox of other commands."""
    approved: bool = False
    """True if the approver accepted it, now or for the session."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The argv to start."""
        return self.request.argv if self.program is None else self.program.argv

    def outside(self, sandbox: SandboxContext | None, *, was_restricted: bool) -> "Clearance":
        """
        Return the permission to start the same command outside its sandbox.

        Args:
            sandbox: The remaining sandbox; None for no sandbox.
            was_restricted: True if its sandbox restricted anything.
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
    """Return the commands in a request and the decision about them; see `decide`."""
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
    Return what to execute for a command that a rule permits outside its sandbox.

    Blocks while it accesses files.

    Args:
        request: The command.
        split: The commands in it: a single segment.
        rules: All rules.
        opened: All permissions that commands ever had beyond the sandbox.

    Raises:
        StaysInside: It has to stay in its sandbox; the text says why.
    """
    # Leaving the sandbox would also lift its prohibitions.
    if denies_paths(request.sandbox):
        raise StaysInside("the profile denies paths")
    if request.variables is None:
        raise StaysInside("what its name stands for on another machine is not known")
    (words,) = split.segments
    # A path was already compared with the rules.
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
    """Return the key by which an accepted command is remembered for the session."""
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

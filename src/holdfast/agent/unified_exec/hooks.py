"""
Hooks around the commands of a model: before a start, after a denial, around its network.

Approvals and network policies plug in here. The defaults allow everything and ask nobody.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments
from holdfast.backends import FileSystem
from holdfast.events import Verdict
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

# Only tools with approvals or patches load these modules.
if TYPE_CHECKING:
    from holdfast.agent.approvals.permissions import AddedPermissions
    from holdfast.agent.approvals.start_permission import Clearance
    from holdfast.agent.patching.commit import AnyPatchSandbox
    from holdfast.agent.patching.plan import PatchPlan

__all__ = [
    "Attempt",
    "DeniedAttempt",
    "Hooks",
    "InputRequest",
    "PatchRequest",
    "StartRequest",
    "checked_answer",
    "end_attempt",
]

logger = logging.getLogger(__name__)

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A command that is about to be started."""

    call_id: str
    session_id: int
    environment_id: str
    script: str
    """The text the model gave."""
    argv: tuple[str, ...]
    cwd: PathUri
    tty: bool
    env: dict[str, str]
    """Variables besides those it inherits."""
    sandbox: SandboxContext | None
    """Its sandbox; None for none."""
    arguments: ExecArguments
    """All arguments of the model, with its reasons and requested permissions."""
    shell: str | None = None
    """The path of the environment's own shell."""
    arg0: str | None = None
    """The name that the program sees itself called by; None for `argv[0]`."""
    is_local: bool = False
    """True if it runs on this machine, as a child of this process."""
    added: "AddedPermissions | None" = None
    """The additional permissions it asks for, with absolute paths."""
    cwd_missing: bool = False
    """True if it has a terminal and its directory does not exist: it runs in the home directory."""
    clearance: "Clearance | None" = field(default=None, repr=False)
    """The decision of approvals; None without approvals."""

    @property
    def left_sandbox(self) -> bool:
        """True if it runs outside of the sandbox that holds for other commands."""
        return self.clearance is not None and self.clearance.left_sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedAttempt:
    """A command that ended in its first call, and whose sandbox seems to be the cause."""

    request: StartRequest
    verdict: Verdict
    message: str
    """Its output, or its exit code if it wrote nothing."""
    seconds: float = 0.0
    """The time from its start to its end; 0 if it ended in the grace after the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest:
    """Input that is about to be sent to a command."""

    call_id: str
    """The id of the `write_stdin`."""
    chars: str
    """Not empty."""
    started: StartRequest
    """The command, as it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRequest:
    """A patch that fits its files and is about to be written, in place of a command."""

    command: StartRequest
    """The command that it was given as."""
    text: str
    """The patch."""
    plan: "PatchPlan"
    """The changes that it makes."""
    cwd: PathUri
    """The directory that its relative paths start from."""
    files: FileSystem
    """The file system that has the files."""
    tmpdir: str | None = None
    """The directory for temporary files there, if known."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One start of a command, from before its start to the end of everything about it."""

    request: StartRequest
    environment: dict[str, str] = field(default_factory=dict)
    """Variables to add for this start only, such as those of a proxy of its own."""
    fail: Callable[[str], None] = field(default=lambda reason: None)
    """
    Set by the tools once it runs: kills the command and gives a reason.

    The call in progress, or the next one, fails with that text.
    """


class Hooks:
    """
    Overridden by those who decide over commands. The methods may refuse.

    For every attempt that was begun, `attempt_ended` is called exactly once, however it
    ends: exit, failed start, prune, terminate, cancel, close.
    """

    late_denials: bool = False
    """
    True: `after_denial` is asked about all denials before the first call has answered.

    Otherwise only about those in the 150 ms after the start.
    """

    async def before_start(self, request: StartRequest) -> StartRequest:
        """
        Return the command as it may be started, for instance with another sandbox.

        Raises:
            CreateProcess: It may not; see `rejected_text`.
        """
        return request

    async def before_patch(self, request: PatchRequest) -> "AnyPatchSandbox":
        """
        Return the sandbox in which a patch may be written, or None for no sandbox.

        A patch that may change only some files outside the sandbox has `PatchSandboxes`.

        Unless this is overridden, `before_start` decides: who refuses a command refuses the
        patch that it is.

        Raises:
            CallRefused: It may not be written; the model reads the text.
            CreateProcess: As for `before_start`.
        """
        return (await self.before_start(request.command)).sandbox

    async def after_denial(self, denied: DeniedAttempt) -> StartRequest | None:
        """
        Return what to start instead, under the same id, or None to report the denial.

        Raises:
            CreateProcess: Somebody was asked and said no; see `rejected_text`.
        """
        return None

    async def before_input(self, request: InputRequest) -> None:
        """
        Decide about input before it is sent; polls are not asked about.

        Raises:
            CallRefused: It may not be sent; the model reads the text.
        """

    async def attempt_begins(self, request: StartRequest) -> Attempt:
        """Return what belongs to one start, for instance a network proxy of its own."""
        return Attempt(request=request)

    def attempt_ended(self, attempt: Attempt) -> None:
        """Let go of what `attempt_begins` made; must not wait, and what it raises is logged."""


def checked_answer(answer: object, kind: type[A], method: str) -> A:
    """
    Return what a hook has returned.

    Raises:
        TypeError: It is something else, such as None for a method without `return`.
    """
    if not isinstance(answer, kind):
        raise TypeError(f"the hook {method} returned {answer!r}, it must return {kind.__name__}")
    return answer


def end_attempt(hooks: Hooks, attempt: Attempt) -> None:
    """Tell hooks of the end of an attempt; their failure must not stop the end of a session."""
    try:
        hooks.attempt_ended(attempt)
    except Exception:
        logger.exception("a hook failed at the end of call %s", attempt.request.call_id)

"""
Hooks around the commands of a model: before starts, after denials, around network access.

Approvals and network policies plug in here. The defaults allow everything without asking.
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

# Only loaded for tools with approvals or patches.
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
    """A command that is about to start."""

    call_id: str
    session_id: int
    environment_id: str
    script: str
    """The script as the model wrote it."""
    argv: tuple[str, ...]
    cwd: PathUri
    tty: bool
    env: dict[str, str]
    """Variables in addition to inherited ones."""
    sandbox: SandboxContext | None
    """Its sandbox; None for no sandbox."""
    arguments: ExecArguments
    """All arguments of the model, including its justification and requested permissions."""
    shell: str | None = None
    """The path of the environment's default shell."""
    arg0: str | None = None
    """The name that the program receives as its own; None for `argv[0]`."""
    is_local: bool = False
    """True if it runs on this machine as a child of this process."""
    added: "AddedPermissions | None" = None
    """The requested additional permissions, with absolute paths."""
    cwd_missing: bool = False
    """True if it runs in the home directory, since it has a terminal and its own is missing."""
    clearance: "Clearance | None" = field(default=None, repr=False)
    """The decision of approvals; None without approvals."""

    @property
    def left_sandbox(self) -> bool:
        """True if it runs outside the sandbox of other commands."""
        return self.clearance is not None and self.clearance.left_sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedAttempt:
    """A command that ended during its first call, probably because its sandbox denied an access."""

    request: StartRequest
    verdict: Verdict
    message: str
    """Its output, or its exit code if there was no output."""
    seconds: float = 0.0
    """Seconds from its start to its end; 0 if it ended within the grace after the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest:
    """Input that is about to be sent to a command."""

    call_id: str
    """The id of the `write_stdin` call."""
    chars: str
    """Not empty."""
    started: StartRequest
    """The command as it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRequest:
    """A patch that matches its files and is about to be applied instead of running a command."""

    command: StartRequest
    """The command that contained it."""
    text: str
    """The patch."""
    plan: "PatchPlan"
    """Its changes."""
    cwd: PathUri
    """The directory for relative paths."""
    files: FileSystem
    """The file system with the files."""
    tmpdir: str | None = None
    """The directory for temporary files in that environment, if known."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One start of a command, from before the start until the session is released."""

    request: StartRequest
    environment: dict[str, str] = field(default_factory=dict)
    """Variables to add for this start only, such as those for a separate proxy."""
    fail: Callable[[str], None] = field(default=lambda reason: None)
    """
    Function to kill the command for a reason. The tools set it once the command runs.

    The call in progress, or else the next one, fails with that reason.
    """


class Hooks:
    """
    Base class for policies about commands. The methods may refuse.

    For each attempt that began, `attempt_ended` is called exactly once, however it ends: by exit,
    failed start, pruning, termination, cancellation or close.
    """

    late_denials: bool = False
    """
    If True, `after_denial` is called for all denials during the first call.

    Otherwise only for those within 150 ms after the start.
    """

    async def before_start(self, request: StartRequest) -> StartRequest:
        """
        Return the command to start, for instance with a different sandbox.

        Raises:
            CreateProcess: The command is refused; see `rejected_text`.
        """
        return request

    async def before_patch(self, request: PatchRequest) -> "AnyPatchSandbox":
        """
        Return the sandbox for writing a patch, or None for no sandbox.

        Return `PatchSandboxes` to allow only certain files outside the sandbox.

        By default `before_start` decides: refusing a command also refuses the patch in it.

        Raises:
            CallRefused: The patch is refused; the model reads the text.
            CreateProcess: As for `before_start`.
        """
        return (await self.before_start(request.command)).sandbox

    async def after_denial(self, denied: DeniedAttempt) -> StartRequest | None:
        """
        Return what to start instead, under the same id, or None to report the denial.

        Raises:
            CreateProcess: The approver declined; see `rejected_text`.
        """
        return None

    async def before_input(self, request: InputRequest) -> None:
        """
        Decide about input before it is sent. Not called for polls.

        Raises:
            CallRefused: The input is refused; the model reads the text.
        """

    async def attempt_begins(self, request: StartRequest) -> Attempt:
        """Return the resources for one start, for instance a separate network proxy."""
        return Attempt(request=request)

    def attempt_ended(self, attempt: Attempt) -> None:
        """Release the resources of `attempt_begins`. Must not wait; exceptions are logged."""


def checked_answer(answer: object, kind: type[A], method: str) -> A:
    """
    Return the answer of a hook, after checking its type.

    Raises:
        TypeError: It is of another type, such as None if the method lacks a `return`.
    """
    if not isinstance(answer, kind):
        raise TypeError(f"the hook {method} returned {answer!r}, it must return {kind.__name__}")
    return answer


def end_attempt(hooks: Hooks, attempt: Attempt) -> None:
    """Notify the hooks of the end of an attempt, and log their exceptions."""
    try:
        hooks.attempt_ended(attempt)
    except Exception:
        logger.exception("a hook failed at the end of call %s", attempt.request.call_id)

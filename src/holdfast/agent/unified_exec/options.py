"""Options of the tools."""

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import holdfast.agent.approvals as approvals_package
from holdfast.agent.unified_exec.text.truncate import DEFAULT_MODEL_POLICY, TruncationPolicy
from holdfast.agent.unified_exec.waiting.clock import LONGEST_POLL
from holdfast.base.errors import InvalidParams
from holdfast.environments.commands.arguments import as_names, as_variables
from holdfast.environments.limits import Limits
from holdfast.environments.sandbox import AnySandbox, as_profile

# Only loaded for programs with approvals.
if TYPE_CHECKING:
    from holdfast.agent.approvals.approval_options import Approvals

__all__ = ["LARGEST_IMAGE", "Background", "Options"]

LARGEST_IMAGE = 3_750_000
"""Most bytes of an image: 5 MB in base64, the lowest limit among large providers."""

Background = Literal["end", "keep"]
"""Handling of processes that a command leaves in its process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    Options of `UnifiedExec`; with the defaults, the tools are those that models know.

    Raises:
        InvalidParams: A value is invalid; the text names its option.
        TypeError: A value has the wrong type.
    """

    sandbox: AnySandbox | None = None
    """The sandbox of commands; by default that of the environment."""
    limits: Limits | None = None
    """Resource limits of each command; needs a Holdfast server, or this machine."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for all commands, in addition to inherited ones."""
    unset: Sequence[str] = ()
    """Names of variables to remove; needs a Holdfast server, or this machine."""
    model_policy: TruncationPolicy = DEFAULT_MODEL_POLICY
    """Limit on the output in one answer, regardless of the call."""
    longest_poll: float = LONGEST_POLL
    """Most seconds that an empty `write_stdin` may wait; at least 5."""
    longest_call: float | None = None
    """
    Most seconds that any call waits, regardless of its arguments.

    This limit keeps running while an approver is asked about another call; other clocks stop.
    """
    allow_login_shell: bool = True
    """If False, commands run without a login shell, and a call that requests one is refused."""
    background: Background = "end"
    """Handling of processes in a command's group when its end is reported."""
    shell_snapshot: bool = False
    """
    Run the startup files of a login shell once, and reuse the result.

    Needs a server that supports shell snapshots, or this machine.
    """
    thread_id: str | None = None
    """The id of the conversation, a UUID; random by default."""
    counted_ids: bool = False
    """Number the sessions 1000, 1001, … instead of at random, for tests."""
    extras: bool = False
    """Offer our own additions: `wait_for`, `head`, `tail`, `grep`, `read_output`."""
    notes: bool = False
    """Show notes in the text of results: sentences about what happened and what to do."""
    write_advice: str = "only the user can allow it"
    """The end of a note about a denied file if no call can request access."""
    view_image: bool = False
    """Offer the tool `view_image`, for models that accept images."""
    largest_image: int = LARGEST_IMAGE
    """Most bytes of an image for `view_image`."""
    patches: bool = True
    """Apply commands that call `apply_patch`; if False, run them like any other."""
    pause_for_questions: bool = True
    """Stop the clocks of all calls while an approver is asked; if False, only the asking call's."""
    approvals: "Approvals | None" = None
    """Decides which commands may run and who is asked; None allows all commands."""

    def __post_init__(self) -> None:
        for name in (
            "allow_login_shell",
            "shell_snapshot",
            "counted_ids",
            "extras",
            "notes",
            "view_image",
            "patches",
            "pause_for_questions",
        ):
            _check_type(name, getattr(self, name), bool)
        _check_type("limits", self.limits, Limits, None)
        if self.approvals is not None:
            # The package loads it on first use.
            _check_type("approvals", self.approvals, approvals_package.Approvals, None)
        _check_type("model_policy", self.model_policy, TruncationPolicy)
        policy = self.model_policy
        _check_type("model_policy.number", policy.number, int)
        if policy.unit not in ("tokens", "bytes") or policy.number < 0:
            raise InvalidParams(
                f"model_policy is {policy!r}, it must be a number of `tokens` or `bytes`"
            )
        _check_type("write_advice", self.write_advice, str)
        _check_type("largest_image", self.largest_image, int)
        if self.largest_image <= 0:
            raise InvalidParams(f"largest_image is {self.largest_image!r}, it must be in bytes")
        if self.sandbox is not None:
            # Otherwise the model would get the error for an unknown name, in every call.
            as_profile(self.sandbox)
        as_variables(self.env)
        as_names(self.unset)
        if self.background not in get_args(Background):
            raise InvalidParams(f"background is {self.background!r}, it must be `end` or `keep`")
        _check_type("longest_poll", self.longest_poll, int, float)
        if not (self.longest_poll >= 0 and math.isfinite(self.longest_poll)):
            raise InvalidParams(f"longest_poll is {self.longest_poll!r}, it must be in seconds")
        _check_type("longest_call", self.longest_call, int, float, None)
        if self.longest_call is not None and not 0 < self.longest_call < math.inf:
            raise InvalidParams(f"longest_call is {self.longest_call!r}, it must be in seconds")
        _check_type("thread_id", self.thread_id, str, None)
        if self.thread_id is not None:
            try:
                uuid.UUID(self.thread_id)
            except ValueError:
                raise InvalidParams(f"thread_id is {self.thread_id!r}, it must be a UUID") from None


def _check_type(name: str, value: object, *kinds: type | None) -> None:
    if not isinstance(value, tuple(type(None) if kind is None else kind for kind in kinds)):
        expected = " or ".join("None" if kind is None else kind.__name__ for kind in kinds)
        raise TypeError(f"{name} is {value!r}, it must be {expected}")

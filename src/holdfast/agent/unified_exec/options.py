"""Choices of the owner of the tools."""

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

# Only programs with approvals load this module.
if TYPE_CHECKING:
    from holdfast.agent.approvals.approval_options import Approvals

__all__ = ["LARGEST_IMAGE", "Background", "Options"]

LARGEST_IMAGE = 3_750_000
"""Bytes of an image: 5 MB in base64, the least that any of the large providers takes."""

Background = Literal["end", "keep"]
"""Treatment of processes that a command left in its process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    Options of `UnifiedExec`; with the defaults the tools are as models know them.

    Raises:
        InvalidParams: A value makes no sense; the text names its option.
        TypeError: A value is of a wrong type.
    """

    sandbox: AnySandbox | None = None
    """The sandbox of commands; by default that of the environment."""
    limits: Limits | None = None
    """Resource limits of each command; needs a Holdfast server, or this machine."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for all commands, besides those they inherit."""
    unset: Sequence[str] = ()
    """Names of variables that no command gets; needs a Holdfast server, or this machine."""
    model_policy: TruncationPolicy = DEFAULT_MODEL_POLICY
    """Limit on the output in one answer, whatever a call asks for."""
    longest_poll: float = LONGEST_POLL
    """Seconds an empty `write_stdin` may wait at most; never below 5."""
    longest_call: float | None = None
    """
    Seconds that any call waits at most, whatever it asks for.

    They run on while somebody is asked about another call, when other clocks stand still.
    """
    allow_login_shell: bool = True
    """False: commands run without login shell, and a call that wants one is refused."""
    background: Background = "end"
    """Treatment of processes that a command left in its group, when its end is reported."""
    shell_snapshot: bool = False
    """
    Run the start files of a login shell once, and reuse what they set up.

    Needs a server that knows shell snapshots, or this machine.
    """
    thread_id: str | None = None
    """The id of the conversation, a UUID; made up unless given."""
    counted_ids: bool = False
    """Number the sessions 1000, 1001, … instead of at random, for tests."""
    extras: bool = False
    """Offer our own additions: `wait_for`, `head`, `tail`, `grep`, `read_output`."""
    notes: bool = False
    """Show notes in the text of results: what happened and what to do, in a sentence each."""
    write_advice: str = "only the user can allow it"
    """The end of a note on a denied file, where no call can ask for it."""
    view_image: bool = False
    """Offer the tool `view_image`, for models that take images."""
    largest_image: int = LARGEST_IMAGE
    """Bytes of an image that `view_image` shows."""
    patches: bool = True
    """Apply a command that is an `apply_patch` call; False runs it like any other."""
    pause_for_questions: bool = True
    """Stop the clocks of all calls while somebody is asked; False: only the one that asks waits."""
    approvals: "Approvals | None" = None
    """Decides which commands may run, and who is asked; None allows all of them."""

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
            # Loaded on first use by its package.
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
            # A wrong name would otherwise be told to the model, with every call.
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

"""What the owner of the tools can choose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from holdfast.environments.limits import Limits
from holdfast.environments.sandbox import AnySandbox
from holdfast.unified_exec.collect import LONGEST_POLL
from holdfast.unified_exec.truncate import DEFAULT_MODEL_POLICY, TruncationPolicy

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `UnifiedExec`; the defaults are those of Codex 0.166.0."""

    sandbox: AnySandbox | None = None
    """What commands may touch and reach; unless given, what the environment says."""
    limits: Limits | None = None
    """What each command may use; needs a Holdfast server, or this machine."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for all commands, besides those they inherit."""
    unset: Sequence[str] = ()
    """Names of variables that no command gets; needs a Holdfast server, or this machine."""
    model_policy: TruncationPolicy = DEFAULT_MODEL_POLICY
    """How much output the model takes in one answer, whatever a call asks for."""
    longest_poll: float = LONGEST_POLL
    """Seconds an empty `write_stdin` may wait at most; never below 5."""
    allow_login_shell: bool = True
    """False: commands run without login shell, and a call that wants one is refused."""
    background: Literal["end", "keep"] = "end"
    """What happens to processes a command left in its group when its end is reported."""
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
    """Offer what Codex does not have: `wait_for`, `head`, `tail`, `grep`, `read_output`."""

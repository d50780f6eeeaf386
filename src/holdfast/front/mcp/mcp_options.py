"""Choices of whoever starts the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from holdfast.environments.sandbox import AnySandbox, also_writing

__all__ = [
    "HTTP_IMAGE",
    "KEEP",
    "LARGEST_IMAGE",
    "MAX_WAIT",
    "PROFILES",
    "OnCancel",
    "ServerOptions",
    "environment_profile",
]

PROFILES: Final = ("danger-full-access", "workspace-write", "read-only")
"""The sandboxes that have a name."""

MAX_WAIT: Final = 50.0
"""Seconds that a call may last: most clients give one up after 60."""

KEEP: Final = 1_800.0
"""Seconds that the sessions of an HTTP client outlive its last request."""

LARGEST_IMAGE: Final = 3_750_000
"""Bytes of an image on standard streams, as in `unified_exec`."""

HTTP_IMAGE: Final = 750_000
"""Bytes of an image over HTTP: clients of the SDK take 1 MiB at once, and base64 adds a third."""

OnCancel: TypeAlias = Literal["stop", "keep"]
"""Treatment of the command of a cancelled `exec_command`."""


def environment_profile(sandbox: str, write: Sequence[str] = ()) -> AnySandbox:
    """
    Return a sandbox as environments know it.

    Args:
        sandbox: One of `PROFILES`, or the path of a profile.
        write: Further paths that it lets be written.

    Raises:
        InvalidParams: Nothing can be added to it.
    """
    return also_writing("disabled" if sandbox == "danger-full-access" else sandbox, write)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of the server: environment, sandbox, approvals."""

    environment: str | None = None
    """A name, `ssh://HOST` or the URL of an exec-server; by default this machine."""
    cwd: str | None = None
    """The directory of the commands; that of the server unless given."""
    wide_workspace: str | None = None
    """The workspace and what it is, if it is more than a project, such as a home."""
    sandbox: str = "workspace-write"
    """`danger-full-access`, `workspace-write`, `read-only`, or the path of a profile."""
    sandbox_write: Sequence[str] = ()
    """Further paths that the sandbox lets be written; relative ones are in the workspace."""
    ask_for_approval: str = "on-request"
    """`never`, or `on-request`: what is asked about is put to the client."""
    ask_after_denial: bool = False
    """True: a command that its sandbox denied something is asked about, and may run again."""
    rules: Sequence[str] = ()
    """Rules files, besides those of the home of Holdfast and of the directory."""
    rules_leave_sandbox: bool = False
    """True: what rules allow runs without a sandbox."""
    max_wait: float = MAX_WAIT
    """Seconds that a call may last, without the time in which somebody is asked."""
    on_cancel: OnCancel = "stop"
    """`stop` interrupts the command and kills it after 2 s; `keep` lets it run on."""
    notes: bool = True
    """Begin the text of a result with notes: what happened, and what to do about it."""
    largest_image: int = LARGEST_IMAGE
    """Bytes of an image that `view_image` shows."""
    keep: float = KEEP
    """Seconds that sessions outlive the last request of an HTTP client."""

    @property
    def profile(self) -> AnySandbox:
        """The sandbox as environments know it."""
        return environment_profile(self.sandbox, self.sandbox_write)

    @property
    def asks_nobody(self) -> bool:
        """True if nobody can let a command out of its sandbox."""
        return self.ask_for_approval == "never"

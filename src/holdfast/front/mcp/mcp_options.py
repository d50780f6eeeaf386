"""Options of the MCP server."""

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
"""Named sandboxes."""

MAX_WAIT: Final = 50.0
"""Maximum seconds of a call: most clients time out after 60."""

KEEP: Final = 1_800.0
"""Seconds that sessions of an HTTP client outlive its last request."""

LARGEST_IMAGE: Final = 3_750_000
"""Maximum bytes of an image on standard streams, as in `unified_exec`."""

HTTP_IMAGE: Final = 750_000
"""Maximum bytes of an image over HTTP: SDK clients accept 1 MiB, and base64 adds a third."""

OnCancel: TypeAlias = Literal["stop", "keep"]
"""Treatment of the command of a cancelled `exec_command`."""


def environment_profile(sandbox: str, write: Sequence[str] = ()) -> AnySandbox:
    """
    Return a sandbox in the form for environments.

    Args:
        sandbox: One of `PROFILES`, or the path of a profile.
        write: Further writable paths.

    Raises:
        InvalidParams: Paths cannot be added to it.
    """
    return also_writing("disabled" if sandbox == "danger-full-access" else sandbox, write)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of the server: environment, sandbox, approvals."""

    environment: str | None = None
    """A name, `ssh://HOST` or the URL of an exec-server; by default this machine."""
    cwd: str | None = None
    """Directory of the commands; by default that of the server."""
    wide_workspace: str | None = None
    """The workspace and what it is, if it is wider than a project, such as a home."""
    sandbox: str = "workspace-write"
    """`danger-full-access`, `workspace-write`, `read-only`, or the path of a profile."""
    sandbox_write: Sequence[str] = ()
    """Further writable paths; relative ones are in the workspace."""
    ask_for_approval: str = "on-request"
    """`never`, or `on-request` to ask the client for approvals."""
    ask_after_denial: bool = False
    """True to ask whether to rerun a command without the sandbox that denied it access."""
    rules: Sequence[str] = ()
    """Rules files, in addition to those in Holdfast's home and in the directory."""
    rules_leave_sandbox: bool = False
    """True to run commands that rules allow without a sandbox."""
    max_wait: float = MAX_WAIT
    """Maximum seconds of a call, not counting questions to the user."""
    on_cancel: OnCancel = "stop"
    """`stop` interrupts the command and kills it after 2 s; `keep` lets it continue."""
    notes: bool = True
    """True to begin the text of a result with notes on what happened and what to do."""
    largest_image: int = LARGEST_IMAGE
    """Maximum bytes of an image for `view_image`."""
    keep: float = KEEP
    """Seconds that sessions of an HTTP client outlive its last request."""

    @property
    def profile(self) -> AnySandbox:
        """The sandbox in the form for environments."""
        return environment_profile(self.sandbox, self.sandbox_write)

    @property
    def asks_nobody(self) -> bool:
        """True if commands can never leave their sandbox."""
        return self.ask_for_approval == "never"

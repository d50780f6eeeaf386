"""
The seam between the meaning of a profile and its enforcement.

`sandbox.profile` and `sandbox.policy` say what a command may do. An `Enforcer` enforces that on
this machine. Bubblewrap is included (`sandbox.bubblewrap`); `sandbox.factory` chooses it. Another
one only needs its own module.

File operations (`fs/*`) need no enforcer: `filesystem.sandboxed` compares each path with the
policy.
"""

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Protocol

import msgspec

from holdfast.engine.process.sandbox_source import CommandSandbox
from holdfast.engine.sandbox.policy.policy import Policy

__all__ = ["Enforcer", "IsolationLevel", "SandboxSupport"]


class IsolationLevel(StrEnum):
    """Degree of isolation that this machine supports."""

    FULL = "full"
    """All that a profile may ask for."""
    WITHOUT_PROC = "withoutProc"
    """The same with an empty `/proc`, since a new one cannot be mounted here."""
    NONE = "none"
    """No isolation: profiles that need it are refused."""


class SandboxSupport(msgspec.Struct, frozen=True, kw_only=True):
    """Isolation that this machine supports, with the reason if it is not the highest level."""

    isolation: IsolationLevel
    enforced_by: str = ""
    """Name and version of the program that enforces profiles, for people."""
    problem: str | None = None
    """Reason why it is not the highest level, and what to change."""
    gaps: tuple[str, ...] = ()
    """Gaps of every sandbox on this machine, whatever its profile."""


class Enforcer(Protocol):
    """
    Enforces policies on the commands of this machine.

    A policy is enforced wholly or refused: no command runs with less isolation than requested.
    Inherit from this class to reuse the methods that have a body.
    """

    def probe(self) -> SandboxSupport:
        """
        Return what can be enforced here, after trying it. Called once, in a thread, before `open`.

        Raises:
            OSError: This process has no descriptor or no memory left; the next start tries again.
        """
        ...

    def planning(self) -> AbstractContextManager[None]:
        """
        Return a block in which a policy is made from the disk and opened.

        For an enforcer that changes the disk: within the block it must not undo a change, which
        the policy may have seen.
        """
        return nullcontext()

    def open(self, policy: Policy, *, gaps: tuple[str, ...] = ()) -> CommandSandbox:
        """
        Return a sandbox for a policy that isolates something.

        Args:
            policy: The files and the network that its commands may use.
            gaps: Known gaps to report in addition to its own.

        Raises:
            CannotEnforce: This policy cannot be enforced.
            SpawnFailed: The sandbox cannot be prepared.
        """
        ...

"""The versions of Codex whose behaviour this package follows."""

from typing import Literal

__all__ = ["FOLLOWED", "Compat"]

FOLLOWED = "0.169.0"
"""
Announced by servers as `executorVersion`, and to the commands of a model as `CODEX_VERSION`.

Nothing may depend on the version of a peer: a server cannot tell it. Each rule is chosen so that
it is right for every version that is still in use, of which 0.166.0 is the oldest.
"""

Compat = Literal["codex-0.166.0"]
"""A server whose `command/exec` can be imitated to the letter instead of the better default."""

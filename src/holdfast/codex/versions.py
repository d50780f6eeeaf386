"""The versions of Codex whose behaviour this package follows."""

from typing import Literal

__all__ = ["FOLLOWED", "Compat"]

FOLLOWED = "0.169.0"
"""
Servers announce it as `executorVersion`, and commands of a model get it as `CODEX_VERSION`.

Nothing may depend on the version of a peer, which a server cannot know. Each rule is right for
every version still in use, of which 0.166.0 is the oldest.
"""

Compat = Literal["codex-0.166.0"]
"""A server whose `command/exec` can be imitated exactly, instead of the better default."""

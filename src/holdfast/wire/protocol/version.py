"""The version of Codex whose behaviour this package follows."""

__all__ = ["CODEX_VERSION"]

CODEX_VERSION = "0.169.0"
"""
Announced by servers as `executorVersion`, and to the commands of a model as `CODEX_VERSION`.

Nothing may depend on the version of a peer: the rules are the same for all of them.
"""

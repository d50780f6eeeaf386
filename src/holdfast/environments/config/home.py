"""
Where a default environment may be written down: a file in a home, or a variable.

Small on purpose: every `holdfast run` looks here whether there is more to read.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = [
    "FILE_NAME",
    "NOISE_VARIABLES",
    "TOKEN_VARIABLE",
    "URL_VARIABLES",
    "codex_home",
    "holdfast_home",
    "is_configured",
]

FILE_NAME: Final = "environments.toml"
"""In a home of Codex or of ours."""

URL_VARIABLES: Final = ("HOLDFAST_EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL")
"""The first one that is set, and not blank, counts."""

TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"  # noqa: S105 - its name, not a token
"""The token for the server that a variable or `--url` names."""

NOISE_VARIABLES: Final = (
    "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL",
    "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Return False if nothing names an environment: then this machine is the only one."""
    if any(environ.get(name, "").strip() for name in (*URL_VARIABLES, *NOISE_VARIABLES)):
        return True
    # A link to nowhere is a mistake to be told, not a missing file.
    return os.path.lexists(holdfast_home(environ) / FILE_NAME)


def holdfast_home(environ: Mapping[str, str]) -> Path:
    """Our own home: `$HOLDFAST_HOME`, else `holdfast` in the user's folder for configuration."""
    home = environ.get("HOLDFAST_HOME")
    if home:
        return Path(home)
    folder = environ.get("XDG_CONFIG_HOME", "")
    # A relative one is to be ignored, says the XDG specification.
    base = Path(folder) if os.path.isabs(folder) else _user_home(environ) / ".config"
    return base / "holdfast"


def codex_home(environ: Mapping[str, str]) -> Path:
    """Codex's home: `$CODEX_HOME`, else `~/.codex`."""
    home = environ.get("CODEX_HOME")
    return Path(home) if home else _user_home(environ) / ".codex"


def _user_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))

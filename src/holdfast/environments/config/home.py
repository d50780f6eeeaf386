"""
Locations that configure the default environment: a file in a home directory, or a variable.

Small on purpose: every `holdfast run` imports it to find out whether anything is configured.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.base.dialect import names
from holdfast.base.own_files import holdfast_home, user_home
from holdfast.wire.protocol.secret_variables import TOKEN_VARIABLE

__all__ = [
    "FILE_NAME",
    "NOISE_VARIABLES",
    "TOKEN_VARIABLE",
    "URL_VARIABLES",
    "codex_home",
    "environments_file",
    "holdfast_home",
    "ignored_variable",
    "is_configured",
]

FILE_NAME: Final = "environments.toml"
"""Name of the file, in our home or in that of another program."""

URL_VARIABLES: Final = ("HOLDFAST_EXEC_SERVER_URL", names.URL_VARIABLE)
"""Variables that name a server; the first one that is not blank applies."""

NOISE_VARIABLES: Final = names.NOISE_VARIABLES


def is_configured(environ: Mapping[str, str]) -> bool:
    """Return False if this machine is the only environment."""
    if any(environ.get(name, "").strip() for name in (*URL_VARIABLES, *NOISE_VARIABLES)):
        return True
    # `lexists`, so that a dangling link is reported as a mistake.
    return os.path.lexists(environments_file(environ))


def ignored_variable(environ: Mapping[str, str]) -> str | None:
    """Return the name of a URL variable that the file overrides, or None."""
    if not os.path.lexists(environments_file(environ)):
        return None
    return next((name for name in URL_VARIABLES if environ.get(name, "").strip()), None)


def environments_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the file that configures environments in Holdfast's home."""
    return holdfast_home(environ) / FILE_NAME


def codex_home(environ: Mapping[str, str]) -> Path:
    """Return the home of Codex: `$CODEX_HOME`, else `~/.codex`."""
    home = environ.get(names.HOME_VARIABLE)
    return Path(home) if home else user_home(environ) / names.HOME_DIRECTORY

"""
Where environments come from: a variable, a file, or the program itself (environments spec 2).

The first source that applies is the only one; nothing is merged.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.environments.config import file as config
from holdfast.environments.config.snapshot import (
    REMOTE,
    Entry,
    EnvironmentProvider,
    ServerUrl,
    Snapshot,
)
from holdfast.errors import InvalidConfig

__all__ = [
    "NOISE_VARIABLES",
    "URL_VARIABLES",
    "FileProvider",
    "GivenProvider",
    "UrlProvider",
    "codex_home",
    "holdfast_home",
    "provider_from_env",
]

URL_VARIABLES: Final = ("HOLDFAST_EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL")
"""The first one that is set, and not blank, counts."""

NOISE_VARIABLES: Final = (
    "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL",
    "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
)


class GivenProvider:
    """Environments that the program itself names."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        return self._snapshot


class UrlProvider:
    """One server by the value of a variable, which is not looked at more closely than needed."""

    def __init__(self, value: str | None) -> None:
        """
        Args:
            value: A URL; nothing or blanks for this machine, `none` for no environment.
        """
        self._url = (value or "").strip()

    def snapshot(self) -> Snapshot:
        if not self._url:
            return Snapshot()
        if self._url.lower() == "none":
            return Snapshot(include_local=False, default=None)
        entry = Entry(id=REMOTE, transport=ServerUrl(url=self._url))
        return Snapshot(entries=(entry,), include_local=False, default=REMOTE)


class FileProvider:
    """The environments of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def snapshot(self) -> Snapshot:
        return config.load(self.path)


def provider_from_env(environ: Mapping[str, str], home: Path) -> EnvironmentProvider:
    """
    The source that applies: Noise variables, then the file of a home, then a URL variable.

    Raises:
        InvalidConfig: The Noise variables are set, all or some of them.
    """
    _refuse_noise(environ)
    path = home / config.FILE_NAME
    if os.path.lexists(path):  # a link to nowhere is a mistake to be told, not a missing file
        return FileProvider(path)
    values = (environ.get(name, "") for name in URL_VARIABLES)
    return UrlProvider(next((value for value in values if value.strip()), None))


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


def _refuse_noise(environ: Mapping[str, str]) -> None:
    named = [name for name in NOISE_VARIABLES if environ.get(name, "").strip()]
    if not named:
        return
    if len(named) < len(NOISE_VARIABLES):
        first, second, third = NOISE_VARIABLES
        raise InvalidConfig(
            "environment registry configuration error:"
            f" Noise environment requires {first}, {second}, and {third}",
            "Holdfast cannot use this transport: unset them",
        )
    raise InvalidConfig(
        "environment registry configuration error:"
        " Holdfast does not support environments behind a Noise relay",
        f"unset {', '.join(named)}, and name a server with {URL_VARIABLES[0]} or in"
        f" `{config.FILE_NAME}`",
    )

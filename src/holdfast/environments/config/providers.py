"""
Where environments come from: a variable, a file, or the program itself [environments.sources].

The first source that applies is the only one; nothing is merged.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.environments.config import file as config
from holdfast.environments.config.home import (
    FILE_NAME,
    NOISE_VARIABLES,
    TOKEN_VARIABLE,
    URL_VARIABLES,
    codex_home,
    holdfast_home,
)
from holdfast.environments.config.snapshot import (
    REMOTE,
    Entry,
    EnvironmentProvider,
    ServerUrl,
    Snapshot,
)
from holdfast.environments.config.urls import check_token
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


class GivenProvider:
    """Environments that the program itself names."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        return self._snapshot


class UrlProvider:
    """One server by the value of a variable, which is not looked at more closely than needed."""

    def __init__(self, value: str | None, token: str | None = None) -> None:
        """
        Args:
            value: A URL; nothing or blanks for this machine, `none` for no environment.
            token: For a server with a `ws` URL that wants one.
        """
        self._url = (value or "").strip()
        self._token = token if self._url.startswith(("ws://", "wss://")) else None

    def snapshot(self) -> Snapshot:
        if not self._url:
            return Snapshot()
        if self._url.lower() == "none":
            return Snapshot(include_local=False, default=None)
        if self._token is not None:
            check_token(self._url, self._token)
        entry = Entry(id=REMOTE, transport=ServerUrl(url=self._url, bearer_token=self._token))
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
    path = home / FILE_NAME
    if os.path.lexists(path):  # a link to nowhere is a mistake to be told, not a missing file
        return FileProvider(path)
    values = (environ.get(name, "") for name in URL_VARIABLES)
    url = next((value for value in values if value.strip()), None)
    return UrlProvider(url, environ.get(TOKEN_VARIABLE) or None)


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
        f"unset {', '.join(named)}, and name a server with {URL_VARIABLES[0]} or in `{FILE_NAME}`",
    )

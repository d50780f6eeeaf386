"""
Sources of environments: a variable, a file, or the program [environments.sources].

The first source that applies is used alone; sources are not merged.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.errors import InvalidConfig
from holdfast.base.own_files import keep_unchanged
from holdfast.base.url_schemes import scheme_of
from holdfast.environments.config import config_file as config
from holdfast.environments.config.home import (
    FILE_NAME,
    NOISE_VARIABLES,
    TOKEN_VARIABLE,
    URL_VARIABLES,
)
from holdfast.environments.config.server_urls import check_token
from holdfast.environments.config.snapshot import (
    REMOTE,
    ConfiguredEnvironments,
    Entry,
    EnvironmentProvider,
    ServerUrl,
)

__all__ = [
    "FileProvider",
    "GivenProvider",
    "UrlProvider",
    "provider_from_env",
]


class GivenProvider:
    """Environments given by the program."""

    def __init__(self, snapshot: ConfiguredEnvironments) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> ConfiguredEnvironments:
        return self._snapshot


class UrlProvider:
    """One server, named by a variable."""

    def __init__(self, value: str | None, token: str | None = None) -> None:
        """
        Args:
            value: A URL; None or blanks for this machine, `none` for no environment.
            token: For a server with a `ws` URL that requires one.
        """
        self._url = (value or "").strip()
        scheme = scheme_of(self._url)
        self._token = token if scheme is not None and scheme.takes_token else None

    def snapshot(self) -> ConfiguredEnvironments:
        if not self._url:
            return ConfiguredEnvironments()
        if self._url.lower() == "none":
            return ConfiguredEnvironments(include_local=False, default=None)
        if self._token is not None:
            check_token(self._url, self._token)
        entry = Entry(id=REMOTE, transport=ServerUrl(url=self._url, bearer_token=self._token))
        return ConfiguredEnvironments(entries=(entry,), include_local=False, default=REMOTE)


class FileProvider:
    """Environments of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def snapshot(self) -> ConfiguredEnvironments:
        return config.load(self.path)


def provider_from_env(environ: Mapping[str, str], home: Path) -> EnvironmentProvider:
    """
    Return the source that applies: Noise variables, then the file in `home`, then a URL
    variable.

    Raises:
        InvalidConfig: Noise variables are set; Holdfast does not support Noise.
    """
    _refuse_noise(environ)
    path = home / FILE_NAME
    keep_unchanged(path, folder=True)
    # `lexists`, so that a dangling link is reported as a mistake.
    if os.path.lexists(path):
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
        f"unset {', '.join(named)}, and set a server by {URL_VARIABLES[0]} or in `{FILE_NAME}`",
    )

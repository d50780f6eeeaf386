"""Configured environments: ids, addresses and the default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from holdfast.environments import LOCAL

__all__ = [
    "DEFAULT_TIMEOUT",
    "LOCAL",
    "REMOTE",
    "ConfiguredEnvironments",
    "Entry",
    "EnvironmentProvider",
    "ServerUrl",
    "ServingProgram",
]

REMOTE: Final = "remote"
"""Id of the environment that a variable defines."""

DEFAULT_TIMEOUT: Final = 10.0
"""Seconds for the connection, and separately for the handshake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrl:
    """A server that listens."""

    url: str
    bearer_token: str | None = field(default=None, repr=False)
    connect_timeout: float = DEFAULT_TIMEOUT
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProgram:
    """A program that serves on its standard streams; started without a shell."""

    program: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to those of this process."""
    cwd: str | None = None
    """Its working directory; in a file, a relative one starts at the directory of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One configured environment."""

    id: str
    transport: ServerUrl | ServingProgram
    initialize_timeout: float = DEFAULT_TIMEOUT
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredEnvironments:
    """All configured environments, in order."""

    entries: tuple[Entry, ...] = ()
    include_local: bool = True
    default: str | None = LOCAL
    """Id of the default environment, or None."""

    @property
    def ids(self) -> list[str]:
        """The ids in order, `local` first."""
        return [LOCAL] * self.include_local + [entry.id for entry in self.entries]

    def entry(self, environment_id: str) -> Entry | None:
        """Return the entry of an id, or None."""
        return next((entry for entry in self.entries if entry.id == environment_id), None)


class EnvironmentProvider(Protocol):
    """A source of environments; read once at the start, without connecting."""

    def snapshot(self) -> ConfiguredEnvironments:
        """
        Return the environments.

        Raises:
            InvalidConfig: The configuration is invalid.
        """

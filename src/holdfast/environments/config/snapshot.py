"""What is configured before anything is connected: names, how each is reached, and a default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

__all__ = [
    "DEFAULT_TIMEOUT",
    "LOCAL",
    "REMOTE",
    "Entry",
    "EnvironmentProvider",
    "ServerUrl",
    "ServingProgram",
    "Snapshot",
]

LOCAL: Final = "local"
"""The id of the environment in this process."""

REMOTE: Final = "remote"
"""The id of the only environment that a variable can name."""

DEFAULT_TIMEOUT: Final = 10.0
"""Seconds, for the connection and for the handshake, each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrl:
    """A server that listens."""

    url: str
    bearer_token: str | None = field(default=None, repr=False)
    connect_timeout: float = DEFAULT_TIMEOUT
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProgram:
    """A program that serves on its standard streams, started without a shell."""

    program: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own."""
    cwd: str | None = None
    """Where it is started; in a file a relative one is below the folder of that file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One environment by its id."""

    id: str
    transport: ServerUrl | ServingProgram
    initialize_timeout: float = DEFAULT_TIMEOUT
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All environments there are at the start, in order."""

    entries: tuple[Entry, ...] = ()
    include_local: bool = True
    default: str | None = LOCAL
    """The id of one of them, or `None`."""

    @property
    def ids(self) -> list[str]:
        """The ids in order, `local` first."""
        return [LOCAL] * self.include_local + [entry.id for entry in self.entries]

    def entry(self, environment_id: str) -> Entry | None:
        """The entry of an id, if there is one."""
        return next((entry for entry in self.entries if entry.id == environment_id), None)


class EnvironmentProvider(Protocol):
    """Says once, at the start, which environments there are; connects to nothing."""

    def snapshot(self) -> Snapshot:
        """
        Look which there are.

        Raises:
            InvalidConfig: What is written down cannot be used.
        """

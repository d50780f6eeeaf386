"""The environments of a program by id, and the default one [environments.*]."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.base.errors import InvalidConfig, InvalidRequest
from holdfast.base.late_import import late_module
from holdfast.base.suggestions import listed
from holdfast.base.tasks import OwnedTasks
from holdfast.environments.config.home import codex_home, holdfast_home
from holdfast.environments.config.providers import provider_from_env
from holdfast.environments.config.server_urls import check_token
from holdfast.environments.config.snapshot import (
    DEFAULT_TIMEOUT,
    LOCAL,
    Entry,
    EnvironmentProvider,
    ServerUrl,
)
from holdfast.environments.environment import Environment, Status
from holdfast.environments.local_environment import LocalEnvironment

if TYPE_CHECKING:
    from holdfast.environments import remote
else:
    # Imports the client, 18 modules; most programs run all commands on this machine.
    remote = late_module("holdfast.environments.remote")

__all__ = ["EnvironmentManager"]


class EnvironmentManager:
    """
    The environments of a program. As a context manager, it closes all of them.

    Servers with a URL are connected in the background at once; serving commands are started on
    first use. A manager belongs to the event loop in which it was created.
    """

    def __init__(self, provider: EnvironmentProvider) -> None:
        """
        Take the environments of a provider.

        Raises:
            InvalidConfig: The configuration is invalid.
        """
        snapshot = provider.snapshot()
        # Unlike the file, a user's own provider has not been checked.
        if snapshot.default is not None and snapshot.default not in snapshot.ids:
            raise InvalidConfig(f"default environment `{snapshot.default}` is not configured")
        self.default_id = snapshot.default
        """Id of the default environment; adding environments does not change it."""
        self._environments: dict[str, Environment] = {}
        # Replaced environments that are still being closed.
        self._replaced: set[Environment] = set()
        self._tasks = OwnedTasks()
        self._closed = False
        if snapshot.include_local:
            self._environments[LOCAL] = LocalEnvironment()
        for entry in snapshot.entries:
            self._add(entry)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, *, home: Path | None = None
    ) -> Self:
        """
        Return a manager with the environments that the variables or the file configure, by default
        only this machine.

        Args:
            environ: Variables, by default those of this process.
            home: Directory of `environments.toml`; by default `$HOLDFAST_HOME`, or `holdfast`
                in the user's configuration directory.

        Raises:
            InvalidConfig: The configuration is invalid.
        """
        environ = os.environ if environ is None else environ
        return cls(provider_from_env(environ, home or holdfast_home(environ)))

    @classmethod
    def from_codex_home(
        cls, home: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Self:
        """
        Return a manager with the file in `$CODEX_HOME`, by default in the user's own; see
        `from_env`.
        """
        environ = os.environ if environ is None else environ
        return cls.from_env(environ, home=home or codex_home(environ))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # -- lookup

    @property
    def ids(self) -> list[str]:
        """The ids of all environments, in order."""
        return list(self._environments)

    @property
    def default(self) -> Environment | None:
        """The default environment; if None, no tools are offered."""
        return None if self.default_id is None else self._environments[self.default_id]

    @property
    def local(self) -> LocalEnvironment | None:
        """This machine, if it is one of them."""
        local = self._environments.get(LOCAL)
        return local if isinstance(local, LocalEnvironment) else None

    def ids_for_new_thread(self) -> list[str]:
        """Return the ids, the default first; empty without a default."""
        if self.default_id is None:
            return []
        return [self.default_id, *(name for name in self.ids if name != self.default_id)]

    def get(self, environment_id: str) -> Environment | None:
        """Return an environment by id: the same object until it is replaced."""
        return self._environments.get(environment_id)

    def require(self, environment_id: str) -> Environment:
        """
        Return an environment by id, or raise.

        Raises:
            InvalidConfig: It does not exist.
        """
        environment = self._environments.get(environment_id)
        if environment is None:
            raise InvalidConfig(
                f"unknown environment id `{environment_id}`", f"configured: {listed(self.ids)}"
            )
        return environment

    async def status(self, environment_id: str) -> Status | None:
        """Return the state of an environment, or None if it does not exist; never connects."""
        environment = self._environments.get(environment_id)
        return None if environment is None else await environment.status()

    # -- changes

    def add_or_replace(
        self,
        environment_id: str,
        url: str,
        *,
        bearer_token: str | None = None,
        connect_timeout: float = DEFAULT_TIMEOUT,
    ) -> Environment:
        """
        Add a server at run time, and begin to connect to it.

        A previous environment with this id is closed. The default id does not change.

        Args:
            environment_id: Anything but `local`.
            url: Only checked when it is used.
            bearer_token: If the server requires one.
            connect_timeout: Seconds.

        Raises:
            InvalidConfig: The id, URL or token is invalid.
        """
        if not environment_id:
            raise InvalidConfig("environment id cannot be empty")
        if environment_id == LOCAL:
            raise InvalidConfig(
                f"environment id `{LOCAL}` is reserved for EnvironmentManager",
                "it names this machine; choose another id",
            )
        url = url.strip()
        if not url:
            raise InvalidConfig("remote environment requires an exec-server url")
        if url.lower() == "none":
            raise InvalidConfig(
                "remote environment cannot use disabled exec-server url",
                "`none` means that there is no environment; give the URL of a server",
            )
        if bearer_token is not None:
            check_token(url, bearer_token)
        transport = ServerUrl(url=url, bearer_token=bearer_token, connect_timeout=connect_timeout)
        return self._add(Entry(id=environment_id, transport=transport))

    def _add(self, entry: Entry) -> Environment:
        if self._closed:
            raise InvalidRequest("the environment manager is closed")
        environment = remote.RemoteEnvironment.of(entry)
        old = self._environments.get(entry.id)
        self._environments[entry.id] = environment
        if old is not None:
            self._replaced.add(old)
            # In the background: closing may take seconds, and this method is synchronous.
            self._tasks.start(self._let_go(old))
        # A command, such as ssh, may be expensive and is started on first use.
        if isinstance(entry.transport, ServerUrl):
            environment.start_connecting()
        return environment

    async def _let_go(self, environment: Environment) -> None:
        await environment.aclose()
        self._replaced.discard(environment)

    async def aclose(self) -> None:
        """Close all environments, including replaced ones."""
        self._closed = True
        environments = [*self._environments.values(), *self._replaced]
        closings = (environment.aclose() for environment in environments)
        ends = await asyncio.gather(*closings, return_exceptions=True)
        await self._tasks.aclose()
        for error in filter(None, ends):
            # Raised only after all have been closed.
            raise error

"""Every place where processes can be started, behind one fixture."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.backends import ExecBackend
from holdfast.client.client import ExecServerClient
from holdfast.client.target import Target
from holdfast.environments.environment import Environment, Status
from holdfast.environments.local import LocalEnvironment
from holdfast.environments.ssh.address import SshAddress, SshCommand
from holdfast.environments.ssh.target import SshTarget
from holdfast.process.backend import LocalBackend
from holdfast.protocol.handshake import EnvironmentInfo
from holdfast.server.app import Server
from holdfast.transports.base import Receiver, Transport
from holdfast.transports.memory import connect_memory
from tests.e2e.sshd import Host, host, missing_parts, need_ssh
from tests.e2e.wire import HOLDFAST, serving
from tests.real.codex import codex, codex_serving, temporary

PLACES = [
    "local",
    "memory",
    "websocket",
    "unix",
    "stdio",
    pytest.param("ssh", marks=pytest.mark.slow),
    pytest.param("real-websocket", marks=pytest.mark.real),
    pytest.param("real-stdio", marks=pytest.mark.real),
]


@dataclass(frozen=True)
class Place:
    """One implementation of the seam."""

    backend: ExecBackend
    remote: bool
    """Whether refusals come from a server."""
    real: bool
    """Whether that is Codex, which knows none of our extensions."""


class MemoryTarget(Target):
    """A server in the same process."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        return connect_memory(accept, self._server.accept)


@pytest.fixture(scope="session")
def websocket_url() -> Iterator[str]:
    with serving() as server:
        yield server.url


@pytest.fixture(scope="session")
def unix_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("unix") / "s"
    with serving("--listen", f"unix://{path}") as server:
        yield server.url


@pytest.fixture(scope="session")
def codex_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("codex")


@pytest.fixture(scope="session")
def codex_url(codex_home: Path) -> Iterator[str | None]:
    if not os.environ.get("CODEX_BIN"):
        yield None  # the tests that want it are skipped
        return
    with codex_serving(codex_home) as url:
        yield url


@pytest.fixture(scope="session")
def ssh_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host | None]:
    if missing_parts():
        yield None  # the tests that want it are skipped
        return
    with host(tmp_path_factory.mktemp("ssh")) as found:
        found.provide()
        yield found


@pytest.fixture(params=PLACES)
async def place(
    request: pytest.FixtureRequest,
    websocket_url: str,
    unix_url: str,
    codex_url: str | None,
    codex_home: Path,
    ssh_host: Host | None,
) -> AsyncIterator[Place]:
    """Each place where processes can be started, in turn."""
    name: str = request.param
    async with AsyncExitStack() as stack:
        if name == "local":
            backend = await stack.enter_async_context(LocalBackend())
            yield Place(backend, remote=False, real=False)
            return
        target: str | list[str] | Target
        match name:
            case "memory":
                target = MemoryTarget(await stack.enter_async_context(Server()))
            case "websocket":
                target = websocket_url
            case "unix":
                target = unix_url
            case "stdio":
                target = [*HOLDFAST, "serve", "--listen", "stdio"]
            case "ssh":
                need_ssh()
                assert ssh_host is not None  # since it can be had
                address = SshAddress.of_url(ssh_host.url, ssh=ssh_host.ssh)
                target = SshTarget(SshCommand(address))
            case "real-websocket":
                assert codex_url is not None  # the mark sees to it
                target = codex_url
            case _:
                home = [f"CODEX_HOME={codex_home}", f"TMPDIR={temporary(codex_home)}"]
                target = ["/usr/bin/env", *home, codex(), "exec-server", "--listen", "stdio"]
        client = await stack.enter_async_context(await ExecServerClient.connect(target))
        yield Place(client, remote=True, real=name.startswith("real"))


class ClientEnvironment(Environment):
    """A client that is connected already, as an environment."""

    id = "client"
    is_remote = True

    def __init__(self, client: ExecServerClient) -> None:
        self._client = client
        self.backend: ExecBackend = client
        self.filesystem = client.files
        self.http = client.http

    def start_connecting(self) -> None:
        pass

    async def wait_ready(self) -> None:
        pass

    async def info(self) -> EnvironmentInfo:
        assert self._client.environment is not None  # it is connected
        return self._client.environment

    async def status(self) -> Status:
        return Status("ready")

    async def aclose(self) -> None:
        self.closed = True  # whoever connected it closes it


@pytest.fixture
async def env(place: Place, tmp_path: Path) -> AsyncIterator[Environment]:
    """Each place in turn, with a folder of its own."""
    environment: Environment
    if place.remote:
        assert isinstance(place.backend, ExecServerClient)
        environment = ClientEnvironment(place.backend)
    else:
        environment = LocalEnvironment()
    environment.cwd = tmp_path
    async with environment:
        yield environment

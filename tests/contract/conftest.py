"""Every subject where processes can be started, behind one fixture, on both event loops."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.agent.unified_exec import Options, UnifiedExec
from holdfast.backends import ExecBackend
from holdfast.client.client import ExecServerClient
from holdfast.client.target import Target
from holdfast.engine.process.registry import LocalBackend
from holdfast.environments.environment import Environment, Status
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.environments.ssh.address import SshAddress, SshCommand
from holdfast.environments.ssh.ssh_target import SshTarget
from holdfast.server.app import Server
from holdfast.testing import CODEX, FakeBackend, FakeChild, FakeFileSystem, Recorder
from holdfast.testing import HOLDFAST as ALL
from holdfast.wire.protocol.handshake import EnvironmentInfo
from holdfast.wire.transports.memory import connect_memory
from holdfast.wire.transports.transport import Receiver, Transport
from tests.conftest import new_uvloop
from tests.contract.caller import Caller
from tests.contract.fake_programs import install
from tests.e2e.sshd import Host, host, missing_parts, need_ssh
from tests.e2e.wire import HOLDFAST, gone, is_alive, serving
from tests.real.codex import codex, codex_serving, temporary
from tests.real.versions import VERSIONS, chosen
from tests.turns import number_of

SUBJECTS = [
    "local",
    "memory",
    "websocket",
    "unix",
    "stdio",
    pytest.param("ssh", marks=pytest.mark.slow),
    pytest.param("real-websocket", marks=pytest.mark.real),
    pytest.param("real-stdio", marks=pytest.mark.real),
]
"""Real ones, which can be environments."""

SERVED = "fake-served"
"""The same processes as those of `fake`, behind a real server and a real client in memory."""

RECORDED = "fake-recorded"
"""The same, with a recorder around them."""

WITH_FILES = ("fake", SERVED)
"""Fakes that have files, too."""

FAKES = ["fake", "fake-remote", "fake-codex", SERVED, RECORDED]
"""
The backends of `holdfast.testing`: like this machine, like a Holdfast server, like a Codex one.
"""

REAL = ("real-websocket", "real-stdio")
"""Places of a real Codex, slow to start on, and so tried on asyncio only."""

_TURNS = ("memory", "websocket", "unix", "stdio", "memory", "websocket", "unix", "stdio", "ssh")
"""
How often a test takes each way to a server: a connection by ssh costs most.

A server in memory is one of them, since what it does is the same, too.
"""

_REAL_TURNS = ("real-websocket", "real-websocket", "real-stdio")
"""The same for a real Codex: on its standard streams, one is started for each test."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    """Run processes of every subject on both kinds of loops; a client may live on either."""
    names = item.fixturenames if isinstance(item, pytest.Function) else ()
    if "subject" in names and "files" not in names and "http" not in names:
        return {"asyncio": asyncio.SelectorEventLoop, "uvloop": new_uvloop}
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Choose subjects and event loops of each test, unless `--all-combinations` asks for all of them.

    Each test runs on this machine on one of the loops, with one server of ours on the other,
    on one real Codex, and on every fake. Which loop, which way to the server and which Codex is
    settled by its name and its parameters, so that each of them gets its share of every file.
    A test that is marked `every_transport` runs on all of them, and one that is marked
    `both_loops` on both loops everywhere.
    """
    everywhere: bool = config.getoption("--all-combinations")
    left_out = {item for item in items if _is_left_out(item, everywhere)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item, everywhere: bool) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    if Path(__file__).parent not in item.path.parents:
        return False  # the hook is called with all tests
    subject = item.callspec.params.get("subject")
    loop = item.callspec.params.get("_asyncio_loop_factory")
    if subject in FAKES and not {"env", "http"}.isdisjoint(item.fixturenames):
        return True  # they are no environments, and make no HTTP calls
    if subject in FAKES and "files" in item.fixturenames and subject not in WITH_FILES:
        return True
    if subject in REAL and loop is new_uvloop:
        return True
    if everywhere or not isinstance(subject, str):
        return False
    return _is_not_its_turn(item, subject, loop)


def _is_not_its_turn(item: pytest.Function, subject: str, loop: object) -> bool:
    """Return True for a combination of subject and loop that others of its kind stand for."""
    if subject in WITH_FILES and "files" in item.fixturenames:
        return False  # those have one loop
    number = number_of(item, {"subject", "_asyncio_loop_factory"})
    if item.get_closest_marker("every_transport") is None:
        if subject in _TURNS and subject != _TURNS[number // 2 % len(_TURNS)]:
            return True
        if subject in REAL and subject != _REAL_TURNS[number // 2 % len(_REAL_TURNS)]:
            return True
    if loop is None or subject in REAL or item.get_closest_marker("both_loops") is not None:
        return False
    # A server is on the loop that this machine is not on.
    return (loop is new_uvloop) == ((number + (subject in _TURNS)) % 2 == 0)


@dataclass(frozen=True)
class Subject:
    """One implementation of the seam."""

    backend: ExecBackend
    remote: bool
    """True if refusals come from a server."""
    real: bool
    """True if that server is Codex, which knows none of our extensions."""

    def is_alive(self, pid: int) -> bool:
        """Return True while there is a process of that number."""
        return is_alive(pid)

    async def gone(self, pid: int) -> None:
        """Wait until there is no process of that number any more."""
        await gone(pid)

    def kill(self, pid: int) -> None:
        """Kill a process that a test left running."""
        os.kill(pid, signal.SIGKILL)

    @property
    def can_reconnect(self) -> bool:
        """True if a lost connection can be made anew."""
        return not isinstance(self.backend, ExecServerClient) or self.backend.target.can_reconnect

    async def lose(self) -> None:
        """Lose the server for good, where there is one."""
        if isinstance(self.backend, ExecServerClient):
            await self.backend.aclose()


@dataclass(frozen=True)
class FakeSubject(Subject):
    """A subject without processes of the kernel."""

    files: FakeFileSystem = field(default_factory=FakeFileSystem)
    behind: FakeBackend | None = None
    """The fake behind a server or a recorder, unless the tests use the fake itself."""

    def is_alive(self, pid: int) -> bool:
        return any(child.alive for child in self._children() if child.pid == pid)

    async def gone(self, pid: int) -> None:
        await self._fake.until(lambda: not self.is_alive(pid))

    def kill(self, pid: int) -> None:
        for child in self._children():
            if child.pid == pid:
                child.exit()

    async def lose(self) -> None:
        if self.remote and self.behind is None:
            self._fake.lose_for_good()
        else:
            await super().lose()

    @property
    def _fake(self) -> FakeBackend:
        if self.behind is not None:
            return self.behind
        assert isinstance(self.backend, FakeBackend)
        return self.backend

    def _children(self) -> list[FakeChild]:
        return [child for process in self._fake.processes for child in process.children]


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
def codex_homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {version: tmp_path_factory.mktemp("codex") for version in VERSIONS}


@pytest.fixture(scope="session")
def codex_urls(codex_homes: dict[str, Path]) -> Iterator[dict[str, str]]:
    """The real server in each version."""
    with ExitStack() as stack:
        yield {
            version: stack.enter_context(codex_serving(home, version=version))
            for version, home in codex_homes.items()
        }


@pytest.fixture
def codex_home(codex_homes: dict[str, Path]) -> Path | None:
    return codex_homes.get(chosen())


@pytest.fixture
def codex_url(codex_urls: dict[str, str]) -> str | None:
    return codex_urls.get(chosen())


@pytest.fixture(scope="session")
def ssh_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host | None]:
    if missing_parts():
        yield None  # the tests that want it are skipped
        return
    with host(tmp_path_factory.mktemp("ssh")) as found:
        found.provide()
        yield found


@pytest.fixture(params=[*SUBJECTS, *FAKES])
async def subject(
    request: pytest.FixtureRequest,
    websocket_url: str,
    unix_url: str,
    codex_url: str | None,
    codex_home: Path | None,
    ssh_host: Host | None,
) -> AsyncIterator[Subject]:
    """Each subject where processes can be started, in turn."""
    name: str = request.param
    async with AsyncExitStack() as stack:
        if name == "local":
            backend = await stack.enter_async_context(LocalBackend())
            yield Subject(backend, remote=False, real=False)
            return
        if name in FAKES:
            codex_like = name == "fake-codex"
            remote = name in ("fake-remote", "fake-codex")
            fake = FakeBackend(remote=remote, capabilities=CODEX if codex_like else ALL)
            install(await stack.enter_async_context(fake))
            if name == SERVED:
                files = FakeFileSystem()
                server = await stack.enter_async_context(Server(processes=fake, files=files))
                connecting = ExecServerClient.connect(MemoryTarget(server))
                client = await stack.enter_async_context(await connecting)
                yield FakeSubject(client, remote=True, real=False, files=files, behind=fake)
                return
            if name == RECORDED:
                recorder = await stack.enter_async_context(Recorder(fake))
                yield FakeSubject(recorder, remote=False, real=False, behind=fake)
                return
            yield FakeSubject(fake, remote=fake.remote, real=codex_like)
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
                assert codex_home is not None  # the mark sees to it
                home = [f"CODEX_HOME={codex_home}", f"TMPDIR={temporary(codex_home)}"]
                target = ["/usr/bin/env", *home, codex(), "exec-server", "--listen", "stdio"]
        client = await stack.enter_async_context(await ExecServerClient.connect(target))
        yield Subject(client, remote=True, real=name.startswith("real"))


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
async def env(subject: Subject, tmp_path: Path) -> AsyncIterator[Environment]:
    """Each subject in turn, with a folder of its own."""
    environment: Environment
    if subject.remote:
        assert isinstance(subject.backend, ExecServerClient)
        environment = ClientEnvironment(subject.backend)
    else:
        environment = LocalEnvironment()
    environment.cwd = tmp_path
    async with environment:
        yield environment


TOOL_MACHINES = ["local", "holdfast", pytest.param("codex", marks=pytest.mark.real)]
"""The environments of a model's tools: this machine, our server, and a real Codex one."""


@pytest.fixture(params=TOOL_MACHINES)
async def machine(
    request: pytest.FixtureRequest, websocket_url: str, codex_url: str | None, tmp_path: Path
) -> AsyncIterator[Environment]:
    """Each of them in turn, as an environment with a folder of its own."""
    environment: Environment
    if request.param == "local":
        environment = LocalEnvironment()
    else:
        url = websocket_url if request.param == "holdfast" else codex_url
        assert url is not None  # the mark sees to it
        environment = RemoteEnvironment(request.param, url)
    environment.cwd = tmp_path
    async with environment:
        yield environment


@pytest.fixture
async def caller(machine: Environment) -> AsyncIterator[Caller]:
    """A model with its tools, on each machine."""
    async with UnifiedExec(machine, options=Options(extras=True)) as tools:
        yield Caller(tools, machine, codex=machine.id == "codex")

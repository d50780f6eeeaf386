"""An environment whose processes do what a test says."""

from holdfast.backends import FileSystem, HttpClient
from holdfast.base.errors import EnvironmentClosed, OperationFailed
from holdfast.environments.environment import Environment, Status
from holdfast.testing.fake_backend import FakeBackend
from holdfast.wire.protocol.handshake import EnvironmentInfo, ShellInfo
from holdfast.wire.protocol.paths import PathUri

__all__ = ["FakeEnvironment"]

BASH = ShellInfo(name="bash", path="/bin/bash")


class FakeEnvironment(Environment):
    """
    An environment without a machine: its processes are those of a `FakeBackend`.

    It has no files and makes no HTTP calls, unless it is given some.
    """

    def __init__(
        self,
        backend: FakeBackend | None = None,
        *,
        id: str = "fake",  # noqa: A002 - the name of the attribute
        shell: ShellInfo = BASH,
        filesystem: FileSystem | None = None,
        http: HttpClient | None = None,
    ) -> None:
        """
        Args:
            backend: Starts its processes; by default one like a local machine.
            id: Its name.
            shell: The shell that it reports.
            filesystem: Its files.
            http: Its HTTP calls.
        """
        self.id = id
        self.backend: FakeBackend = FakeBackend() if backend is None else backend
        self.is_remote = self.backend.remote
        # No real directory, so that no test depends on this machine.
        self.cwd = PathUri.from_path("/fake")
        self._shell = shell
        self._filesystem = filesystem
        self._http = http

    @property
    def is_connected(self) -> bool:
        """False while the line of its backend is lost."""
        line = self.backend.line
        return line.up and line.failure is None

    @property
    def filesystem(self) -> FileSystem:  # type: ignore[override]
        """Its files, if it was given some."""
        if self._filesystem is None:
            raise OperationFailed(f"environment `{self.id}` has no files")
        return self._filesystem

    @property
    def http(self) -> HttpClient:  # type: ignore[override]
        """HTTP calls from there, if it was given some."""
        if self._http is None:
            raise OperationFailed(f"environment `{self.id}` makes no HTTP calls")
        return self._http

    def start_connecting(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def wait_ready(self) -> None:
        if self.closed:
            raise EnvironmentClosed(self.id)

    async def info(self) -> EnvironmentInfo:
        return EnvironmentInfo(
            shell=self._shell, cwd="/fake", capabilities=self.backend.capabilities
        )

    async def status(self) -> Status:
        return Status("disconnected" if self.closed else "ready")

    async def aclose(self) -> None:
        """End all processes and raise the errors of their programs."""
        self.closed = True
        await self.backend.aclose()

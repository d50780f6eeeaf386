"""A fake `ExecBackend` that starts fake processes."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from msgspec import UNSET

from holdfast.backends import FileSystem, HttpClient
from holdfast.base.errors import (
    DuplicateProcess,
    EnvironmentClosed,
    HoldfastError,
    InvalidParams,
    OperationFailed,
    Refused,
    Unsupported,
)
from holdfast.engine.process.admission import refuse_unsupported
from holdfast.environments.environment import Environment, Status
from holdfast.events import Reason, Verdict
from holdfast.testing.fake_calls import CODEX, HOLDFAST, as_refused
from holdfast.testing.fake_line import LIMIT, FakeLine
from holdfast.testing.fake_process import FakeProcess
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.handshake import Capabilities, EnvironmentInfo, ShellInfo
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams

__all__ = ["FakeBackend", "FakeEnvironment", "Program"]

Program = Callable[[FakeProcess], Awaitable[int | Verdict]]
"""
Function that plays the program of a process: it reads the input, writes the output and returns
the exit code.
"""

# Bytes of unread input before `write` waits, the capacity of a pipe.
_PIPE = 64 << 10


class FakeBackend:
    """
    Backend whose processes a test controls.

    By default every start succeeds, and the test drives the process, from `processes` or from
    `process`, which waits for it. A program registered with `on` drives its process instead.
    Then use the backend as a context manager, which ends programs and raises their errors.
    """

    def __init__(self, *, remote: bool = False, capabilities: Capabilities = HOLDFAST) -> None:
        """
        Args:
            remote: True for a backend behind a connection that can be lost.
            capabilities: Features of its processes; `CODEX` has none of the extensions.
        """
        self.remote = remote
        self.capabilities = capabilities
        self.line = FakeLine(remote=remote)
        """The connection that all processes share."""
        self.starts: list[StartParams] = []
        """All requested starts, including refused ones."""
        self.processes: list[FakeProcess] = []
        """All started processes, oldest first."""
        self._programs: list[tuple[Callable[[StartParams], bool], Program | HoldfastError]] = []
        self._refusals: deque[HoldfastError] = deque()
        self._ids: set[str] = set()
        # Number of held starts that may proceed; None if starts are not held.
        self._let_start: int | None = None
        self._running: dict[asyncio.Task[None], FakeProcess] = {}
        self._errors: list[Exception] = []

    @classmethod
    def codex(cls) -> Self:
        """Return a backend that behaves like a Codex server: remote, without extensions."""
        return cls(remote=True, capabilities=CODEX)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """
        End all running programs and processes.

        Raises:
            ExceptionGroup: Programs failed; contains their errors.
        """
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        # Including those without a program: a test may have left them running.
        for process in self.processes:
            process.stop(Verdict(reason=Reason.SERVER_STOPPING, exit_code=128 + 9, signal=9))
        errors, self._errors = self._errors, []
        if errors:
            raise ExceptionGroup("programs of a fake backend failed", errors)

    # -- for the test

    def on(self, matches: Callable[[StartParams], bool], program: Program | HoldfastError) -> None:
        """
        Define what a matching start does. If several match, the first registered is used.

        Args:
            matches: Returns True for the requests in question.
            program: Plays the process; or the error that the start raises.
        """
        self._programs.append((matches, program))

    def refuse_next_start(self, error: HoldfastError) -> None:
        """Make the next start fail with this error; further calls do so for the starts after it."""
        self._refusals.append(error)

    def hold_starts(self) -> None:
        """Make starts wait for `let_start`; their ids are taken meanwhile."""
        self._let_start = 0

    def let_start(self, count: int | None = None) -> None:
        """Let the next `count` held starts proceed; without a number, all from now on."""
        self._let_start = None if count is None else (self._let_start or 0) + count
        self.line.changes.notify()

    def forget(self, process_id: str) -> None:
        """Free the id of a process, as a server does 80 s after the process is closed."""
        self._ids.discard(process_id)

    def lose_line(self) -> None:
        """Cut the connection; see `FakeProcess.lose_line`. Starts also wait."""
        self.line.lose()

    def restore_line(self) -> None:
        """Restore the connection."""
        self.line.restore()

    def lose_for_good(self, error: HoldfastError | None = None) -> None:
        """Lose the server: open processes, waiting calls and all later starts fail."""
        self.line.lose_for_good(error)

    async def process(self, number: int = 0) -> FakeProcess:
        """
        Wait until a process is started, and return it. Numbers count from 0.

        Raises:
            TimeoutError: It was not started within 5 s.
        """
        try:
            await self.until(lambda: len(self.processes) > number)
        except TimeoutError:
            raise TimeoutError(
                f"process {number} was not started within {LIMIT:g} s;"
                f" started so far: {len(self.processes)}"
            ) from None
        return self.processes[number]

    async def until(self, holds: Callable[[], bool]) -> None:
        """
        Wait until a condition holds. It is checked after each call and event.

        Raises:
            TimeoutError: It did not hold within 5 s.
        """
        await self.line.changes.until(holds)

    # -- the seam

    async def start(self, params: StartParams) -> FakeProcess:
        self.starts.append(params)
        self.line.changes.notify()
        # Before the checks, so that a test can refuse any start.
        if self._refusals:
            raise self._refusals.popleft()
        self._check_extensions(params)
        await self.line.available()
        try:
            self._check(params)
        except Refused as error:
            raise as_refused(error, remote=self.remote) from error.__cause__
        self._ids.add(params.process_id)
        try:
            await self._start_is_let()
            program = self._program(params)
            if isinstance(program, Refused):
                raise as_refused(program, remote=self.remote) from program.__cause__
            if isinstance(program, HoldfastError):
                raise program
        except BaseException:
            # A failed start does not use up its id.
            self._ids.discard(params.process_id)
            raise
        process = FakeProcess(
            params, remote=self.remote, capabilities=self.capabilities, line=self.line
        )
        self.processes.append(process)
        if program is not None:
            self._play(process, program)
        self.line.changes.notify()
        return process

    # -- internal

    def _check_extensions(self, params: StartParams) -> None:
        """Refuse parameters that the server would silently ignore, as a client does."""
        has = self.capabilities
        for asked, can, what in [
            (params.terminal_size is not None, has.process_resize, "size a terminal"),
            (params.limits is not None, has.process_limits, "limit a process"),
            (params.unset is not UNSET, has.process_unset, "unset variables"),
        ]:
            if asked and not can:
                raise Unsupported(codes.METHOD_NOT_FOUND, f"exec-server cannot {what}")

    def _check(self, params: StartParams) -> None:
        """Make those checks of the engine that need no system calls."""
        refuse_unsupported(params)
        if not params.argv:
            raise InvalidParams("argv must not be empty")
        if params.process_id in self._ids:
            raise DuplicateProcess(params.process_id)

    async def _start_is_let(self) -> None:
        await self.line.changes.wait(lambda: self._let_start != 0 or self.line.failure is not None)
        await self.line.available()
        if self._let_start is not None:
            self._let_start -= 1

    def _program(self, params: StartParams) -> Program | HoldfastError | None:
        return next((found for matches, found in self._programs if matches(params)), None)

    def _play(self, process: FakeProcess, program: Program) -> None:
        process.input_limit = _PIPE
        task = asyncio.get_running_loop().create_task(self._run(process, program))
        self._running[task] = process
        task.add_done_callback(self._running.pop)
        # A killed process does not continue its program.
        process.when_killed(task.cancel)

    async def _run(self, process: FakeProcess, program: Program) -> None:
        try:
            result = await program(process)
        except Exception as error:  # noqa: BLE001 - raised by `aclose`
            self._errors.append(error)
            detail = f"the program of {process.process_id} failed: {error!r}"
            result = Verdict(reason=Reason.LOST, exit_code=-1, detail=detail)
        # The program may have ended the process itself.
        if process.running:
            process.end(result)


BASH = ShellInfo(name="bash", path="/bin/bash")


class FakeEnvironment(Environment):
    """
    An environment without a machine. A `FakeBackend` starts its processes.

    It has files and makes HTTP calls only if they are passed in.
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
            backend: Starts the processes; by default a local `FakeBackend`.
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
        """False while the connection of its backend is lost."""
        line = self.backend.line
        return line.up and line.failure is None

    @property
    def filesystem(self) -> FileSystem:  # type: ignore[override]
        """Its files, if any were passed in."""
        if self._filesystem is None:
            raise OperationFailed(f"environment `{self.id}` has no files")
        return self._filesystem

    @property
    def http(self) -> HttpClient:  # type: ignore[override]
        """Its HTTP client, if one was passed in."""
        if self._http is None:
            raise OperationFailed(f"environment `{self.id}` makes no HTTP calls")
        return self._http

    def start_connecting(self) -> None:
        """Do nothing: a fake environment needs no connection."""

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

"""Environments without `await`: commands, files, and running processes."""

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import Concatenate, ParamSpec, Self

from holdfast.base.errors import EnvironmentClosed
from holdfast.environments import connect as environments
from holdfast.environments.commands.chunks import Chunk
from holdfast.environments.commands.run import DRAIN
from holdfast.environments.commands.running import Running as AsyncRunning
from holdfast.environments.commands.running import Starting
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT
from holdfast.environments.environment import Environment as AsyncEnvironment
from holdfast.environments.files import Files as AsyncFiles
from holdfast.environments.path_uris import AnyPath
from holdfast.environments.sandbox import AnySandbox
from holdfast.events import Verdict
from holdfast.front.sync.loop_thread import LoopThread
from holdfast.front.sync.twin import Twin, twin
from holdfast.wire.protocol.process import Enforcement

__all__ = ["SyncEnvironment", "SyncFiles", "SyncRunning", "connect"]

P = ParamSpec("P")


class SyncFiles(Twin[AsyncFiles]):
    """The files of one environment; see `holdfast.environments.files.Files`."""

    read_text = twin(AsyncFiles.read_text)
    read_bytes = twin(AsyncFiles.read_bytes)
    write = twin(AsyncFiles.write)
    list = twin(AsyncFiles.list)
    walk = twin(AsyncFiles.walk)
    exists = twin(AsyncFiles.exists)
    stat = twin(AsyncFiles.stat)
    mkdir = twin(AsyncFiles.mkdir)
    remove = twin(AsyncFiles.remove)
    copy = twin(AsyncFiles.copy)
    move = twin(AsyncFiles.move)
    upload = twin(AsyncFiles.upload)
    download = twin(AsyncFiles.download)


class SyncRunning(Twin[AsyncRunning]):
    """A started process; see `holdfast.environments.commands.running.Running`."""

    write = twin(AsyncRunning.write)
    close_stdin = twin(AsyncRunning.close_stdin)
    read = twin(AsyncRunning.read)
    wait = twin(AsyncRunning.wait)
    expect = twin(AsyncRunning.expect)
    signal = twin(AsyncRunning.signal)
    resize = twin(AsyncRunning.resize)
    waiting_for = twin(AsyncRunning.waiting_for)
    terminate = twin(AsyncRunning.terminate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.call(lambda: self._other.__aexit__(*exc))

    def close(self) -> None:
        """Kill the process tree if it runs, and wait for its end, at most 5 s."""
        self._thread.call(self._other.aclose)

    @property
    def process_id(self) -> str:
        """The id it was started with."""
        return self._other.process_id

    @property
    def pid(self) -> int | None:
        """Its pid on the machine where it runs; None if the server does not send it."""
        return self._other.pid

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, or None while it runs."""
        return self._other.verdict

    @property
    def exit_code(self) -> int | None:
        """Its exit status, or 128 plus the signal that killed it; None while it runs."""
        return self._other.exit_code

    @property
    def detached(self) -> str | None:
        """The name to find it by, if it has one."""
        return self._other.detached

    @property
    def missed(self) -> int:
        """Number of output events that were dropped before they were read."""
        return self._other.missed

    @property
    def enforcement(self) -> Enforcement | None:
        """The enforced sandbox layers and their known gaps; None without a sandbox."""
        return self._other.enforcement

    def output(self, *, drain: float | None = DRAIN) -> Iterator[Chunk]:
        """
        Yield its output as it arrives, from where the last call stopped.

        While another thread is in `wait`, the last 1 MiB of unread output is kept.
        """
        while True:
            chunk = self._thread.call(lambda: self._other.next_chunk(drain))
            if chunk is None:
                return
            yield chunk

    def __repr__(self) -> str:
        return repr(self._other)


def _twin_of_start(
    method: Callable[Concatenate[AsyncEnvironment, P], Starting],
) -> Callable[Concatenate["SyncEnvironment", P], SyncRunning]:
    @wraps(method)
    def start(self: "SyncEnvironment", /, *args: P.args, **kwargs: P.kwargs) -> SyncRunning:
        async def started() -> AsyncRunning:
            return await method(self._other, *args, **kwargs)

        return SyncRunning(self._thread.call(started), self._thread)

    return start


class SyncEnvironment(Twin[AsyncEnvironment]):
    """A machine to run commands on; see `holdfast.environments.environment.Environment`."""

    run = twin(AsyncEnvironment.run)
    start = _twin_of_start(AsyncEnvironment.start)
    uri = twin(AsyncEnvironment.uri)
    sandbox_context = twin(AsyncEnvironment.sandbox_context)
    info = twin(AsyncEnvironment.info)
    status = twin(AsyncEnvironment.status)
    wait_ready = twin(AsyncEnvironment.wait_ready)
    capabilities = twin(AsyncEnvironment.capabilities)
    shell = twin(AsyncEnvironment.shell)
    prepare = twin(AsyncEnvironment.prepare)

    def __init__(self, other: AsyncEnvironment, thread: LoopThread) -> None:
        super().__init__(other, thread)
        # For the error of a call after the close.
        thread.serves = other.id
        self._closed = False
        # The script may forget to close it, but its processes must not outlive the script.
        atexit.register(self.close)

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        """Its name."""
        return self._other.id

    def attach(self, name: str) -> SyncRunning:
        """Find a process by the name it was detached with, even after its end."""
        return SyncRunning(self._other.attach(name), self._thread)

    def processes(self) -> list[SyncRunning]:
        """Return the running processes that `start` started, oldest first."""

        async def running() -> list[AsyncRunning]:
            return self._other.processes()

        return [SyncRunning(one, self._thread) for one in self._thread.call(running)]

    @property
    def files(self) -> SyncFiles:
        """Its files, addressed by plain paths."""
        return SyncFiles(self._other.files, self._thread)

    def close(self) -> None:
        """Close the environment and end the processes started in it; idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            # After a fork, it belongs to the parent process.
            with suppress(EnvironmentClosed):
                self._thread.call(lambda: self._other.__aexit__(None, None, None))
        finally:
            # Even if the close failed: the thread must not outlive the environment.
            self._thread.stop()

    def __repr__(self) -> str:
        return repr(self._other)


def connect(
    where: str | Sequence[str] | None = None,
    *,
    bearer_token: str | None = None,
    cwd: AnyPath | None = None,
    sandbox: AnySandbox | None = None,
    install: bool = False,
    connect_timeout: float | None = None,
    initialize_timeout: float = DEFAULT_TIMEOUT,
) -> SyncEnvironment:
    """Return an environment; see `holdfast.connect`. Use it in a `with` block, or close it."""
    thread = LoopThread()

    async def made() -> AsyncEnvironment:
        return environments.connect(
            where,
            bearer_token=bearer_token,
            cwd=cwd,
            sandbox=sandbox,
            install=install,
            connect_timeout=connect_timeout,
            initialize_timeout=initialize_timeout,
        )

    try:
        return SyncEnvironment(thread.call(made), thread)
    except BaseException:
        thread.stop()
        raise

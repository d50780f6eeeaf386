"""
The synchronous twin, for scripts: the same methods without `await`.

There is no second implementation. Each environment has an event loop in a thread of its
own, and every method runs its asynchronous namesake there and waits for it. Ctrl-C
cancels what is being waited for, which ends the process of a `run`, and is raised then.
"""

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from holdfast.environments import connect as places
from holdfast.environments.commands.chunks import Chunk
from holdfast.environments.commands.run import DRAIN, END_LIMIT
from holdfast.environments.commands.running import Running as AsyncRunning
from holdfast.environments.commands.running import Starting
from holdfast.environments.config.snapshot import DEFAULT_TIMEOUT
from holdfast.environments.environment import Environment as AsyncEnvironment
from holdfast.environments.files import Files as AsyncFiles
from holdfast.environments.folder import AnyPath
from holdfast.environments.sandbox import AnySandbox
from holdfast.errors import EnvironmentClosed
from holdfast.events import Verdict
from holdfast.protocol.process import Enforcement

__all__ = ["Environment", "Files", "Running", "connect"]

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")

_CLOSE_LIMIT = 10.0
"""Seconds for an environment to close, and for its thread to end."""
_LISTEN_INTERVAL = 0.25
"""Seconds that a signal can go unheard: one that comes just before the interpreter begins
to wait for a lock does not end that wait."""


class _LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.serves = ""
        """The name of the environment it is for."""
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        # What somebody waits for in another thread.
        self._awaited: set[Future[object]] = set()
        # Not waited for when the interpreter ends: by then it was asked to end in order.
        self._thread = threading.Thread(target=self._run, name="holdfast", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        finally:
            # The loop takes nothing any more. What it took while it ended never began.
            for outcome in list(self._awaited):
                self._refuse(outcome)

    def _refuse(self, outcome: "Future[object]") -> None:
        with suppress(InvalidStateError):  # it is done, or was refused by the other side
            outcome.set_exception(EnvironmentClosed(self.serves))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._stop.wait()

    def call(self, work: Callable[[], Coroutine[object, object, R]]) -> R:
        """
        Run something there and wait for it; an interruption of the wait cancels it.

        Raises:
            EnvironmentClosed: The loop has ended.
            RuntimeError: The caller is in that thread, and would wait for itself.
        """
        loop = self._loop
        assert loop is not None  # known before anybody has this object
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "an environment of holdfast.sync cannot be used in its own callbacks:"
                " collect what they are given, and use it after the call"
            )
        outcome: Future[R] = Future()
        task: asyncio.Task[R] | None = None

        def begin() -> None:
            nonlocal task
            task = loop.create_task(work())
            task.add_done_callback(settle)

        def settle(task: asyncio.Task[R]) -> None:
            if task.cancelled():
                outcome.cancel()
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        def cancel() -> None:
            if task is None:  # interrupted before it was asked for
                outcome.cancel()
            else:
                task.cancel()

        awaited = cast("Future[object]", outcome)
        self._awaited.add(awaited)
        try:
            try:
                loop.call_soon_threadsafe(begin)
            except RuntimeError:
                self._refuse(awaited)
            return _wait_for(outcome)
        except BaseException:
            if not outcome.done():  # it is the wait that was interrupted
                loop.call_soon_threadsafe(cancel)
                # By the same signal a second time, if need be.
                with suppress(CancelledError, TimeoutError, Exception):
                    outcome.result(END_LIMIT + 1)
            raise
        finally:
            self._awaited.discard(awaited)

    def stop(self) -> None:
        """End the loop and its thread; what still runs there is cancelled."""
        if self._thread.is_alive() and self._loop is not None:
            with suppress(RuntimeError):  # it has ended just now
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_CLOSE_LIMIT)


def _wait_for(outcome: Future[R]) -> R:
    """The result, once it is there, with an ear for signals."""
    while True:
        try:
            return outcome.result(_LISTEN_INTERVAL)
        except TimeoutError:
            if outcome.done():
                return outcome.result()


class _Twin(Generic[A]):
    """The synchronous side of an asynchronous object."""

    def __init__(self, other: A, thread: _LoopThread) -> None:
        self._other = other
        self._thread = thread


def _twin(
    method: Callable[Concatenate[A, P], Coroutine[object, object, R]],
) -> Callable[Concatenate[_Twin[A], P], R]:
    """The same method, waited for."""

    @wraps(method)
    def call(self: _Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        # Of its class, not of the base.
        own: Callable[P, Coroutine[object, object, R]] = getattr(self._other, method.__name__)
        return self._thread.call(lambda: own(*args, **kwargs))

    return call


class Files(_Twin[AsyncFiles]):
    """The files of one environment; see `holdfast.environments.files.Files`."""

    read_text = _twin(AsyncFiles.read_text)
    read_bytes = _twin(AsyncFiles.read_bytes)
    write = _twin(AsyncFiles.write)
    list = _twin(AsyncFiles.list)
    walk = _twin(AsyncFiles.walk)
    exists = _twin(AsyncFiles.exists)
    stat = _twin(AsyncFiles.stat)
    mkdir = _twin(AsyncFiles.mkdir)
    remove = _twin(AsyncFiles.remove)
    copy = _twin(AsyncFiles.copy)
    upload = _twin(AsyncFiles.upload)
    download = _twin(AsyncFiles.download)


class Running(_Twin[AsyncRunning]):
    """A process that was started; see `holdfast.environments.commands.running.Running`."""

    write = _twin(AsyncRunning.write)
    close_stdin = _twin(AsyncRunning.close_stdin)
    read = _twin(AsyncRunning.read)
    wait = _twin(AsyncRunning.wait)
    expect = _twin(AsyncRunning.expect)
    signal = _twin(AsyncRunning.signal)
    resize = _twin(AsyncRunning.resize)
    waiting_for = _twin(AsyncRunning.waiting_for)
    terminate = _twin(AsyncRunning.terminate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.call(lambda: self._other.__aexit__(*exc))

    def close(self) -> None:
        """Kill it and all that is below it, if it runs, and wait for its end; at most 5 s."""
        self._thread.call(self._other.aclose)

    @property
    def process_id(self) -> str:
        """The id it was started with."""
        return self._other.process_id

    @property
    def pid(self) -> int | None:
        """The kernel's number for it where it runs; `None` if a server does not tell."""
        return self._other.pid

    @property
    def verdict(self) -> Verdict | None:
        """The end, as soon as it is known here; `None` while it runs."""
        return self._other.verdict

    @property
    def exit_code(self) -> int | None:
        """Its status, or 128 and the signal that killed it; `None` while it runs."""
        return self._other.exit_code

    @property
    def detached(self) -> str | None:
        """The name to find it by, if it has one."""
        return self._other.detached

    @property
    def missed(self) -> int:
        """Events of its output that were lost because nobody read them."""
        return self._other.missed

    @property
    def enforcement(self) -> Enforcement | None:
        """The layers its sandbox applied, and their gaps; `None` without one."""
        return self._other.enforcement

    def output(self, *, drain: float | None = DRAIN) -> Iterator[Chunk]:
        """
        What it writes, as it comes; goes on where the last call stopped.

        While another thread is in `wait`, the last 1 MiB of what is not read is kept.
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
) -> Callable[Concatenate["Environment", P], Running]:
    @wraps(method)
    def start(self: "Environment", /, *args: P.args, **kwargs: P.kwargs) -> Running:
        async def started() -> AsyncRunning:
            return await method(self._other, *args, **kwargs)

        return Running(self._thread.call(started), self._thread)

    return start


class Environment(_Twin[AsyncEnvironment]):
    """A place to run; see `holdfast.environments.environment.Environment`."""

    run = _twin(AsyncEnvironment.run)
    start = _twin_of_start(AsyncEnvironment.start)
    uri = _twin(AsyncEnvironment.uri)
    sandbox_context = _twin(AsyncEnvironment.sandbox_context)
    info = _twin(AsyncEnvironment.info)
    status = _twin(AsyncEnvironment.status)
    wait_ready = _twin(AsyncEnvironment.wait_ready)
    capabilities = _twin(AsyncEnvironment.capabilities)
    shell = _twin(AsyncEnvironment.shell)
    prepare = _twin(AsyncEnvironment.prepare)

    def __init__(self, other: AsyncEnvironment, thread: _LoopThread) -> None:
        super().__init__(other, thread)
        thread.serves = other.id
        self._closed = False
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

    def attach(self, name: str) -> Running:
        """Find a process that was detached by a name, also after its end."""
        return Running(self._other.attach(name), self._thread)

    def processes(self) -> list[Running]:
        """Return the processes that `start` began here and that run, oldest first."""

        async def running() -> list[AsyncRunning]:
            return self._other.processes()

        return [Running(one, self._thread) for one in self._thread.call(running)]

    @property
    def files(self) -> Files:
        """Its files, by plain paths."""
        return Files(self._other.files, self._thread)

    def close(self) -> None:
        """Let go of it; what was started there ends. Harmless a second time."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._thread.call(lambda: self._other.__aexit__(None, None, None))
        finally:
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
) -> Environment:
    """
    A place to run; as `holdfast.connect`, for scripts without an event loop.

    Use it with `with`, or close it with `close`.
    """
    thread = _LoopThread()

    async def made() -> AsyncEnvironment:
        return places.connect(
            where,
            bearer_token=bearer_token,
            cwd=cwd,
            sandbox=sandbox,
            install=install,
            connect_timeout=connect_timeout,
            initialize_timeout=initialize_timeout,
        )

    try:
        return Environment(thread.call(made), thread)
    except BaseException:
        thread.stop()
        raise

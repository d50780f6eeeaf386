"""
Runs one scenario 200 times on fake processes, each time with other orders and times.

Everything that chance decides comes from the number of the repetition, so a failure happens
again with the same number. After each repetition nothing may be left, see `Race.check`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agent.unified_exec import ExecResult, Options, UnifiedExec
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from holdfast.agent.unified_exec.hooks import Attempt, DeniedAttempt, Hooks, StartRequest
from holdfast.agent.unified_exec.sessions.session_events import CommandBegan, CommandEnded
from holdfast.testing import FakeBackend, FakeEnvironment, FakeProcess
from holdfast.wire.protocol.process import StreamsAtEnd
from tests.depth import times

REPETITIONS = times(200)

GRACE = 0.15
SHORTEST = 0.25
"""The shortest wait of a call."""

CLOSE_LIMIT = 5.0
"""Seconds after which closing the tools waits no more."""

DEADLINE = GRACE + SHORTEST
"""Seconds after its start at which an `exec_command` with the shortest wait answers."""

Call = asyncio.Task[ExecResult]
Scenario = Callable[["Race"], Coroutine[Any, Any, None]]


class RecordingHooks(Hooks):
    """Counts what is begun and ended, and stops where a scenario says."""

    def __init__(self) -> None:
        self.begun: list[Attempt] = []
        self.ended: list[Attempt] = []
        self.stop_at: str | None = None
        """The hook that does not return before `go`."""
        self.stopped = asyncio.Event()
        """Set when that is reached."""
        self.go = asyncio.Event()
        self.again = 0
        """Denied commands that are started a second time."""

    async def _pass(self, name: str) -> None:
        if self.stop_at == name:
            self.stopped.set()
            await self.go.wait()

    async def before_start(self, request: StartRequest) -> StartRequest:
        await self._pass("before_start")
        return request

    async def attempt_begins(self, request: StartRequest) -> Attempt:
        await self._pass("attempt_begins")
        attempt = await super().attempt_begins(request)
        self.begun.append(attempt)
        return attempt

    async def after_denial(self, denied: DeniedAttempt) -> StartRequest | None:
        await self._pass("after_denial")
        if not self.again:
            return None
        self.again -= 1
        return denied.request

    def attempt_ended(self, attempt: Attempt) -> None:
        self.ended.append(attempt)


class Race:
    """One repetition of a scenario."""

    def __init__(
        self, seed: int, backend: FakeBackend | None = None, options: Options | None = None
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.backend = FakeBackend() if backend is None else backend
        self.hooks = RecordingHooks()
        self.tools = UnifiedExec(
            FakeEnvironment(self.backend), options=options or Options(), hooks=self.hooks
        )
        self.news = self.tools.listen()
        self.alive_on_purpose: set[FakeProcess] = set()
        """Processes that still run where they are, because nobody can reach them."""
        self._calls: list[Call] = []
        self._errors: list[Exception] = []

    # -- calls

    def exec_command(self, *, tty: bool = False, yield_time_ms: int = 250) -> Call:
        """Start a call; its process is the next one of the backend."""
        arguments = ExecArguments(cmd="work", tty=tty, yield_time_ms=yield_time_ms)
        return self._call(self.tools.exec_command(arguments))

    def write_stdin(self, session_id: int, chars: str = "", *, yield_time_ms: int = 250) -> Call:
        """Start a call."""
        arguments = WriteArguments(session_id=session_id, chars=chars, yield_time_ms=yield_time_ms)
        return self._call(self.tools.write_stdin(arguments))

    def _call(self, call: Coroutine[Any, Any, ExecResult]) -> Call:
        task = asyncio.get_running_loop().create_task(call)
        self._calls.append(task)
        return task

    async def session(self, *, tty: bool = False) -> tuple[int, FakeProcess]:
        """Start a command that goes on, and return its session and its process."""
        number = len(self.backend.processes)
        result = await self.exec_command(tty=tty)
        assert result.session_id is not None
        return result.session_id, self.backend.processes[number]

    async def rest(self, session_id: int) -> ExecResult:
        """Poll a session whose process has ended, or ends in the poll."""
        result = await self.write_stdin(session_id, yield_time_ms=5_000)
        assert result.session_id is None
        return result

    # -- chance

    def near(self, moment: float) -> float:
        """Return a delay at a moment, just beside it, or anywhere around it."""
        around = self.chance.choice(["at", "beside", "before", "after"])
        if around == "at":
            return moment
        if around == "beside":
            return max(0.0, moment + self.chance.choice([-1e-9, 1e-9, -1e-4, 1e-4]))
        if around == "before":
            return self.chance.uniform(0.0, moment)
        return moment + self.chance.uniform(0.0, 0.2)

    def within(self, length: float) -> float:
        """Return a delay up to a length, often one of its ends."""
        return self.chance.choice([0.0, length, *(self.chance.uniform(0, length) for _ in "1234")])

    async def turns(self, most: int = 3) -> None:
        """Let the event loop run for a few turns: which task comes first is part of a race."""
        for _ in range(self.chance.randint(0, most)):
            await asyncio.sleep(0)

    def later(self, delay: float, act: Callable[[], object]) -> None:
        """Do something after a delay; of equal delays, any may come first."""
        asyncio.get_running_loop().call_later(delay, self._do, act)

    def _do(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - raised by `close`
            self._errors.append(error)

    def exits(self, delay: float, process: FakeProcess, code: int = 7) -> None:
        """Let a process exit after a delay, unless something has killed it by then."""

        def exit_unless_dead() -> None:
            if process.running:
                process.end(code)

        self.later(delay, exit_unless_dead)

    # -- the end

    async def outcome(self, call: Awaitable[ExecResult]) -> ExecResult | BaseException:
        """Return what came of a call, also its error."""
        (found,) = await asyncio.gather(call, return_exceptions=True)
        return found

    async def check(self) -> None:
        """Fail if anything is left when all calls are over and the tools are closed."""
        tools = self.tools
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._check_readers()
        assert not tools.sessions(), "a session is left open"
        assert not tools._owner.store.reserved, "an id is left reserved"
        await self.close()

    async def close(self) -> None:
        """Close the tools, and fail if anything is left; for scenarios that end by this."""
        tools = self.tools
        before = asyncio.get_running_loop().time()
        await tools.aclose()
        took = asyncio.get_running_loop().time() - before
        assert took < CLOSE_LIMIT, "the tools waited for something that did not come"
        await asyncio.gather(*self._calls, return_exceptions=True)
        assert not tools._owner.store.reserved, "an id is left reserved"
        assert len(tools._owner.store) == 0, "a session is left in the store"
        assert not tools._owner.held, "an entry is left"
        assert not tools._clock._limits, "a time limit is left"
        assert not tools._listeners.any, "a listener is left"
        assert not self.backend.line.changes._waiting, "somebody still waits for a process"
        if self._errors:
            raise ExceptionGroup("what a scenario did later failed", self._errors)
        self._check_tasks()
        self._check_attempts()
        await self._check_events()
        for process in self.backend.processes:
            if process not in self.alive_on_purpose:
                assert not process.running, f"{process.process_id} still runs"

    async def _check_readers(self) -> None:
        readers: list[object] = []
        for _ in range(10):  # those that were told to stop come to their turn
            tasks = self.tools._owner.tasks._tasks
            readers = [task for task in tasks if "Session.read" in repr(task)]
            if not readers:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"readers of ended commands are left: {readers}")

    def _check_tasks(self) -> None:
        ours = asyncio.all_tasks() - {asyncio.current_task()}
        assert not ours, f"tasks are left: {ours}"

    def _check_attempts(self) -> None:
        hooks = self.hooks
        assert len(set(map(id, hooks.ended))) == len(hooks.ended), "an attempt ended twice"
        assert set(map(id, hooks.begun)) == set(map(id, hooks.ended)), "an attempt did not end"

    async def _check_events(self) -> None:
        began: list[str] = []
        ended: list[str] = []
        async for event in self.news:
            if isinstance(event, CommandBegan):
                began.append(event.call_id)
            elif isinstance(event, CommandEnded):
                assert event.call_id in began, "the end was told before the begin"
                ended.append(event.call_id)
        assert len(set(began)) == len(began), "a begin was told twice"
        assert sorted(ended) == sorted(began), "begins and ends do not match"


def end_slowly(process: FakeProcess, seconds: float) -> None:
    """Make its `terminate` take time, as over a line; what it does is done at its end."""
    terminate = process.terminate

    async def slow_terminate(
        *, tree: bool = False, left: bool = False, streams: StreamsAtEnd = "close"
    ) -> bool:
        await asyncio.sleep(seconds)
        return await terminate(tree=tree, left=left, streams=streams)

    process.terminate = slow_terminate  # type: ignore[method-assign]


@asynccontextmanager
async def _told(seed: int) -> AsyncIterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"in repetition {seed}")
        raise


async def repeat(
    scenario: Scenario,
    *,
    backend: Callable[[], FakeBackend] = FakeBackend,
    options: Options | None = None,
    ends_by_close: bool = False,
) -> None:
    """
    Run a scenario with `REPETITIONS` seeds.

    Args:
        scenario: One repetition.
        backend: Makes what the processes run on.
        options: Options of the tools.
        ends_by_close: Sessions may be open at the end, and are closed with the tools.
    """
    for seed in range(REPETITIONS):
        async with _told(seed):
            race = Race(seed, backend(), options)
            await scenario(race)
            if ends_by_close:
                await race.close()
            else:
                await race.check()

"""Races with the line to a server: it is lost in every step, and comes back, late or never."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.agent.unified_exec import ExecResult
from holdfast.agent.unified_exec.tool_errors import CallRefused, CreateProcess, ProcessFailed
from holdfast.events import Denial, DenialKind, Reason, Verdict
from holdfast.testing import FakeBackend, FakeProcess, Program
from tests.unit.agent.unified_exec.racing import DEADLINE, GRACE, SHORTEST, Race, end_slowly, repeat

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.requirement("tools.races"),
    pytest.mark.requirement("tools.lost-line"),
]

RECOVERY = 45.0
"""Seconds after which a line that is lost is given up, as a client does."""

LOST = "the fake server is lost"


def holdfast() -> FakeBackend:
    return FakeBackend(remote=True)


SERVERS = pytest.mark.parametrize("server", [holdfast, FakeBackend.codex])

Server = Callable[[], FakeBackend]


class Cut:
    """A line that is lost at some moment, and its return."""

    def __init__(self, race: Race, at: float) -> None:
        self.race = race
        self.back = race.chance.random() < 0.6
        self.over = asyncio.Event()
        """Set when the line is back, or lost for good."""
        race.later(at, self._lose)
        after = race.within(1.0) if race.chance.random() < 0.7 else race.within(RECOVERY)
        race.later(at + (after + 1e-6 if self.back else RECOVERY), self._end)

    def _lose(self) -> None:
        self.race.backend.lose_line()

    def _end(self) -> None:
        if self.back:
            self.race.backend.restore_line()
        else:
            self.race.alive_on_purpose.update(
                process for process in self.race.backend.processes if process.running
            )
            self.race.backend.lose_for_good()
        self.over.set()

    async def follow(self, process: FakeProcess) -> ExecResult | BaseException | None:
        """Poll a session, if there is one, until its end; return what the last poll gave."""
        await self.over.wait()
        if process.running and self.back:
            process.end(7)
        outcome = None
        for session in list(self.race.tools._owner.store):
            poll = self.race.write_stdin(session.session_id, yield_time_ms=5_000)
            outcome = await self.race.outcome(poll)
        return outcome


def exits_near(race: Race, moment: float) -> Program:
    """Return a program that exits with code 7 around a moment."""

    async def program(process: FakeProcess) -> int:
        await asyncio.sleep(race.near(moment))
        return 7

    return program


def check_end(outcome: ExecResult | BaseException | None) -> None:
    """Fail if a command did not end as it must: with its exit, or with the loss of its server."""
    if isinstance(outcome, ExecResult):
        assert outcome.session_id is None
        assert outcome.exit_code == 7
    else:
        assert isinstance(outcome, ProcessFailed)
        assert LOST in str(outcome)


@SERVERS
async def test_in_the_start(server: Server) -> None:
    async def scenario(race: Race) -> None:
        race.backend.on(lambda params: True, exits_near(race, GRACE))
        cut = Cut(race, 0.0)
        await asyncio.sleep(0.001)
        call = race.exec_command()
        if race.chance.random() < 0.3:
            race.later(race.within(1.0), call.cancel)
        outcome = await race.outcome(call)
        await cut.over.wait()
        for session in list(
            race.tools._owner.store
        ):  # also of a call that was cancelled in its wait
            outcome = await race.rest(session.session_id)
        if isinstance(outcome, ExecResult):
            assert cut.back
        else:
            assert isinstance(outcome, asyncio.CancelledError | CreateProcess)

    await repeat(scenario, backend=server)


@SERVERS
async def test_in_the_grace_and_in_the_wait(server: Server) -> None:
    """The call answers at its deadline, wherever the line is."""

    async def scenario(race: Race) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        call = race.exec_command()
        process = await race.backend.process()
        cut = Cut(race, race.near(race.chance.choice([GRACE, DEADLINE])))
        race.exits(race.near(DEADLINE), process)
        outcome = await race.outcome(call)
        assert loop.time() - start <= DEADLINE + 1e-6
        ended: ExecResult | BaseException | None = outcome
        if isinstance(outcome, ExecResult) and outcome.session_id is not None:
            ended = await cut.follow(process)
        await cut.over.wait()
        check_end(ended)

    await repeat(scenario, backend=server)


@SERVERS
async def test_in_the_output_after_an_exit(server: Server) -> None:
    """The exit is known, its output is not: the deadline counts, not the line."""

    async def scenario(race: Race) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        call = race.exec_command()
        process = await race.backend.process()
        exits = race.near(GRACE)
        child = process.child()
        process.delay()
        race.exits(exits, process)
        race.later(exits + 1e-6, lambda: process.arrive(1))
        cut = Cut(race, exits + race.within(0.06) + 2e-6)
        outcome = await race.outcome(call)
        assert loop.time() - start <= max(DEADLINE, exits) + 1e-3
        process.arrive()
        check_end(outcome)
        await cut.over.wait()
        child.exit()

    await repeat(scenario, backend=server)


@SERVERS
async def test_in_a_poll(server: Server) -> None:
    async def scenario(race: Race) -> None:
        loop = asyncio.get_running_loop()
        session_id, process = await race.session()
        cut = Cut(race, race.within(5.0))
        race.exits(race.within(6.0), process)
        start = loop.time()
        outcome: ExecResult | BaseException | None
        outcome = await race.outcome(race.write_stdin(session_id))
        assert loop.time() - start <= 5.0 + 1e-6
        if isinstance(outcome, ExecResult) and outcome.session_id is not None:
            await cut.over.wait()
            await asyncio.sleep(6.0)  # its exit has come, or the loss
            outcome = await cut.follow(process)
        check_end(outcome)
        await cut.over.wait()

    await repeat(scenario, backend=server)


@SERVERS
@pytest.mark.parametrize(("tty", "chars"), [(True, "x"), (False, "\x03")])
async def test_in_an_input(server: Server, chars: str, tty: bool) -> None:
    async def scenario(race: Race) -> None:
        loop = asyncio.get_running_loop()
        session_id, process = await race.session(tty=tty)
        cut = Cut(race, 0.0)
        await asyncio.sleep(race.chance.choice([0.0, 0.001]))
        start = loop.time()
        call = race.write_stdin(session_id, chars)
        if race.chance.random() < 0.3:
            race.later(race.within(0.3), call.cancel)
        outcome = await race.outcome(call)
        assert loop.time() - start <= 0.1 + SHORTEST + 1e-6
        followed = await cut.follow(process)
        if followed is not None:
            outcome = followed
        check_end(outcome)

    await repeat(scenario, backend=server)


@SERVERS
async def test_in_the_report_of_the_end(server: Server) -> None:
    async def scenario(race: Race) -> None:
        call = race.exec_command(yield_time_ms=1_000)
        process = await race.backend.process()
        process.child(holds_output=False)
        exits = race.near(DEADLINE)
        race.exits(exits, process)
        cut = Cut(race, exits + race.chance.choice([1e-9, 1e-6, 0.01]))
        check_end(await race.outcome(call))
        await cut.over.wait()

    await repeat(scenario, backend=server)


@SERVERS
async def test_in_a_kill(server: Server) -> None:
    """Nobody waits for the line, and the process dies when it is back."""

    async def scenario(race: Race) -> None:
        session_id, process = await race.session()
        cut = Cut(race, race.within(0.01))
        await asyncio.sleep(race.within(0.02))
        poll = race.write_stdin(session_id)
        await race.turns()
        loop = asyncio.get_running_loop()
        start = loop.time()
        assert race.tools.terminate(session_id)
        outcome = await race.outcome(poll)
        assert loop.time() == start
        if isinstance(outcome, ExecResult):
            assert outcome.exit_code == -1
        assert not race.tools._owner.store.reserved
        await cut.over.wait()
        assert process in race.alive_on_purpose or not process.running

    await repeat(scenario, backend=server)


@SERVERS
async def test_in_a_close(server: Server) -> None:
    async def scenario(race: Race) -> None:
        _, process = await race.session()
        cut = Cut(race, race.within(0.5))
        calls = [race.exec_command()]
        await asyncio.sleep(race.within(0.5))
        loop = asyncio.get_running_loop()
        start = loop.time()
        await race.tools.aclose()
        assert loop.time() - start <= 5.0 + 1e-6
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, ExecResult | CallRefused | CreateProcess)
        await cut.over.wait()
        assert process in race.alive_on_purpose or not process.running

    await repeat(scenario, backend=server, ends_by_close=True)


@SERVERS
async def test_in_a_denial(server: Server) -> None:
    async def scenario(race: Race) -> None:
        race.hooks.again = race.chance.randint(0, 1)
        call = race.exec_command()
        process = await race.backend.process()
        process.child()
        exits = race.within(GRACE - 0.01)
        denied = Verdict(reason=Reason.EXITED, exit_code=7, denial=Denial(kind=DenialKind.UNKNOWN))
        race.later(exits, lambda: process.end(denied))
        race.backend.on(lambda params: True, exits_near(race, GRACE))  # the second one
        cut = Cut(race, exits + 1e-6 + race.within(0.05))
        outcome = await race.outcome(call)
        if isinstance(outcome, ExecResult) and outcome.session_id is not None:
            followed = await cut.follow(process)
            assert followed is not None
            outcome = followed
        if not isinstance(outcome, CreateProcess):
            check_end(outcome)
        await cut.over.wait()

    await repeat(scenario, backend=server)


@SERVERS
async def test_after_a_failure(server: Server) -> None:
    """The reason of the owner is told, not that the line is lost since."""

    async def scenario(race: Race) -> None:
        session_id, process = await race.session()
        (attempt,) = race.hooks.begun
        end_slowly(process, 1.0)
        attempt.fail("no network")
        await race.turns()
        race.backend.lose_for_good()
        race.alive_on_purpose.add(process)
        await race.turns()
        outcome = await race.outcome(race.write_stdin(session_id))
        assert isinstance(outcome, ProcessFailed)
        assert str(outcome) == "Unified exec process failed: no network"

    await repeat(scenario, backend=server)

"""A denial after the grace: asked about while the first call waits, and whatever ends it then."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.agent.approvals import Approvals, Decision, DecisionKind, Question
from holdfast.agent.unified_exec import (
    Attempt,
    CallInterrupted,
    ExecResult,
    Hooks,
    Options,
    StartRequest,
    ToolError,
    UnifiedExec,
)
from holdfast.base.errors import SpawnFailed
from holdfast.events import Denial, DenialKind, Reason, Verdict
from holdfast.testing import FakeEnvironment

pytestmark = [pytest.mark.virtual_time, pytest.mark.requirement("approvals.flow.late")]

DENIED = Verdict(
    reason=Reason.EXITED, exit_code=1, denial=Denial(kind=DenialKind.READ_ONLY_FILE_SYSTEM)
)
GRANULAR = {"granular": {"sandbox_approval": True, "rules": True, "mcp_elicitations": False}}


class Person:
    """Somebody whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Question] = asyncio.Queue()
        self.answers: asyncio.Queue[Decision] = asyncio.Queue()

    async def ask(self, question: Question) -> Decision:
        self.asked.put_nowait(question)
        return await self.answers.get()

    def say(self, kind: str) -> None:
        self.answers.put_nowait(Decision(DecisionKind(kind)))


class Counting(Hooks):
    def __init__(self) -> None:
        self.begun: list[Attempt] = []
        self.ended: list[Attempt] = []

    async def attempt_begins(self, request: StartRequest) -> Attempt:
        self.begun.append(Attempt(request=request))
        return self.begun[-1]

    def attempt_ended(self, attempt: Attempt) -> None:
        self.ended.append(attempt)


class Scene:
    def __init__(self, tools: UnifiedExec, environment: FakeEnvironment, person: Person) -> None:
        self.tools = tools
        self.backend = environment.backend
        self.person = person
        self.events = tools.listen()

    def call(self, **arguments: Any) -> "asyncio.Task[Any]":
        given = {"cmd": "x", "yield_time_ms": 10_000, **arguments}
        return asyncio.get_running_loop().create_task(self.tools.call("exec_command", given))

    async def denied_late(self, **arguments: Any) -> "asyncio.Task[Any]":
        """Return a call whose command was denied something after a second."""
        index = len(self.backend.starts)
        call = self.call(**arguments)
        process = await self.backend.process(index)
        await asyncio.sleep(1)
        process.output(b"first\n")
        process.end(DENIED)
        await self.person.asked.get()
        return call

    async def told(self) -> list[str]:
        self.events.close()
        return [type(event).__name__ async for event in self.events]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    person, hooks = Person(), Counting()
    options = Options(
        sandbox="workspace-write",
        approvals=Approvals(policy=GRANULAR, approver=person),
        counted_ids=True,
    )
    async with (
        FakeEnvironment() as environment,
        UnifiedExec(environment, options=options, hooks=hooks) as tools,
    ):
        yield Scene(tools, environment, person)
    assert sorted(map(id, hooks.ended)) == sorted(map(id, hooks.begun))
    assert tools._owner.store.reserved == frozenset()
    assert tools._owner.held == {}


async def test_accepted_it_runs_again_under_its_id_and_is_told_once(scene: Scene) -> None:
    call = await scene.denied_late()
    scene.person.say("accept")
    process = await scene.backend.process(1)
    assert [one.sandbox is None for one in scene.backend.starts] == [False, True]
    first, second = (one.process_id.partition("-")[0] for one in scene.backend.starts)
    assert first == second == "1000"
    await asyncio.sleep(1)
    process.output(b"second\n")
    process.end()
    result = await call
    assert isinstance(result, ExecResult)
    assert (result.output, result.exit_code) == ("second\n", 0)
    assert await scene.told() == ["CommandBegan", "OutputDelta", "OutputDelta", "CommandEnded"]


async def test_the_second_run_may_become_a_session(scene: Scene) -> None:
    call = await scene.denied_late()
    scene.person.say("accept")
    await scene.backend.process(1)
    result = await call
    assert isinstance(result, ExecResult)
    assert result.session_id == 1000
    assert [session.session_id for session in scene.tools.sessions()] == [1000]


async def test_declined_the_first_output_is_the_result(scene: Scene) -> None:
    call = await scene.denied_late()
    scene.person.say("decline")
    result = await call
    assert isinstance(result, ExecResult)
    assert (result.output, result.exit_code, result.wall_time) == ("first\n", 1, 0.0)
    assert await scene.told() == ["CommandBegan", "OutputDelta", "CommandEnded"]


async def test_cancelled_nothing_is_left(scene: Scene) -> None:
    call = await scene.denied_late()
    scene.person.say("cancel")
    result = await call
    assert isinstance(result, ToolError)
    assert isinstance(result.cause, CallInterrupted)
    assert len(scene.backend.starts) == 1
    assert await scene.told() == ["CommandBegan", "OutputDelta", "CommandEnded"]
    gone = await scene.tools.call("write_stdin", {"session_id": 1000})
    assert gone.text() == "write_stdin failed: Unknown process id 1000"


async def test_the_call_is_interrupted_while_somebody_is_asked(scene: Scene) -> None:
    call = await scene.denied_late()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    scene.person.say("accept")
    # As after any interrupt, a poll reports the end.
    result = await scene.tools.call("write_stdin", {"session_id": 1000})
    assert isinstance(result, ExecResult)
    assert (result.output, result.exit_code) == ("first\n", 1)
    assert len(scene.backend.starts) == 1


@pytest.mark.parametrize("way", ["terminate", "clean"])
async def test_it_is_killed_while_somebody_is_asked(scene: Scene, way: str) -> None:
    call = await scene.denied_late()
    if way == "terminate":
        assert scene.tools.terminate(1000)
    else:
        scene.tools.clean()
    scene.person.say("accept")
    await call
    assert len(scene.backend.starts) == 1
    assert await scene.told() == ["CommandBegan", "OutputDelta", "CommandEnded"]


async def test_the_tools_are_closed_while_somebody_is_asked(scene: Scene) -> None:
    call = await scene.denied_late()
    await scene.tools.aclose()
    result = await call
    assert result.text() == "the tools are closed"
    assert len(scene.backend.starts) == 1


async def test_the_second_start_fails(scene: Scene) -> None:
    call = await scene.denied_late()
    scene.backend.refuse_next_start(SpawnFailed("no memory"))
    scene.person.say("accept")
    result = await call
    assert isinstance(result, ToolError)
    assert "no memory" in result.text()
    assert await scene.told() == ["CommandBegan", "OutputDelta", "CommandEnded"]


async def test_what_a_call_selects_is_of_the_second_run(scene: Scene) -> None:
    call = await scene.denied_late()
    scene.person.say("accept")
    process = await scene.backend.process(1)
    process.output(b"second\n")
    process.end()
    assert (await call).output == "second\n"


async def test_the_clock_of_other_calls_stands_still(scene: Scene) -> None:
    other = scene.call(yield_time_ms=5_000)
    await scene.backend.process()
    call = await scene.denied_late()
    await asyncio.sleep(600)
    assert not other.done()
    scene.person.say("decline")
    assert (await call).exit_code == 1
    result = await other
    assert isinstance(result, ExecResult)
    assert result.session_id is not None


async def test_a_denial_after_the_first_answer_is_not_asked_about(scene: Scene) -> None:
    call = scene.call(yield_time_ms=250)
    process = await scene.backend.process()
    running = await call
    assert running.session_id == 1000
    process.end(DENIED)
    result = await scene.tools.call("write_stdin", {"session_id": 1000})
    assert isinstance(result, ExecResult)
    assert result.exit_code == 1
    assert scene.person.asked.empty()

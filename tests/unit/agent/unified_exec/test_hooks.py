"""Hooks decide over commands, and are told of the end of every attempt exactly once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.agent.unified_exec import (
    Attempt,
    DeniedAttempt,
    ExecResult,
    Hooks,
    Options,
    StartRequest,
    ToolError,
    UnifiedExec,
)
from holdfast.agent.unified_exec.sessions.session_events import CommandBegan, CommandEnded
from holdfast.agent.unified_exec.tool_errors import CreateProcess, rejected_text
from holdfast.base.errors import SpawnFailed
from holdfast.events import Denial, DenialKind, Reason, Verdict
from holdfast.testing import FakeEnvironment

pytestmark = pytest.mark.virtual_time

DENIED = Verdict(
    reason=Reason.EXITED, exit_code=1, denial=Denial(kind=DenialKind.READ_ONLY_FILE_SYSTEM)
)


class Recorder(Hooks):
    """Allows everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[StartRequest] = []
        self.denied: list[DeniedAttempt] = []
        self.begun: list[Attempt] = []
        self.ended: list[Attempt] = []
        self.refusal: Exception | None = None
        self.again: bool = False

    async def before_start(self, request: StartRequest) -> StartRequest:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        return request

    async def after_denial(self, denied: DeniedAttempt) -> StartRequest | None:
        self.denied.append(denied)
        if self.refusal is not None:
            raise self.refusal
        return replace(denied.request, sandbox=None) if self.again else None

    async def attempt_begins(self, request: StartRequest) -> Attempt:
        attempt = Attempt(request=request, environment={"PROXY": str(len(self.begun))})
        self.begun.append(attempt)
        return attempt

    def attempt_ended(self, attempt: Attempt) -> None:
        self.ended.append(attempt)


@pytest.fixture
def hooks() -> Recorder:
    return Recorder()


@pytest.fixture
async def environment() -> AsyncIterator[FakeEnvironment]:
    async with FakeEnvironment() as environment:
        yield environment


@pytest.fixture
async def tools(environment: FakeEnvironment, hooks: Recorder) -> AsyncIterator[UnifiedExec]:
    async with UnifiedExec(environment, options=Options(counted_ids=True), hooks=hooks) as tools:
        yield tools
    assert hooks.ended == hooks.begun
    assert tools._owner.store.reserved == frozenset()
    assert tools._owner.held == {}


def exec_command(tools: UnifiedExec, **arguments: object) -> asyncio.Task[object]:
    call = tools.call("exec_command", {"cmd": "x", **arguments}, call_id="c1")
    return asyncio.get_running_loop().create_task(call)


async def test_a_command_is_shown_before_it_is_started(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    call = exec_command(
        tools,
        workdir="sub",
        tty=True,
        justification="why not",
        sandbox_permissions="require_escalated",
    )
    process = await environment.backend.process()
    process.end()
    assert isinstance(await call, ExecResult)
    request = hooks.requests[0]
    assert (request.call_id, request.session_id, request.script) == ("c1", 1000, "x")
    assert request.argv == ("/bin/bash", "-lc", "x")
    assert (request.cwd.native, request.tty) == ("/fake/sub", True)
    assert request.arguments.justification == "why not"
    assert environment.backend.starts[0].env["PROXY"] == "0"
    assert hooks.ended == hooks.begun


async def test_a_refusal_is_what_the_model_reads_and_starts_nothing(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    listener = tools.listen()
    hooks.refusal = CreateProcess(rejected_text("rejected by user"))
    result = await exec_command(tools)
    assert isinstance(result, ToolError)
    assert result.text() == (
        'exec_command failed: CreateProcess { message: "Rejected(\\"rejected by user\\")" }'
    )
    assert environment.backend.starts == []
    listener.close()
    assert [event async for event in listener] == []


async def test_a_start_that_fails_ends_its_attempt_and_is_told(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    listener = tools.listen()
    environment.backend.refuse_next_start(SpawnFailed("No such file (os error 2)", errno=2))
    result = await exec_command(tools)
    assert isinstance(result, ToolError)
    assert hooks.ended == hooks.begun
    listener.close()
    began, ended = [event async for event in listener]
    assert isinstance(began, CommandBegan)
    assert isinstance(ended, CommandEnded)
    assert (began.session_id, ended.exit_code) == (None, -1)
    assert ended.failure == "Failed to create unified exec process: No such file (os error 2)"


async def test_a_denial_in_the_grace_may_be_run_again_under_the_same_id(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    listener = tools.listen()
    hooks.again = True
    call = exec_command(tools)
    first = await environment.backend.process(0)
    first.output(b"read-only\n")
    first.end(DENIED)
    second = await environment.backend.process(1)
    second.output(b"fine\n")
    second.end()
    result = await call
    assert isinstance(result, ExecResult)
    assert (result.exit_code, result.output) == (0, "fine\n")
    assert hooks.denied[0].message == "read-only\n"
    assert [attempt.request.session_id for attempt in hooks.begun] == [1000, 1000]
    listener.close()
    events = [event async for event in listener]
    # Nothing is told of the attempt that was denied.
    assert [type(event) for event in events] == [CommandBegan, CommandEnded]


async def test_a_denial_that_is_not_run_again_is_an_ordinary_result(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    call = exec_command(tools)
    process = await environment.backend.process()
    process.end(DENIED)
    result = await call
    assert isinstance(result, ExecResult)
    assert (result.exit_code, result.wall_time) == (1, 0.0)
    assert hooks.denied[0].message == "Process exited with code 1"


async def test_a_denial_after_the_grace_asks_nobody(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    call = exec_command(tools)
    process = await environment.backend.process()
    await asyncio.sleep(1)
    process.end(DENIED)
    result = await call
    assert isinstance(result, ExecResult)
    assert (result.exit_code, result.wall_time, hooks.denied) == (1, 0.0, [])


async def test_somebody_may_say_no_to_the_second_run(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    call = exec_command(tools)
    process = await environment.backend.process()
    hooks.refusal = CreateProcess(rejected_text("rejected by user"))
    process.end(DENIED)
    assert isinstance(await call, ToolError)
    assert tools.sessions() == []


async def test_a_policy_can_fail_a_command_that_runs(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    call = exec_command(tools)
    process = await environment.backend.process()
    await asyncio.sleep(1)
    hooks.begun[0].fail("Network access was denied.")
    result = await call
    assert isinstance(result, ToolError)
    assert result.text() == (
        'exec_command failed: ProcessFailed { message: "Network access was denied." }'
    )
    await process.until(lambda: not process.running)
    assert hooks.ended == hooks.begun


async def test_a_policy_can_fail_a_command_between_two_calls(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    first = await exec_command(tools, yield_time_ms=250)
    assert isinstance(first, ExecResult)
    hooks.begun[0].fail("denied")
    hooks.begun[0].fail("once more")
    polled = await tools.call("write_stdin", {"session_id": first.session_id})
    assert polled.text() == "write_stdin failed: Unified exec process failed: denied"
    gone = await tools.call("write_stdin", {"session_id": first.session_id})
    assert gone.text() == "write_stdin failed: Unknown process id 1000"


async def test_a_hook_that_fails_at_the_end_does_not_keep_the_session(
    environment: FakeEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Hooks):
        def attempt_ended(self, attempt: Attempt) -> None:
            raise RuntimeError("not mine")

    async with UnifiedExec(environment, hooks=Failing()) as tools:
        call = exec_command(tools)
        process = await environment.backend.process()
        process.end()
        assert isinstance(await call, ExecResult)
        environment.backend.refuse_next_start(SpawnFailed("no"))
        assert isinstance(await exec_command(tools), ToolError)
        assert tools._owner.held == {}
        assert tools._owner.store.reserved == frozenset()
    assert caplog.text.count("a hook failed at the end of call c1") == 2


@pytest.mark.parametrize("method", ["before_start", "attempt_begins"])
async def test_a_hook_without_a_return_is_named(
    tools: UnifiedExec, hooks: Recorder, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgets(request: StartRequest) -> None:
        return None

    monkeypatch.setattr(hooks, method, forgets)
    with pytest.raises(TypeError, match=f"the hook {method} returned None, it must return"):
        await tools.call("exec_command", {"cmd": "x"})


async def test_nobody_is_asked_about_a_command_that_cannot_be_started(
    tools: UnifiedExec, environment: FakeEnvironment, hooks: Recorder
) -> None:
    listener = tools.listen()
    result = await tools.call("exec_command", {"cmd": "echo a\0b"})
    assert "nul byte found in provided data" in result.text()
    assert (hooks.requests, environment.backend.starts) == ([], [])
    assert [type(await anext(listener)) for _ in range(2)] == [CommandBegan, CommandEnded]

"""One call: its questions, its result, its limit and its end."""

import asyncio

import pytest
from mcp_types import CallToolResult, TextContent

from holdfast.agent.approvals.question import Decision, DecisionKind, Question, QuestionKind
from holdfast.base.errors import Overloaded
from holdfast.front.mcp.running_requests import Attendance, Revoked
from holdfast.front.mcp.tool_calls import ToolCall

DONE = CallToolResult(content=[TextContent(text="done")])
YES = Decision(DecisionKind.ACCEPT)


def question(digest: str = "d") -> Question:
    return Question(
        kind=QuestionKind.COMMAND,
        call_id="c",
        environment_id="local",
        command=(),
        cwd="/",
        digest=digest,
    )


async def test_a_call_that_asks_nothing_has_a_result() -> None:
    async def work(call: ToolCall) -> CallToolResult:
        return DONE

    call = ToolCall("exec_command", work, max_wait=5)
    assert await call.next_question() is None
    assert await call.result() == DONE


async def test_questions_are_asked_one_after_the_other() -> None:
    heard: list[Decision] = []

    async def work(call: ToolCall) -> CallToolResult:
        heard.append(await call.ask(question("first")))
        heard.append(await call.ask(question("second")))
        return DONE

    call = ToolCall("exec_command", work, max_wait=5)
    for digest in ("first", "second"):
        asked = await call.next_question()
        assert asked is not None
        assert asked.digest == digest
        assert call.question is asked
        call.answer(YES)
        call.answer(Decision(DecisionKind.DECLINE))  # the first one counts
    assert await call.next_question() is None
    assert heard == [YES, YES]


@pytest.mark.virtual_time
async def test_the_time_of_a_question_does_not_count() -> None:
    async def work(call: ToolCall) -> CallToolResult:
        await call.ask(question())
        await asyncio.sleep(100)
        return DONE

    call = ToolCall("exec_command", work, max_wait=5)
    assert await call.next_question() is not None
    await asyncio.sleep(1_000)
    call.answer(YES)
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await call.next_question()
    assert 5 <= asyncio.get_running_loop().time() - began <= 10
    assert call.too_late() == "exec_command timed out: it took longer than 5 s"
    await call.stop()
    assert call.done


async def test_a_stopped_call_declines_its_question() -> None:
    heard: list[DecisionKind] = []

    async def work(call: ToolCall) -> CallToolResult:
        heard.append((await call.ask(question())).kind)
        return DONE

    call = ToolCall("exec_command", work, max_wait=5)
    await call.next_question()
    await call.stop()
    assert heard == [DecisionKind.CANCEL]


async def test_a_failure_is_the_callers_to_see() -> None:
    async def work(call: ToolCall) -> CallToolResult:
        raise ValueError("broken")

    call = ToolCall("exec_command", work, max_wait=5)
    assert await call.next_question() is None
    with pytest.raises(ValueError, match="broken"):
        await call.result()


async def test_the_first_and_the_last_request_are_told() -> None:
    told: list[str] = []
    here = Attendance()
    here.arrived = lambda key: told.append(f"arrived {key}")
    here.left = lambda key: told.append(f"left {key}")
    async with here.request("a"):
        async with here.request("a"), here.request("b"):
            assert told == ["arrived a", "arrived b"]
        assert told[2:] == ["left b"]
    assert told[3:] == ["left a"]


async def test_one_principal_cannot_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.front.mcp.running_requests._REQUESTS", 2)
    here = Attendance()
    async with here.request("a"), here.request("a"):
        with pytest.raises(Overloaded, match="2 running requests and streams"):
            async with here.request("a"):
                pass
        async with here.request("b"):
            pass
    async with here.request("a"):
        pass


async def test_a_revoked_key_ends_its_requests_and_gets_no_principal_back() -> None:
    here = Attendance()
    ended: list[str] = []
    here.gone = ended.append

    async def request(key: str) -> None:
        async with here.request(key):
            await asyncio.Event().wait()

    revoked, other = (asyncio.ensure_future(request(key)) for key in ("a", "b"))
    await asyncio.sleep(0)
    assert here.revoke("a") == 1
    # A second time, while the first is still at work.
    assert here.revoke("a") == 1
    with pytest.raises(Revoked):
        await revoked
    assert (ended, here.is_revoked("a"), here.is_revoked("b")) == (["a", "a"], True, False)
    assert not other.done()
    other.cancel()
    # Its token was added again.
    async with here.request("a"):
        assert not here.is_revoked("a")

"""Approvers: whatever they do, nothing is accepted by accident."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from holdfast.agent.approvals.ask import (
    ApprovalChain,
    CallbackApprover,
    QuestionAnswered,
    QuestionQueue,
    TerminalApprover,
    as_approver,
    ask_bounded,
)
from holdfast.agent.approvals.permissions import AddedPermissions
from holdfast.agent.approvals.question import (
    Decision,
    DecisionKind,
    DeniedRun,
    Question,
    QuestionKind,
)
from holdfast.base.errors import InvalidParams

ACCEPT, DECLINE = Decision(DecisionKind.ACCEPT), Decision(DecisionKind.DECLINE)


def question(command: str = "ls", **members: Any) -> Question:
    return Question(
        kind=QuestionKind.COMMAND,
        call_id="c1",
        environment_id="local",
        command=(command,),
        cwd="/ws",
        digest="d",
        **members,
    )


async def raises(asked: Question) -> Decision:
    raise ValueError("no")


async def never(asked: Question) -> Decision:
    await asyncio.Event().wait()
    raise AssertionError


async def late(asked: Question) -> Decision:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return ACCEPT
    raise AssertionError


async def cancelled(asked: Question) -> Decision:
    raise asyncio.CancelledError


async def other_question(asked: Question) -> Decision:
    return replace(ACCEPT, question_id="another")


async def nothing(asked: Question) -> None:
    return None


async def truth(asked: Question) -> Any:
    return True


def wrong_name(asked: Question) -> str:
    return "yes"


def exits(asked: Question) -> str:
    raise SystemExit


WRONG: list[Callable[[Question], Any]] = [
    raises,
    never,
    late,
    cancelled,
    other_question,
    nothing,
    truth,
    wrong_name,
    exits,
]


@pytest.mark.parametrize("approver", WRONG)
@pytest.mark.requirement("approvals.ask.fails-closed")
async def test_an_approver_that_goes_wrong_declines(approver: Callable[[Question], Any]) -> None:
    found = await ask_bounded(as_approver(approver), question(), limit=0.01)
    assert found.kind is DecisionKind.DECLINE
    assert found.rejection


@pytest.mark.requirement("approvals.ask.fails-closed")
async def test_an_approver_that_cannot_be_stopped_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agent.approvals.ask._WITHDRAWAL", 0.01)
    enough = asyncio.Event()
    stopped = asyncio.Event()

    async def stubborn(asked: Question) -> Decision:
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()
        stopped.set()
        return ACCEPT

    found = await ask_bounded(as_approver(stubborn), question(), limit=0.01)
    assert found.kind is DecisionKind.DECLINE
    assert not stopped.is_set()
    enough.set()
    await stopped.wait()


@pytest.mark.parametrize("approver", WRONG)
@pytest.mark.requirement("approvals.ask.chain")
async def test_a_chain_goes_on_to_the_next(approver: Callable[[Question], Any]) -> None:
    chain = ApprovalChain(
        approver, reviewer=nothing, person=lambda asked: ACCEPT, review_limit=0.01
    )
    assert (await ask_bounded(chain, question(), limit=5)).kind is DecisionKind.ACCEPT
    alone = ApprovalChain(approver, review_limit=0.01)
    assert (await ask_bounded(alone, question(), limit=5)).kind is DecisionKind.DECLINE
    last = ApprovalChain(person=approver)
    assert (await ask_bounded(last, question(), limit=0.01)).kind is DecisionKind.DECLINE


@pytest.mark.requirement("approvals.ask.chain")
async def test_the_first_decision_of_a_chain_counts() -> None:
    asked: list[str] = []

    def says(name: str, decision: Decision | None) -> Callable[[Question], Any]:
        async def ask(_: Question) -> Decision | None:
            asked.append(name)
            return decision

        return ask

    chain = ApprovalChain(
        says("hook", None), reviewer=says("reviewer", DECLINE), person=says("person", ACCEPT)
    )
    assert (await chain.ask(question())).kind is DecisionKind.DECLINE
    assert asked == ["hook", "reviewer"]


async def test_who_asks_can_be_cancelled() -> None:
    asking = asyncio.create_task(ask_bounded(as_approver(never), question(), limit=None))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.requirement("approvals.ask.callback")
async def test_functions_of_all_kinds() -> None:
    async def by_coroutine(asked: Question) -> Decision:
        return ACCEPT

    class Called:
        def __call__(self, asked: Question) -> Awaitable[Decision]:
            return by_coroutine(asked)

    for function in (by_coroutine, Called(), lambda asked: "accept", lambda asked: ACCEPT):
        approver = as_approver(function)
        assert isinstance(approver, CallbackApprover)
        found = await ask_bounded(approver, question(), limit=5)
        assert found.kind is DecisionKind.ACCEPT
    with pytest.raises(TypeError, match="an approver is 5"):
        as_approver(5)  # type: ignore[arg-type]  # on purpose


@pytest.mark.requirement("approvals.ask.queue")
async def test_a_queue_for_a_user_interface() -> None:
    queue = QuestionQueue()
    asking = [asyncio.create_task(queue.ask(question(str(number)))) for number in range(2)]
    first = await queue.next()
    assert first.command == ("0",)
    second = await anext(aiter(queue))
    assert len(queue.open) == 2
    with pytest.raises(InvalidParams, match=f"for question `{first.id}`"):
        queue.answer(second.id, replace(ACCEPT, question_id=first.id))
    queue.answer(second.id, DECLINE)
    queue.answer(first.id, replace(ACCEPT, question_id=first.id))
    with pytest.raises(QuestionAnswered):
        queue.answer(first.id, ACCEPT)
    with pytest.raises(QuestionAnswered):
        queue.answer("unknown", ACCEPT)
    found = await asyncio.gather(*asking)
    assert [one.kind for one in found] == [DecisionKind.ACCEPT, DecisionKind.DECLINE]
    assert [one.question_id for one in found] == [first.id, second.id]
    assert not queue.open


@pytest.mark.requirement("approvals.ask.queue")
async def test_a_withdrawn_question_cannot_be_answered() -> None:
    queue = QuestionQueue(limit=1)
    asking = asyncio.create_task(queue.ask(question()))
    asked = await queue.next()
    too_many = await queue.ask(question())
    assert too_many.kind is DecisionKind.DECLINE
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    with pytest.raises(QuestionAnswered):
        queue.answer(asked.id, ACCEPT)
    # One that nobody has looked at is gone, too.
    asking = asyncio.create_task(queue.ask(question("gone")))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    asking = asyncio.create_task(queue.ask(question("next")))
    assert (await queue.next()).command == ("next",)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        ("y\n", "accept"),
        ("Y \n", "accept"),
        ("s\n", "decline"),
        ("a\n", "acceptWithExecpolicyAmendment"),
        ("n\n", "decline"),
        ("c\n", "cancel"),
        ("what\ny\n", "accept"),
        ("what\nwhat\nwhat\ny\n", "decline"),
        ("", "decline"),
        ("\n", "decline"),
    ],
)
@pytest.mark.requirement("approvals.ask.terminal")
async def test_a_person_at_a_terminal(typed: str, kind: str) -> None:
    shown = io.StringIO()
    approver = TerminalApprover(io.StringIO(typed), shown)
    asked = question(
        "ls \x1b[2K\rharmless",
        reason="because",
        proposed_amendment=("ls",),
        leaves_sandbox=True,
        denied=DeniedRun(what="w", output="out\x07", exit_code=1, network_attempts=("host",)),
    )
    found = await ask_bounded(approver, asked, limit=5)
    assert found.kind.value == kind
    text = shown.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    assert "\\x1b[2K\\rharmless" in text
    for part in ("outside its sandbox", "because", "host", "out\\x07", "[a]lways for `ls`"):
        assert part in text
    assert "\nOutside its sandbox: [y]es" in text


async def test_a_terminal_offers_what_fits() -> None:
    shown = io.StringIO()
    approver = TerminalApprover(io.StringIO("s\na\ny\n"), shown)
    asked = replace(question(), kind=QuestionKind.WRITE_STDIN)
    assert (await approver.ask(asked)).kind is DecisionKind.ACCEPT
    assert "session" not in shown.getvalue()
    approver = TerminalApprover(io.StringIO("s\n"), io.StringIO())
    assert (await approver.ask(question())).kind is DecisionKind.ACCEPT_FOR_SESSION
    more = AddedPermissions(network=True)
    asked = question(proposed_amendment=("ls",), permissions=more)
    approver = TerminalApprover(io.StringIO("a\nn\n"), shown)
    assert (await approver.ask(asked)).kind is DecisionKind.DECLINE

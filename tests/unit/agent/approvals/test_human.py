"""Commands that only a person may allow: asked each time, remembered never."""

import asyncio
import io
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast.agent.approvals import (
    UNTRUSTED,
    ApprovalChain,
    ApprovalFlow,
    Approvals,
    Approver,
    CallbackApprover,
    CallCancelled,
    Clearance,
    CommandDeclined,
    CommandRefused,
    CommandRequest,
    Decision,
    DecisionKind,
    DeniedRun,
    PrefixRule,
    Question,
    QuestionKind,
    QuestionQueue,
    RuleSet,
    Ruling,
    TerminalApprover,
)
from holdfast.engine.sandbox.profile.builtin import sandbox_context

pytestmark = [pytest.mark.both_loops, pytest.mark.requirement("approvals.human.once")]

RULES = RuleSet(
    [
        PrefixRule(pattern=(("push",),), ruling=Ruling.PROMPT_USER, justification="it is public"),
        PrefixRule(pattern=(("push",),)),
        PrefixRule(pattern=(("ask",),), ruling=Ruling.PROMPT),
    ]
)
ONCE_ONLY = "Managed command policy requires a one-time human approval."
ACCEPT = Decision(DecisionKind.ACCEPT)


@dataclass
class Person:
    answers: list[Decision]
    asked: list[Question] = field(default_factory=list)
    required_human_approval: bool = True

    async def ask(self, question: Question) -> Decision:
        self.asked.append(question)
        return self.answers.pop(0)


def flow(approver: Any, **choices: Any) -> ApprovalFlow:
    return ApprovalFlow(Approvals(approver=approver, rules=RULES, **choices))


def request(script: str = "push x", **members: Any) -> CommandRequest:
    return CommandRequest(
        call_id="c",
        environment_id="local",
        argv=("/bin/bash", "-c", script),
        cwd="/ws",
        script=script,
        sandbox=sandbox_context("workspace-write", cwd="/ws"),
        **members,
    )


async def refusal(approver: Any, script: str = "push x", **choices: Any) -> str:
    with pytest.raises(CommandRefused) as refused:
        await flow(approver, **choices).admit(request(script))
    return str(refused.value)


async def test_a_person_is_asked_each_time() -> None:
    person = Person([ACCEPT, ACCEPT, Decision(DecisionKind.DECLINE)])
    asking = flow(person)
    for _ in range(2):
        clearance = await asking.admit(request())
        assert clearance.approved
        assert not clearance.left_sandbox
    with pytest.raises(CommandDeclined, match="rejected by user"):
        await asking.admit(request())
    first, second, _ = person.asked
    assert first.id != second.id
    assert first.to_json() == {
        "itemId": "c",
        "startedAtMs": first.started_at_ms,
        "kind": "humanCommand",
        "environmentId": "local",
        "reason": "`/bin/bash -c 'push x'` requires human approval: it is public",
        "explanation": "rule prompt-user `push`: it is public",
        "command": "/bin/bash -c 'push x'",
        "cwd": "/ws",
        "commandActions": [{"type": "unknown", "command": "push x"}],
        "availableDecisions": ["accept", "decline", "cancel"],
        "approvalId": first.id,
    }


@pytest.mark.parametrize(
    "answer",
    [
        Decision(DecisionKind.ACCEPT_FOR_SESSION),
        Decision(DecisionKind.ACCEPT_WITH_AMENDMENT, amendment=("push",)),
        Decision(DecisionKind.NETWORK_AMENDMENT, network_host="h", network_action="allow"),
    ],
)
@pytest.mark.parametrize("choices", [{}, {"broader_amendments": True, "reask": False}])
async def test_an_answer_for_longer_is_refused(answer: Decision, choices: Any) -> None:
    person = Person([answer, ACCEPT])
    asking = flow(person, **choices)
    with pytest.raises(CommandRefused) as refused:
        await asking.admit(request())
    assert str(refused.value) == ONCE_ONLY
    assert len(asking.cache) == 0
    assert asking.rules is RULES
    await asking.admit(request())
    assert len(person.asked) == 2


async def test_an_earlier_answer_for_the_session_does_not_count() -> None:
    person = Person([Decision(DecisionKind.ACCEPT_FOR_SESSION), ACCEPT])
    asking = flow(person)
    # Accepted while no rule was about it.
    asking.rules = RuleSet([PrefixRule(pattern=(("push",),), ruling=Ruling.PROMPT)])
    await asking.admit(request())
    assert len(asking.cache) == 1
    asking.rules = RULES
    await asking.admit(request())
    assert [one.kind for one in person.asked] == [QuestionKind.COMMAND, QuestionKind.HUMAN_COMMAND]


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("never", "approval required by policy, but AskForApproval is set to Never"),
        (
            {"granular": {"sandbox_approval": True, "rules": False, "mcp_elicitations": True}},
            "approval required by policy rule, but AskForApproval::Granular.rules is false",
        ),
    ],
)
async def test_a_policy_that_may_not_ask_refuses(policy: Any, text: str) -> None:
    assert await refusal(Person([]), policy=policy) == text


async def test_what_is_not_said_to_be_a_person_is_never_asked() -> None:
    asked: list[Question] = []

    def callback(question: Question) -> str:
        asked.append(question)
        return "accept"

    class Quiet:
        async def ask(self, question: Question) -> Decision:
            return await CallbackApprover(callback).ask(question) or ACCEPT

    strangers = (None, callback, Quiet(), CallbackApprover(callback), QuestionQueue())
    for approver in strangers:
        assert await refusal(approver) == "approval request failed"
    assert asked == []
    # An ordinary question is put to it all the same.
    await flow(callback).admit(request("ask x"))
    assert [one.kind for one in asked] == [QuestionKind.COMMAND]
    await flow(CallbackApprover(callback, required_human_approval=True)).admit(request())
    assert asked[-1].kind is QuestionKind.HUMAN_COMMAND


async def test_a_chain_asks_its_person_alone() -> None:
    reviewed: list[Question] = []

    def review(question: Question) -> str:
        reviewed.append(question)
        return "accept"

    person = Person([ACCEPT])
    await flow(ApprovalChain(review, reviewer=review, person=person)).admit(request())
    assert len(person.asked) == 1
    # The hook was asked, and what it accepts does not count.
    assert len(reviewed) == 1
    assert (
        await refusal(ApprovalChain(lambda _: "decline", person=Person([]))) == "rejected by user"
    )
    automatic = (
        "Managed command policy requires human approval, but this session requires automatic"
        " review."
    )
    assert await refusal(ApprovalChain(reviewer=review)) == automatic
    assert await refusal(ApprovalChain(review)) == "approval request failed"


@pytest.mark.requirement("approvals.human.unseen")
@pytest.mark.parametrize("script", ["echo $[ ; ls", "ask $[ ; ls", "rm -f x; echo $[ ; ls"])
async def test_a_script_that_may_hide_such_a_command_goes_to_a_person(script: str) -> None:
    assert await refusal(lambda _: "accept", script) == "approval request failed"
    person = Person([ACCEPT, Decision(DecisionKind.ACCEPT_FOR_SESSION)])
    asking = flow(person)
    assert (await asking.admit(request(script))).approved
    with pytest.raises(CommandRefused, match=ONCE_ONLY):
        await asking.admit(request(script))
    assert {question.kind for question in person.asked} == {QuestionKind.HUMAN_COMMAND}
    assert "it cannot be looked through" in (person.asked[0].reason or "")


@pytest.mark.requirement("approvals.human.unseen")
async def test_without_such_a_rule_any_approver_is_asked_about_what_cannot_be_seen() -> None:
    rules = RuleSet([rule for rule in RULES.prefix_rules if rule.ruling is not Ruling.PROMPT_USER])
    kinds = []

    def approve(question: Question) -> str:
        kinds.append(question.kind)
        return "accept"

    asking = ApprovalFlow(Approvals(approver=approve, rules=rules))
    assert (await asking.admit(request("echo $[ ; ls"))).approved
    assert kinds == [QuestionKind.COMMAND]


@pytest.mark.parametrize("policy", [UNTRUSTED, "on-request"])
async def test_a_second_run_after_a_denial_asks_a_person_again(policy: Any) -> None:
    person = Person([ACCEPT, ACCEPT, ACCEPT, Decision(DecisionKind.ACCEPT_FOR_SESSION)])
    asking = flow(person, policy=policy, reask=False, retry_on_request=True)
    denied = DeniedRun(what="a file", output="no", exit_code=1)

    async def again() -> Clearance | None:
        return await asking.after_denial(await asking.admit(request()), denied, seconds=0.1)

    second = await again()
    assert second is not None
    assert second.left_sandbox
    # An answer for longer leaves it at the first output.
    assert await again() is None
    assert {one.kind for one in person.asked} == {QuestionKind.HUMAN_COMMAND}
    offered = [one.kind.value for one in person.asked[1].available_decisions]
    assert offered == ["accept", "decline", "cancel"]


async def raises(question: Question) -> Decision:
    raise ValueError("no")


async def never(question: Question) -> Decision:
    await asyncio.Event().wait()
    raise AssertionError


async def other(question: Question) -> Decision:
    return replace(ACCEPT, question_id="another")


def silent(question: Question) -> None:
    """Leave the question to others."""


def unknown(question: Question) -> str:
    return "always"


@pytest.mark.parametrize("callback", [raises, never, other, silent, unknown])
async def test_an_approver_that_goes_wrong_allows_nothing(callback: Any) -> None:
    person = CallbackApprover(callback, required_human_approval=True)
    for approver in (person, ApprovalChain(person=person)):
        asking = flow(approver, ask_limit=0.05)
        with pytest.raises(CommandDeclined):
            await asking.admit(request())


async def test_two_questions_at_once_are_two_questions() -> None:
    queue = QuestionQueue(required_human_approval=True)
    asking = flow(queue)
    one = asyncio.create_task(asking.admit(request()))
    two = asyncio.create_task(asking.admit(request()))
    first, second = await queue.next(), await queue.next()
    assert first.digest == second.digest
    queue.answer(second.id, Decision(DecisionKind.CANCEL))
    with pytest.raises(CallCancelled):
        await two
    assert not one.done()
    queue.answer(first.id, ACCEPT)
    assert (await one).approved


async def test_a_call_that_is_cancelled_withdraws_its_question() -> None:
    queue = QuestionQueue(required_human_approval=True)
    waiting = asyncio.create_task(flow(queue).admit(request()))
    await queue.next()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert queue.open == ()


async def test_a_terminal_offers_this_once() -> None:
    for typed, kind in (("y\n", "accept"), ("s\na\nn\n", "decline"), ("", "decline")):
        shown = io.StringIO()
        approver: Approver = TerminalApprover(io.StringIO(typed), shown)
        person = Person([ACCEPT])
        await flow(person).admit(request())
        # As if a prefix had been proposed.
        asked = replace(person.asked[0], proposed_amendment=("push",))
        assert (await approver.ask(asked)).kind.value == kind
        assert "Only a person may allow it, and only this once.\n" in shown.getvalue()
        assert "[y]es, [n]o, [c]ancel the call: " in shown.getvalue()


async def test_a_kind_that_a_reader_does_not_know_is_not_remembered() -> None:
    person = Person([ACCEPT])
    await flow(person).admit(request("ask x"))
    later = replace(person.asked[0], kind="laterKind", proposed_amendment=("ask",))  # type: ignore[arg-type]
    assert not later.is_rememberable
    assert not later.is_amendable
    assert later.to_json()["availableDecisions"] == ["accept", "decline", "cancel"]
    assert later.to_json()["kind"] == "laterKind"
    shown = io.StringIO()
    answer = await TerminalApprover(io.StringIO("s\na\ny\n"), shown).ask(later)
    assert answer.kind is DecisionKind.ACCEPT
    assert "[y]es, [n]o, [c]ancel the call: " in shown.getvalue()

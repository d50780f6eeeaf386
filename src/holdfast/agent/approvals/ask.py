"""
The `Approver` protocol and its implementations.

If an approver raises, never answers or answers another question, that is a refusal, or the next one
in a chain is asked. Nothing is accepted by accident.
"""

import asyncio
import inspect
import logging
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TextIO, TypeAlias, cast, runtime_checkable

from holdfast.agent.approvals.question import Decision, DecisionKind, Question, QuestionKind
from holdfast.agent.approvals.question_text import prefix_text, question_text
from holdfast.base.dialect import limits, texts
from holdfast.base.errors import HoldfastError, InvalidParams
from holdfast.base.tasks import in_daemon_thread

__all__ = [
    "REVIEW_LIMIT",
    "AnyApprover",
    "ApprovalChain",
    "Approver",
    "CallbackApprover",
    "QuestionAnswered",
    "QuestionQueue",
    "Reviewer",
    "TerminalApprover",
    "as_approver",
    "ask_bounded",
]

logger = logging.getLogger(__name__)

REVIEW_LIMIT = limits.APPROVAL_REVIEW
"""Timeout of an automatic reviewer in seconds."""

# Most questions that may wait for a user interface; further ones are declined.
_QUEUED = 64

# Seconds for an approver to withdraw a question whose caller no longer waits.
_WITHDRAWAL = 1.0

# Invalid answers of a person before the question counts as declined.
_TRIES = 3


@runtime_checkable
class Approver(Protocol):
    """
    Answers questions.

    An approver that asks a person sets `required_human_approval` to True. Others are not asked
    about a `humanCommand`, which is refused.
    """

    async def ask(self, question: Question) -> Decision:
        """Return the decision about a question."""


class Reviewer(Protocol):
    """An approver that may return None to pass the question on."""

    async def ask(self, question: Question) -> Decision | None:
        """Return the decision about a question, or None to pass it on."""


Callback: TypeAlias = Callable[[Question], "Decision | str | Awaitable[Decision | None] | None"]


async def ask_bounded(approver: Approver, question: Question, *, limit: float | None) -> Decision:
    """
    Ask an approver, and return a decision in any case.

    Args:
        approver: The approver. If it fails, the decision is to decline.
        question: The question.
        limit: Timeout in seconds; None for no limit.

    Raises:
        asyncio.CancelledError: The caller is cancelled; the approver cannot raise this.
    """
    decision, failure = await _try_to_ask(approver, question, limit)
    if decision is None:
        return Decision(DecisionKind.DECLINE, rejection=failure or "no approver decided about it")
    return decision


async def _try_to_ask(
    approver: Approver | Reviewer, question: Question, limit: float | None
) -> tuple[Decision | None, str | None]:
    """Return a decision, or None and the failure; neither if the question is passed on."""
    # A separate task, so that an approver that ignores its cancellation can be left behind.
    asking = asyncio.get_running_loop().create_task(_ask(approver, question))
    try:
        done, _ = await asyncio.wait({asking}, timeout=limit)
    finally:
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking}, timeout=_WITHDRAWAL)
            asking.add_done_callback(_ignore_outcome)
    if not done:
        logger.warning("question %s was not answered within %s s", question.id, limit)
        return None, "no answer arrived in time"
    if asking.cancelled():
        logger.warning("the approver was cancelled at question %s", question.id)
        return None, "the approver was cancelled"
    failure = asking.exception()
    if failure is not None:
        logger.error("the approver failed at question %s", question.id, exc_info=failure)
        return None, "the approver failed"
    decision = asking.result()
    if decision is None:
        return None, None
    if not isinstance(decision, Decision):
        logger.warning("the answer to question %s is %r", question.id, type(decision))
        return None, "the approver gave no decision"
    if decision.question_id not in (None, question.id):
        logger.warning("the answer to question %s is for another one", question.id)
        return None, "the approver answered another question"
    return replace(decision, question_id=question.id), None


async def _ask(approver: Approver | Reviewer, question: Question) -> object:
    return await approver.ask(question)


def _ignore_outcome(asking: asyncio.Task[object]) -> None:
    """Retrieve the outcome of a task whose caller no longer waits."""
    if not asking.cancelled():
        asking.exception()


class CallbackApprover:
    """
    An approver that calls a function.

    A plain function runs in a separate thread, so that it may wait for a person. It may return a
    `Decision` or the name of one, such as `"accept"`.
    """

    def __init__(self, callback: Callback, *, required_human_approval: bool = False) -> None:
        """
        Args:
            callback: The function.
            required_human_approval: True if a person makes the decisions.
        """
        if not callable(callback):
            raise TypeError(f"an approver is {callback!r}, it must be callable or have `ask`")
        self.required_human_approval = required_human_approval
        self._callback = callback
        self._is_async = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
            getattr(callback, "__call__", None)  # noqa: B004 - `__call__` may be async
        )

    async def ask(self, question: Question) -> Decision | None:
        """Call the function."""
        found: object
        if self._is_async:
            found = await cast("Awaitable[object]", self._callback(question))
        else:
            found = await in_daemon_thread(partial(self._callback, question))
            if inspect.isawaitable(found):
                found = await found
        if isinstance(found, str):
            return Decision.parse(found)
        # `ask_bounded` checks anything else.
        return cast("Decision | None", found)


AnyApprover: TypeAlias = Approver | CallbackApprover | Callback
"""An object with `ask`, or a function, plain or async."""


def as_approver(approver: AnyApprover) -> Approver:
    """
    Return an approver for an object with `ask` or a function.

    Raises:
        TypeError: The object is neither.
    """
    if isinstance(approver, Approver):
        return approver
    return cast("Approver", CallbackApprover(cast("Callback", approver)))


class ApprovalChain:
    """
    Approvers that are asked in turn: hooks, an automatic reviewer, a person.

    If one returns None, fails or takes too long, the next is asked. A failure of the last one is a
    refusal. Only `person` can accept a `humanCommand`; hooks can refuse it, and the reviewer is not
    asked.
    """

    required_human_approval = True

    def __init__(
        self,
        *approvers: "AnyApprover | Reviewer",
        reviewer: "AnyApprover | Reviewer | None" = None,
        person: AnyApprover | None = None,
        review_limit: float = REVIEW_LIMIT,
    ) -> None:
        """
        Args:
            approvers: Hooks, asked first, in order.
            reviewer: An automatic reviewer, asked next.
            person: Asked last, only with the time limit of the caller.
            review_limit: Timeout in seconds for each hook and the reviewer.
        """
        self._hooks = [as_approver(cast("AnyApprover", one)) for one in approvers]
        self._reviewer = None if reviewer is None else as_approver(cast("AnyApprover", reviewer))
        self._person = None if person is None else as_approver(person)
        self._limit = review_limit

    async def ask(self, question: Question) -> Decision:
        """Return the first decision of the chain."""
        failure: str | None = None
        human = question.kind is QuestionKind.HUMAN_COMMAND
        reviewers = [self._reviewer] if self._reviewer is not None and not human else []
        for approver in (*self._hooks, *reviewers):
            decision, failed = await _try_to_ask(approver, question, self._limit)
            if decision is not None and not (human and decision.accepts):
                return decision
            failure = failed or failure
        if human and self._person is None:
            failure = texts.NO_PERSON if self._reviewer is None else texts.ONLY_REVIEWED
        if self._person is not None:
            decision, failed = await _try_to_ask(self._person, question, None)
            if decision is not None:
                return decision
            failure = failed or failure
        return Decision(DecisionKind.DECLINE, rejection=failure or "no approver decided about it")


class QuestionAnswered(HoldfastError):
    """The question of an answer is not open: it was answered, withdrawn or never asked."""


class QuestionQueue:
    """
    Questions for a user interface, which iterates and answers while commands wait.

    It belongs to one event loop.
    """

    def __init__(self, limit: int = _QUEUED, *, required_human_approval: bool = False) -> None:
        """
        Args:
            limit: Most open questions; further ones are declined.
            required_human_approval: True if the user interface has a person decide about each
                `humanCommand`.
        """
        self.required_human_approval = required_human_approval
        self._limit = limit
        self._open: dict[str, tuple[Question, asyncio.Future[Decision]]] = {}
        self._changed = asyncio.Condition()
        self._asked: list[str] = []

    @property
    def open(self) -> tuple[Question, ...]:
        """The unanswered questions, oldest first."""
        return tuple(question for question, _ in self._open.values())

    async def ask(self, question: Question) -> Decision:
        """Queue a question and wait for its answer."""
        if len(self._open) >= self._limit:
            return Decision(DecisionKind.DECLINE, rejection="too many questions are open")
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._open[question.id] = (question, answer)
        try:
            async with self._changed:
                self._asked.append(question.id)
                self._changed.notify_all()
            return await answer
        finally:
            # Drop late answers.
            del self._open[question.id]
            if question.id in self._asked:
                self._asked.remove(question.id)

    async def next(self) -> Question:
        """Wait for the next question that was not returned yet."""
        async with self._changed:
            while not self._asked:
                await self._changed.wait()
            return self._open[self._asked.pop(0)][0]

    async def __aiter__(self) -> AsyncIterator[Question]:
        while True:
            yield await self.next()

    def answer(self, question_id: str, decision: Decision) -> None:
        """
        Answer a question.

        Raises:
            QuestionAnswered: The question is not open: it was answered, withdrawn or never asked.
            InvalidParams: The decision is for another question.
        """
        if decision.question_id not in (None, question_id):
            raise InvalidParams(
                f"the decision is for question `{decision.question_id}`, not `{question_id}`"
            )
        _, answer = self._open.get(question_id, (None, None))
        if answer is None or answer.done():
            raise QuestionAnswered(f"question `{question_id}` is not open")
        answer.set_result(replace(decision, question_id=question_id))


class TerminalApprover:
    """A person at a terminal, asked one question at a time."""

    required_human_approval = True

    def __init__(
        self,
        source: TextIO | None = None,
        target: TextIO | None = None,
        *,
        turn: AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        """
        Args:
            source: Answers are read from it, by line; by default standard input.
            target: Questions are written to it; by default standard error.
            turn: Held while a question is open. Shared by all approvers of a terminal, so that
                it is clear to which question an answer belongs.
        """
        self._source = source
        self._target = target
        self._turn = asyncio.Lock() if turn is None else turn

    async def ask(self, question: Question) -> Decision:
        """Show a question and return the person's decision; the end of input declines."""
        async with self._turn:
            return await in_daemon_thread(partial(self._ask, question))

    def _ask(self, question: Question) -> Decision:
        source = self._source or sys.stdin
        target = self._target or sys.stderr
        _forget_typed(source)
        choices = {
            "y": Decision(DecisionKind.ACCEPT),
            "n": Decision(DecisionKind.DECLINE),
            "c": Decision(DecisionKind.CANCEL),
        }
        words = ["[y]es"]
        if question.is_rememberable:
            choices["s"] = Decision(DecisionKind.ACCEPT_FOR_SESSION)
            words.append("yes for this [s]ession")
        if question.is_amendable:
            amendment = question.proposed_amendment
            choices["a"] = Decision(DecisionKind.ACCEPT_WITH_AMENDMENT, amendment=amendment)
            outside = ", outside its sandbox" if question.amendment_leaves_sandbox else ""
            words.append(f"[a]lways for `{prefix_text(question)}`{outside}")
        words += ["[n]o", "[c]ancel the call"]
        heading, details = question_text(question)
        shown = "".join(f"  {line}\n" for line in details)
        # Repeated next to the answer, since a long command moves the first line out of sight.
        where = "Outside its sandbox: " if question.leaves_sandbox else ""
        target.write(f"{heading}\n{shown}{where}{', '.join(words)}: ")
        target.flush()
        for _ in range(_TRIES):
            line = source.readline()
            if not line:
                break
            found = choices.get(line.strip().lower())
            if found is not None:
                return found
            target.write("Please type one of the letters in brackets: ")
            target.flush()
        return choices["n"]


def _forget_typed(source: TextIO) -> None:
    """Drop input typed before a question was shown, which cannot be an answer to it."""
    with suppress(OSError, ValueError, termios.error):
        if source.isatty():
            termios.tcflush(source.fileno(), termios.TCIFLUSH)

"""
Asking: a small protocol, and those who implement it.

Whatever an approver does wrong (raises, never answers, answers for another question) is a
refusal, or the next one is asked. Nothing is accepted by accident.
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
"""Seconds that an automatic reviewer has."""

# Questions that may wait for a user interface; one more is declined.
_QUEUED = 64

# Seconds that an approver has to withdraw a question that nobody waits for any more.
_WITHDRAWAL = 1.0

# Answers a person may mistype before the question counts as declined.
_TRIES = 3


@runtime_checkable
class Approver(Protocol):
    """
    Answers questions.

    One that puts questions to a person sets `required_human_approval` to True. Others are not
    asked about a `humanCommand`, which is refused.
    """

    async def ask(self, question: Question) -> Decision:
        """Return the decision about a question."""


class Reviewer(Protocol):
    """Somebody who may leave a question to the next one in a chain."""

    async def ask(self, question: Question) -> Decision | None:
        """Return the decision about a question, or None to leave it to others."""


Callback: TypeAlias = Callable[[Question], "Decision | str | Awaitable[Decision | None] | None"]


async def ask_bounded(approver: Approver, question: Question, *, limit: float | None) -> Decision:
    """
    Ask somebody and return a decision in any case.

    Args:
        approver: Whatever it does, the answer is one that is safe to follow.
        question: What is asked.
        limit: Seconds until nobody is waited for any more; None for no limit.

    Raises:
        asyncio.CancelledError: The caller is cancelled; the approver alone cannot raise it.
    """
    decision, failure = await _try_to_ask(approver, question, limit)
    if decision is None:
        return Decision(DecisionKind.DECLINE, rejection=failure or "nobody decided about it")
    return decision


async def _try_to_ask(
    approver: Approver | Reviewer, question: Question, limit: float | None
) -> tuple[Decision | None, str | None]:
    """Return a decision, or None and what went wrong; neither if it is left to others."""
    # A task of its own: an approver that does not let itself be cancelled is left behind.
    asking = asyncio.get_running_loop().create_task(_ask(approver, question))
    try:
        done, _ = await asyncio.wait({asking}, timeout=limit)
    finally:
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking}, timeout=_WITHDRAWAL)
            asking.add_done_callback(_ignore_outcome)
    if not done:
        logger.warning("nobody answered question %s within %s s", question.id, limit)
        return None, "nobody answered in time"
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
    """Take notice of how a task ended whose answer nobody waits for any more."""
    if not asking.cancelled():
        asking.exception()


class CallbackApprover:
    """
    A function that is asked.

    A plain function runs in a thread of its own, so that it may wait for a person. It may
    return a `Decision` or one's name, such as `"accept"`.
    """

    def __init__(self, callback: Callback, *, required_human_approval: bool = False) -> None:
        """
        Args:
            callback: The function.
            required_human_approval: True if a person decides what it returns.
        """
        if not callable(callback):
            raise TypeError(f"an approver is {callback!r}, it must be callable or have `ask`")
        self.required_human_approval = required_human_approval
        self._callback = callback
        self._is_async = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
            getattr(callback, "__call__", None)  # noqa: B004 - an object may be async to call
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
        # Anything else is looked at by `ask_bounded`.
        return cast("Decision | None", found)


AnyApprover: TypeAlias = Approver | CallbackApprover | Callback
"""An object with `ask`, or a function, plain or async."""


def as_approver(approver: AnyApprover) -> Approver:
    """
    Return somebody to ask, from an object with `ask` or a function.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(approver, Approver):
        return approver
    return cast("Approver", CallbackApprover(cast("Callback", approver)))


class ApprovalChain:
    """
    Several who are asked in turn: hooks, an automatic reviewer, a person.

    One who returns None, fails or takes too long leaves the question to the next. The last
    one's failure is a refusal. Only `person` can accept a `humanCommand`; hooks can refuse it,
    and the reviewer is not asked.
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
            approvers: Hooks, asked first, one after the other.
            reviewer: An automatic reviewer, asked next.
            person: Asked last, without a limit but that of whoever asks.
            review_limit: Seconds for each hook and for the reviewer.
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
        return Decision(DecisionKind.DECLINE, rejection=failure or "nobody decided about it")


class QuestionAnswered(HoldfastError):
    """An answer came for a question that is not open: answered, withdrawn, or never asked."""


class QuestionQueue:
    """
    Questions for a user interface: one side iterates and answers, commands wait.

    Belongs to one event loop.
    """

    def __init__(self, limit: int = _QUEUED, *, required_human_approval: bool = False) -> None:
        """
        Args:
            limit: Questions that may be open at once; one more is declined.
            required_human_approval: True if the user interface shows a `humanCommand` to a
                person, who decides about it.
        """
        self.required_human_approval = required_human_approval
        self._limit = limit
        self._open: dict[str, tuple[Question, asyncio.Future[Decision]]] = {}
        self._changed = asyncio.Condition()
        self._asked: list[str] = []

    @property
    def open(self) -> tuple[Question, ...]:
        """The questions that wait for an answer, oldest first."""
        return tuple(question for question, _ in self._open.values())

    async def ask(self, question: Question) -> Decision:
        """Put a question into the queue and wait for its answer."""
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
            # Nobody waits for it any more: a late answer must not find it.
            del self._open[question.id]
            if question.id in self._asked:
                self._asked.remove(question.id)

    async def next(self) -> Question:
        """Wait for a question that nobody has taken yet."""
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
            QuestionAnswered: It is not open: it was answered, withdrawn, or never asked.
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
            source: Answers are lines of it; standard input unless given.
            target: Questions are written there; standard error unless given.
            turn: Held while a question is open; one for all approvers of a terminal, since a
                person could otherwise not say which question an answer is for.
        """
        self._source = source
        self._target = target
        self._turn = asyncio.Lock() if turn is None else turn

    async def ask(self, question: Question) -> Decision:
        """Show a question and return what the person decides; the end of input declines."""
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
        # Once more next to the answer: a long command moves the first line out of sight.
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
    """Drop what was typed before a question was shown: it cannot be an answer to it."""
    with suppress(OSError, ValueError, termios.error):
        if source.isatty():
            termios.tcflush(source.fileno(), termios.TCIFLUSH)

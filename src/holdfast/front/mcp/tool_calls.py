"""
One call of a tool: it runs in a task of its own, asks, and is over in time.

A call outlives the request that began it in two cases. On 2026-07-28 a question ends the
request, and the next one brings the answer. And a cancelled request must not tear down what
the call is about to put in order. So the request only waits for the call, and says what to do
with it.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from mcp_types import CallToolResult

from holdfast.agent.approvals.question import Decision, DecisionKind, Question

__all__ = ["ToolCall", "Work"]

logger = logging.getLogger(__name__)

# Seconds beyond the longest wait that a call has to put its answer together.
_SLACK: Final = 2.0

Work = Callable[["ToolCall"], Awaitable[CallToolResult]]
"""The work of a tool call."""


class ToolCall:
    """
    A call of a tool between its first request and its result.

    Belongs to one event loop. One request at a time waits for it.
    """

    def __init__(self, name: str, work: Work, *, max_wait: float) -> None:
        """
        Args:
            name: The tool.
            work: What to do; it may ask by `ask`.
            max_wait: Seconds it may take, besides those in which somebody is asked.
        """
        self.id = f"call_{secrets.token_hex(12)}"
        """Made up: the ids of requests are the client's, and may repeat."""
        self.name = name
        self._news = asyncio.Event()
        self._question: Question | None = None
        self._answer: asyncio.Future[Decision] | None = None
        self._left = max_wait + _SLACK
        self._max_wait = max_wait
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Work) -> CallToolResult:
        try:
            return await work(self)
        finally:
            self._news.set()

    # -- for the work

    async def ask(self, question: Question) -> Decision:
        """Put a question to whoever waits for this call, and return the answer."""
        self._question = question
        self._answer = asyncio.get_running_loop().create_future()
        self._news.set()
        try:
            return await self._answer
        finally:
            self._question = self._answer = None

    # -- for the request

    @property
    def question(self) -> Question | None:
        """The question that is open, if there is one."""
        return self._question

    @property
    def done(self) -> bool:
        """True once there is a result."""
        return self._task.done()

    async def next_question(self) -> Question | None:
        """
        Wait until the call asks something; None once it has a result.

        Raises:
            TimeoutError: It has taken too long; it goes on.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(self._left, 0.0)):
                while self._question is None and not self._task.done():
                    self._news.clear()
                    await self._news.wait()
        finally:
            self._left -= loop.time() - began
        return self._question

    def answer(self, decision: Decision) -> None:
        """Answer the open question; harmless if there is none any more."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(decision)
            self._question = None

    async def result(self) -> CallToolResult:
        """
        Return the result of a call that is done.

        Raises:
            Exception: What the work raised.
        """
        return await self._task

    async def wait(self, limit: float | None = None) -> None:
        """Wait for its end, however it ends, at most so many seconds."""
        await asyncio.wait([self._task], timeout=limit)

    async def stop(self) -> None:
        """Decline the open question, or cancel the call, and wait for its end."""
        if self._question is not None:
            self.answer(Decision(DecisionKind.CANCEL))
        else:
            self._task.cancel()
        await self.wait()
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.error("a call of %s failed", self.name, exc_info=error)

    def too_late(self) -> str:
        """Return what the model reads about a call that was given up."""
        return f"{self.name} was given up: it took longer than {self._max_wait:g} s"

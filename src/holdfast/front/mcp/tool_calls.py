"""
A tool call: runs in a separate task, may ask questions, and ends in time.

A call may outlive its request in two cases. With 2026-07-28, a question ends the request, and the
next request has the answer. And cancelling a request must not interrupt the cleanup of its call.
So the request only waits for the call, and decides what to do with it.
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

# Seconds in addition to the maximum wait for a call to assemble its result.
_SLACK: Final = 2.0

Work = Callable[["ToolCall"], Awaitable[CallToolResult]]
"""The work of a tool call."""


class ToolCall:
    """
    A tool call, from its first request to its result.

    Belongs to one event loop. Only one request at a time waits for it.
    """

    def __init__(self, name: str, work: Work, *, max_wait: float) -> None:
        """
        Args:
            name: Name of the tool.
            work: Runs the tool; may call `ask`.
            max_wait: Maximum seconds, not counting questions to the user.
        """
        self.id = f"call_{secrets.token_hex(12)}"
        """A new id, since the client chooses those of requests, and may reuse them."""
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
        """Ask the waiting request a question, and return the answer."""
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
        """The open question, if any."""
        return self._question

    @property
    def done(self) -> bool:
        """True once there is a result."""
        return self._task.done()

    async def next_question(self) -> Question | None:
        """
        Wait for the next question of the call; None once it has a result.

        Raises:
            TimeoutError: It has taken too long; it continues.
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
        """Answer the open question, if there still is one."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(decision)
            self._question = None

    async def result(self) -> CallToolResult:
        """
        Return the result of a finished call.

        Raises:
            Exception: The exception of the work.
        """
        return await self._task

    async def wait(self, limit: float | None = None) -> None:
        """Wait until it ends in any way, at most `limit` seconds."""
        await asyncio.wait([self._task], timeout=limit)

    async def stop(self) -> None:
        """Decline the open question, or cancel the call, and wait for it to end."""
        if self._question is not None:
            self.answer(Decision(DecisionKind.CANCEL))
        else:
            self._task.cancel()
        await self.wait()
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.error("a call of %s failed", self.name, exc_info=error)

    def too_late(self) -> str:
        """Return the text for the model on a call that timed out."""
        return f"{self.name} timed out: it took longer than {self._max_wait:g} s"

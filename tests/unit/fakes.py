"""A transport that goes nowhere, for what is driven by hand."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.wire.transports.transport import Credential

LIMIT = 5.0
"""Seconds any wait may take."""


class FakeTransport:
    """Writes down what is sent and asked for."""

    def __init__(self, *, kind: str = "memory", label: str = "exec-server memory") -> None:
        self.kind = kind
        self.went_silent = False
        self.was_closed = False
        self.credential = Credential("somebody")
        self.text_only = True
        self.label = label
        self.sent: list[bytes] = []
        self.messages: list[dict[str, Any]] = []
        """Sent messages, decoded."""
        self.answers: dict[object, object] = {}
        """Answers by id: the result, or the code and text of an error."""
        self.sent_alone: list[bytes] = []
        """Sent messages that need not wait for others."""
        self.calls: list[str] = []
        self._changed = asyncio.Event()

    def send(self, message: bytes, *, alone: bool = False) -> None:
        self.sent.append(message)
        if alone:
            self.sent_alone.append(message)
        decoded = json.loads(message)
        self.messages.append(decoded)
        if "id" in decoded:
            self.answers[decoded["id"]] = _outcome(decoded)
        self._changed.set()

    def send_parts(self, parts: Sequence[bytes], *, alone: bool = False) -> None:
        self.send(b"".join(parts), alone=alone)

    def pause_receiving(self) -> None:
        self.calls.append("pause")

    def resume_receiving(self) -> None:
        self.calls.append("resume")

    def expect_heartbeats(self, interval: float) -> None:
        self.calls.append(f"expect life every {interval:g} s")

    def excuse_silence(self, excused: Callable[[], bool]) -> None:
        self.silence_is_excused = excused

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    async def wait_closed(self) -> None:
        self.calls.append("wait_closed")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was sent is enough."""
        async with asyncio.timeout(LIMIT):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def answer(self, request_id: object) -> object:
        """Wait for the answer to a request."""
        await self.until(lambda: request_id in self.answers)
        return self.answers[request_id]


def _outcome(message: dict[str, Any]) -> object:
    error = message.get("error")
    return message.get("result") if error is None else (error["code"], error["message"])

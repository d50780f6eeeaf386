"""A receiver that writes down what a transport tells it."""

import asyncio
from collections.abc import Callable

from holdfast.wire.transports.transport import Receiver, Transport

LIMIT = 5.0
"""Seconds any wait may take."""


class Recorder:
    """Everything that was heard, in order; can be waited on."""

    def __init__(self, transport: Transport | None = None) -> None:
        self.transport = transport
        self.messages: list[bytes] = []
        self.ends: list[str] = []
        self.pauses: list[str] = []
        self.on_message: Callable[[bytes], None] = lambda message: None
        self._changed = asyncio.Event()

    def accept(self, transport: Transport) -> Receiver:
        self.transport = transport
        self._changed.set()
        return self

    def received(self, message: bytes) -> None:
        self.messages.append(message)
        self._changed.set()
        self.on_message(message)

    def lost(self, reason: str) -> None:
        self.ends.append(reason)
        self._changed.set()

    def pause_sending(self) -> None:
        self.pauses.append("pause")
        self._changed.set()

    def resume_sending(self) -> None:
        self.pauses.append("resume")
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def count(self, messages: int) -> list[bytes]:
        """Wait for so many messages."""
        await self.until(lambda: len(self.messages) >= messages)
        return self.messages

    async def end(self) -> str:
        """Wait for the end; its reason."""
        await self.until(lambda: bool(self.ends))
        return self.ends[0]

    @property
    def line(self) -> Transport:
        """The transport, once it was accepted."""
        assert self.transport is not None
        return self.transport

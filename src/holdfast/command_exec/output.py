"""Output of one command: pieces, their reader, and the cap of each stream (command-exec spec 5)."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Self

from holdfast.collect.head_tail import HeadTail
from holdfast.protocol.process import OutputStream

__all__ = ["CappedStream", "Delta", "Deltas"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of output."""

    stream: Literal["stdout", "stderr"]
    """A terminal has `stdout` only."""
    data: bytes
    """Empty only where the cap is 0."""
    cap_reached: bool = False
    """True on the last piece of a stream whose byte count has reached the cap."""


class Deltas:
    """The output of one command, piece by piece; an async iterator."""

    def __init__(
        self, next_delta: Callable[[], Awaitable[Delta | None]], changed: Callable[[], None]
    ) -> None:
        self.closed = False
        """True after the end, or after `close`."""
        self._next_delta = next_delta
        self._changed = changed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        delta = None if self.closed else await self._next_delta()
        if delta is None:
            self.close()
            raise StopAsyncIteration
        return delta

    def close(self) -> None:
        """Read no more; another reader may go on where this one stopped."""
        if not self.closed:
            self.closed = True
            self._changed()

    def __del__(self) -> None:
        self.close()  # so that `wait` does not wait for it


class CappedStream:
    """One stream of a command, up to its cap."""

    def __init__(self, name: OutputStream, cap: int | None, *, keep: bool) -> None:
        self._name: Literal["stdout", "stderr"] = "stderr" if name == "stderr" else "stdout"
        self._left = cap
        self.cap_reached = False
        """True once as many bytes came as the cap allows, also if none was lost."""
        most = sys.maxsize if cap is None else min(cap, sys.maxsize)
        self._buffer = HeadTail(most, head=most) if keep else None

    @property
    def kept(self) -> bytes:
        """All of it, unless it was streamed."""
        return b"" if self._buffer is None else self._buffer.captured().head

    def take(self, data: bytes) -> Delta:
        """Add what came next, cut to fit, and return it as a piece."""
        left = self._left
        if left is not None:
            data = data[:left]
            self._left = left = left - len(data)
            self.cap_reached = left == 0
        if self._buffer is not None:
            self._buffer.append(data)
        return Delta(self._name, data, self.cap_reached)

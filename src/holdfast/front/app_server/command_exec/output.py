"""
Output of a command: pieces, their reader, and the caps of the streams.

See [command-exec.output.*].
"""

import weakref
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from holdfast.wire.protocol.process import OutputStream

__all__ = ["CappedStream", "Delta", "Deltas", "KeptOrder"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of output."""

    stream: Literal["stdout", "stderr"]
    """A terminal only has `stdout`."""
    data: bytes
    """Only empty if the cap is 0."""
    cap_reached: bool = False
    """True for the last piece of a stream that has reached its cap."""


class Deltas:
    """The output of a command in pieces; an async iterator."""

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
        if self.closed:
            raise StopAsyncIteration
        next_delta, close = self._next_delta, weakref.WeakMethod(self.close)
        # The traceback of a cancelled task may live as long as the task. It must not keep this
        # reader alive, or `wait` would wait for the reader for ever.
        del self
        delta = await next_delta()
        if delta is None:
            if (end := close()) is not None:
                end()
            raise StopAsyncIteration
        return delta

    def close(self) -> None:
        """Stop reading; another reader can continue from here."""
        if not self.closed:
            self.closed = True
            self._changed()

    def __del__(self) -> None:
        # A dropped reader must not make `wait` wait for it.
        self.close()


class CappedStream:
    """A stream of a command, up to its cap."""

    def __init__(self, name: OutputStream, cap: int | None, *, keep: bool) -> None:
        self.name: Literal["stdout", "stderr"] = "stderr" if name == "stderr" else "stdout"
        """Its name in a piece."""
        self._left = cap
        self.cap_reached = False
        """True once as many bytes arrived as the cap allows, even if none was dropped."""
        self.data: bytearray | bytes | None = bytearray() if keep else None
        """The bytes so far; None if they are not kept."""

    def freeze(self) -> bytes:
        """Return all bytes, after the last piece; empty if streamed."""
        if type(self.data) is bytearray:
            self.data = bytes(self.data)
        return bytes(self.data or b"")

    def take(self, data: bytes) -> Delta:
        """Add the next bytes, cut at the cap, and return them as a piece."""
        left = self._left
        if left is not None:
            data = data[:left]
            # The cap counts delivered, not written bytes.
            self._left = left = left - len(data)
            self.cap_reached = left == 0
        if type(self.data) is bytearray:
            self.data += data
        return Delta(self.name, data, self.cap_reached)


class KeptOrder:
    """
    The order in which the kept streams of a command were written.

    Takes eight bytes per change between the streams.
    """

    def __init__(self, streams: Sequence[CappedStream]) -> None:
        self._streams = streams
        # Byte counts of alternating runs: first stream, second stream, first stream, and so on.
        self._runs = array("Q", [0])

    def note(self, stream: CappedStream, count: int) -> None:
        """Note that `count` bytes of a stream arrived."""
        if self._streams[(len(self._runs) - 1) % len(self._streams)] is stream:
            self._runs[-1] += count
        else:
            self._runs.append(count)

    def pieces(self, most: int) -> Iterator[Delta | None]:
        """
        Yield everything from the first byte, in pieces of at most `most` bytes.

        Yields None if there are no more yet. Never ends, since more may arrive.
        """
        streams = self._streams
        taken = [0] * len(streams)
        ended: set[int] = set()
        run = start = 0
        while True:
            index = run % len(streams)
            count = min(self._runs[run] - start, most)
            if count:
                start += count
                yield self._piece(index, taken, count, ended)
            elif run + 1 < len(self._runs):
                run, start = run + 1, 0
            else:
                # With a cap of 0 there is one empty piece.
                for other, stream in enumerate(streams):
                    if stream.cap_reached and not taken[other] and other not in ended:
                        yield self._piece(other, taken, 0, ended)
                yield None

    def _piece(self, index: int, taken: list[int], count: int, ended: set[int]) -> Delta:
        stream = self._streams[index]
        # Only called for kept streams.
        assert stream.data is not None
        start = taken[index]
        taken[index] = end = start + count
        last = stream.cap_reached and end == len(stream.data)
        if last:
            ended.add(index)
        return Delta(stream.name, bytes(stream.data[start:end]), last)

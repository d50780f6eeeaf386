"""
What is kept of a stream of any length: its beginning and its end, and how much is missing.

Pure: no event loop and no clock. What it costs is bounded by the cap, also for a
process that writes a byte at a time.
"""

import codecs
from collections import deque
from dataclasses import dataclass

__all__ = ["Capture", "Captured"]

_SMALL = 4 << 10
"""Bytes below which a chunk is copied to its neighbours rather than kept as an object."""

_BLOCK = 64 << 10
"""Bytes that such neighbours grow to, at most."""


@dataclass(frozen=True, slots=True)
class Captured:
    """
    What was kept of one stream.

    `bytes()` and `text` have a line between the two parts that says how much is missing.
    """

    head: bytes = b""
    """The beginning; everything, if nothing is missing."""
    tail: bytes = b""
    """The end, if something is missing before it."""
    omitted: int = 0
    """Bytes between the two that were not kept."""

    @property
    def size(self) -> int:
        """Bytes that were written, kept or not."""
        return len(self.head) + self.omitted + len(self.tail)

    @property
    def text(self) -> str:
        """As text; what is no UTF-8 becomes `\\ufffd`, but for letters cut in two by the cap."""
        if not self.omitted:
            return self.head.decode(errors="replace")
        # Not final: a letter that is cut at the end of the head is left out.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(self.head)
        return head + self._gap() + _from_a_letter(self.tail).decode(errors="replace")

    def __bytes__(self) -> bytes:
        if not self.omitted:
            return self.head
        return b"".join((self.head, self._gap().encode(), self.tail))

    def _gap(self) -> str:
        return f"\n[... {self.omitted} bytes left out ...]\n"


def _from_a_letter(data: bytes) -> bytes:
    """Without the rest of a letter that was cut at the start."""
    for at, byte in enumerate(data[:4]):
        if byte & 0xC0 != 0x80:
            return data[at:]
    return data


class Capture:
    """Collects a stream: half of the cap from its beginning, half from its end."""

    def __init__(self, cap: int) -> None:
        self._room = cap - cap // 2
        self._cap = cap // 2
        self._head: list[bytes] = []
        # Blocks in order; those that are neighbours of small chunks are being filled.
        self._tail: deque[bytes | bytearray] = deque()
        self._tail_size = 0
        self._omitted = 0

    def add(self, data: bytes) -> None:
        """Take what comes next."""
        room = self._room
        if room:
            if len(data) <= room:
                self._room = room - len(data)
                self._head.append(data)
                if len(self._head) > _SMALL:
                    self._head = [b"".join(self._head)]
                return
            self._head.append(data[:room])
            self._room = 0
            data = data[room:]
        if len(data) < _SMALL:
            self._add_small(data)
        else:
            self._tail.append(data)
        self._tail_size += len(data)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._cap:
            gone = len(self._tail.popleft())
            self._tail_size -= gone
            self._omitted += gone

    def _add_small(self, data: bytes) -> None:
        last = self._tail[-1] if self._tail else None
        if type(last) is bytearray and len(last) < _BLOCK:
            last += data
        else:
            self._tail.append(bytearray(data))

    def captured(self) -> Captured:
        """What there is so far."""
        head = self._head[0] if len(self._head) == 1 else b"".join(self._head)
        if not self._tail:
            return Captured(head, b"", self._omitted)
        tail = b"".join(self._tail)
        surplus = max(0, len(tail) - self._cap)
        if not surplus and not self._omitted:
            return Captured(head + tail)
        return Captured(head, tail[surplus:], self._omitted + surplus)

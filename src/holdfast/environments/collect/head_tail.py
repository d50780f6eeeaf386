"""
Keeps the beginning and the end of a byte stream, and counts the bytes between them.

Uses no event loop and no clock. The capacity bounds memory and time, even if a process writes one
byte at a time. The rules are those of [unified.9.one-mebibyte].
"""

import codecs
from collections import deque
from dataclasses import dataclass, field

__all__ = ["BYTES_LEFT_OUT", "BYTES_OMITTED", "Captured", "HeadTail"]

BYTES_LEFT_OUT = "\n[... {} bytes left out ...]\n"
"""The marker of `env.run`; `{}` is the number of bytes."""

BYTES_OMITTED = "\n... {} bytes omitted ...\n"
"""The marker of unified exec [unified.9.one-mebibyte]."""

# Smaller chunks are appended to a block: an object per chunk would take more memory than its
# content.
_SMALL = 4 << 10

# Size of a block in bytes.
_BLOCK = 64 << 10


@dataclass(frozen=True, slots=True)
class Captured:
    """
    The retained parts of one stream.

    `bytes()` and `text` have the marker between the two parts if bytes are missing.
    """

    head: bytes = b""
    """The beginning, or everything if nothing is missing."""
    tail: bytes = b""
    """The end, if something is missing before it."""
    omitted: int = 0
    """Bytes between the two that were not kept."""
    marker: str = field(default=BYTES_LEFT_OUT, compare=False, repr=False)
    """Text in place of the missing bytes, with `{}` for their number."""

    @property
    def size(self) -> int:
        """Number of bytes written, whether kept or not."""
        return len(self.head) + self.omitted + len(self.tail)

    @property
    def text(self) -> str:
        """The stream as text; invalid UTF-8 becomes U+FFFD, and cut characters are dropped."""
        if not self.omitted:
            return self.head.decode(errors="replace")
        # Not final: a character that is cut at the end of the head is left out.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(self.head)
        return head + self._gap() + _from_a_letter(self.tail).decode(errors="replace")

    def __bytes__(self) -> bytes:
        if not self.omitted:
            return self.head
        return b"".join((self.head, self._gap().encode(), self.tail))

    def _gap(self) -> str:
        return self.marker.replace("{}", str(self.omitted))


def _from_a_letter(data: bytes) -> bytes:
    """Drop the remains of a character that was cut at the start of `data`."""
    for at, byte in enumerate(data[:4]):
        if byte & 0xC0 != 0x80:
            return data[at:]
    return data


class HeadTail:
    """
    Buffer of bounded size that keeps the beginning and the end of the appended bytes.

    Bytes fill the head first. The rest goes to the tail, whose oldest bytes make room for
    new ones and are counted as omitted.
    """

    def __init__(self, size: int) -> None:
        """
        Args:
            size: Bytes to keep, half of them, rounded down, for the head; 0 only counts.

        Raises:
            ValueError: The size is negative.
        """
        if size < 0:
            raise ValueError(f"a buffer cannot keep {size} bytes")
        self._room = size // 2
        self._tail_size = size - self._room
        # A block filled byte by byte must not outgrow a small buffer.
        self._block = min(_BLOCK, max(self._tail_size, 64))
        self._head: list[bytes] = []
        # Blocks in order; a `bytearray` collects small chunks. Up to one block more than fits
        # is kept, and cut off in `captured`: cutting at each append would copy.
        self._tail: deque[bytes | bytearray] = deque()
        self._held = 0
        self._dropped = 0

    def append(self, data: bytes) -> None:
        """Append bytes."""
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
        self._append_tail(data)

    def _append_tail(self, data: bytes) -> None:
        most = self._tail_size
        if len(data) >= most:
            # The chunk replaces the whole tail. Copy only its end, so that a large chunk does
            # not stay in memory.
            self._dropped += self._held + len(data) - most
            self._tail.clear()
            self._held = most
            if most:
                self._tail.append(data[-most:])
            return
        if len(data) < _SMALL:
            self._append_small(data)
        else:
            self._tail.append(data)
        self._held += len(data)
        while self._tail and self._held - len(self._tail[0]) >= most:
            gone = len(self._tail.popleft())
            self._held -= gone
            self._dropped += gone

    def _append_small(self, data: bytes) -> None:
        last = self._tail[-1] if self._tail else None
        if type(last) is bytearray and len(last) < self._block:
            last += data
        else:
            self._tail.append(bytearray(data))

    def captured(self) -> Captured:
        """Return the bytes kept so far."""
        head = self._head[0] if len(self._head) == 1 else b"".join(self._head)
        if not self._tail:
            return Captured(head, b"", self._dropped)
        tail = b"".join(self._tail)
        surplus = max(0, len(tail) - self._tail_size)
        omitted = self._dropped + surplus
        if not omitted:
            return Captured(head + tail)
        return Captured(head, tail[surplus:], omitted)

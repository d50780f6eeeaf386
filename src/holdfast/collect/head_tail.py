"""
Keeps the beginning and the end of a byte stream, and counts what is left out between them.

Pure: no event loop and no clock. Memory and time are bounded by the capacity, also for a
process that writes a byte at a time. The rules are those of [unified.9.one-mebibyte].
"""

import codecs
from collections import deque
from dataclasses import dataclass, field

__all__ = ["BYTES_LEFT_OUT", "BYTES_OMITTED", "Captured", "HeadTail"]

BYTES_LEFT_OUT = "\n[... {} bytes left out ...]\n"
"""The marker of `env.run`; `{}` is the number of bytes."""

BYTES_OMITTED = "\n... {} bytes omitted ...\n"
"""The marker of unified exec [unified.9.one-mebibyte]."""

_SMALL = 4 << 10
"""Bytes below which a chunk is copied to its neighbours rather than kept as an object."""

_BLOCK = 64 << 10
"""Bytes that such neighbours grow to, at most."""


@dataclass(frozen=True, slots=True)
class Captured:
    """
    The kept parts of one stream.

    `bytes()` and `text` have the marker between the two parts if bytes are missing there.
    """

    head: bytes = b""
    """The beginning; everything, if nothing is missing."""
    tail: bytes = b""
    """The end, if something is missing before it."""
    omitted: int = 0
    """Bytes between the two that were not kept."""
    marker: str = field(default=BYTES_LEFT_OUT, compare=False, repr=False)
    """The text that stands for them, with `{}` for their number."""

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
        return self.marker.replace("{}", str(self.omitted))


def _from_a_letter(data: bytes) -> bytes:
    """Return `data` without the rest of a letter that was cut at its start."""
    for at, byte in enumerate(data[:4]):
        if byte & 0xC0 != 0x80:
            return data[at:]
    return data


class HeadTail:
    """
    A buffer of bounded size that keeps the beginning and the end of what is appended.

    Bytes fill the head first. The rest goes to the tail, whose oldest bytes make room for
    new ones and are counted as omitted.
    """

    def __init__(self, size: int, *, head: int | None = None, marker: str = BYTES_LEFT_OUT) -> None:
        """
        Args:
            size: Bytes to keep at most; 0 keeps nothing and only counts.
            head: How many of them are for the beginning; half, rounded down, unless given.
            marker: Stands for omitted bytes; `{}` in it becomes their number.

        Raises:
            ValueError: The size is negative, or the head is larger than it.
        """
        head = size // 2 if head is None else head
        if not 0 <= head <= size:
            raise ValueError(f"a buffer of {size} bytes cannot have a head of {head}")
        self.size = size
        self.marker = marker
        self._head_size = head
        self._tail_size = size - head
        # A block that is filled byte by byte must not outgrow a small buffer.
        self._block = min(_BLOCK, max(self._tail_size, 64))
        self._clear()

    def _clear(self) -> None:
        self._room = self._head_size
        self._head: list[bytes] = []
        # Blocks in order; a `bytearray` is being filled with small neighbours. Up to one
        # block more than fits is here: it is cut off when somebody looks.
        self._tail: deque[bytes | bytearray] = deque()
        self._held = 0
        self._dropped = 0
        self.total = 0
        """Bytes that were appended, kept or not."""

    @property
    def omitted(self) -> int:
        """Bytes that were appended and not kept."""
        return self._dropped + max(0, self._held - self._tail_size)

    def append(self, data: bytes) -> None:
        """Add what comes next."""
        self.total += len(data)
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
            # Nothing of what was there can stay, and a large chunk is not kept for its end.
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

    def merge(self, later: "HeadTail") -> None:
        """
        Add what a later buffer was given, which stays as it is.

        The result equals appending everything that was appended to `later`, if that has
        the same size and head. Of a smaller one the middle is unknown: what is before the
        bytes that it omitted leaves the tail here, so that there is still only one gap.
        """
        kept = later.captured()
        self.append(kept.head)
        if not kept.omitted:
            return
        self.total += kept.omitted
        self._dropped += self._held + kept.omitted
        self._tail.clear()
        self._held = 0
        self._room = 0
        self.total += len(kept.tail)
        self._append_tail(kept.tail)

    def captured(self) -> Captured:
        """Return what is kept so far."""
        head = self._head[0] if len(self._head) == 1 else b"".join(self._head)
        if not self._tail:
            return Captured(head, b"", self._dropped, self.marker)
        tail = b"".join(self._tail)
        surplus = max(0, len(tail) - self._tail_size)
        omitted = self._dropped + surplus
        if not omitted:
            return Captured(head + tail, b"", 0, self.marker)
        return Captured(head, tail[surplus:], omitted, self.marker)

    def take(self) -> Captured:
        """Return what is kept and begin anew: nothing was appended, nothing is omitted."""
        kept = self.captured()
        self._clear()
        return kept

    def __bytes__(self) -> bytes:
        return bytes(self.captured())

    @property
    def text(self) -> str:
        """The kept bytes as text; see `Captured.text`."""
        return self.captured().text

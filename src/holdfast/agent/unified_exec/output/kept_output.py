"""
Keeps the output of commands: the only copy, for answers, listeners and later reads.

Without event loop or clock. Each session's output has its head, its tail and the total counts; the
archive has the tails of the most recently ended sessions.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.base.dialect import limits
from holdfast.environments.collect.head_tail import BYTES_OMITTED, Captured

__all__ = [
    "ARCHIVE_BYTES",
    "ARCHIVE_LOGS",
    "KEPT_BYTES",
    "Archive",
    "Block",
    "KeptOutput",
    "Lost",
    "Window",
]

KEPT_BYTES = limits.OUTPUT_KEPT
"""Most bytes of one output in a view."""

ARCHIVE_LOGS = 32
"""Most outputs of ended sessions to keep."""

ARCHIVE_BYTES = 32 << 20
"""Most bytes of these outputs in total."""

# Chunks with fewer bytes are joined with their neighbours instead of kept as objects.
_SMALL = 4 << 10

# Most bytes of a block of joined chunks.
_BLOCK = 64 << 10

# Most chunks in such a block.
_BLOCK_CHUNKS = 16 << 10

# Most blocks, regardless of size: each costs about 200 bytes.
_BLOCKS = 4096

# Most gaps to keep: the last ones.
_GAPS = 256


class Lost(NamedTuple):
    """Sequence numbers of events that were lost in transit."""

    first_seq: int
    last_seq: int


@dataclass(slots=True, eq=False)
class Block:
    """Consecutive chunks of output with consecutive sequence numbers."""

    start: int
    """Offset of the block in the output."""
    first_seq: int
    data: bytes | bytearray
    """A `bytearray` while small chunks are appended."""
    newlines: int
    lengths: "array[int] | None" = None
    """The lengths of the chunks; None for a single chunk."""

    @property
    def last_seq(self) -> int:
        """The sequence number of the last chunk."""
        return self.first_seq + (len(self.lengths) - 1 if self.lengths else 0)

    @property
    def size(self) -> int:
        """Bytes of memory used, without the overhead of objects."""
        return len(self.data) + (2 * len(self.lengths) if self.lengths else 0)

    def borders(self) -> list[tuple[int, int]]:
        """Return the offset and sequence number of each chunk."""
        found = []
        at = self.start
        for seq, length in enumerate(self.lengths or (len(self.data),), self.first_seq):
            found.append((at, seq))
            at += length
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A snapshot of the retained output. Offsets count from the first byte ever written."""

    blocks: list[Block]
    start: int
    """Offset of the retained part; the first block may start before."""
    line_start: int
    """Offset of the line in which the first block starts."""
    newlines_before: int
    """Number of newlines before the first block."""
    total_bytes: int
    total_lines: int
    lost: list[tuple[int, Lost]]
    """Gaps with their offsets."""

    @property
    def size(self) -> int:
        """Bytes of memory used, without the overhead of objects."""
        return sum(block.size for block in self.blocks)

    def first_line(self) -> tuple[int, int]:
        """Return the number of its first line, and the count of missing bytes in that line."""
        if not self.blocks:
            return 1, 0
        first = self.blocks[0]
        # The first block may start before the retained part, with bytes that no longer count.
        surplus = first.data[: self.start - first.start]
        newlines = surplus.count(b"\n")
        line_start = first.start + surplus.rfind(b"\n") + 1 if newlines else self.line_start
        return self.newlines_before + newlines + 1, self.start - line_start

    def position_of_line(self, number: int) -> int:
        """Return the offset of a line; for earlier lines, the start of the window."""
        seen = self.newlines_before
        for block in self.blocks:
            wanted = number - 1 - seen
            if wanted <= 0:
                return max(block.start, self.start)
            if wanted <= block.newlines:
                # `split` is the fastest way to find a newline by number.
                rest = block.data.split(b"\n", wanted)[-1]
                return max(block.start + len(block.data) - len(rest), self.start)
            seen += block.newlines
        return self.total_bytes

    def line_at(self, position: int) -> int:
        """Return the number of the line that contains an offset."""
        newlines = self.newlines_before
        for block in self.blocks:
            if position < block.start + len(block.data):
                return newlines + block.data.count(b"\n", 0, max(0, position - block.start)) + 1
            newlines += block.newlines
        return newlines + 1

    def position_of_seq(self, seq: int) -> int:
        """Return the offset of the chunk with a sequence number, or of the next existing one."""
        for block in self.blocks:
            if seq <= block.last_seq:
                skipped = max(0, seq - block.first_seq)
                before = sum(block.lengths[:skipped]) if block.lengths else 0
                return max(block.start + before, self.start)
        return self.total_bytes

    def border_within(self, start: int, end: int) -> tuple[int, int] | None:
        """Return offset and number of the last chunk that starts after `start`, up to `end`."""
        for block in reversed(self.blocks):
            if block.start <= end:
                for position, seq in reversed(block.borders()):
                    if position <= start:
                        return None
                    if position <= end:
                        return position, seq
        return None

    def border_after(self, position: int) -> tuple[int, int] | None:
        """Return offset and number of the first chunk that starts after a position."""
        for block in self.blocks:
            if block.start + len(block.data) > position:
                for at, seq in block.borders():
                    if at > position:
                        return at, seq
        return None

    def bytes_between(self, start: int, end: int) -> bytes:
        """Return the bytes between two offsets."""
        start = max(start, self.start)
        return b"".join(
            block.data[max(0, start - block.start) : max(0, end - block.start)]
            for block in self.blocks
            if block.start < end and block.start + len(block.data) > start
        )

    def after_letter(self, position: int) -> int:
        """Return the position, or the end of the UTF-8 character that contains it."""
        # A UTF-8 character has at most three bytes before its last one.
        before = self.bytes_between(position - 3, position)
        for back in range(1, len(before) + 1):
            byte = before[-back]
            if byte & 0xC0 != 0x80:
                missing = (2 + (byte >= 0xE0) + (byte >= 0xF0) if byte >= 0xC0 else 1) - back
                after = self.bytes_between(position, position + missing) if missing > 0 else b""
                whole = len(after) == missing and all(one & 0xC0 == 0x80 for one in after)
                return position + missing if whole and after else position
        return position


class KeptOutput:
    """
    The output of one session, both streams merged, with views of it.

    `transcript` is the head and the tail of everything, `unreported` of the output since the last
    `report`. A `window` is only the tail, with line and sequence numbers. Large chunks are kept as
    they are, small ones are joined. Memory is bounded by twice the bytes of a view, 2 more bytes
    for each small chunk, and the number of objects.
    """

    def __init__(self, *, max_bytes: int = KEPT_BYTES) -> None:
        """
        Args:
            max_bytes: Most bytes in a view.

        Raises:
            ValueError: It is not positive.
        """
        if max_bytes < 1:
            raise ValueError(f"a log cannot keep {max_bytes} bytes")
        self._max_bytes = max_bytes
        # Bytes of a head; the rest is for the tail.
        self._half = max_bytes // 2
        self._block_bytes = min(_BLOCK, max(max_bytes, 64))
        # The tail, in order. Only the last block may change: windows share the others.
        self._blocks: deque[Block] = deque()
        self._held = 0
        self._newlines = 0
        # Bytes dropped from the blocks that a head still needs: the head of everything, and the
        # head of the unreported output as far as it comes after the first.
        self._head = bytearray()
        self._unreported_head = bytearray()
        # The offset of the first byte that `_unreported_head` may have.
        self._unreported_head_start = self._half
        self._reported = 0
        # In the dropped bytes: the number of newlines, and the offset of the last line.
        self._dropped_newlines = 0
        self._dropped_line_start = 0
        self._gaps: deque[tuple[int, Lost]] = deque(maxlen=_GAPS)
        self._open_line = False
        self.total_bytes = 0
        """Bytes ever received."""
        self.last_seq = 0
        """The sequence number of the last received or lost chunk."""

    @property
    def total_lines(self) -> int:
        """Lines ever received; the last one counts even without a newline."""
        return self._newlines + self._open_line

    def append(self, seq: int, data: bytes) -> None:
        """Add the chunk with this sequence number."""
        consecutive = seq == self.last_seq + 1
        self.last_seq = seq
        size = len(data)
        if not size:
            return
        newlines = data.count(b"\n")
        self._newlines += newlines
        self._open_line = data[-1] != 10
        blocks = self._blocks
        if size < _SMALL and consecutive and blocks and self._join(blocks[-1], data):
            blocks[-1].newlines += newlines
        else:
            if blocks:
                blocks[-1].data = bytes(blocks[-1].data)
            kept = bytearray(data) if size < _SMALL else data
            blocks.append(Block(self.total_bytes, seq, kept, newlines))
        self.total_bytes += size
        self._held += size
        # Up to one block too many is kept, and trimmed before a read.
        while self._held - len(blocks[0].data) >= self._max_bytes or len(blocks) > _BLOCKS:
            first = blocks.popleft()
            self._drop(first.start, first.data, first.newlines)
        if self._held >= 2 * self._max_bytes:
            self._trim()

    def _join(self, block: Block, data: bytes) -> bool:
        """Append a small chunk to the last block; return False if it needs a new block."""
        joined = block.data
        if type(joined) is not bytearray or len(joined) >= self._block_bytes:
            return False
        if block.lengths is None:
            block.lengths = array("H", [len(joined)])
        elif len(block.lengths) >= _BLOCK_CHUNKS:
            return False
        block.lengths.append(len(data))
        joined += data
        return True

    def _drop(self, start: int, data: bytes | bytearray, newlines: int) -> None:
        """Account for bytes dropped from the blocks, and keep those that a head needs."""
        self._held -= len(data)
        if newlines:
            self._dropped_newlines += newlines
            self._dropped_line_start = start + data.rfind(b"\n") + 1
        if start < self._half:
            self._head += data[: self._half - start]
        end = self._reported + self._half - start
        if end > 0:
            self._unreported_head += data[max(0, self._unreported_head_start - start) : end]

    def _trim(self) -> None:
        """Trim surplus bytes from the first block."""
        surplus = self._held - self._max_bytes
        if surplus <= 0:
            return
        block = self._blocks[0]
        first_seq, lengths = block.first_seq, block.lengths
        if lengths is not None:
            # Whole chunks only, so that the first block still starts with a numbered chunk.
            chunks, surplus = _chunks_within(lengths, surplus)
            if not chunks:
                return
            first_seq += chunks
            lengths = lengths[chunks:]
        gone = bytes(block.data[:surplus])
        newlines = gone.count(b"\n")
        # A new object, since windows share the old one.
        self._blocks[0] = Block(
            block.start + surplus,
            first_seq,
            block.data[surplus:],
            block.newlines - newlines,
            lengths,
        )
        self._drop(block.start, gone, newlines)

    def gap(self, first_seq: int, last_seq: int) -> None:
        """Note that the events with these numbers were lost in transit."""
        self.last_seq = max(self.last_seq, last_seq)
        if self._gaps:
            at, before = self._gaps[-1]
            if at == self.total_bytes and before.last_seq + 1 == first_seq:
                self._gaps[-1] = (at, Lost(before.first_seq, last_seq))
                return
        self._gaps.append((self.total_bytes, Lost(first_seq, last_seq)))

    # -- views

    @property
    def transcript(self) -> Captured:
        """The head and the tail of all output, up to 1 MiB."""
        return self._captured(0)

    @property
    def unreported(self) -> Captured:
        """The head and the tail of the output since the last `report`."""
        return self._captured(self._reported)

    def report(self) -> Captured:
        """Return the unreported output and mark it as reported."""
        captured = self._captured(self._reported)
        self._reported = self.total_bytes
        self._unreported_head_start = max(self._half, self._reported)
        self._unreported_head.clear()
        return captured

    def end(self, size: int) -> bytes:
        """Return the last `size` bytes, at most those of a window."""
        return self._bytes(max(self.total_bytes - size, 0), self.total_bytes)

    def window(self) -> Window:
        """Return a snapshot of the tail of the output."""
        self._trim()
        blocks = list(self._blocks)
        if blocks:
            last = blocks[-1]
            lengths = None if last.lengths is None else last.lengths[:]
            blocks[-1] = replace(last, data=bytes(last.data), lengths=lengths)
        return Window(
            blocks=blocks,
            start=self.total_bytes - min(self._max_bytes, self._held),
            line_start=self._dropped_line_start,
            newlines_before=self._dropped_newlines,
            total_bytes=self.total_bytes,
            total_lines=self.total_lines,
            lost=list(self._gaps),
        )

    def _captured(self, start: int) -> Captured:
        """Return the head and the tail of the output from an offset on."""
        total = self.total_bytes
        middle = start + self._half
        head = self._bytes(start, middle)
        if total <= middle:
            return Captured(head, marker=BYTES_OMITTED)
        # Not before the first block: many tiny blocks may hold fewer bytes than a tail.
        kept_from = self._blocks[0].start if self._blocks else 0
        tail = self._bytes(max(middle, total - self._max_bytes + self._half, kept_from), total)
        omitted = total - start - len(head) - len(tail)
        if not omitted:
            head, tail = head + tail, b""
        return Captured(head, tail, omitted, BYTES_OMITTED)

    def _bytes(self, start: int, end: int) -> bytes:
        """Return the retained bytes between two offsets."""
        since = self._unreported_head_start
        tail = [
            block.data[max(0, start - block.start) : max(0, end - block.start)]
            for block in self._blocks
        ]
        unreported = self._unreported_head[max(0, start - since) : max(0, end - since)]
        return b"".join([self._head[start:end], unreported, *tail])


def _chunks_within(lengths: "array[int]", size: int) -> tuple[int, int]:
    """Return how many first chunks fit into `size` bytes, and their total size."""
    total = 0
    for number, length in enumerate(lengths):
        if total + length > size:
            return number, total
        total += length
    return len(lengths), total


@dataclass(slots=True)
class _Archived:
    """One output in the archive."""

    output: Window
    size: int
    keys: list[Hashable]


class Archive:
    """
    The tails of the output of the most recently ended sessions, by call id and session id.

    The oldest is dropped first when there are too many, or too many bytes.
    """

    def __init__(self, *, max_logs: int = ARCHIVE_LOGS, max_bytes: int = ARCHIVE_BYTES) -> None:
        self._max_logs = max_logs
        self._max_bytes = max_bytes
        self._outputs: OrderedDict[int, _Archived] = OrderedDict()
        self._by_key: dict[Hashable, int] = {}
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        return len(self._outputs)

    @property
    def size(self) -> int:
        """Bytes of all outputs; see `Window.size`."""
        return self._size

    def add(
        self, output: Window, *, call_ids: Iterable[str] = (), session_id: int | None = None
    ) -> None:
        """
        Keep the output of an ended session.

        An id shared with an older output refers to this one from now on.
        """
        keys: list[Hashable] = list(dict.fromkeys(call_ids))
        if session_id is not None:
            keys.append(session_id)
        self._next += 1
        entry = _Archived(output, output.size, keys)
        self._outputs[self._next] = entry
        self._size += entry.size
        for key in keys:
            self._by_key[key] = self._next
        while self._outputs and (
            len(self._outputs) > self._max_logs or self._size > self._max_bytes
        ):
            self._drop_oldest()

    def find(self, key: str | int) -> Window | None:
        """Return the output with this call id (a string) or session id (a number), if kept."""
        number = self._by_key.get(key)
        return None if number is None else self._outputs[number].output

    def _drop_oldest(self) -> None:
        number, entry = self._outputs.popitem(last=False)
        self._size -= entry.size
        for key in entry.keys:
            if self._by_key.get(key) == number:
                del self._by_key[key]

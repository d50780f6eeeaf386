"""
Keeps what commands wrote: the only copy, for the answers, the listeners and later reading.

Pure: no event loop and no clock. An output has the head and the tail of what one session wrote,
and the counts of everything; the archive has the tails of the sessions that ended last.
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
"""Bytes of one output that a view shows, at most."""

ARCHIVE_LOGS = 32
"""Outputs of ended sessions that are kept."""

ARCHIVE_BYTES = 32 << 20
"""Bytes that they may have together."""

# Bytes below which a chunk is copied to its neighbours rather than kept as an object.
_SMALL = 4 << 10

# Bytes that such neighbours grow to, at most.
_BLOCK = 64 << 10

# Chunks of which such a block is made, at most.
_BLOCK_CHUNKS = 16 << 10

# Blocks that are kept at most, however small: each costs some 200 bytes.
_BLOCKS = 4096

# Gaps that are remembered at most: the last ones.
_GAPS = 256


class Lost(NamedTuple):
    """Numbers of events that were lost on the way."""

    first_seq: int
    last_seq: int


@dataclass(slots=True, eq=False)
class Block:
    """Chunks of output that follow each other, with numbers that do so too."""

    start: int
    """Bytes of the output before it."""
    first_seq: int
    data: bytes | bytearray
    """A `bytearray` while small chunks are added."""
    newlines: int
    lengths: "array[int] | None" = None
    """The lengths of the chunks, if there are several."""

    @property
    def last_seq(self) -> int:
        """The number of the last chunk."""
        return self.first_seq + (len(self.lengths) - 1 if self.lengths else 0)

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, without what objects cost."""
        return len(self.data) + (2 * len(self.lengths) if self.lengths else 0)

    def borders(self) -> list[tuple[int, int]]:
        """Return where each chunk begins, with its number."""
        found = []
        at = self.start
        for seq, length in enumerate(self.lengths or (len(self.data),), self.first_seq):
            found.append((at, seq))
            at += length
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The retained output at one moment. Offsets are bytes from the very first one."""

    blocks: list[Block]
    start: int
    """Offset of its beginning; the first block may begin before."""
    line_start: int
    """Offset of the line in which the first block begins."""
    newlines_before: int
    """Newlines before the first block."""
    total_bytes: int
    total_lines: int
    lost: list[tuple[int, Lost]]
    """Gaps with their positions."""

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, without what objects cost."""
        return sum(block.size for block in self.blocks)

    def first_line(self) -> tuple[int, int]:
        """Return the number of the line it begins in, and the bytes missing of that line."""
        if not self.blocks:
            return 1, 0
        first = self.blocks[0]
        # The first block may begin before the retained part, in bytes that no longer count.
        surplus = first.data[: self.start - first.start]
        newlines = surplus.count(b"\n")
        line_start = first.start + surplus.rfind(b"\n") + 1 if newlines else self.line_start
        return self.newlines_before + newlines + 1, self.start - line_start

    def position_of_line(self, number: int) -> int:
        """Return where a line begins; where the window does for those before it."""
        seen = self.newlines_before
        for block in self.blocks:
            wanted = number - 1 - seen
            if wanted <= 0:
                return max(block.start, self.start)
            if wanted <= block.newlines:
                # `split` counts newlines at the speed of C.
                rest = block.data.split(b"\n", wanted)[-1]
                return max(block.start + len(block.data) - len(rest), self.start)
            seen += block.newlines
        return self.total_bytes

    def line_at(self, position: int) -> int:
        """Return the number of the line that the byte at a position belongs to."""
        newlines = self.newlines_before
        for block in self.blocks:
            if position < block.start + len(block.data):
                return newlines + block.data.count(b"\n", 0, max(0, position - block.start)) + 1
            newlines += block.newlines
        return newlines + 1

    def position_of_seq(self, seq: int) -> int:
        """Return where a chunk begins, or the next one if there is none with that number."""
        for block in self.blocks:
            if seq <= block.last_seq:
                skipped = max(0, seq - block.first_seq)
                before = sum(block.lengths[:skipped]) if block.lengths else 0
                return max(block.start + before, self.start)
        return self.total_bytes

    def border_within(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the last begin of a chunk behind `start` and up to `end`, with its number."""
        for block in reversed(self.blocks):
            if block.start <= end:
                for position, seq in reversed(block.borders()):
                    if position <= start:
                        return None
                    if position <= end:
                        return position, seq
        return None

    def border_after(self, position: int) -> tuple[int, int] | None:
        """Return the first begin of a chunk behind a position, with its number."""
        for block in self.blocks:
            if block.start + len(block.data) > position:
                for at, seq in block.borders():
                    if at > position:
                        return at, seq
        return None

    def bytes_between(self, start: int, end: int) -> bytes:
        """Return the bytes from one position to another."""
        start = max(start, self.start)
        return b"".join(
            block.data[max(0, start - block.start) : max(0, end - block.start)]
            for block in self.blocks
            if block.start < end and block.start + len(block.data) > start
        )

    def after_letter(self, position: int) -> int:
        """Return the position, or the end of the letter of UTF-8 that it is inside of."""
        # A character of UTF-8 has at most three bytes before its last one.
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
    The output of one session as it came, both streams together, and views of it.

    `transcript` is the head and the tail of everything, `unreported` of what came since the last
    `report`; a `window` is the tail alone, with its lines and numbers. Large chunks are kept as
    the objects that they are; small ones are joined. Memory is bounded by twice the bytes of a
    view, by 2 bytes more for each small chunk, and by the number of objects.
    """

    def __init__(self, *, max_bytes: int = KEPT_BYTES) -> None:
        """
        Args:
            max_bytes: Bytes that a view shows.

        Raises:
            ValueError: It is not positive.
        """
        if max_bytes < 1:
            raise ValueError(f"a log cannot keep {max_bytes} bytes")
        self._max_bytes = max_bytes
        # Bytes of a head; the tail has the rest.
        self._half = max_bytes // 2
        self._block_bytes = min(_BLOCK, max(max_bytes, 64))
        # The tail, in order. Only the last block may be changed: windows share the others.
        self._blocks: deque[Block] = deque()
        self._held = 0
        self._newlines = 0
        # What the blocks have let go of, as far as a head needs it: the head of everything, and
        # that of what came since the last report, as far as it is behind the first.
        self._head = bytearray()
        self._unreported_head = bytearray()
        # The offset of the first byte that `_unreported_head` may have.
        self._unreported_head_start = self._half
        self._reported = 0
        # Of what was let go of: its newlines, and where its last line begins.
        self._dropped_newlines = 0
        self._dropped_line_start = 0
        self._gaps: deque[tuple[int, Lost]] = deque(maxlen=_GAPS)
        self._open_line = False
        self.total_bytes = 0
        """Bytes that ever came."""
        self.last_seq = 0
        """The number of the last chunk, or of the last one that is lost."""

    @property
    def total_lines(self) -> int:
        """Lines that ever came; the last one counts also without a newline."""
        return self._newlines + self._open_line

    def append(self, seq: int, data: bytes) -> None:
        """Add the chunk with this number."""
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
        # Up to one block more than fits is here: it is cut off when somebody reads.
        while self._held - len(blocks[0].data) >= self._max_bytes or len(blocks) > _BLOCKS:
            first = blocks.popleft()
            self._let_go(first.start, first.data, first.newlines)
        if self._held >= 2 * self._max_bytes:
            self._trim()

    def _join(self, block: Block, data: bytes) -> bool:
        """Add a small chunk to the last block; False if it has to begin another one."""
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

    def _let_go(self, start: int, data: bytes | bytearray, newlines: int) -> None:
        """Note what leaves the blocks, and keep what a head needs of it."""
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
        """Cut off what the first block has too much."""
        surplus = self._held - self._max_bytes
        if surplus <= 0:
            return
        block = self._blocks[0]
        first_seq, lengths = block.first_seq, block.lengths
        if lengths is not None:
            # Whole chunks only, so that the first block still begins with a numbered chunk.
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
        self._let_go(block.start, gone, newlines)

    def gap(self, first_seq: int, last_seq: int) -> None:
        """Note that the events with these numbers were lost on the way."""
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
        """All output from the first byte: its head and its tail, up to 1 MiB."""
        return self._captured(0)

    @property
    def unreported(self) -> Captured:
        """The output since the last `report`, likewise."""
        return self._captured(self._reported)

    def report(self) -> Captured:
        """Return what is unreported; from now on it is not."""
        captured = self._captured(self._reported)
        self._reported = self.total_bytes
        self._unreported_head_start = max(self._half, self._reported)
        self._unreported_head.clear()
        return captured

    def end(self, size: int) -> bytes:
        """Return the last bytes, at most as many as a window has."""
        return self._bytes(max(self.total_bytes - size, 0), self.total_bytes)

    def window(self) -> Window:
        """Return the tail of the output as it is now; what is appended later is not in it."""
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
        """Return the head and the tail of what came from an offset on."""
        total = self.total_bytes
        middle = start + self._half
        head = self._bytes(start, middle)
        if total <= middle:
            return Captured(head, marker=BYTES_OMITTED)
        # Not before the first block: tiny chunks with gaps between them may leave few bytes there.
        kept_from = self._blocks[0].start if self._blocks else 0
        tail = self._bytes(max(middle, total - self._max_bytes + self._half, kept_from), total)
        omitted = total - start - len(head) - len(tail)
        if not omitted:
            head, tail = head + tail, b""
        return Captured(head, tail, omitted, BYTES_OMITTED)

    def _bytes(self, start: int, end: int) -> bytes:
        """Return what is kept from one offset to another."""
        since = self._unreported_head_start
        tail = [
            block.data[max(0, start - block.start) : max(0, end - block.start)]
            for block in self._blocks
        ]
        unreported = self._unreported_head[max(0, start - since) : max(0, end - since)]
        return b"".join([self._head[start:end], unreported, *tail])


def _chunks_within(lengths: "array[int]", size: int) -> tuple[int, int]:
    """Return how many chunks have at most `size` bytes together, and their bytes."""
    total = 0
    for number, length in enumerate(lengths):
        if total + length > size:
            return number, total
        total += length
    return len(lengths), total


@dataclass(slots=True)
class _Archived:
    """One output of the archive."""

    output: Window
    size: int
    keys: list[Hashable]


class Archive:
    """
    The tails of the outputs of the sessions that ended last, by call ids and session ids.

    The oldest one goes first when there are too many, or too many bytes.
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
        """Bytes that all outputs have together; see `Window.size`."""
        return self._size

    def add(
        self, output: Window, *, call_ids: Iterable[str] = (), session_id: int | None = None
    ) -> None:
        """
        Keep the output of a session that has ended.

        An id that an older output has too names this one from now on.
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
        """Return the output with this call id (a text) or session id (a number), if it is kept."""
        number = self._by_key.get(key)
        return None if number is None else self._outputs[number].output

    def _drop_oldest(self) -> None:
        number, entry = self._outputs.popitem(last=False)
        self._size -= entry.size
        for key in entry.keys:
            if self._by_key.get(key) == number:
                del self._by_key[key]

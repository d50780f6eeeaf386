"""
Keeps what commands wrote, to be read after the answer that showed a part of it.

Pure: no event loop and no clock. A log has the last mebibyte of one session and the counts
of everything; the archive has the logs of the sessions that ended last.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial

from holdfast.unified_exec.output.line_text import BYTE_BUDGET
from holdfast.unified_exec.output.pages import Lost, Page, PageRequest, Piece, Window, read_window

__all__ = ["ARCHIVE_BYTES", "ARCHIVE_LOGS", "LOG_BYTES", "Archive", "KeptOutput"]

LOG_BYTES = 1 << 20
"""Bytes that a log keeps: the last ones."""

ARCHIVE_LOGS = 32
"""Logs of ended sessions that are kept."""

ARCHIVE_BYTES = 32 << 20
"""Bytes that they may have together."""

# Bytes below which a chunk is copied to its neighbours rather than kept as an object.
_SMALL = 4 << 10

# Bytes that such neighbours grow to, at most.
_BLOCK = 64 << 10

# Chunks of which such a block is made, at most.
_BLOCK_CHUNKS = 16 << 10

# Blocks that a log keeps at most, however small: each costs some 200 bytes.
_BLOCKS = 4096

# Gaps that a log remembers at most: the last ones.
_GAPS = 256


class _Block:
    """Chunks that follow each other, with numbers that do so too."""

    __slots__ = ("data", "first_seq", "lengths", "newlines", "start")

    def __init__(self, start: int, seq: int, data: bytes | bytearray, newlines: int) -> None:
        # Bytes of the log before it.
        self.start = start
        self.first_seq = seq
        # A chunk as it came, or a `bytearray` that is being filled with small ones.
        self.data = data
        self.newlines = newlines
        # The lengths of the chunks, if there are several.
        self.lengths: array[int] | None = None

    @property
    def last_seq(self) -> int:
        return self.first_seq + (len(self.lengths) - 1 if self.lengths else 0)


class KeptOutput:
    """
    The output of one session as it came, both streams together: its last mebibyte.

    Large chunks are kept as the objects that they are; small ones are joined. Memory is
    bounded by the bytes, by 2 bytes more for each small chunk, and by the number of objects.
    """

    def __init__(self, *, max_bytes: int = LOG_BYTES) -> None:
        """
        Args:
            max_bytes: Bytes to keep.

        Raises:
            ValueError: It is not positive.
        """
        if max_bytes < 1:
            raise ValueError(f"a log cannot keep {max_bytes} bytes")
        self._max_bytes = max_bytes
        self._block_bytes = min(_BLOCK, max(max_bytes, 64))
        self._blocks: deque[_Block] = deque()
        self._held = 0
        self._newlines = 0
        # Of what was dropped: its newlines, and where its last line begins.
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

    @property
    def size(self) -> int:
        """Bytes of memory that the kept output takes, without what objects cost."""
        indexes = sum(2 * len(block.lengths) for block in self._blocks if block.lengths)
        return self._held + indexes

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
        if size < _SMALL and consecutive and blocks and self._join(blocks[-1], seq, data):
            blocks[-1].newlines += newlines
        else:
            kept = bytearray(data) if size < _SMALL else data
            blocks.append(_Block(self.total_bytes, seq, kept, newlines))
        self.total_bytes += size
        self._held += size
        # Up to one block more than fits is here: it is cut off when somebody reads.
        while self._held - len(blocks[0].data) >= self._max_bytes or len(blocks) > _BLOCKS:
            self._drop(blocks.popleft())
        if self._held >= 2 * self._max_bytes:
            self._trim()

    def _join(self, block: _Block, seq: int, data: bytes) -> bool:
        """Add a small chunk to the last block; False if it has to begin another one."""
        joined = block.data
        if (
            type(joined) is not bytearray
            or len(joined) >= self._block_bytes
            or seq != block.last_seq + 1
        ):
            return False
        if block.lengths is None:
            block.lengths = array("H", [len(joined)])
        elif len(block.lengths) >= _BLOCK_CHUNKS:
            return False
        block.lengths.append(len(data))
        joined += data
        return True

    def _drop(self, block: _Block) -> None:
        self._held -= len(block.data)
        self._forget(block.start, block.data, block.newlines)

    def _forget(self, start: int, data: bytes | bytearray, newlines: int) -> None:
        """Note what is dropped at the begin of the log."""
        if newlines:
            self._dropped_newlines += newlines
            self._dropped_line_start = start + data.rfind(b"\n") + 1

    def _trim(self) -> None:
        """Cut off what the first block has too much."""
        surplus = self._held - self._max_bytes
        if surplus <= 0:
            return
        block = self._blocks[0]
        if block.lengths is not None:
            # Whole chunks only, so that the first block still begins with a numbered chunk.
            chunks, surplus = _chunks_within(block.lengths, surplus)
            if not chunks:
                return
            block.first_seq += chunks
            del block.lengths[:chunks]
        gone = bytes(block.data[:surplus])
        newlines = gone.count(b"\n")
        self._forget(block.start, gone, newlines)
        block.newlines -= newlines
        block.start += surplus
        block.data = block.data[surplus:]
        self._held -= surplus

    def gap(self, first_seq: int, last_seq: int) -> None:
        """Note that the events with these numbers were lost on the way."""
        self.last_seq = max(self.last_seq, last_seq)
        if self._gaps:
            at, before = self._gaps[-1]
            if at == self.total_bytes and before.last_seq + 1 == first_seq:
                self._gaps[-1] = (at, Lost(before.first_seq, last_seq))
                return
        self._gaps.append((self.total_bytes, Lost(first_seq, last_seq)))

    def compact(self) -> None:
        """Let go of memory that only a log in use needs; reading and adding still work."""
        self._trim()
        for block in self._blocks:
            block.data = bytes(block.data)

    # -- reading

    def read(
        self,
        *,
        from_seq: int | None = None,
        lines: tuple[int, int | None] | None = None,
        pattern: str | None = None,
        max_bytes: int = BYTE_BUDGET,
    ) -> Page:
        """
        Return a page of the output; without arguments, from the first byte that is kept.

        Args:
            from_seq: Begin with the chunk that has this number, or the next one there is.
            lines: The first and the last line, from 1. Negative numbers count from the
                end, -1 is the last line; `None` as the second is the end.
            pattern: Show only lines that match this regular expression, with their numbers.
            max_bytes: Bytes of text on the page; at least 1 KiB.

        Raises:
            InvalidParams: Both `from_seq` and `lines` are given, the lines are in the wrong
                order or 0, or the pattern cannot be used.
        """
        return self.reader(from_seq=from_seq, lines=lines, pattern=pattern, max_bytes=max_bytes)()

    def reader(
        self,
        *,
        from_seq: int | None = None,
        lines: tuple[int, int | None] | None = None,
        pattern: str | None = None,
        max_bytes: int = BYTE_BUDGET,
    ) -> Callable[[], Page]:
        """
        Return a function that does as `read` does, in any thread.

        What is appended meanwhile is not on the page.
        """
        request = PageRequest(from_seq=from_seq, lines=lines, pattern=pattern, max_bytes=max_bytes)
        return partial(read_window, self._window(), request)

    def _window(self) -> Window:
        """Return what is kept now, cut to the bytes that a log keeps."""
        pieces = []
        for block in self._blocks:
            lengths = None if block.lengths is None else block.lengths[:]
            # No copy, unless the block is still being filled.
            data = bytes(block.data)
            pieces.append(Piece(block.start, block.first_seq, data, block.newlines, lengths))
        return Window(
            pieces=pieces,
            start=max(self.total_bytes - self._max_bytes, self.total_bytes - self._held),
            line_start=self._dropped_line_start,
            newlines_before=self._dropped_newlines,
            total_bytes=self.total_bytes,
            total_lines=self.total_lines,
            last_seq=self.last_seq,
            lost=list(self._gaps),
        )


def _chunks_within(lengths: "array[int]", size: int) -> tuple[int, int]:
    """Return how many chunks have at most `size` bytes together, and their bytes."""
    total = 0
    for number, length in enumerate(lengths):
        if total + length > size:
            return number, total
        total += length
    return len(lengths), total


class Archive:
    """
    The logs of the sessions that ended last, by the ids of their calls and of the session.

    The oldest one goes first when there are too many, or too many bytes.
    """

    def __init__(self, *, max_logs: int = ARCHIVE_LOGS, max_bytes: int = ARCHIVE_BYTES) -> None:
        self._max_logs = max_logs
        self._max_bytes = max_bytes
        self._logs: OrderedDict[int, _Archived] = OrderedDict()
        self._by_key: dict[Hashable, int] = {}
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def size(self) -> int:
        """Bytes that all logs have together; see `KeptOutput.size`."""
        return self._size

    def add(
        self, log: KeptOutput, *, call_ids: Iterable[str] = (), session_id: int | None = None
    ) -> None:
        """
        Keep the log of a session that has ended; nothing may be appended to it any more.

        An id that an older log has too names this one from now on.
        """
        log.compact()
        keys: list[Hashable] = list(dict.fromkeys(call_ids))
        if session_id is not None:
            keys.append(session_id)
        self._next += 1
        entry = _Archived(log, log.size, keys)
        self._logs[self._next] = entry
        self._size += entry.size
        for key in keys:
            self._by_key[key] = self._next
        while self._logs and (len(self._logs) > self._max_logs or self._size > self._max_bytes):
            self._drop_oldest()

    def find(self, key: str | int) -> KeptOutput | None:
        """Return the log with this call id (a text) or session id (a number), if it is kept."""
        number = self._by_key.get(key)
        return None if number is None else self._logs[number].log

    def clear(self) -> None:
        """Forget all logs."""
        self._logs.clear()
        self._by_key.clear()
        self._size = 0

    def _drop_oldest(self) -> None:
        number, entry = self._logs.popitem(last=False)
        self._size -= entry.size
        for key in entry.keys:
            if self._by_key.get(key) == number:
                del self._by_key[key]


class _Archived:
    """One log of the archive."""

    __slots__ = ("keys", "log", "size")

    def __init__(self, log: KeptOutput, size: int, keys: list[Hashable]) -> None:
        self.log = log
        self.size = size
        self.keys = keys

"""
Selects a part of the output of one call: first lines, last lines, matching lines.

Without event loop or clock. All bytes of the call go through a `Selector`, which counts everything
and keeps little. So the counts cover the whole output, and the command does not need a pipe to
`tail`, which would hide its exit code.
"""

from collections import deque
from dataclasses import dataclass

from holdfast.agent.unified_exec.arguments.tool_arguments import OutputArguments
from holdfast.agent.unified_exec.output.line_search import LineSearch, PartSearch
from holdfast.agent.unified_exec.output.line_text import (
    BYTE_BUDGET,
    LEAST_BUDGET,
    count_of,
    cut_line,
    with_note,
)
from holdfast.base.errors import InvalidParams

__all__ = ["REST_HINT", "Selected", "Selection", "Selector"]

REST_HINT = "read_output shows the rest"
"""The end of the note if an answer does not show everything."""

# Bytes to collect before processing them; longer lines are processed in parts.
_BLOCK = 32 << 10

# Most bytes to collect.
_TURN = 64 << 10

# Bytes that can be fed in the event loop if there is no pattern.
_QUICK = 128 << 10

# Bytes to which no line is cut, even if many are requested.
_SHARE = 4 << 10

# Kept lines with fewer bytes are joined with the following ones.
_JOIN = 4 << 10

# Mean length above which lines are checked for being too long.
_LONG = 256

_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The lines that a call requests; by default all lines."""

    head: int | None = None
    """The number of first lines; with `grep`, of first matching lines."""
    tail: int | None = None
    """The number of last lines, in the same way."""
    grep: str | None = None
    """A regular expression that the lines must match."""

    def __post_init__(self) -> None:
        for name, number in (("head", self.head), ("tail", self.tail)):
            if number is not None and number < 0:
                raise InvalidParams(f"{name} is {number}, it must be 0 or more")

    @classmethod
    def of(cls, arguments: OutputArguments) -> "Selection":
        """Return what the model asked for."""
        return cls(head=arguments.head, tail=arguments.tail, grep=arguments.grep)

    def __bool__(self) -> bool:
        return not (self.head is None and self.tail is None and self.grep is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The selected lines of one call, with counts of all lines."""

    text_bytes: bytes
    """The selected lines; a line in brackets replaces lines left out between them."""
    note: str
    """The counts, such as "lines 1 to 40 of 48,112"."""
    total_bytes: int
    total_lines: int
    matching_lines: int | None
    """None without a pattern."""
    shown_lines: int
    complete: bool
    """True if no output is left out."""

    def output(self, hint: str = REST_HINT) -> bytes:
        """
        Return the answer below `Output:`: the note in brackets, then the text.

        Args:
            hint: How to see the rest; only included if there is a rest.
        """
        note = self.note if self.complete or not hint else f"{self.note}; {hint}"
        return with_note(note, "").encode() + self.text_bytes


class Selector:
    """
    Selects lines from the output of one call as it arrives.

    A line ends with `\\n` or `\\r\\n`, which the last one may lack. Memory is bounded by about
    twice `max_bytes` plus 200 KiB, regardless of the lines. Lines over 32 KiB are searched in
    parts, see `LineSearch.in_parts`.
    """

    def __init__(self, selection: Selection, *, max_bytes: int = BYTE_BUDGET) -> None:
        """
        Compile the pattern, if there is one.

        Args:
            selection: The lines to keep.
            max_bytes: Most bytes of lines to show; at least 1 KiB.

        Raises:
            InvalidParams: The pattern cannot be used; see `compile_pattern`.
        """
        self._kept = _Kept(selection, max(max_bytes, LEAST_BUDGET))
        self._search = None if selection.grep is None else LineSearch(selection.grep)
        self._pending = bytearray()
        self._long: _LongLine | None = None
        self._lines = 0
        # Number of lines searched before the pattern proved too slow; None if it did not.
        self._searched: int | None = None
        self._bytes = 0
        self._lost = 0
        self._left_out = 0

    def feed(self, data: bytes) -> None:
        """
        Add the next output.

        64 KiB take at most a millisecond. With a pattern they may take a second, until the pattern
        is given up; see `is_quick` and `Pattern`.
        """
        self._bytes += len(data)
        if len(data) <= _TURN:
            self._pending += data
            if len(self._pending) >= _BLOCK:
                self._look()
            return
        for start in range(0, len(data), _TURN):
            self._pending += data[start : start + _TURN]
            self._look()

    def is_quick(self, size: int, *, ends: bool = False) -> bool:
        """
        Return True if `size` more bytes can be fed in the event loop.

        Args:
            size: Number of bytes.
            ends: True if `selected` follows, which searches the collected bytes.
        """
        if self._search is None:
            return size <= _QUICK
        gathered = len(self._pending) + size
        if not ends and gathered < _BLOCK:
            return True
        return self._long is None and self._search.is_quick(gathered)

    def gap(self, first_seq: int, last_seq: int) -> None:
        """Note that the events with these numbers were lost, together with their lines."""
        self._lost += last_seq - first_seq + 1

    def leave_out(self, size: int) -> None:
        """Note that `size` bytes between two calls are not kept for the second one."""
        if self._pending or self._long is not None:
            # End the line: the next output starts another one.
            self.feed(b"\n")
            self._bytes -= 1
        self._left_out += size

    def selected(self) -> Selected:
        """Return the selected lines; call it once, after all output."""
        self._look()
        rest = bytes(self._pending)
        self._pending.clear()
        if self._long is not None:
            self._end_long_line(newline=b"")
        elif rest:
            matches = self._search is None or bool(self._search.runs(rest + b"\n"))
            if not self._given_up() and matches:
                self._kept.add(rest, 1)
            self._lines += 1
        part = self._kept.part()
        matching = None if self._search is None else self._kept.lines
        note = _note(part, self._lines if self._searched is None else self._searched, matching)
        if self._searched is not None:
            more = self._lines - self._searched
            note += f"; {count_of(more, 'more line')} not searched, the pattern takes too long"
        if self._left_out:
            note += f"; {count_of(self._left_out, 'byte')} from before this call are not counted"
        if self._lost:
            note += "; some output was lost on the way, the counts are of what arrived"
        shown = part.head_lines + part.tail_lines
        return Selected(
            text_bytes=part.text,
            note=note,
            total_bytes=self._bytes,
            total_lines=self._lines,
            matching_lines=matching,
            shown_lines=shown,
            # If lines were cut, the text is shorter.
            complete=len(part.text) == self._bytes
            and shown == self._lines
            and not (self._lost or self._left_out),
        )

    def _look(self) -> None:
        """Process all complete lines of the collected bytes."""
        pending = self._pending
        if self._long is not None:
            end = pending.find(b"\n")
            self._long.feed(bytes(pending if end < 0 else pending[:end]))
            if end < 0:
                pending.clear()
                return
            del pending[: end + 1]
            self._end_long_line(newline=b"\n")
        end = pending.rfind(b"\n") + 1
        if end:
            block = bytes(pending[:end])
            del pending[:end]
            self._take(block)
        if len(pending) >= _BLOCK:
            parts = None if self._search is None else self._search.in_parts()
            self._long = _LongLine(self._kept.line_limit, parts)
            self._long.feed(bytes(pending))
            pending.clear()

    def _take(self, block: bytes) -> None:
        """Process a block of whole lines."""
        if self._search is None:
            count = block.count(b"\n")
            self._lines += count
            self._kept.add(block, count)
            return
        for part in self._search.in_blocks(block):
            if not self._given_up():
                matching, count = self._search.matching(part)
                if not self._given_up() and count:
                    self._kept.add(matching, count)
            self._lines += part.count(b"\n")

    def _given_up(self) -> bool:
        """Return True if the pattern is too slow: from now on, lines are only counted."""
        if self._search is None or not self._search.given_up:
            return False
        if self._searched is None:
            self._searched = self._lines
        return True

    def _end_long_line(self, *, newline: bytes) -> None:
        line, self._long = self._long, None
        assert line is not None, "the caller has looked"
        matches = line.matches()
        if not self._given_up() and matches:
            self._kept.add(line.shown(newline), 1)
        self._lines += 1


class _LongLine:
    """A line too long to be kept as a whole."""

    def __init__(self, limit: int, search: PartSearch | None) -> None:
        self._limit = limit
        self._search = search
        self._begin = bytearray()
        self._end = b""
        self._length = 0

    def feed(self, part: bytes) -> None:
        """Add the next part of the line."""
        room = self._limit - len(self._begin)
        if room > 0:
            self._begin += part[:room]
        self._length += len(part)
        self._end = part[-1:] or self._end
        if self._search is not None:
            self._search.feed(part)

    def matches(self) -> bool:
        """Return True if the complete line matches."""
        return self._search is None or self._search.finish()

    def shown(self, newline: bytes) -> bytes:
        """Return the beginning of the line with a mark for the rest."""
        length = self._length
        if newline and self._end == b"\r":
            newline = b"\r\n"
            length -= 1
        begin = bytes(self._begin[:length])
        return cut_line(begin + newline, self._limit, length=length)


@dataclass(frozen=True, slots=True)
class _Part:
    """The lines to show."""

    text: bytes
    head_lines: int
    tail_lines: int
    # True if requested lines are missing because they do not fit.
    wanted_more: bool


class _Kept:
    """
    The first and the last of all added lines.

    Lines fill the head and then the tail, which drops its oldest lines. So no line is in both.
    """

    def __init__(self, selection: Selection, max_bytes: int) -> None:
        open_ended = selection.head is None and selection.tail is None
        self._head_wanted = _UNLIMITED if open_ended else (selection.head or 0)
        self._tail_wanted = _UNLIMITED if open_ended else (selection.tail or 0)
        self._max_bytes = max_bytes
        wanted = self._head_wanted + self._tail_wanted
        both = bool(self._head_wanted and self._tail_wanted)
        most = max_bytes // 2 if both else max_bytes
        # Most bytes to show of one line.
        self.line_limit = min(most, max(_SHARE, max_bytes // max(1, wanted)))
        # Number of added lines.
        self.lines = 0
        self._head = bytearray()
        self._head_lines = 0
        self._head_full = not self._head_wanted
        # Pairs of joined lines and their number. Up to one pair more than needed is kept.
        self._tail: deque[tuple[bytearray, int]] = deque()
        self._tail_lines = 0
        self._tail_bytes = 0

    def add(self, lines: bytes, count: int) -> None:
        """Add whole lines; only the very last line may lack a newline."""
        self.lines += count
        if len(lines) > count * _LONG:
            # Cut here rather than at the end, so that long lines do not fill memory.
            lines = _cut_lines(lines, self.line_limit)
        if not self._head_full:
            end = self._take_head(lines, count)
            lines = lines[end:]
            count = self.lines - self._head_lines
        if lines and self._tail_wanted:
            self._add_to_tail(lines, count)

    def _take_head(self, lines: bytes, count: int) -> int:
        """Fill the head; return how many bytes it took, up to the end of a line."""
        end = len(lines)
        wanted = self._head_wanted - self._head_lines
        if count >= wanted:
            end, count = _end_of_line(lines, wanted), wanted
            self._head_full = True
        room = self._max_bytes - len(self._head)
        if end > room:
            # At least one line, which is cut later if it exceeds its limit.
            end = lines.rfind(b"\n", 0, room) + 1
            if not end and not self._head:
                end = _end_of_line(lines, 1)
            count = lines.count(b"\n", 0, end) + (end == len(lines) and lines[-1:] != b"\n")
            self._head_full = True
        self._head += lines[:end]
        self._head_lines += count
        return end

    def _add_to_tail(self, lines: bytes, count: int) -> None:
        tail = self._tail
        self._tail_lines += count
        self._tail_bytes += len(lines)
        if tail and len(tail[-1][0]) < _JOIN:
            joined, before = tail.pop()
            joined += lines
            tail.append((joined, before + count))
        else:
            tail.append((bytearray(lines), count))
        while len(tail) > 1 and (
            self._tail_lines - tail[0][1] >= self._tail_wanted
            or self._tail_bytes - len(tail[0][0]) >= self._max_bytes
        ):
            gone, number = tail.popleft()
            self._tail_lines -= number
            self._tail_bytes -= len(gone)

    def part(self) -> _Part:
        """Return as many lines as fit, each within its limit."""
        head, head_lines = bytes(self._head), self._head_lines
        tail, tail_lines = b"".join(block for block, _ in self._tail), self._tail_lines
        surplus = tail_lines - self._tail_wanted
        if surplus > 0:
            tail, tail_lines = tail[_end_of_line(tail, surplus) :], self._tail_wanted
        wanted = min(self.lines, self._head_wanted + self._tail_wanted)
        limit = self.line_limit
        head, tail = _cut_lines(head, limit), _cut_lines(tail, limit)

        # Each gets half of the room, plus the unused part of the other half.
        half = self._max_bytes // 2
        room = max(half, self._max_bytes - len(tail))
        if len(head) > room:
            head = head[: head.rfind(b"\n", 0, room) + 1]
            head_lines = head.count(b"\n")
        room = self._max_bytes - len(head)
        if len(tail) > room:
            # Start after a newline: a line is not cut at its beginning.
            start = tail.find(b"\n", len(tail) - room - 1) + 1
            tail_lines -= tail.count(b"\n", 0, start)
            tail = tail[start:]
        shown = head_lines + tail_lines
        between = b""
        if head_lines and tail_lines and shown < self.lines:
            between = f"[... {count_of(self.lines - shown, 'line')} left out ...]\n".encode()
        return _Part(head + between + tail, head_lines, tail_lines, shown < wanted)


def _end_of_line(lines: bytes, number: int) -> int:
    """Return the end of the line with this number, from 1."""
    rest = lines.split(b"\n", number)
    return len(lines) - len(rest[-1]) if len(rest) > number else len(lines)


def _cut_lines(lines: bytes, limit: int) -> bytes:
    if len(lines) <= limit or max(map(len, lines.split(b"\n"))) < limit:
        return lines
    return b"".join([cut_line(line, limit) for line in _split_lines(lines)])


def _split_lines(lines: bytes) -> list[bytes]:
    """Return the lines with their newlines."""
    parts = [line + b"\n" for line in lines.split(b"\n")]
    last = parts.pop()[:-1]
    return [*parts, last] if last else parts


def _note(part: _Part, total: int, matching: int | None) -> str:
    head, tail = part.head_lines, part.tail_lines
    shown = head + tail
    if matching is not None:
        verb = "matches" if matching == 1 else "match"
        note = f"{matching:,} of {count_of(total, 'line')} {verb}"
        if shown < matching:
            note += f", {_ends(head, tail)} shown"
    elif not total:
        note = "no output"
    elif shown == total:
        note = count_of(total, "line") if total == 1 else f"all {total:,} lines"
    elif not shown:
        note = f"none of {count_of(total, 'line')}"
    elif not tail:
        lines = "line 1" if head == 1 else f"lines 1 to {head:,}"
        note = f"{lines} of {total:,}"
    elif not head:
        note = f"last {tail:,} of {total:,} lines"
    else:
        note = f"first {head:,} and last {tail:,} of {total:,} lines"
    if part.wanted_more:
        note += "; more do not fit"
    return note


def _ends(head: int, tail: int) -> str:
    ends = [
        f"the {name} {number:,}" for name, number in (("first", head), ("last", tail)) if number
    ]
    if not ends:
        return "none"
    return " and ".join(ends)

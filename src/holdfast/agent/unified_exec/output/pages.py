"""Pages of retained output, by sequence number, lines or pattern."""

from dataclasses import dataclass

from holdfast.agent.unified_exec.output.kept_output import Lost, Window
from holdfast.agent.unified_exec.output.line_search import LineSearch
from holdfast.agent.unified_exec.output.line_text import (
    BYTE_BUDGET,
    LEAST_BUDGET,
    count_of,
    cut_line,
    with_note,
)
from holdfast.base.errors import InvalidParams

__all__ = ["Page", "PageRequest", "read_window"]

# Bytes to search before checking whether the pattern is too slow.
_STEP = 8 << 10

# Bytes to which no line is cut, even if a page has many.
_SHARE = 4 << 10

# Gaps to name in a note; the others are counted.
_NAMED_GAPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a session's output, with the counts of the whole."""

    text: str
    """The lines; with a pattern, each is preceded by its number and a colon."""
    note: str
    """Which lines are shown, the total number, and how to continue."""
    first_line: int | None
    """The number of the first line shown, from 1; None on an empty page."""
    last_line: int | None
    total_lines: int
    """Lines ever received, including those no longer kept."""
    total_bytes: int
    matching_lines: int | None
    """Matching lines among those searched; None without a pattern."""
    dropped_lines: int
    """Lines no longer kept, not even partly."""
    next_line: int | None
    """The line to continue with, or None."""
    next_seq: int | None
    """The sequence number to continue with, or None."""
    lost: tuple[Lost, ...]
    """Events within this page that were lost in transit."""

    @property
    def more(self) -> bool:
        """True if more output follows this page."""
        return self.next_line is not None or self.next_seq is not None

    @property
    def output(self) -> str:
        """The answer for a model: the note in brackets, then the text."""
        return with_note(self.note, self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """
    A request for a page; by default, from the first retained byte.

    Raises:
        InvalidParams: Both `from_seq` and `lines` are given, or the lines are 0 or in the wrong
            order.
    """

    from_seq: int | None = None
    """Start with the chunk that has this number, or the next existing one."""
    lines: tuple[int, int | None] | None = None
    """
    The first and the last line, from 1.

    Negative numbers count from the end: -1 is the last line. None as the second means the end.
    """
    pattern: str | None = None
    """Show only lines that match this regular expression, with their numbers."""
    max_bytes: int = BYTE_BUDGET
    """Most bytes of text on the page; at least 1 KiB."""

    def __post_init__(self) -> None:
        if self.from_seq is not None and self.lines is not None:
            raise InvalidParams("from_seq and lines cannot be given together")
        if self.pattern is not None and not _is(self.pattern, str):
            raise TypeError(f"pattern is {self.pattern!r}, it must be a text")
        if self.from_seq is not None and not _is(self.from_seq, int):
            raise TypeError(f"from_seq is {self.from_seq!r}, it must be a number")
        if self.lines is not None:
            if not _is_range(self.lines):
                raise TypeError(f"lines is {self.lines!r}, it must be a first and a last line")
            first, last = self.lines
            if first == 0 or last == 0:
                raise InvalidParams("lines are counted from 1, or from -1 at the end; not from 0")
            if last is not None and (first < 0) == (last < 0) and first > last:
                raise InvalidParams(f"lines {first} to {last} are in the wrong order")


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind)


def _is_range(value: object) -> bool:
    """Return True for a pair of numbers of which the second may be None."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return isinstance(value[0], int) and isinstance(value[1], int | None)


def read_window(window: Window, request: PageRequest) -> Page:
    """
    Return a page of the output; with a pattern, call this in a `SearchThread`.

    Raises:
        InvalidParams: The pattern cannot be used.
    """
    search = None if request.pattern is None else LineSearch(request.pattern)
    return _PageReader(window, request).read(search)


class _PageReader:
    """Builder of one page."""

    def __init__(self, window: Window, request: PageRequest) -> None:
        self._window = window
        self._request = request
        # A smaller budget would not fit the marks.
        self._max_bytes = max(request.max_bytes, LEAST_BUDGET)
        self._kept_line, self._missing = window.first_line()
        self._total = window.total_lines

    def read(self, search: LineSearch | None) -> Page:
        request, window = self._request, self._window
        if request.from_seq is not None:
            start = window.after_letter(window.position_of_seq(request.from_seq))
            if search is None:
                return self._read_from(start)
            wanted = window.line_at(start) if start < window.total_bytes else self._total + 1
            first, last = wanted, self._total
        else:
            first, last = self._resolve(*(request.lines or (1, None)))
            wanted = first
            first = max(first, self._kept_line)
        # Nothing to show: the note says why.
        if first > last:
            return self._page("", self._nothing(wanted, last), None, None, search=search)
        if search is None:
            return self._read_lines(first, last, wanted)
        return self._search_lines(search, first, last, wanted)

    def _resolve(self, first: int, last: int | None) -> tuple[int, int]:
        """Return line numbers counted from the start, limited to existing lines."""
        total = self._total
        last = total if last is None else last
        first = max(1, total + 1 + first) if first < 0 else first
        last = total + 1 + last if last < 0 else last
        return first, min(last, total)

    def _nothing(self, wanted: int, last: int) -> str:
        if not self._total:
            return "no output"
        if wanted > self._total:
            if self._request.lines is None:
                return f"nothing from sequence {self._request.from_seq} on"
            return f"no line {wanted:,}, there are {count_of(self._total, 'line')}"
        if last < self._kept_line and wanted <= last:
            return self._dropped_note() or "no lines"
        return f"no lines there, of {count_of(self._total, 'line')}"

    # -- the three ways

    def _read_from(self, start: int) -> Page:
        """Read bytes unchanged, up to the start of a chunk or line."""
        window = self._window
        total = window.total_bytes
        from_seq = self._request.from_seq
        assert from_seq is not None, "the caller has looked"
        if start >= total:
            note = f"nothing from sequence {from_seq} on" if total else "no output"
            return self._page("", note, None, None)
        # If there is more, one of the two says where to continue.
        end, next_seq, next_line, mark = min(start + self._max_bytes, total), None, None, ""
        if end < total:
            # End before a chunk if possible: a sequence number resumes exactly there.
            border = window.border_within(start, end)
            data = b"" if border is not None else window.bytes_between(start, end)
            if border is not None:
                end, next_seq = border
                end = window.after_letter(end)
            elif b"\n" in data:
                end = start + data.rfind(b"\n") + 1
                next_line = window.line_at(end)
            else:
                # Neither a line nor a chunk ends on the page: continue with the next chunk.
                end = window.after_letter(end)
                after = window.border_after(end)
                next_seq = None if after is None else after[1]
                skipped = (total if after is None else after[0]) - end
                mark = f"[... {count_of(skipped, 'byte')} left out ...]"
        text = window.bytes_between(start, end).decode(errors="replace") + mark
        first, last = window.line_at(start), window.line_at(max(start, end - 1))
        note = self._lines_note(first, last)
        if start == window.start and start and from_seq < self._seq_at(start):
            note += f"; {self._dropped_note()}"
        return self._page(
            text, note, first, last, next_seq=next_seq, next_line=next_line, span=(start, end)
        )

    def _seq_at(self, position: int) -> int:
        border = self._window.border_within(-1, position)
        return 0 if border is None else border[1]

    def _read_lines(self, first: int, last: int, wanted: int) -> Page:
        """Read as many whole lines as fit."""
        start = self._window.position_of_line(first)
        end = self._end_of(last)
        data = self._window.bytes_between(start, end)
        limit = self._line_limit(last - first + 1)
        begin = self._begin_mark(first)
        room = self._max_bytes - len(begin)
        page, shown, fitting = _fit_lines(data, limit, room)
        until = first + shown - 1
        note = self._lines_note(first, until) + self._dropped_before(wanted)
        return self._page(
            begin + page.decode(errors="replace"),
            note,
            first,
            until,
            next_line=until + 1 if until < last else None,
            span=(start, start + fitting),
        )

    def _search_lines(self, search: LineSearch, first: int, last: int, wanted: int) -> Page:
        """Count all matching lines, and read as many as fit."""
        start, end = self._window.position_of_line(first), self._end_of(last)
        data = self._window.bytes_between(start, end)
        # The search needs whole lines, so the last one gets a temporary newline.
        open_line = not data.endswith(b"\n")
        if open_line:
            data += b"\n"
        limit = self._line_limit(8)
        shown: list[str] = []
        numbers: list[int] = []
        room, matching, next_line = self._max_bytes, 0, None
        line, at = first, 0
        while at < len(data):
            # A step ends with a line; a line longer than a step is searched as a whole.
            step = data.rfind(b"\n", at, at + _STEP) + 1 or data.find(b"\n", at) + 1
            block = data[at:step]
            runs = search.runs(block)
            if search.given_up:
                raise InvalidParams(
                    f"pattern {search.pattern!r} cannot be used here:"
                    " it takes too long to search for"
                )
            for run in runs:
                matching += run.lines
                # The page is full: only count.
                if next_line is not None:
                    continue
                lines = block[run.start : run.end].split(b"\n")
                for number, text in enumerate(lines[:-1], line + run.first):
                    begin = self._begin_mark(number)
                    kept = cut_line(text, limit) + b"\n"
                    row = f"{number}:{begin}{kept.decode(errors='replace')}"
                    room -= len(kept) + len(begin) + len(str(number)) + 1
                    # The first line is always shown, even if it is too long.
                    if room < 0 and shown:
                        next_line = number
                        break
                    shown.append(row)
                    numbers.append(number)
            line += block.count(b"\n")
            at = step
        page = "".join(shown)
        # Remove the added newline.
        if open_line and numbers and numbers[-1] == last:
            page = page[:-1]
        note = self._matches_note(matching, len(shown), first, last)
        return self._page(
            page,
            note + self._dropped_before(wanted),
            numbers[0] if numbers else None,
            numbers[-1] if numbers else None,
            next_line=next_line,
            matching=matching,
            search=search,
            span=(start, end),
        )

    # -- parts of a page

    def _end_of(self, line: int) -> int:
        window = self._window
        return window.total_bytes if line >= self._total else window.position_of_line(line + 1)

    def _line_limit(self, lines: int) -> int:
        return min(self._max_bytes, max(_SHARE, self._max_bytes // lines))

    def _begin_mark(self, line: int) -> str:
        """Return the mark for a line whose beginning is no longer kept."""
        if line != self._kept_line or not self._missing:
            return ""
        return f"[... {count_of(self._missing, 'byte')} of this line no longer kept ...]"

    def _lines_note(self, first: int, last: int) -> str:
        if first == last:
            return f"line {first:,} of {self._total:,}"
        return f"lines {first:,} to {last:,} of {self._total:,}"

    def _matches_note(self, matching: int, shown: int, first: int, last: int) -> str:
        looked = last - first + 1
        verb = "matches" if matching == 1 else "match"
        note = f"{matching:,} of {count_of(looked, 'line')} {verb}"
        if looked < self._total:
            note += f" in {self._lines_note(first, last)}"
        if shown < matching:
            note += f", the first {shown:,} shown"
        return note

    def _dropped_before(self, wanted: int) -> str:
        """Return the note about requested lines that are no longer kept."""
        dropped = wanted < self._kept_line or (wanted == self._kept_line and self._missing)
        return f"; {self._dropped_note()}" if dropped else ""

    def _dropped_note(self) -> str:
        dropped = self._kept_line - 1
        if not dropped:
            return f"the first {count_of(self._missing, 'byte')} are no longer kept"
        if dropped == 1:
            return "the first line is no longer kept"
        return f"the first {dropped:,} lines are no longer kept"

    def _page(
        self,
        text: str,
        note: str,
        first: int | None,
        last: int | None,
        *,
        next_line: int | None = None,
        next_seq: int | None = None,
        matching: int | None = None,
        search: LineSearch | None = None,
        span: tuple[int, int] | None = None,
    ) -> Page:
        window = self._window
        if search is not None and matching is None:
            matching = 0
        lost: tuple[Lost, ...] = ()
        if span is not None:
            start, end = span
            # Include gaps before the first byte; those after the last only if nothing follows.
            end += end == window.total_bytes
            lost = tuple(gap for position, gap in window.lost if start <= position < end)
        elif not window.total_bytes:
            lost = tuple(gap for _, gap in window.lost)
        if lost:
            note += f"; {_lost_note(lost)}"
        if next_seq is not None:
            note += f'; continue with "from_seq": {next_seq}'
        elif next_line is not None:
            until = self._request.lines[1] if self._request.lines else None
            note += f'; continue with "lines": [{next_line}, {-1 if until is None else until}]'
        return Page(
            text=text,
            note=note,
            first_line=first,
            last_line=last,
            total_lines=window.total_lines,
            total_bytes=window.total_bytes,
            matching_lines=matching,
            dropped_lines=self._kept_line - 1,
            next_line=next_line,
            next_seq=next_seq,
            lost=lost,
        )


def _fit_lines(data: bytes, limit: int, room: int) -> tuple[bytes, int, int]:
    """Return the lines that fit, with long ones cut, their number, and the bytes read."""
    kept: list[bytes] = []
    at = 0
    while at < len(data):
        end = data.find(b"\n", at) + 1 or len(data)
        # The first line is cut to fit: a page has at least one.
        line = cut_line(data[at:end], min(limit, room) if not kept else limit)
        if kept and len(line) > room:
            break
        room -= len(line)
        kept.append(line)
        at = end
    return b"".join(kept), len(kept), at


def _lost_note(lost: tuple[Lost, ...]) -> str:
    named = [
        f"{gap.first_seq} to {gap.last_seq}" if gap.last_seq > gap.first_seq else f"{gap.first_seq}"
        for gap in lost[:_NAMED_GAPS]
    ]
    if len(lost) > _NAMED_GAPS:
        named.append(count_of(len(lost) - _NAMED_GAPS, "other gap"))
    listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"output numbered {listed} was lost on the way"

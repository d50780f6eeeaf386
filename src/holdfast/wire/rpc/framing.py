"""One message per line, for byte streams [stdio.lines]."""

from holdfast.base.dialect import limits

__all__ = ["MAX_LINE", "LineTooLong", "Lines"]

MAX_LINE = limits.MESSAGE_BYTES
"""Most bytes of a line without its end; one more ends the connection."""


class LineTooLong(Exception):
    """Error for a line beyond the limit; `lines` has the complete lines before it."""

    def __init__(self, lines: list[bytes]) -> None:
        super().__init__()
        self.lines = lines


class Lines:
    """
    Splitter of a byte stream into lines.

    A line ends in a line feed; a carriage return before it is dropped, and blank lines are
    skipped. `feed()` returns whole lines in order.
    """

    def __init__(self, *, limit: int = MAX_LINE) -> None:
        self._limit = limit
        # A list, because joining at each `feed` would be quadratic for a line of 64 MiB. The
        # beginning of an incomplete line, in the pieces in which it arrived.
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """
        Take the next bytes of the stream.

        Raises:
            LineTooLong: A line is longer than the limit; nothing more can be read.
        """
        *ended, rest = data.split(b"\n")
        lines: list[bytes] = []
        for piece in ended:
            if self._begun:
                self._begun.append(piece)
                piece = b"".join(self._begun)
                self._begun.clear()
                self._size = 0
            if piece.endswith(b"\r"):
                piece = piece[:-1]
            if len(piece) > self._limit:
                raise LineTooLong(lines)
            if piece and not piece.isspace():
                lines.append(piece)
        if rest:
            self._begun.append(rest)
            self._size += len(rest)
            # One more byte: a carriage return at the end may belong to the line end.
            if self._size > self._limit + 1:
                raise LineTooLong(lines)
        return lines

    def end(self) -> bytes | None:
        """Return the last line if the stream ended without a line feed."""
        rest = b"".join(self._begun)
        self._begun.clear()
        self._size = 0
        return rest if rest.strip() else None

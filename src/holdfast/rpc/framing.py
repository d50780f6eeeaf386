"""One message per line, for byte streams [stdio.lines]."""

__all__ = ["MAX_LINE", "LineTooLong", "Lines"]

MAX_LINE = 64 << 20
"""Bytes of one line without its end; one more ends the connection."""


class LineTooLong(Exception):
    """The peer sent a line beyond the limit; `lines` are the whole ones before it."""

    def __init__(self, lines: list[bytes]) -> None:
        super().__init__()
        self.lines = lines


class Lines:
    """
    Cuts a stream of bytes into lines.

    A line ends in a line feed; a carriage return before it is dropped, and lines
    that are blank are skipped. What `feed()` returns are whole lines in order.
    """

    def __init__(self, *, limit: int = MAX_LINE) -> None:
        self._limit = limit
        # The beginning of a line whose end has not come yet, in the pieces it came in.
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
            # A carriage return may still turn out to belong to the end of the line.
            if self._size > self._limit + 1:
                raise LineTooLong(lines)
        return lines

    def end(self) -> bytes | None:
        """The last line, if the stream ended without a line feed."""
        rest = b"".join(self._begun)
        self._begun.clear()
        self._size = 0
        return rest if rest.strip() else None

"""
Searches a live stream for a pattern, with bounded memory and time.

Without event loop or clock. A match may span pieces: the last 64 KiB, or less for a large pattern,
are searched again with the next piece.
"""

from holdfast.agent.unified_exec.output.patterns import Pattern

__all__ = ["LONGEST_MATCH", "StreamSearch"]

LONGEST_MATCH = 64 << 10
"""Longest match that is certain to be found, in bytes; 4 KiB for a large pattern."""

# Bytes to search at once, in addition to earlier ones.
_PIECE = 64 << 10


class StreamSearch:
    """
    Finds the first match of a pattern in a stream of bytes.

    CR LF, the end of a line on a terminal, counts as one newline. `$` also matches at the current
    end of the stream, so that a call can wait for a prompt.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.match: bytes | None = None
        """The bytes of the first match, which ends the search."""
        self._pattern = pattern
        self._tail = b""
        # Bytes at the start of the tail that are context for `^` and `\b` and cannot match.
        self._context = 0

    @property
    def given_up(self) -> bool:
        """True if the pattern proved too slow, which ends the search."""
        return self._pattern.given_up

    def is_quick(self, size: int) -> bool:
        """Return True if searching `size` more bytes takes only a few milliseconds."""
        return self._is_over or self._pattern.is_quick(len(self._tail) + size)

    def feed(self, data: bytes) -> None:
        """Search the next bytes."""
        piece = min(_PIECE, self._pattern.window)
        for at in range(0, len(data), piece):
            if self._is_over:
                return
            self._search(data[at : at + piece])

    @property
    def _is_over(self) -> bool:
        return self.match is not None or self.given_up

    def _search(self, piece: bytes) -> None:
        text = (self._tail + piece).replace(b"\r\n", b"\n")
        match = self._pattern.search(text, self._context)
        if match is not None:
            self.match = text[slice(*match)]
            self._tail = b""
            return
        longest = min(LONGEST_MATCH, self._pattern.window)
        if len(text) > longest + 1:
            text = text[-(longest + 1) :]
            self._context = 1
        self._tail = text

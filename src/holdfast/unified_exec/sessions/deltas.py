"""
Cuts live output into the pieces that listeners get.

Pure. A piece has at most 8,192 bytes and does not end inside of a character. Bytes that
are no UTF-8 pass through as they are.
"""

__all__ = ["DELTA_BYTES", "MOST_DELTAS", "DeltaCutter"]

DELTA_BYTES = 8_192
"""Bytes of one piece, at most."""

MOST_DELTAS = 10_000
"""Pieces of one command, at most; its transcript goes on."""


class DeltaCutter:
    """Takes the output of one command as it comes, and returns it in pieces."""

    def __init__(self) -> None:
        # The beginning of a character whose rest has not come.
        self._rest = b""
        self._left = MOST_DELTAS

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces that are complete now."""
        if not self._left:
            return []
        if self._rest:
            data = self._rest + data
        pieces: list[bytes] = []
        at = 0
        while len(data) - at >= DELTA_BYTES and len(pieces) < self._left:
            end = at + DELTA_BYTES - _unfinished(data[at + DELTA_BYTES - 3 : at + DELTA_BYTES])
            pieces.append(data[at:end])
            at = end
        end = len(data) - _unfinished(data[max(at, len(data) - 3) :])
        if end > at:
            pieces.append(data[at:end])
        self._rest = data[end:]
        return self._counted(pieces)

    def finish(self) -> list[bytes]:
        """Return what is left at the end: a character that was never finished."""
        rest, self._rest = self._rest, b""
        return self._counted([rest] if rest else [])

    def _counted(self, pieces: list[bytes]) -> list[bytes]:
        del pieces[self._left :]
        self._left -= len(pieces)
        if not self._left:
            self._rest = b""
        return pieces


def _unfinished(last: bytes) -> int:
    """Return how many of the last three bytes begin a character that is not complete."""
    for length in range(1, len(last) + 1):
        byte = last[-length]
        if byte & 0xC0 == 0x80:
            # A continuation byte: the first byte of the character is further left.
            continue
        needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4
        return length if byte >= 0xC2 and byte <= 0xF4 and needed > length else 0
    return 0

"""
Searches a stream for a pattern as it comes, with bounded memory and time.

A match may span pieces: the last 64 KiB are searched again with what follows, or less with a
large pattern. Pieces that come faster than every 10 ms are searched together. Otherwise each
byte of a stream of single bytes would cost a search of 64 KiB.
"""

import asyncio
from collections.abc import Callable

from holdfast.unified_exec.output.patterns import Pattern

__all__ = ["LONGEST_MATCH", "StreamSearch"]

LONGEST_MATCH = 64 << 10
"""Bytes that a match may have and is certain to be found; of a large pattern, 4 KiB."""

# Bytes that are searched at once, besides those from before.
_PIECE = 64 << 10

# Seconds between two searches, while less than a piece has come.
_INTERVAL = 0.01


class StreamSearch:
    """
    Finds the first match of a pattern in a stream of bytes.

    CR LF, the end of a line on a terminal, counts as one newline. `$` also matches at the end
    of what has come so far, so that a prompt can be waited for.
    """

    def __init__(
        self,
        pattern: Pattern,
        found: Callable[[bytes], None],
        gave_up: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            pattern: The first match of it ends the search.
            found: Called with the bytes that match, once.
            gave_up: Called if the pattern turns out to be too slow, which ends the search.
        """
        self._pattern = pattern
        self._found = found
        self._gave_up = gave_up
        self._loop = asyncio.get_running_loop()
        self._tail = b""
        # Bytes of the tail that are there for `^` and `\b` only, and are not matched.
        self._context = 0
        self._pending = bytearray()
        self._last_search = -_INTERVAL
        self._timer: asyncio.TimerHandle | None = None
        self._done = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes; they are searched now or within 10 ms."""
        if self._done:
            return
        self._pending += data
        due = self._last_search + _INTERVAL
        if len(self._pending) >= _PIECE or self._loop.time() >= due:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_at(due, self.flush)

    def flush(self) -> None:
        """Search what has not been searched yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = bytes(self._pending), bytearray()
        piece = min(_PIECE, self._pattern.window)
        for at in range(0, len(pending), piece):
            if self._done:
                return
            self._search(pending[at : at + piece])
        self._last_search = self._loop.time()

    def close(self) -> None:
        """Search no more; harmless a second time."""
        self._done = True
        self._tail = b""
        self._pending.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _search(self, piece: bytes) -> None:
        text = (self._tail + piece).replace(b"\r\n", b"\n")
        match = self._pattern.search(text, self._context)
        if match is not None:
            self.close()
            self._found(text[slice(*match)])
            return
        if self._pattern.given_up:
            self.close()
            self._gave_up()
            return
        longest = min(LONGEST_MATCH, self._pattern.window)
        if len(text) > longest + 1:
            text = text[-(longest + 1) :]
            self._context = 1
        self._tail = text

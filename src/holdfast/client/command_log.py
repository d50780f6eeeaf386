"""Reader for the stderr of a server command: logs each line and keeps the last one."""

import asyncio
import logging
import os
from contextlib import suppress

__all__ = ["CommandLog"]

logger = logging.getLogger("holdfast.client.command")

# Bytes read at once; also the longest line that is logged in one piece.
_READ = 4096

# Seconds to wait for what a command says while it ends.
_LAST_WORDS_LIMIT = 0.5


class CommandLog:
    """
    Reader of a command's stderr; owns the descriptor until the stream ends or `close` is
    called.
    """

    def __init__(self, stderr: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = stderr
        self._ended = asyncio.Event()
        self._partial = b""
        self._last: str | None = None
        self._loop.add_reader(stderr, self._read)

    async def last_words(self) -> str | None:
        """Return the last line, which may tell why the command failed; wait briefly for the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_LIMIT):
                await self._ended.wait()
        return _readable(self._partial) or self._last

    def close(self) -> None:
        """Stop reading and close the descriptor; harmless when called again."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        # The last line may lack its newline.
        self._note(self._partial)
        self._partial = b""
        self._ended.set()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        # EIO and the like mean the same as the end of the stream: nothing more will come.
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._note(line)
        # A command that writes no newline must not fill our memory.
        if len(self._partial) >= _READ:
            self._note(self._partial)
            self._partial = b""

    def _note(self, line: bytes) -> None:
        if text := _readable(line):
            # Blank lines are skipped: the last words should say something.
            self._last = text
            logger.debug("exec-server stderr: %s", text)


def _readable(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()

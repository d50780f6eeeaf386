"""Progress of a call that waits for a command: its last line, its bytes, the seconds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.approvals.shown_text import visible
from holdfast.events import Gap, WaitingFor
from holdfast.unified_exec.sessions.session import CommandSession

__all__ = ["report_progress"]

# Seconds between two notifications, at least.
INTERVAL: Final = 0.25

# Intervals after which the seconds are reported although nothing was written.
_HEARTBEAT: Final = 4

# Bytes of the output that are looked at for the last line.
_TAIL: Final = 512

# Characters of the last line that are shown: the last ones.
_LINE: Final = 200

# Sends the seconds and a text to the client.
Send = Callable[[float, str], Awaitable[None]]


class _LastLine:
    """Follows the output of a session, and keeps its last line."""

    def __init__(self, session: CommandSession) -> None:
        self.session = session
        self._tail = session.log.read(lines=(-1, None)).text.encode()[-_TAIL:]

    def output(self, seq: int, data: bytes) -> None:
        self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]

    def gap(self, gap: Gap) -> None:
        """Lost output changes nothing."""

    def input_wanted(self, kind: WaitingFor) -> None:
        """So does a prompt: it is in the output."""

    def settled(self) -> None:
        """The call ends by itself."""

    @property
    def text(self) -> str:
        lines = self._tail.decode(errors="replace").split("\n")
        # Behind a newline the last line is empty, and says nothing.
        line = next((each.strip() for each in reversed(lines) if each.strip()), "")
        return visible(line[-_LINE:], prose=True)


async def report_progress(find: Callable[[], CommandSession | None], send: Send) -> None:
    """
    Tell a client how a command gets on, at most four times a second, until cancelled.

    Args:
        find: Returns the session once it is there.
        send: May take as long as the client does not read.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    follower: _LastLine | None = None
    reported = -1
    quiet = 0
    try:
        while True:
            await asyncio.sleep(INTERVAL)
            quiet += 1
            if follower is None:
                session = find()
                if session is None:
                    continue
                follower = _LastLine(session)
                session.consumers.append(follower)
            written = follower.session.log.total_bytes
            if written == reported and quiet < _HEARTBEAT:
                continue
            reported, quiet = written, 0
            seconds = loop.time() - began
            line = follower.text
            await send(seconds, f"{seconds:.1f} s, {written} bytes" + (f": {line}" if line else ""))
    finally:
        if follower is not None and follower in follower.session.consumers:
            follower.session.consumers.remove(follower)

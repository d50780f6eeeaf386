"""Progress of a call that waits for a command: its last line, its bytes, the seconds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.agent.approvals.shown_text import visible
from holdfast.agent.unified_exec.output.kept_output import KeptOutput
from holdfast.agent.unified_exec.sessions.command_session import CommandSession

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


def _last_line(output: KeptOutput) -> str:
    lines = output.end(_TAIL).decode(errors="replace").split("\n")
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
    session: CommandSession | None = None
    reported = -1
    quiet = 0
    while True:
        await asyncio.sleep(INTERVAL)
        quiet += 1
        session = session or find()
        if session is None:
            continue
        written = session.output.total_bytes
        if written == reported and quiet < _HEARTBEAT:
            continue
        reported, quiet = written, 0
        seconds = loop.time() - began
        line = _last_line(session.output)
        await send(seconds, f"{seconds:.1f} s, {written} bytes" + (f": {line}" if line else ""))

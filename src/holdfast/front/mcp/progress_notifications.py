"""Progress of a call that waits for a command: last line, number of bytes, seconds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.agent.approvals.shown_text import visible
from holdfast.agent.unified_exec.output.kept_output import KeptOutput
from holdfast.agent.unified_exec.sessions.command_session import CommandSession

__all__ = ["report_progress"]

# Minimum seconds between notifications.
INTERVAL: Final = 0.25

# Intervals after which the seconds are reported even without output.
_HEARTBEAT: Final = 4

# Bytes of the output in which the last line is searched.
_TAIL: Final = 512

# Maximum characters shown of the last line, from its end.
_LINE: Final = 200

# Sends the seconds and a text to the client.
Send = Callable[[float, str], Awaitable[None]]


def _last_line(output: KeptOutput) -> str:
    lines = output.end(_TAIL).decode(errors="replace").split("\n")
    # After a final newline, the last line is empty: skip it.
    line = next((each.strip() for each in reversed(lines) if each.strip()), "")
    return visible(line[-_LINE:], prose=True)


async def report_progress(find: Callable[[], CommandSession | None], send: Send) -> None:
    """
    Send progress notifications for a command, at most four per second, until cancelled.

    Args:
        find: Returns the session once it exists.
        send: Sends a notification; may wait while the client does not read.
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

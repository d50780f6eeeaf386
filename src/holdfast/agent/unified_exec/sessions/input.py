"""Gives input to a command, as far as it has an input."""

import asyncio

from holdfast.agent.unified_exec.sessions.command_session import CommandSession
from holdfast.agent.unified_exec.tool_errors import SessionStdinClosed, WriteToStdin
from holdfast.base.dialect import limits
from holdfast.base.errors import ConnectionLost, HoldfastError
from holdfast.base.tasks import OwnedTasks
from holdfast.wire.protocol.process import WriteStatus

__all__ = ["INPUT_PAUSE", "INTERRUPT", "SLOW_LINE", "send_input"]

INTERRUPT = "\x03"
"""The one input that also a command on pipes takes: it becomes a SIGINT."""

INPUT_PAUSE = limits.TOOL_INPUT_PAUSE
"""Seconds that a program gets to react to input before the clock of the call runs."""

SLOW_LINE = 5.0
"""Seconds that a server has to take input, however short the call: the line may be slow."""


async def send_input(session: CommandSession, chars: str, limit: float, tasks: OwnedTasks) -> None:
    """
    Write to the terminal of a command, or interrupt a command on pipes.

    A command that has exited gets nothing and is no error: its end is reported.

    Args:
        session: The command.
        chars: Not empty.
        limit: Seconds in which the input has to be taken.
        tasks: Where a signal goes on if the line is down.

    Raises:
        SessionStdinClosed: It is on pipes.
        WriteToStdin: It does not take the input.
    """
    if session.tty:
        if session.running:
            await _write(session, chars.encode(), limit)
    elif chars == INTERRUPT:
        if session.running:
            # A line that is down holds a signal; the call has its deadline all the same.
            await asyncio.wait([tasks.start(_interrupt(session))], timeout=INPUT_PAUSE)
    elif session.running or not session.process.remote:
        raise SessionStdinClosed


async def _write(session: CommandSession, data: bytes, limit: float) -> None:
    if session.process.remote:
        limit = max(limit, SLOW_LINE)
    try:
        async with asyncio.timeout(limit):
            status = await session.process.write(data)
    except TimeoutError:
        # The command does not read, and its queue is full.
        raise WriteToStdin from None
    except ConnectionLost as error:
        session.mark_failed(str(error))
        # The session reports the failure.
        return
    except HoldfastError as error:
        if session.exit_code is None and session.process.verdict is None:
            raise WriteToStdin from error
        # It has exited meanwhile, which its reader may not have noticed yet.
        return
    if status is WriteStatus.STARTING:
        raise WriteToStdin
    session.look_for_input()
    if status is WriteStatus.ACCEPTED:
        await asyncio.sleep(INPUT_PAUSE)


async def _interrupt(session: CommandSession) -> None:
    while session.running:
        try:
            await session.process.signal("interrupt")
        except ConnectionLost:
            # The line broke in the middle, so it may not have arrived. A second interrupt does
            # less harm than none. A session that is lost for good does not run any more.
            await asyncio.sleep(INPUT_PAUSE)
        except HoldfastError:
            # The process is gone.
            return
        else:
            return

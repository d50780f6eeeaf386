"""Recovery of a lost connection: connect, resume, fetch missed events [client.recovery.*]."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import (
    ConnectionLost,
    ConnectRefused,
    HoldfastError,
    RemoteError,
    RemoteProtocolError,
    ServerGone,
)
from holdfast.base.tasks import ignoring_stray_cancellation
from holdfast.client.remote_process import RemoteProcess
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.methods import (
    PROCESS_LIST,
    PROCESS_READ,
    PROCESS_TERMINATE,
    PROCESS_WRITE,
)
from holdfast.wire.protocol.process import ReadParams, TerminateParams, WriteParams, WriteStatus
from holdfast.wire.protocol.wire_types import Base64, Empty

if TYPE_CHECKING:
    from holdfast.client.client_connection import Link
    from holdfast.client.client_session import ClientSession

__all__ = [
    "RECOVERY_LIMIT",
    "RECOVERY_TOTAL",
    "RETRY_INTERVAL",
    "STARTING_LIMIT",
    "recover",
    "worth_retrying",
]

RECOVERY_LIMIT = limits.RECOVERY
"""
Seconds from the loss of a connection to the end of recovery.

A server that has forgotten the session refuses an attempt, which is final.

If a new connection breaks after a process was brought up to date, the time starts again.
"""

RECOVERY_TOTAL = 300.0
"""Seconds for all repeated recoveries: gives up on a server that breaks each new connection."""

RETRY_INTERVAL = limits.RECOVERY_INTERVAL
"""Seconds between two attempts, unless the target asks for more."""

# Id of the empty write that checks whether a process exists.
_PROBE = "holdfast-start"

STARTING_LIMIT = 2.0
"""
Seconds during which an interrupted start may still be under way on the server.

A server without our extensions that loses a connection at the wrong moment keeps the id in
state "starting" until it is terminated. All other calls of the client wait meanwhile.
"""

# A connection allows 1,024 unanswered calls, and a client may have more processes than that.
_CALLS_AT_ONCE = 256


async def recover(session: "ClientSession", session_id: str) -> "Link":
    """
    Open a new connection for a session and bring its processes up to date.

    Raises:
        HoldfastError: Recovery failed, or took too long.
    """
    loop = asyncio.get_running_loop()
    last = loop.time() + RECOVERY_TOTAL
    limit = asyncio.timeout(RECOVERY_LIMIT)
    last_error: HoldfastError | None = None

    def progress() -> None:
        limit.reschedule(min(loop.time() + RECOVERY_LIMIT, last))

    try:
        async with limit:
            while True:
                # A stray cancellation (of a caller, by a library) must not end the recovery: the
                # future that other callers wait for would never complete.
                with ignoring_stray_cancellation():
                    try:
                        return await _attempt(session, session_id, progress)
                    except HoldfastError as error:
                        # The next use of an environment retries after a refusal: the user may have
                        # changed a key meanwhile.
                        if isinstance(error, ConnectRefused) or not worth_retrying(error):
                            raise
                        last_error = error
                with ignoring_stray_cancellation():
                    await asyncio.sleep(max(RETRY_INTERVAL, session.target.retry_interval))
    except TimeoutError:
        # The cause says why the last attempt failed.
        raise ConnectionLost(texts.recovery_failed(RECOVERY_LIMIT)) from last_error


def worth_retrying(error: HoldfastError) -> bool:
    """Return True if another attempt to connect may succeed [client.recovery.retryable]."""
    if isinstance(error, RemoteError):
        # The server may not have noticed yet that the old connection is gone.
        return error.code == codes.SESSION_ATTACHED
    return isinstance(error, ConnectionLost) and not isinstance(error, ServerGone)


async def _attempt(
    session: "ClientSession", session_id: str, progress: Callable[[], None]
) -> "Link":
    # A broken attempt may have caught up already; events since then are missing again.
    session.processes.line_lost()
    link, answer = await session.open_link(session_id)
    try:
        # Another session has different processes: events would be mixed up.
        if answer.session_id != session_id:
            raise RemoteProtocolError(
                "exec-server protocol error: exec-server initialized an unexpected session ID"
            )
        await _recover_processes(session, link, progress)
    except BaseException:
        link.connection.transport.abort()
        raise
    return link


async def _recover_processes(
    session: "ClientSession", link: "Link", progress: Callable[[], None]
) -> None:
    """
    Bring all processes up to date, concurrently.

    Raises:
        HoldfastError: The first error; all have the same cause, the connection.
    """
    # Not a `TaskGroup`: before Python 3.13 one whose task fails leaves its parent marked as
    # cancelled. The time limit of the recovery would then look like a cancellation.
    at_once = asyncio.Semaphore(_CALLS_AT_ONCE)
    tasks = [
        asyncio.ensure_future(_recover_process(session, link, process, at_once, progress))
        for process in session.processes.by_id.values()
    ]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _recover_process(
    session: "ClientSession",
    link: "Link",
    process: RemoteProcess,
    at_once: asyncio.Semaphore,
    progress: Callable[[], None],
) -> None:
    async with at_once:
        if not process.is_started and not await _find_start(session, link, process):
            # The start has not reached the server; `RemoteBackend.start` repeats it.
            return
        await _catch_up(session, link, process)
        progress()


async def _find_start(session: "ClientSession", link: "Link", process: RemoteProcess) -> bool:
    """Return True if the process exists whose start the lost connection interrupted."""
    # An empty write changes nothing, and its status shows whether the server knows the id.
    params = WriteParams(process_id=process.process_id, chunk=Base64(b""), write_id=_PROBE)
    while True:
        try:
            status = (await link.call(PROCESS_WRITE, params)).status
        except RemoteError:
            # A terminated process refuses input, so it exists.
            break
        if status is WriteStatus.UNKNOWN_PROCESS:
            return False
        if status is not WriteStatus.STARTING:
            break
        # The first limit asks the server to end the start; the second gives up on the process.
        if process.has_been_starting(2 * STARTING_LIMIT):
            cause = "its start was cut off and cannot be ended on the server"
            await _end_process(session, link, process, cause)
            return False
        if process.has_been_starting(STARTING_LIMIT):
            ending = TerminateParams(process_id=process.process_id)
            with suppress(RemoteError):
                await link.call(PROCESS_TERMINATE, ending, cleanup=True)
        await asyncio.sleep(RETRY_INTERVAL)
    # The answer to the start is lost, but the process exists.
    process.is_started = True
    if session.capabilities.process_list:
        for summary in (await link.call(PROCESS_LIST, Empty())).processes:
            if summary.process_id == process.process_id:
                process.started(summary)
    return True


async def _catch_up(session: "ClientSession", link: "Link", process: RemoteProcess) -> None:
    """Fetch the missed events with one read; fail a process whose events are incomplete."""
    params = ReadParams(
        process_id=process.process_id, after_seq=process.last_seq, max_bytes=None, wait_ms=0
    )
    try:
        process.catch_up(await link.call(PROCESS_READ, params))
    except (RemoteError, RemoteProtocolError) as error:
        cause = error if isinstance(error, RemoteError) else f"exec-server protocol error: {error}"
        await _end_process(session, link, process, cause)


async def _end_process(
    session: "ClientSession", link: "Link", process: RemoteProcess, cause: object
) -> None:
    """Fail a process that cannot be followed, and terminate it on the server."""
    process.fail(RemoteProtocolError(f"failed to recover process {process.process_id}: {cause}"))
    session.processes.forget(process)
    ending = TerminateParams(process_id=process.process_id)
    # The server may have forgotten the process.
    with suppress(RemoteError):
        await link.call(PROCESS_TERMINATE, ending, cleanup=True)

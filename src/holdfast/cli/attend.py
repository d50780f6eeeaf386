"""Runs one command from start to end, wherever it runs, for `holdfast run`."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from holdfast.backends import ExecBackend, ExecProcess
from holdfast.cli.foreground import Foreground
from holdfast.cli.place import connected, is_remote
from holdfast.cli.request import local_request, remote_request
from holdfast.cli.status import FAILED, Ended, refused
from holdfast.errors import ConnectionLost, HoldfastError
from holdfast.process.guardian import reap_children
from holdfast.process.variable_marks import MARK_VARIABLE
from holdfast.protocol.process import StartParams

__all__ = ["attend"]

_END_LIMIT = 5.0
"""Seconds a server may take to end what the command left there."""

_REAP_INTERVAL = 2.0
"""Seconds between two looks for orphans that ended."""


async def attend(options: argparse.Namespace, lifeline: int) -> int:
    """
    Run the command of the options in the foreground.

    Args:
        options: Of the command line.
        lifeline: Where signals come from; at its end the guardian is gone.

    Returns:
        Its exit status.

    Raises:
        Ended: There is none, or nobody is there to want it.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            foreground = Foreground(tasks, lifeline, tty=options.tty)
            async with _place(options, foreground.say) as (backend, request):
                process = await _start(backend, request, options)
                pid = getattr(process, "pid", None)
                if pid is not None:  # it is a child of ours
                    foreground.start_task(_reap_orphans(pid))
                status = await foreground.attend(process)
            foreground.close()
    except ExceptionGroup as failures:
        raise _first(failures) from failures
    return status


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """What ended the run, in our own words if it is none of our mistakes."""
    found = failures.exceptions[0]
    if isinstance(found, HoldfastError):
        return Ended(FAILED, str(found))
    if isinstance(found, TimeoutError):
        return Ended(FAILED, "the server does not answer")
    return found


def _place(
    options: argparse.Namespace, say: Callable[[str], None]
) -> AbstractAsyncContextManager[tuple[ExecBackend, StartParams]]:
    return _on_server(options, say) if is_remote(options) else _here(options, say)


@asynccontextmanager
async def _here(
    options: argparse.Namespace, say: Callable[[str], None]
) -> AsyncIterator[tuple[ExecBackend, StartParams]]:
    from holdfast.process.backend import LocalBackend  # only one of the two

    request = local_request(options)
    if options.verbose:
        say(f"running on this machine, in {request.cwd.native}")
    async with LocalBackend() as backend:
        yield backend, request


@asynccontextmanager
async def _on_server(
    options: argparse.Namespace, say: Callable[[str], None]
) -> AsyncIterator[tuple[ExecBackend, StartParams]]:
    async with connected(options, say) as client:
        request = remote_request(options, client.environment)
        if options.verbose:
            name = f"`{options.on}`, " if options.on else ""
            say(f"running on {name}{client.target.label}, in {request.cwd.native}")
        try:
            yield client, request
        finally:
            mark = request.env.get(MARK_VARIABLE)
            if mark is not None and client.is_connected:
                with suppress(HoldfastError, TimeoutError):
                    async with asyncio.timeout(_END_LIMIT):
                        await client.end_marked(mark)


async def _start(
    backend: ExecBackend, request: StartParams, options: argparse.Namespace
) -> ExecProcess:
    try:
        return await backend.start(request)
    except ConnectionLost:
        raise
    except HoldfastError as error:
        remote = request.env_policy is not None
        raise refused(options.argv[0], error, cwd=options.cwd if remote else None) from error


async def _reap_orphans(pid: int) -> None:
    """What the command leaves behind comes to this process when it is orphaned."""
    while True:
        await asyncio.sleep(_REAP_INTERVAL)
        reap_children(spare=(pid,))

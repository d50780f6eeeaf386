"""Runs one command from start to end, wherever it runs, for `holdfast run`."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from holdfast.backends import ExecBackend, ExecProcess
from holdfast.cli.foreground import Foreground
from holdfast.cli.place import connected, is_remote
from holdfast.cli.request import local_request, remote_request
from holdfast.cli.status import FAILED, Ended, refused
from holdfast.errors import ConnectionLost, HoldfastError
from holdfast.process.guardian import reap_children
from holdfast.protocol.process import StartParams

__all__ = ["attend"]

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
            async with _place(options) as (backend, request):
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
    options: argparse.Namespace,
) -> AbstractAsyncContextManager[tuple[ExecBackend, StartParams]]:
    return _on_server(options) if is_remote(options) else _here(options)


@asynccontextmanager
async def _here(options: argparse.Namespace) -> AsyncIterator[tuple[ExecBackend, StartParams]]:
    from holdfast.process.backend import LocalBackend  # only one of the two

    request = local_request(options)
    async with LocalBackend() as backend:
        yield backend, request


@asynccontextmanager
async def _on_server(options: argparse.Namespace) -> AsyncIterator[tuple[ExecBackend, StartParams]]:
    async with connected(options) as client:
        yield client, remote_request(options, client.environment)


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

"""Runs one command from start to end, wherever it runs, for `holdfast run`."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import holdfast
from holdfast.backends import ExecBackend, ExecProcess
from holdfast.cli.exit_status import FAILED, Ended, refused
from holdfast.cli.foreground import ForegroundCommand
from holdfast.cli.loading import load
from holdfast.cli.server_options import choose_place, connected, is_remote
from holdfast.cli.start_params import local_request, remote_request
from holdfast.errors import ConnectionLost, HoldfastError
from holdfast.process.variable_marks import MARK_VARIABLE
from holdfast.protocol.process import StartParams
from holdfast.supervision.guardian import kill_all_children, reap_children

__all__ = ["attend", "run_attended"]

# Seconds for a server to kill what the command left there.
_END_LIMIT = 5.0

# Seconds between two checks for exited orphans; a zombie costs only an entry of the process table.
_REAP_INTERVAL = 2.0


def run_attended(options: argparse.Namespace, lifeline: int) -> int:
    """Run the command in this process, the worker of a guardian; return the exit status."""
    try:
        choose_place(options)
        return _run_loop(attend(options, lifeline), fast=is_remote(options))
    except Ended as end:
        if end.text:
            with suppress(OSError):
                print(f"holdfast: {end.text}", file=sys.stderr)
        return end.status
    finally:
        # The guardian does this too, unless it is the one that was killed.
        kill_all_children()


def _run_loop(main: Coroutine[object, object, int], *, fast: bool) -> int:
    # uvloop takes longer to import than most local commands run.
    if fast:
        try:
            uvloop_run = load("uvloop_run")
        except ImportError:
            # Missing on some platforms.
            pass
        else:
            status: int = uvloop_run(main)
            return status
    return asyncio.run(main)


async def attend(options: argparse.Namespace, lifeline: int) -> int:
    """
    Run the command of the options in the foreground.

    Args:
        options: The parsed command line.
        lifeline: Descriptor that delivers signals; its end means that the guardian is gone.

    Returns:
        The exit status.

    Raises:
        Ended: The command has no status, or nobody is left to want it.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            foreground = ForegroundCommand(tasks, lifeline, tty=options.tty)
            async with _place(options, foreground.say) as (backend, request):
                process = await _start(backend, request, options)
                pid = getattr(process, "pid", None)
                # Only a local process has one, and is a child of this process.
                if pid is not None:
                    foreground.start_task(_reap_orphans(pid))
                status = await foreground.attend(process)
            foreground.close()
    except ExceptionGroup as failures:
        # A task group raises all errors together; a person wants the one that came first.
        raise _first(failures) from failures
    return status


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """Return the error that ended the run, worded for people unless it is a bug."""
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
    request = local_request(options)
    if options.verbose:
        say(f"running on this machine, in {request.cwd.native}")
    # Loaded on first use by the package: a command on a server does without.
    async with holdfast.LocalBackend() as backend:
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
            # Without a connection the server kills them when the session expires.
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
        # Only a remote request has a policy for the server's variables.
        remote = request.env_policy is not None
        raise refused(options.argv[0], error, cwd=options.cwd if remote else None) from error


async def _reap_orphans(pid: int) -> None:
    """Reap orphans of the command, which the kernel hands to this process as a subreaper."""
    while True:
        await asyncio.sleep(_REAP_INTERVAL)
        reap_children(spare=(pid,))

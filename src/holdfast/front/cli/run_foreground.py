"""Runs one command from start to end, locally or remotely, for `holdfast run`."""

import argparse
import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress

from holdfast.base.errors import HoldfastError
from holdfast.base.late_import import load
from holdfast.engine.supervision.guardian import kill_all_children, reap_children
from holdfast.front.cli.exit_status import FAILED, Ended
from holdfast.front.cli.foreground import ForegroundCommand
from holdfast.front.cli.launch import launch
from holdfast.front.cli.server_options import choose_environment, is_remote, opened

__all__ = ["attend", "run_attended"]

# Seconds between checks for exited orphans; a zombie only takes an entry in the process table.
_REAP_INTERVAL = 2.0


def run_attended(options: argparse.Namespace, lifeline: int) -> int:
    """Run the command in this process, the worker of a guardian; return the exit status."""
    try:
        choose_environment(options)
        return _run_loop(attend(options, lifeline), fast=is_remote(options))
    except Ended as end:
        if end.text:
            with suppress(OSError):
                print(f"holdfast: {end.text}", file=sys.stderr)
        return end.status
    finally:
        # In case the guardian, which does the same, was killed.
        kill_all_children()


def _run_loop(main: Coroutine[object, object, int], *, fast: bool) -> int:
    # Importing uvloop takes longer than most local commands.
    if fast:
        try:
            uvloop_run = load("uvloop:run")
        except ImportError:
            # Not available on some platforms.
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
        lifeline: Descriptor that delivers signals; it ends when the guardian exits.

    Returns:
        The exit status.

    Raises:
        Ended: The command has no status, or there is no one to report it to.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            foreground = ForegroundCommand(tasks, lifeline, tty=options.tty)
            async with opened(options, foreground.say) as environment:
                process = await launch(options, environment, foreground.say)
                # A local process is a child of this one.
                if not environment.is_remote and process.pid is not None:
                    foreground.start_task(_reap_orphans(process.pid))
                status = await foreground.attend(process)
            foreground.close()
    except ExceptionGroup as failures:
        # A task group raises all errors together; report only the first to the user.
        raise _first(failures) from failures
    return status


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """Return the error that ended the run, as text for the user unless it is a bug."""
    found = failures.exceptions[0]
    if isinstance(found, HoldfastError):
        return Ended(FAILED, str(found))
    if isinstance(found, TimeoutError):
        return Ended(FAILED, "the server does not respond")
    return found


async def _reap_orphans(pid: int) -> None:
    """Reap orphans of the command, which the kernel reparents to this process, a subreaper."""
    while True:
        await asyncio.sleep(_REAP_INTERVAL)
        reap_children(spare=(pid,))

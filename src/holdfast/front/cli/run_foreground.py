"""Runs one command from start to end, wherever it runs, for `holdfast run`."""

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

# Seconds between two checks for exited orphans; a zombie costs only an entry of the process table.
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
        # The guardian does this too, unless it is the one that was killed.
        kill_all_children()


def _run_loop(main: Coroutine[object, object, int], *, fast: bool) -> int:
    # uvloop takes longer to import than most local commands run.
    if fast:
        try:
            uvloop_run = load("uvloop:run")
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
            async with opened(options, foreground.say) as environment:
                process = await launch(options, environment, foreground.say)
                # A local process is a child of this one.
                if not environment.is_remote and process.pid is not None:
                    foreground.start_task(_reap_orphans(process.pid))
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


async def _reap_orphans(pid: int) -> None:
    """Reap orphans of the command, which the kernel hands to this process as a subreaper."""
    while True:
        await asyncio.sleep(_REAP_INTERVAL)
        reap_children(spare=(pid,))

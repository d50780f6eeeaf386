"""
`holdfast run`: one command in the foreground, here or on a server.

A guardian stands beside it (see `process/guardian.py`), so that nothing of the
command is left whatever happens to this one. Signals come through the guardian.
"""

import argparse
import signal
import sys
from collections.abc import Coroutine

from holdfast.process.guardian import kill_all_children, run_guarded

__all__ = ["run"]

# What the command hears of; see `Foreground` for what it makes of each.
_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
)


def run(options: argparse.Namespace) -> int:
    """Run a command and return its exit status, or one of our own: see `cli/status.py`."""
    # The guardian has all it needs: everything below is the worker's alone.
    return run_guarded(lambda lifeline: _run(options, lifeline), forward=_FORWARDED)


def _run(options: argparse.Namespace, lifeline: int) -> int:
    from contextlib import suppress

    from holdfast.cli.attend import attend
    from holdfast.cli.place import choose_place, is_remote
    from holdfast.cli.status import Ended

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
    """Run to the end; the faster loop takes longer to import than most local commands run."""
    import asyncio

    if fast:
        try:
            import uvloop
        except ImportError:  # missing on some platforms
            pass
        else:
            return uvloop.run(main)
    return asyncio.run(main)

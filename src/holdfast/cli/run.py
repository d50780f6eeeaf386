"""
`holdfast run`: one command in the foreground, here or on a server.

A guardian stands beside it (see `process/guardian.py`), so that nothing of the
command is left whatever happens to this one. Signals come through the guardian.
"""

import argparse
import signal
import sys
from contextlib import suppress

from holdfast.process.guardian import kill_all_children, run_guarded

__all__ = ["run"]

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
"""What the command hears of; see `Foreground` for what it makes of each."""


def run(options: argparse.Namespace) -> int:
    """Run a command and return its exit status, or one of our own: see `cli/status.py`."""
    # The guardian has all it needs: everything below is the worker's alone.
    return run_guarded(lambda lifeline: _run(options, lifeline), forward=_FORWARDED)


def _run(options: argparse.Namespace, lifeline: int) -> int:
    import asyncio

    from holdfast.cli.attend import attend
    from holdfast.cli.status import Ended

    try:
        return asyncio.run(attend(options, lifeline))
    except Ended as end:
        if end.text:
            with suppress(OSError):
                print(f"holdfast: {end.text}", file=sys.stderr)
        return end.status
    finally:
        # The guardian does this too, unless it is the one that was killed.
        kill_all_children()

"""
`holdfast run`: one command in the foreground, here or on a server.

A guardian (see `engine/supervision/guardian.py`) makes sure that no process of the command is left,
whatever happens to this process. Signals arrive through the guardian.
"""

import argparse
import signal

from holdfast.base.late_import import load
from holdfast.engine.supervision.guardian import run_guarded

__all__ = ["run"]

# Signals that are forwarded to the command; see `Foreground` for the effect of each.
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
    """Run a command and return its exit status, or one of our own: see `exit_status.py`."""
    # The worker is loaded after the fork, so that the guardian stays small.
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.run_foreground:run_attended")(options, lifeline),
        forward=_FORWARDED,
    )

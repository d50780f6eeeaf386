"""
Keeps the exits of children from waking threads that wait for work.

While libc starts a child, the calling thread has all signals blocked. The kernel gives the SIGCHLD
of a child that exits meanwhile to another thread and wakes it up, even if nobody handles the
signal. In a burst of starts that is a wake-up for each of them.
"""

import signal

__all__ = ["block_child_signals", "unblock_child_signals"]

_EXITS = (signal.SIGCHLD,)


def block_child_signals() -> None:
    """Let no exit wake this thread; programs started by `subprocess` here inherit that."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _EXITS)


def unblock_child_signals() -> None:
    """Undo `block_child_signals`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _EXITS)

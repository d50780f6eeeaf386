"""
Keeps the exits of children from waking threads that wait for work.

While libc starts a child, the calling thread has all signals blocked. The kernel delivers the
SIGCHLD of a child that exits meanwhile to another thread and wakes it up, even if the signal has no
handler. In a burst of starts that is one wake-up for each of them.
"""

import signal
from collections.abc import Iterable

__all__ = ["block_child_signals", "restore_signals"]


def block_child_signals() -> set[int]:
    """
    Keep exits from waking this thread; programs it starts by `subprocess` inherit the mask.

    Returns:
        The signals that were blocked before, for `restore_signals`.
    """
    return {*signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))}


def restore_signals(blocked: Iterable[int]) -> None:
    """
    Undo `block_child_signals`.

    SIGCHLD stays blocked if it was before: a program that embeds this package may block the signal
    in all threads and read it from a `signalfd`. A thread that does not block it would discard it.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

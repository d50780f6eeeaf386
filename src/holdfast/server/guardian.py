"""
Nothing is left behind: a guardian beside every server.

The process that was started becomes the guardian and forks the server. Each
notices when the other ends, however it ends, and each inherits the processes of
the other's children that outlive their parents (they are "child subreapers"), so
whichever is left kills everything that was started:

- The server ends by itself or is killed: its children become the guardian's.
- The guardian is killed: the server reads the end of a pipe, and stops.

The real server asks the kernel to signal a child when its parent dies. That
misses children of children, and cannot be had together with a quick start.

This module is imported before anything else and forks at once, so that the
guardian is as small as a Python process can be.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable

__all__ = ["become_subreaper", "children_of_this_process", "kill_all_children", "run_guarded"]

_PR_SET_CHILD_SUBREAPER = 36

_STOP_LIMIT = 10.0
"""Seconds a server may take to stop when it was asked to; then it is killed."""

_SWEEP_LIMIT = 10.0
"""Seconds to go on killing what keeps starting new processes."""


def run_guarded(serve: Callable[[int], int]) -> int:
    """
    Fork, run `serve` in the child and guard it from this process.

    Args:
        serve: The server; it gets a descriptor that becomes readable, with an
            end of file, when the guardian is gone.

    Returns:
        In the child what `serve` returned; in the guardian the child's exit status.
    """
    become_subreaper()
    lifeline, held = os.pipe()
    server = os.fork()
    if server == 0:
        os.close(held)
        if not os.isatty(0):
            # A signal to the whole group of the guardian must not hit both at once.
            os.setpgid(0, 0)
        become_subreaper()
        return serve(lifeline)
    os.close(lifeline)
    return _guard(server)


def _guard(server: int) -> int:
    """Wait for the server, then for nothing of it to be left."""
    _let_go_of_streams()

    def stop(number: int, frame: object) -> None:
        os.kill(server, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, _STOP_LIMIT)

    def give_up(number: int, frame: object) -> None:
        os.kill(server, signal.SIGKILL)

    signal.signal(signal.SIGALRM, give_up)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    while True:
        # Orphans of the server's children come here to be reaped too.
        pid, status = os.waitpid(-1, 0)
        if pid == server:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    kill_all_children()
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _let_go_of_streams() -> None:
    """Whoever reads the server's output must see its end when the server ends."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def become_subreaper() -> None:
    """Inherit the orphans among the descendants of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of_this_process() -> list[int]:
    """The pids of all children, zombies too."""
    pids: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
        except OSError:
            continue  # the thread has ended
    return pids


def kill_all_children(spare: Iterable[int] = (), limit: float = _SWEEP_LIMIT) -> None:
    """
    Kill every descendant, for so many seconds at most.

    Killing a process hands its children to us, so going on until no child is
    left reaches all of them, in whatever sessions and groups they hide.
    """
    spared = set(spare)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        pids = [pid for pid in children_of_this_process() if pid not in spared]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue  # gone, or reaped elsewhere
            except PermissionError:
                spared.add(pid)  # it changed its user: it is no longer ours to end

"""
Guardian: the parent of a worker, which kills all descendants of a worker that has died.

The process that was started becomes the guardian and forks the worker: the server, or one
`holdfast run`. Each notices when the other ends, however it ends. Both are child subreapers, so
that orphaned descendants become their children. The surviving one kills everything:

- The worker exits or is killed: its children become the guardian's.
- The guardian is killed: the worker reads end of file from a pipe, and stops.

A parent-death signal of each child would miss the children of children, and cannot be combined
with a fast start by `posix_spawn`.

This module is imported before all others and forks at once, so that the guardian is as small as a
Python process can be.
"""

import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

from holdfast.base.late_import import late_module
from holdfast.engine.linux.proc import children_of

# Not `typing.TYPE_CHECKING`: loading `typing` would make every guardian larger.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import fcntl
    import termios

    from holdfast.engine.linux import cgroupfs, device_nodes
    from holdfast.engine.supervision import service_manager as manager_module
    from holdfast.engine.supervision.service_manager import ServiceManager
else:
    # Only some guardians need these, or only at their end: the others stay smaller.
    fcntl = late_module("fcntl")
    termios = late_module("termios")
    cgroupfs = late_module("holdfast.engine.linux.cgroupfs")
    device_nodes = late_module("holdfast.engine.linux.device_nodes")
    manager_module = late_module("holdfast.engine.supervision.service_manager")

__all__ = [
    "STOP_LIMIT",
    "become_subreaper",
    "children_of_this_process",
    "guardian_pid",
    "kill_all_children",
    "notify_service_manager",
    "reap_children",
    "run_guarded",
    "service_manager",
    "stop_this_process",
]

# prctl(2); Python has no name for it.
_PR_SET_CHILD_SUBREAPER = 36

# Signals that ask the guardian, and so the worker, to stop.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

STOP_LIMIT = 10.0
"""Default for the seconds that a worker may take to stop after SIGTERM before it is killed."""

# Seconds to keep killing descendants that keep forking.
_SWEEP_LIMIT = 10.0

# Seconds until the next attempt to list the children, if no descriptor was available for it.
_LOOK_AGAIN = 0.01

# Seconds that a killed process usually takes to exit.
_FIRST_PAUSE = 0.0002

# Pid of the guardian; set before the fork, so that both processes have it.
_guardian: int | None = None

# The service manager of this service, if it is one; set before the fork as well.
_manager: "ServiceManager | None" = None


def guardian_pid() -> int | None:
    """Return the pid of the guardian of this process, or None if it no longer has one."""
    return _guardian if _guardian == os.getppid() else None


def service_manager() -> "ServiceManager | None":
    """Return the service manager that wants notifications of this process, or None."""
    return _manager


def notify_service_manager(news: int) -> None:
    """Ask the guardian to send `READY` or another state to the service manager."""
    guardian = guardian_pid()
    if _manager is not None and guardian is not None:
        os.kill(guardian, news)


def run_guarded(
    work: Callable[[int], int],
    *,
    forward: Collection[signal.Signals] = (),
    pass_on: Collection[signal.Signals] = (),
    stop_limit: float = STOP_LIMIT,
    release_stderr: bool = False,
    notify: bool = False,
) -> int:
    """
    Fork, run `work` in the child and guard it from this process.

    Args:
        work: Called with a descriptor that is at end of file once the guardian is gone.
        forward: Signals for the worker to handle. Each appears on that descriptor, as one byte with
            its number; a worker that does not read it is killed after a time limit. The worker
            ignores those sent to it directly: a terminal sends its signals to both. Without
            `forward`, the usual signals stop the worker, and kill it after that limit.
        pass_on: Signals that are sent to the worker as they are instead of stopping it.
        stop_limit: Seconds that the worker may take to stop; then it is killed.
        release_stderr: Close stderr, too, in the guardian: its reader must see end of file
            while the worker still runs.
        notify: Take the socket of a service manager from the environment, and forward the worker's
            notifications to it (`notify_service_manager`).

    Returns:
        In the child the result of `work`; in the guardian the exit status of the child, or 128
        plus the number of the signal that killed it.
    """
    _fill_streams()
    become_subreaper()
    # Signals that were ignored at our start, as by `nohup`, stay ignored.
    awaited = [n for n in forward or _STOP_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
    restore_terminal = _remember_terminal() if forward else None
    news = _take_service_manager() if notify else ()
    lifeline, held = os.pipe()
    # If SIGCHLD is inherited as ignored, the kernel reaps all children itself.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The guardian blocks its signals and waits for them, so that none is lost. With handlers,
    # Python would miss a signal that arrives just before it begins to wait.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*awaited, *news, signal.SIGCHLD])
    global _guardian
    _guardian = os.getpid()
    # The garbage collector writes to the objects it traverses. Without this, it would make a
    # private copy of every page that the two processes share.
    gc.freeze()
    worker = os.fork()
    if worker == 0:
        os.close(held)
        _become_worker(awaited if forward else (), [n for n in pass_on if n in awaited])
        # Unblocked only after the handlers are set: a signal may be pending.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return work(lifeline)
    os.close(lifeline)
    _let_go_of_streams(3 if release_stderr else 2)
    status = _guard(worker, awaited, held if forward else None, pass_on, stop_limit)
    if restore_terminal is not None and os.WIFSIGNALED(status):
        restore_terminal()
    kill_all_children()
    _remove_leavings(worker)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _become_worker(
    forwarded: Collection[signal.Signals], passed_on: Collection[signal.Signals]
) -> None:
    """Separate the forked worker from the guardian's group, and set its first handlers."""
    if not os.isatty(0):
        # A signal to the whole group of the guardian must not reach both.
        os.setpgid(0, 0)
    become_subreaper()
    # Handlers that do nothing, not SIG_IGN, which the worker's children would inherit. A signal to
    # pass on may arrive before the worker has its own handler, and must not kill it.
    for number in (*forwarded, *passed_on):
        signal.signal(number, _do_nothing)


def _take_service_manager() -> Collection[int]:
    """Take the service manager from the environment; return its notification signals."""
    global _manager
    if "NOTIFY_SOCKET" in os.environ:
        _manager = manager_module.take_service_manager()
    return () if _manager is None else _manager.signals


def _guard(
    worker: int,
    awaited: Collection[signal.Signals],
    held: int | None,
    pass_on: Collection[signal.Signals],
    stop_limit: float,
) -> int:
    """
    Wait for the end of the worker, and handle signals until then.

    Args:
        worker: The pid of the worker.
        awaited: The signals to handle, all of them blocked.
        held: The pipe to forward signals on; without it, each one stops the worker.
        pass_on: Signals that are sent to the worker as they are.
        stop_limit: Seconds that the worker may take to stop.

    Returns:
        The wait status of the worker.
    """
    if held is not None:
        os.set_blocking(held, False)
    deadline: float | None = None
    # Number of signals written to the pipe so far, and up to the one with the deadline.
    sent = due = 0
    news = () if _manager is None else _manager.signals
    while True:
        number = _next_signal((*awaited, *news, signal.SIGCHLD), deadline)
        if number in news:
            # These signals exist only with a service manager.
            assert _manager is not None
            assert number is not None
            _manager.send(number)
        elif number == signal.SIGCHLD:
            status = _reap(worker, also_stop=signal.SIGTSTP in awaited)
            if status is not None:
                return status
        elif number is None:
            # The deadline of an earlier stop signal has passed.
            if held is None or sent - _unread(held) < due:
                os.kill(worker, signal.SIGKILL)
            deadline = None
        elif number in pass_on:
            os.kill(worker, number)
        elif held is None:
            os.kill(worker, signal.SIGTERM)
            # A stopped worker handles the signal only once it continues.
            os.kill(worker, signal.SIGCONT)
            deadline = time.monotonic() + stop_limit
        else:
            try:  # noqa: SIM105 - contextlib would be one import more
                sent += os.write(held, bytes([number]))
            except OSError:
                # The worker has exited, or 65,536 signals fill the pipe.
                pass
            # A worker that reads no signals hangs, perhaps on a dead mount.
            if number in _STOP_SIGNALS and deadline is None:
                deadline, due = time.monotonic() + stop_limit, sent


def _unread(pipe: int) -> int:
    """Return the number of bytes in a pipe, given by its writing end."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), "little")


def _next_signal(awaited: Collection[int], deadline: float | None) -> int | None:
    """Wait for one of these signals; return None if none has come by the deadline."""
    if deadline is None:
        return signal.sigwaitinfo(awaited).si_signo
    received = signal.sigtimedwait(awaited, max(deadline - time.monotonic(), 0))
    return None if received is None else received.si_signo


def _reap(worker: int, *, also_stop: bool) -> int | None:
    """
    Reap children that have exited, orphaned descendants of the worker included.

    If job control has stopped the worker, the guardian stops as well.

    Returns:
        The wait status of the worker if it has exited, else None.
    """
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG | (os.WUNTRACED if also_stop else 0))
        if pid == 0:
            return None
        if pid != worker:
            continue
        if not os.WIFSTOPPED(status):
            return status
        # Our shell sees the stop. Once it continues us, we continue the worker.
        stop_this_process()
        os.kill(worker, signal.SIGCONT)


def _remove_leavings(worker: int) -> None:
    """Remove the cgroups and device nodes that the worker has left behind."""
    cgroupfs.remove_cgroups(worker)
    device_nodes.remove_unused_devices()


def _do_nothing(number: int, frame: object) -> None:
    pass


def _fill_streams() -> None:
    """Open `/dev/null` for missing standard streams, so that no other file gets their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # `open` returns the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)


def _let_go_of_streams(count: int) -> None:
    """Replace our standard streams, so that their readers see end of file when the worker ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(count):
        os.dup2(null, fd)
    os.close(null)


def _remember_terminal() -> Callable[[], None] | None:
    """Return a function that restores the current terminal modes, for a worker that is killed."""
    if not os.isatty(0):
        return None
    try:
        modes = termios.tcgetattr(0)
        name = os.ttyname(0)
    except (OSError, termios.error):
        # The terminal has no name here, as one of another container.
        return None

    def restore() -> None:
        try:
            terminal = os.open(name, os.O_RDWR | os.O_NOCTTY)
            # Not in the background: there the shell has the terminal, with its own modes.
            if os.tcgetpgrp(terminal) == os.getpgrp():
                termios.tcsetattr(terminal, termios.TCSANOW, modes)
        except (OSError, termios.error):
            # The terminal is gone, or was never our controlling terminal.
            return

    return restore


def stop_this_process() -> None:
    """
    Stop this process as Ctrl-Z does, until it gets SIGCONT.

    The kernel does not stop a process of an orphaned group, which no shell would continue.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    # The process stops here, at the delivery of the pending signal.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
    signal.signal(signal.SIGTSTP, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def become_subreaper() -> None:
    """Become the parent of all orphaned descendants of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of_this_process() -> list[int]:
    """
    Return the pids of all children, zombies included.

    Raises:
        OSError: No descriptor is left to read the list.
    """
    return children_of("self")


def reap_children(spare: Collection[int]) -> bool:
    """
    Reap all children that have exited, except for those in `spare`.

    Returns:
        False if no descriptor was left to list them; the caller tries again later.
    """
    try:
        pids = children_of_this_process()
    except OSError:
        return False
    for pid in pids:
        if pid not in spare:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                # Reaped since the list was read.
                continue
    return True


def kill_all_children(spare: Iterable[int] = (), limit: float = _SWEEP_LIMIT) -> None:
    """
    Kill every descendant, within at most `limit` seconds.

    The children of a killed process become ours. So killing until no child is left reaches all
    descendants, whatever sessions and groups they are in.
    """
    spared = set(spare)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            pids = [pid for pid in children_of_this_process() if pid not in spared]
        except OSError:
            # No descriptor is left. The killed processes are about to free some.
            time.sleep(_LOOK_AGAIN)
            continue
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                _wait_for(pid, deadline)
            except (ProcessLookupError, ChildProcessError):
                # The process has exited, or was reaped elsewhere.
                continue
            except PermissionError:
                # It runs as another user now, so we may not signal it.
                spared.add(pid)


def _wait_for(pid: int, deadline: float) -> None:
    """
    Reap a killed child, until a deadline: one that waits for a dead mount never exits.

    Raises:
        ChildProcessError: Another part of this process has reaped it.
    """
    pause = _FIRST_PAUSE
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, _LOOK_AGAIN)

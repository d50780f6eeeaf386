"""
Nothing is left behind: a guardian beside every process that starts others.

The process that was started becomes the guardian and forks the worker: the server,
or one `holdfast run`. Each notices when the other ends, however it ends, and each
inherits the processes of the other's children that outlive their parents (they are
"child subreapers"), so whichever is left kills everything that was started:

- The worker ends by itself or is killed: its children become the guardian's.
- The guardian is killed: the worker reads the end of a pipe, and stops.

The real server asks the kernel to signal a child when its parent dies. That
misses children of children, and cannot be had together with a quick start.

This module is imported before anything else and forks at once, so that the
guardian is as small as a Python process can be.
"""

import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

# Loading `typing` for it would make every guardian larger.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.supervision.service_manager import ServiceManager

__all__ = [
    "become_subreaper",
    "children_of_this_process",
    "guardian_pid",
    "kill_all_children",
    "reap_children",
    "run_guarded",
    "service_manager",
    "stop_this_process",
    "tell_service_manager",
]

_PR_SET_CHILD_SUBREAPER = 36

# What asks the guardian, and so the worker, to stop.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

# Seconds a worker may take to stop when it was asked to; then it is killed.
_STOP_LIMIT = 10.0

# Seconds to go on killing what keeps starting new processes.
_SWEEP_LIMIT = 10.0

# Seconds until children are looked for again that could not be listed.
_LOOK_AGAIN = 0.01

# Seconds that a process usually takes to end when it is killed.
_FIRST_PAUSE = 0.0002

_guardian: int | None = None

# Of this service, if it is one; the same on both sides of the fork.
_manager: "ServiceManager | None" = None


def guardian_pid() -> int | None:
    """The process that guards this one, as long as it is there."""
    return _guardian if _guardian == os.getppid() else None


def service_manager() -> "ServiceManager | None":
    """Return the manager that wants to hear of this process, if there is one."""
    return _manager


def tell_service_manager(news: int) -> None:
    """Have the guardian pass on news: `READY` or another one of `service_manager`."""
    guardian = guardian_pid()
    if _manager is not None and guardian is not None:
        os.kill(guardian, news)


def run_guarded(
    work: Callable[[int], int],
    *,
    forward: Collection[signal.Signals] = (),
    pass_on: Collection[signal.Signals] = (),
    release_stderr: bool = False,
    notify: bool = False,
) -> int:
    """
    Fork, run `work` in the child and guard it from this process.

    Args:
        work: Gets a descriptor that comes to its end when the guardian is gone.
        forward: Signals that mean something to the worker. Each one that this
            process gets appears on that descriptor, as one byte with its number,
            and the worker itself does nothing when it is sent one directly: a
            terminal sends its signals to both, and they must count once. Without
            any, the usual ones stop the worker, with a limit on the time it takes.
        pass_on: Signals, among those that would stop it, that the worker is sent instead.
        release_stderr: Let go of stderr, too, in the guardian: whoever reads it must
            see its end while the worker still runs.
        notify: Take the socket of a service manager from the environment, if there is one,
            and pass on what the worker has to tell (`tell_service_manager`).

    Returns:
        In the child what `work` returned; in the guardian the child's exit status,
        128 and the number if a signal killed it.
    """
    _fill_streams()
    become_subreaper()
    # What was ignored when we were started, by `nohup` for one, stays ignored.
    awaited = [n for n in forward or _STOP_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
    restore_terminal = _remember_terminal() if forward else None
    news = _take_service_manager() if notify else ()
    lifeline, held = os.pipe()
    # Inherited as ignored it would have the kernel reap the children of both.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The guardian has no handlers: it waits for signals, and loses none. (The interpreter
    # would not hear of one that came just before it began to wait for the worker.)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*awaited, *news, signal.SIGCHLD])
    global _guardian
    _guardian = os.getpid()
    # What exists by now is never looked at again by the collector, which would have
    # every page of it copied for one of the two.
    gc.freeze()
    worker = os.fork()
    if worker == 0:
        os.close(held)
        if not os.isatty(0):
            # A signal to the whole group of the guardian must not hit both at once.
            os.setpgid(0, 0)
        become_subreaper()
        if forward:
            for number in awaited:
                # Not ignored: that would be inherited by what the worker starts.
                signal.signal(number, _do_nothing)
        for number in pass_on:
            # One that comes before the worker listens for it must not end the worker.
            if number in awaited:
                signal.signal(number, _do_nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return work(lifeline)
    os.close(lifeline)
    _let_go_of_streams(3 if release_stderr else 2)
    status = _guard(worker, awaited, held if forward else None, pass_on)
    if restore_terminal is not None and os.WIFSIGNALED(status):
        restore_terminal()
    kill_all_children()
    _remove_leavings(worker)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _take_service_manager() -> Collection[int]:
    """Remember who wants to hear of this service; return the signals that stand for news."""
    global _manager
    if "NOTIFY_SOCKET" in os.environ:
        from holdfast.supervision.service_manager import take_service_manager

        _manager = take_service_manager()
    return () if _manager is None else _manager.signals


def _guard(
    worker: int,
    awaited: Collection[signal.Signals],
    held: int | None,
    pass_on: Collection[signal.Signals],
) -> int:
    """
    Wait for the end of the worker, and do what signals ask for until then.

    Args:
        worker: A child of this process.
        awaited: The signals, all of them blocked.
        held: Where to tell the worker of them; without it, each one stops the worker.
        pass_on: Those that the worker is sent as they are.

    Returns:
        The status that the worker ended with.
    """
    if held is not None:
        os.set_blocking(held, False)
    deadline: float | None = None
    news = () if _manager is None else _manager.signals
    while True:
        number = _next_signal((*awaited, *news, signal.SIGCHLD), deadline)
        if number in news:
            # Whose news it is.
            assert _manager is not None
            assert number is not None
            _manager.send(number)
        elif number == signal.SIGCHLD:
            status = _reap(worker, also_stop=signal.SIGTSTP in awaited)
            if status is not None:
                return status
        elif number is None:
            os.kill(worker, signal.SIGKILL)
            deadline = None
        elif number in pass_on:
            os.kill(worker, number)
        elif held is None:
            os.kill(worker, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_LIMIT
        else:
            try:  # noqa: SIM105 - contextlib would be one import more
                os.write(held, bytes([number]))
            except OSError:
                # The worker has ended, or has 65,536 signals to look at.
                pass


def _next_signal(awaited: Collection[int], deadline: float | None) -> int | None:
    """Wait for one of these signals; nothing if none has come in time."""
    if deadline is None:
        return signal.sigwaitinfo(awaited).si_signo
    heard = signal.sigtimedwait(awaited, max(deadline - time.monotonic(), 0))
    return None if heard is None else heard.si_signo


def _reap(worker: int, *, also_stop: bool) -> int | None:
    """
    Take note of children that have ended.

    Orphans of the worker's children come here too. A worker that is stopped by job
    control takes us along.

    Returns:
        The status that the worker ended with, if it has.
    """
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG | (os.WUNTRACED if also_stop else 0))
        if pid == 0:
            return None
        if pid != worker:
            continue
        if not os.WIFSTOPPED(status):
            return status
        # The shell notices, and continues us.
        stop_this_process()
        os.kill(worker, signal.SIGCONT)


def _remove_leavings(worker: int) -> None:
    # Not needed before.
    from holdfast.linux.cgroupfs import remove_cgroups

    # Likewise.
    from holdfast.sandbox.bubblewrap.devices import remove_unused_devices

    remove_cgroups(worker)
    remove_unused_devices()


def _do_nothing(number: int, frame: object) -> None:
    pass


def _fill_streams() -> None:
    """Nothing of ours may become a standard stream that this process was started without."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # Takes the lowest number that is free.
            os.open(os.devnull, os.O_RDWR)


def _let_go_of_streams(count: int) -> None:
    """Whoever reads the worker's output must see its end when the worker ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(count):
        os.dup2(null, fd)
    os.close(null)


def _remember_terminal() -> Callable[[], None] | None:
    """Note the modes of our terminal; the result puts them back after a worker that could not."""
    if not os.isatty(0):
        return None
    # A server needs none of this.
    import termios

    try:
        modes = termios.tcgetattr(0)
        name = os.ttyname(0)
    except (OSError, termios.error):
        # It cannot be found again: one of another container, for example.
        return None

    def restore() -> None:
        try:
            terminal = os.open(name, os.O_RDWR | os.O_NOCTTY)
            # In the background the terminal is the shell's, and as the shell wants it.
            if os.tcgetpgrp(terminal) == os.getpgrp():
                termios.tcsetattr(terminal, termios.TCSANOW, modes)
        except (OSError, termios.error):
            # It is gone, or never was our controlling one.
            return

    return restore


def stop_this_process() -> None:
    """
    Stop, as at Ctrl-Z, until somebody continues this process.

    Where no shell looks after it the system does not stop it: nobody stops for ever.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    # Stops here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
    signal.signal(signal.SIGTSTP, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def become_subreaper() -> None:
    """Inherit the orphans among the descendants of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of_this_process() -> list[int]:
    """
    The pids of all children, zombies too.

    Raises:
        OSError: No descriptor is left to look with.
    """
    pids: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended.
            continue
    return pids


def reap_children(spare: Collection[int]) -> bool:
    """
    Reap processes that came to us when their parents ended.

    Returns:
        False if that has to be tried again later: no descriptor was left to look with.
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
                # Reaped since the list was made.
                continue
    return True


def kill_all_children(spare: Iterable[int] = (), limit: float = _SWEEP_LIMIT) -> None:
    """
    Kill every descendant, for so many seconds at most.

    Killing a process hands its children to us, so going on until no child is
    left reaches all of them, in whatever sessions and groups they hide.
    """
    spared = set(spare)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            pids = [pid for pid in children_of_this_process() if pid not in spared]
        except OSError:
            # No descriptor is left: others are about to close theirs.
            time.sleep(_LOOK_AGAIN)
            continue
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                _wait_for(pid, deadline)
            except (ProcessLookupError, ChildProcessError):
                # Gone, or reaped elsewhere.
                continue
            except PermissionError:
                # It changed its user: it is no longer ours to end.
                spared.add(pid)


def _wait_for(pid: int, deadline: float) -> None:
    """
    Reap a child that was killed, unless it takes too long: one on a dead mount never ends.

    Raises:
        ChildProcessError: Somebody else has reaped it.
    """
    pause = _FIRST_PAUSE
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, _LOOK_AGAIN)

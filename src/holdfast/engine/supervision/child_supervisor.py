"""
Supervisor process between a client and the command it talks to: ends the whole process tree.

A client may be killed before it can end anything, and a command may ignore the end of its stdin.
The supervisor notices the death of the client through a pidfd. As a child subreaper it inherits
every orphan below the command. It sends SIGTERM to the command's process group, and SIGKILL to all
that remain after the grace period [environments.command-group].

This file is run as a script, without site-packages:
`python -I -S child_supervisor.py CLIENT GRACE PROGRAM ARGV...`. The command inherits its streams.
Descriptor 3 is a socket to the client, on which the supervisor reports whether the start succeeded;
to end the command, the client closes its end.
"""

import os
import select
import signal
import sys
import time

__all__ = ["main"]

# The client passes one descriptor beyond the standard streams, which is always number 3.
_SOCKET = 3

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Stopped(Exception):
    """Raised by the signal handler; treated like the end of the socket."""


def _start(program: str, arguments: list[str]) -> int:
    """
    Start the command in its own process group, and return its pid.

    Raises:
        OSError: The program cannot be executed.
    """
    # Not `os.posix_spawn`: it leaves internal signals of libc ignored in the child.
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            # Python ignores these two, and an ignored signal is inherited by exec.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            # The command must not hold the control socket, which would hide its end from the
            # client.
            os.set_inheritable(_SOCKET, False)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execve(program, arguments, _environment())  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(writable, b"%d" % (error.errno or 0))
        finally:
            os._exit(127)
    os.close(writable)
    failed = os.read(readable, 16)
    os.close(readable)
    if failed:
        os.waitpid(pid, 0)
        raise OSError(int(failed), os.strerror(int(failed)))
    return pid


def main(argv: list[str]) -> int:
    """
    Start the command, wait until it or the client ends, and kill what is left.

    Returns:
        The exit status, as in a shell, of a command that ended by itself; otherwise 0.
    """
    # Without site-packages, and without a search for them.
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))
    # Imported late, since it needs the path set above.
    from holdfast.engine.supervision.guardian import (
        become_subreaper,
        kill_all_children,
        reap_children,
    )

    client, grace, program, *arguments = argv
    become_subreaper()
    # Blocked until the handlers below are in place: a signal in between would end the supervisor
    # and leave the command running.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        watched = os.pidfd_open(int(client))
        # The parent is the client only while it lives; a later pidfd could be of a reused pid.
        if os.getppid() != int(client):
            # The client died before the pidfd was open; nothing has been started yet.
            return 0
        command = _start(program, arguments)
    except OSError as error:
        _report(b"failed %d\n" % (error.errno or 0))
        return 0
    ended = os.pidfd_open(command)
    _report(b"started %d\n" % command)
    _let_go_of_streams()
    signals = _open_signal_pipe()
    # Orphans are reaped as they end. The command itself stays a zombie, so that its pid, which
    # is also the process group id, cannot be reused before the last `killpg`.
    signal.signal(signal.SIGCHLD, lambda number, frame: reap_children(spare=(command,)))
    # The signals of orphans that ended earlier were lost.
    reap_children(spare=(command,))
    first: int | None = _SOCKET
    try:
        for number in _STOP_SIGNALS:
            signal.signal(number, _stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        first = _wait(_SOCKET, watched, ended, signals=signals)
    except _Stopped:
        pass
    # From here on the supervisor ignores all signals but SIGKILL, which cannot be ignored.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    status = 0
    if first == ended:
        status = _exit_status(command)
    else:
        _signal_group(command, signal.SIGTERM)
        # A stopped process handles the signal only once it continues.
        _signal_group(command, signal.SIGCONT)
        _wait(ended, signals=signals, limit=float(grace))
    # `kill_all_children` reaps, too; the handler would compete with it.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _signal_group(command, signal.SIGKILL)
    kill_all_children()
    return status


def _exit_status(command: int) -> int:
    """Return the exit status of a command that has ended, and leave it a zombie."""
    found = os.waitid(os.P_PID, command, os.WEXITED | os.WNOWAIT)
    # Without WNOHANG the call waits, so there is a result.
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else 128 + found.si_status


def _report(what: bytes) -> None:
    try:  # noqa: SIM105 - contextlib would be one import more
        os.write(_SOCKET, what)
    except OSError:
        # The client is gone already, which `_wait` notices next.
        pass


def _signal_group(group: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib would be one import more
        os.killpg(group, number)
    except ProcessLookupError:
        # The group has no process left.
        pass


def _environment() -> dict[bytes, bytes]:
    """Return the variables that the supervisor was started with."""
    # Not `os.environ`: under PEP 538 the interpreter may have set `LC_CTYPE` there.
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    return {name: value for name, _, value in pairs}


def _let_go_of_streams() -> None:
    """Point descriptors 0 to 2 at `/dev/null`."""
    # A copy of a pipe kept here would hide its end: client and command have to see each other's
    # end.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def _open_signal_pipe() -> int:
    """Return a descriptor that becomes readable when a signal arrives."""
    # A Python handler runs between two bytecodes. A signal that arrives just before `poll`
    # would not interrupt it, so the C-level handler writes into this pipe.
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def _wait(*descriptors: int, signals: int, limit: float | None = None) -> int | None:
    """Return the first descriptor that has become readable, or None after `limit` seconds."""
    poll = select.poll()
    for fd in (*descriptors, signals):
        poll.register(fd, select.POLLIN)
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        left = None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
        found = {fd for fd, _ in poll.poll(left)}
        if signals in found:
            # Python calls the signal handlers after this system call.
            os.read(signals, 4096)
        for fd in descriptors:
            if fd in found:
                return fd
        if not found:
            return None


def _stop(number: int, frame: object) -> None:
    raise _Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""
Nothing of a command is left: a small process between a client and the command it talks to.

A client may be killed before it can end anything, and a command may ignore that its
input has ended. The keeper notices the death of the client, inherits every process
below the command whose parent has ended, and ends them all: SIGTERM to the command's
group, SIGKILL to whatever is left after a while [environments.command-group].

This file is run as it is, without the site's packages: `python -I -S keeper.py CLIENT
GRACE PROGRAM ARGV...`. Its streams become the command's. Descriptor 3 is a socket to the
client: the keeper tells there how the start went, and its end asks for the end of all.
"""

import os
import select
import signal
import sys
import time

__all__ = ["main"]

_SOCKET = 3

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Stopped(Exception):
    """Somebody sent us a signal; it counts as the end of the socket."""


def main(argv: list[str]) -> int:
    """Start the command, wait for its end or for the client's, and leave nothing."""
    # Without the site's packages, and without asking where they might be.
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../.."))
    from holdfast.process.guardian import become_subreaper, kill_all_children, reap_children

    client, grace, program, *arguments = argv
    become_subreaper()
    # From the start of the command on, nothing may end us that we do not hear of.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        watched = os.pidfd_open(int(client))
        if os.getppid() != int(client):
            return 0  # it died before we could watch it; nothing runs yet
        command = os.posix_spawn(
            program,
            arguments,
            _environment(),
            file_actions=[(os.POSIX_SPAWN_CLOSE, _SOCKET)],
            setpgroup=0,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # what Python itself ignores
        )
    except OSError as error:
        _tell(b"failed %d\n" % (error.errno or 0))
        return 0
    ended = os.pidfd_open(command)
    _tell(b"started %d\n" % command)
    _let_go_of_streams()
    heard = _hear_signals()
    # Orphans of the command come here to be reaped; the command's number stays its own.
    signal.signal(signal.SIGCHLD, lambda number, frame: reap_children(spare=(command,)))
    first: int | None = _SOCKET
    try:
        for number in _STOP_SIGNALS:
            signal.signal(number, _stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        first = _wait(_SOCKET, watched, ended, heard=heard)
    except _Stopped:
        pass
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if first != ended:
        _signal_group(command, signal.SIGTERM)
        _wait(ended, heard=heard, limit=float(grace))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _signal_group(command, signal.SIGKILL)
    kill_all_children()
    return 0


def _tell(what: bytes) -> None:
    try:  # noqa: SIM105 - contextlib would be one import more
        os.write(_SOCKET, what)
    except OSError:
        pass  # the client is gone already, which is noticed next


def _signal_group(group: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib would be one import more
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # the command has left it


def _environment() -> dict[bytes, bytes]:
    """What we were started with; Python may have changed its own copy of the locale."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    return {name: value for name, _, value in pairs}


def _let_go_of_streams() -> None:
    """Each side must see the end of the other, so no copy is kept here."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def _hear_signals() -> int:
    """
    A descriptor that can be read when a signal has come.

    The interpreter itself does not hear of one that comes just before it begins to wait.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    return heard


def _wait(*descriptors: int, heard: int, limit: float | None = None) -> int | None:
    """The first that has come to its end; none if nothing did for so many seconds."""
    poll = select.poll()
    for fd in (*descriptors, heard):
        poll.register(fd, select.POLLIN)
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        left = None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
        found = {fd for fd, _ in poll.poll(left)}
        if heard in found:
            os.read(heard, 4096)  # the handlers are called here
        for fd in descriptors:
            if fd in found:
                return fd
        if not found:
            return None


def _stop(number: int, frame: object) -> None:
    raise _Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

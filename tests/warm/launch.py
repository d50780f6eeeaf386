"""
Asks the warm server for a process, and is its stand-in: passes signals on, ends as it ends.

Run by `python -I -S`, it imports nothing that is not built into the interpreter, or nearly.
"""

import _signal  # type: ignore[import-not-found]  # built in, without a stub
import _socket
import posix
import resource
import sys
from time import monotonic, sleep

_PASSED_ON = (
    _signal.SIGINT,
    _signal.SIGTERM,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
)
_STDIO = (0, 1, 2)
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_NPROC)
_READ_AT_START = (b"PYTHON", b"LC_", b"LD_", b"NOTIFY_", b"LISTEN_")
_HARMLESS = (b"PYTHONUNBUFFERED", b"PYTHONDONTWRITEBYTECODE", b"PYTHONUSERBASE", b"LC_CTYPE")
"""
Variables of these kinds that change nothing for a process of the server.

An interpreter without a locale sets the last one itself, for UTF-8. Nothing that is tested lies
where the one before it leads.
"""
_PATIENCE = 60.0
"""Seconds the server may take to come up on a busy machine."""


def main() -> None:
    address, module, *arguments = sys.argv[1:]
    server = _connect(address) if _can_be_warm() else None
    if server is None or server.recv(1) != b"w":
        _start_cold(module, arguments)
        return
    ignored = [number for number in range(1, 32) if _signal.getsignal(number) == _signal.SIG_IGN]
    folder = posix.open(".", posix.O_PATH | posix.O_CLOEXEC)
    request = {
        "module": module,
        "arguments": arguments,
        "variables": dict(posix.environ),
        "umask": _umask(),
        "ignored": ignored,
        "terminal": _terminal(),
        "limits": [(which, *resource.getrlimit(which)) for which in _LIMITS],
    }
    for number in _PASSED_ON:
        if number not in ignored:
            _signal.signal(number, lambda number, _: server.send(bytes([number])))
    payload = repr(request).encode("utf-8", "surrogatepass")
    descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (*_STDIO, folder))
    control = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)]
    server.sendmsg([len(payload).to_bytes(8, "little")], control)
    server.sendall(payload)
    # Whoever reads or writes them is to see the end of the command, not of this process.
    for fd in _STDIO:
        posix.close(fd)
    _end_as(server.recv(16))


def _start_cold(module: str, arguments: list[str]) -> None:
    """Become a fresh interpreter that runs a module, which may be one of the tests."""
    variables = dict(posix.environ)
    if module.startswith("tests."):
        variables[b"PYTHONPATH"] = __file__.rpartition("/tests/")[0].encode()
    options = ["-W", "error"] if module == "program" else ["-m", module]
    posix.execve(sys.executable, [sys.executable, *options, *arguments], variables)


def _can_be_warm() -> bool:
    """Return False where a process of the server would not be as one of this process."""
    try:
        for fd in _STDIO:
            posix.fstat(fd)
    except OSError:
        return False
    if any(map(posix.isatty, _STDIO)) and _terminal() is None:
        return False
    # Python reads its own variables, and those of the locale, when it starts.
    for name, value in posix.environ.items():
        if name.startswith(_READ_AT_START) and name not in _HARMLESS:
            return False
        if name == b"LANG" and not value.lower().endswith((b"utf-8", b"utf8")):
            return False
    return True


def _terminal() -> int | None:
    """
    Return a descriptor of the terminal that a process of the server can take over.

    It becomes the leader of a session with that terminal, so this process must be one; and only
    root may take a terminal away from a session. Job control of a shell needs this very process.
    """
    if posix.geteuid() != 0 or posix.getsid(0) != posix.getpid():
        return None
    for fd in _STDIO:
        try:
            if posix.tcgetpgrp(fd) == posix.getpid():
                return fd
        except OSError:
            continue  # no terminal, or not that of this session
    return None


def _connect(address: str) -> _socket.socket | None:
    """Connect to the server, which may still be starting; None if there is none."""
    deadline = monotonic() + _PATIENCE
    while _exists(address.rpartition("/")[0]):
        server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            server.connect(address)
            return server
        except OSError:
            server.close()
            if monotonic() > deadline:
                raise
            sleep(0.02)
    return None


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except FileNotFoundError:
        return False
    return True


def _umask() -> int:
    mask = posix.umask(0)
    posix.umask(mask)
    return mask


def _end_as(answer: bytes) -> None:
    """End as the process did: with its exit status, or by its signal."""
    if len(answer) != 4:
        posix._exit(250)  # the server is gone
    status = int.from_bytes(answer, "little", signed=True)
    if status < 0:
        if status != -_signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        posix.kill(posix.getpid(), -status)
    posix._exit(status)


main()

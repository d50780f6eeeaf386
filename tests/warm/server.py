"""Imports all of the package, and forks a process for each launcher that asks for one."""

import ast
import atexit
import fcntl
import gc
import io
import os
import re
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import termios
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import holdfast
import holdfast.front.cli.__main__ as command_line
from holdfast.front.cli.parser import make_parser

_EXIT_FAILED = 1

TIMES = "times"
"""The file beside the socket that tells what the processes took, each with its test."""

_ROOT = Path(__file__).parents[2]
"""Where the package of the tests is found."""

_DRIVER = "tests.real.unified_driver"

_TEST = re.compile(rb"PYTEST_CURRENT_TEST': b'([^ ']*)")
"""The test that a process is started by, in its variables."""


def main() -> None:
    """Serve until the end of stdin."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])
    listener.listen(128)
    _import_everything()
    Forks(listener).serve()


def _import_everything() -> None:
    for module in walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in ("uvloop", "picows", "aiohttp", "mcp.server", "uvicorn"):
        try:
            import_module(name)
        except ImportError:
            continue  # tests of what needs it say so
    sys.path.append(str(_ROOT))
    import_module(_DRIVER)
    # It does not depend on the arguments, and takes half of the time of a short command.
    parser = make_parser()
    vars(command_line)["make_parser"] = lambda only=None: parser
    gc.collect()
    gc.freeze()


class Forks:
    """The processes that were forked, each with the launcher that stands for it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._launchers: dict[int, tuple[int, int]] = {}  # by descriptor: pid, its pidfd
        self._sockets: dict[int, socket.socket] = {}
        self._ends: dict[int, int] = {}  # by pidfd: descriptor of the launcher
        self._tests: dict[int, bytes] = {}  # by pidfd: the test that it was started by
        self._times = Path(sys.argv[1]).with_name(TIMES).open("wb", buffering=0)
        self._poll = select.poll()

    def serve(self) -> None:
        self._poll.register(0, select.POLLIN)
        self._poll.register(self._listener, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == 0:
                    if not os.read(0, 1):
                        self._end_all()
                        return
                elif fd == self._listener.fileno():
                    self._fork(self._listener.accept()[0])
                elif fd in self._ends:
                    self._ended(fd)
                elif fd in self._launchers:
                    self._told(fd)

    def _end_all(self) -> None:
        """End what still runs: the tests were interrupted."""
        for pid, _ in self._launchers.values():
            os.kill(pid, signal.SIGTERM)

    def _fork(self, launcher: socket.socket) -> None:
        try:
            if not _is_like_this(launcher):
                launcher.close()
                return
            launcher.send(b"w")
            head, descriptors, _, _ = socket.recv_fds(launcher, 8, 4)
            size = int.from_bytes(head, "little")
            payload = b""
            while len(payload) < size:
                more = launcher.recv(size - len(payload))
                if not more:
                    raise ConnectionResetError
                payload += more
        except OSError:
            launcher.close()
            return
        pid = os.fork()
        if pid == 0:
            _become(payload, descriptors, self._note(launcher))
        for fd in descriptors:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._launchers[launcher.fileno()] = pid, pidfd
        self._sockets[launcher.fileno()] = launcher
        self._ends[pidfd] = launcher.fileno()
        test = _TEST.search(payload)
        self._tests[pidfd] = b"" if test is None else test[1]
        self._poll.register(launcher, select.POLLIN)
        self._poll.register(pidfd, select.POLLIN)

    def _note(self, launcher: socket.socket) -> Path:
        """Return the file that tells which process a launcher stands for."""
        return Path(sys.argv[1]).with_name(str(_credentials(launcher)[0]))

    def _told(self, fd: int) -> None:
        """Pass a signal on; a launcher that is gone was killed, and so is its process."""
        pid, _ = self._launchers[fd]
        try:
            numbers = self._sockets[fd].recv(64)
        except OSError:
            numbers = b""
        if numbers:
            for number in numbers:
                os.kill(pid, number)
        else:
            os.kill(pid, signal.SIGKILL)
            self._poll.unregister(fd)

    def _ended(self, pidfd: int) -> None:
        fd = self._ends.pop(pidfd)
        pid, _ = self._launchers.pop(fd)
        _, status, used = os.wait4(pid, 0)
        taken = used.ru_utime + used.ru_stime
        self._times.write(b"%s\t%.4f\n" % (self._tests.pop(pidfd), taken))
        launcher = self._sockets.pop(fd)
        self._note(launcher).unlink(missing_ok=True)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        with suppress(KeyError):  # it was killed
            self._poll.unregister(fd)
        with suppress(OSError):
            launcher.send(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
        launcher.close()


def _credentials(launcher: socket.socket) -> tuple[int, int, int]:
    """Return pid, user and group of a launcher."""
    found = launcher.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, group = struct.unpack("3i", found)
    return pid, user, group


def _is_like_this(launcher: socket.socket) -> bool:
    """Return False if a launcher has another user, or lives in namespaces of its own."""
    pid, user, group = _credentials(launcher)
    return (user, group) == (os.geteuid(), os.getegid()) and all(
        os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
        for kind in ("user", "mnt", "net", "pid")
    )


def _become(payload: bytes, descriptors: list[int], note: Path) -> None:
    """Be the process that a launcher asked for, to its end."""
    status = _EXIT_FAILED
    try:
        # Before it does anything that a test could wait for, and then look for its pid.
        note.write_text(str(os.getpid()))
        request = ast.literal_eval(payload.decode("utf-8", "surrogatepass"))
        *stdio, folder = descriptors
        os.fchdir(folder)
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        if request["terminal"] is not None:
            os.setsid()
            fcntl.ioctl(request["terminal"], termios.TIOCSCTTY, 1)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.umask(request["umask"])
        for number in request["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        os.environb.clear()
        os.environb.update(request["variables"])
        for which, soft, hard in request["limits"]:
            resource.setrlimit(which, (soft, hard))
        _open_streams()
        sys.argv = ["holdfast", *request["arguments"]]
        sys.path[0] = str(Path.cwd())
        status = _run(_program(request["module"]))
    finally:
        os._exit(status)


def _program(module: str) -> Callable[[], object]:
    """Return what a module does when it is run."""
    if module == "program":
        return _run_file
    if module != _DRIVER:
        return command_line.main
    driver: Callable[[], object] = sys.modules[_DRIVER].run
    return driver


def _run_file() -> None:
    """Run the file that is the first argument, as `python -W error` does."""
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    warnings.simplefilter("error")
    runpy.run_path(sys.argv[0], run_name="__main__")
    gc.collect()  # whoever forgot to close something is told


def _run(program: Callable[[], object]) -> int:
    try:
        status = program()
    except SystemExit as end:
        status = end.code
    except Exception:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        status = 1
    try:
        sys.stdout.flush()
    except OSError:
        status = 120  # as the interpreter does
    # As at the end of an interpreter: threads first, then what asked to be called.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        return 1
    return status if isinstance(status, int) else 0


def _open_streams() -> None:
    """Make the standard streams anew, as a fresh interpreter does."""
    raw = [io.FileIO(fd, mode, closefd=False) for fd, mode in enumerate(("r", "w", "w"))]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(raw[0]), errors="surrogateescape")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw[1]), errors="surrogateescape")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw[2]), errors="backslashreplace", line_buffering=True
    )


if __name__ == "__main__":
    main()

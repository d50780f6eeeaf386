"""A terminal with somebody in front of it, who types and reads."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic

from tests.e2e.wire import LIMIT

__all__ = ["CTRL_C", "CTRL_D", "CTRL_Z", "Terminal", "terminal"]

CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"


class Terminal:
    """A program in a session of its own, with a terminal as its controlling one."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        rows: int = 37,
        cols: int = 111,
        stdin: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(rows, cols)
        self.shown = ""
        """Text that was on the screen and was not searched yet."""
        self.process = subprocess.Popen(
            command,
            stdin=self._slave if stdin is None else stdin,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0),
            env=None if env is None else dict(env),
        )

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def expect(self, text: str, *, limit: float = LIMIT) -> str:
        """Wait for a text on the screen and return what was there before it."""
        deadline = monotonic() + limit
        while text not in self.shown:
            left = deadline - monotonic()
            ready = left > 0 and select.select([self._master], [], [], left)[0]
            assert ready, f"no {text!r} in {self.shown!r}"
            self.shown += os.read(self._master, 65536).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def wait(self) -> int:
        """Wait for its end, reading on meanwhile, and return its exit status."""
        watched = os.pidfd_open(self.process.pid)
        deadline = monotonic() + LIMIT
        try:
            while True:
                left = max(deadline - monotonic(), 0)
                ready = select.select([self._master, watched], [], [], left)[0]
                assert ready, f"it does not end: {self.shown!r}"
                if self._master in ready:
                    self.shown += os.read(self._master, 65536).decode(errors="replace")
                else:
                    return self.process.wait()
        finally:
            os.close(watched)

    def resize(self, rows: int, cols: int) -> None:
        """Drag a corner of its window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    @property
    def modes(self) -> list[object]:
        """Return its modes for keys and output."""
        return list(termios.tcgetattr(self._slave))

    @property
    def is_raw(self) -> bool:
        """Return True if keys are passed on unchanged."""
        lflag = termios.tcgetattr(self._slave)[3]
        return not lflag & (termios.ICANON | termios.ECHO | termios.ISIG)

    def stops_writers(self) -> bool:
        """Return True if the kernel stops background processes that write."""
        return bool(termios.tcgetattr(self._slave)[3] & termios.TOSTOP)

    @property
    def is_blocking(self) -> bool:
        """Return True if its streams, which its programs share, are as they were found."""
        return os.get_blocking(self._slave)

    def hang_up(self) -> None:
        """Close the window, and leave the program to itself."""
        os.close(self._master)
        os.close(self._slave)
        self._master = self._slave = -1

    def close(self) -> None:
        """End the program and take the terminal away."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(LIMIT)
        if self._master >= 0:
            os.close(self._master)
            os.close(self._slave)


@contextmanager
def terminal(
    *command: str,
    rows: int = 37,
    cols: int = 111,
    stdin: int | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Terminal]:
    """Start a program in front of a terminal, and end it however the test goes."""
    screen = Terminal(command, rows=rows, cols=cols, stdin=stdin, env=env)
    try:
        yield screen
    finally:
        screen.close()

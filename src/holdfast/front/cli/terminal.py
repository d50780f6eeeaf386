"""The user's terminal: its size, and raw mode that is always undone."""

import os
import signal
import termios
import tty
from contextlib import suppress
from types import TracebackType
from typing import Self

from holdfast.wire.protocol.process import TerminalSize

__all__ = ["RawTerminal", "terminal_size"]


def terminal_size() -> TerminalSize | None:
    """Return the size of the first standard stream that is a terminal and knows its size."""
    for fd in range(3):
        try:
            cols, rows = os.get_terminal_size(fd)
        except OSError:
            continue
        # A terminal of unknown size, such as a serial line, reports zeros.
        if rows and cols:
            return TerminalSize(rows=rows, cols=cols)
    return None


class RawTerminal:
    """
    A terminal in raw mode for the duration of the context.

    Modes change at once (TCSANOW) without flushing: the next reader gets keys typed ahead.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._modes = termios.tcgetattr(fd)
        self._entered = False

    def __enter__(self) -> Self:
        self._entered = True
        self.make_raw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered = False
        self.restore()

    def make_raw(self) -> None:
        """
        Set raw mode again after another process used the terminal; does nothing outside the
        context.

        In the background this stops the process (SIGTTOU) until it is in the foreground.
        """
        if self._entered:
            # The terminal was hung up: SIGHUP will end the run.
            with suppress(termios.error):
                tty.setraw(self._fd, termios.TCSANOW)

    def restore(self) -> None:
        """Restore the previous mode, for other processes; never waits."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            with suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, self._modes)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

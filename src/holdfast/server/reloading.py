"""Reads the files of a server again at SIGHUP: tokens, certificates, its config file."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.server.entrance import Entrance
from holdfast.server.logs import set_level
from holdfast.server.reload import LiveSettings, Reload, Reread, changes
from holdfast.supervision.guardian import tell_service_manager
from holdfast.supervision.service_manager import READY, RELOADING

__all__ = ["Reloading"]

logger = logging.getLogger(__name__)

# Seconds to read the files again, after which the log says that it takes too long.
_SLOW: Final = 5.0

# Seconds after SIGHUP until a closed terminal can be told from a reload.
_HANGUP_LOOK: Final = 0.5


class Reloading:
    """Handler of SIGHUP that reads the files again, in a thread."""

    def __init__(
        self,
        entrance: Entrance,
        terminal_gone: Callable[[], None],
        *,
        settings: LiveSettings | None = None,
        reread: Callable[[], Reread] | None = None,
    ) -> None:
        """
        Remember whether the server was started on a terminal.

        Args:
            entrance: Has the tokens and certificates.
            terminal_gone: Called if the signal came because that terminal was closed.
            settings: The settings of the start, if there is a config file to read again.
            reread: Reads that file, in any thread; raises `HoldfastError`.
        """
        self.follow: Callable[[Reload], None] | None = None
        """Called in the event loop with the result of each reload; set by the server."""
        self._settings = settings
        self._reread = reread
        self._loop = asyncio.get_running_loop()
        self._entrance = entrance
        self._terminal_gone = terminal_gone
        self._had_terminal = _has_terminal()
        self._running = False
        self._slow: asyncio.TimerHandle | None = None
        self._again = False
        self._looking: asyncio.TimerHandle | None = None

    def hang_up(self) -> None:
        """Handle a SIGHUP: from an operator who wants a reload, or from a closed terminal."""
        if self._had_terminal and self._looking is None:
            # The kernel sends the signal first, and detaches the terminal after that.
            self._looking = self._loop.call_later(_HANGUP_LOOK, self._look_for_terminal)
        if self._running:
            # The files may have changed after they were read, so they are read once more.
            self._again = True
            return
        tell_service_manager(RELOADING)
        # Not in a thread of the event loop's executor, whose end the server would wait for: a file
        # on a dead mount can hang for ever.
        threading.Thread(target=self._read, name="holdfast-reload", daemon=True).start()
        self._running = True
        self._slow = self._loop.call_later(_SLOW, self._say_slow)

    def _read(self) -> None:
        problems: list[str] = []
        found: Reread | None = None
        try:
            problems += self._entrance.reload()
            if self._reread is not None:
                found = self._reread()
        except HoldfastError as error:
            problems.append(str(error))
        except Exception as error:
            logger.exception("the files of the server could not be read")
            problems.append(repr(error))
        # The server may have ended meanwhile, and its event loop with it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._done, problems, found)

    def _say_slow(self) -> None:
        logger.error(
            "SIGHUP: the files of the server could not be read in %gs; what was read before stays"
            " in use",
            _SLOW,
        )

    def _look_for_terminal(self) -> None:
        self._looking = None
        if not _has_terminal():
            self._terminal_gone()

    def _done(self, problems: list[str], found: Reread | None) -> None:
        self._running = False
        # Set with `_running`.
        assert self._slow is not None
        self._slow.cancel()
        tell_service_manager(READY)
        for problem in problems:
            logger.error("SIGHUP: %s; what was read before stays in use", problem)
        # Also after a problem: it may be that of the certificate only.
        self._entrance.end_revoked()
        if not problems:
            logger.info("SIGHUP: tokens and certificates were read again")
        result = Reload(problems=problems)
        if found is not None:
            result = self._apply(found, problems)
        if self.follow is not None:
            self.follow(result)
        if self._again:
            self._again = False
            self.hang_up()

    def _apply(self, found: Reread, problems: list[str]) -> Reload:
        # Set if a file is read again.
        assert self._settings is not None
        changed = list(changes(self._settings, found.settings))
        lines = [*changed, *(f"{name} changed, which needs a restart" for name in found.restart)]
        # Before or after, so that the log has the change of its own level.
        if not logger.isEnabledFor(logging.INFO):
            set_level(found.settings.log_level)
        for line in lines:
            logger.info("SIGHUP: %s", line)
        set_level(found.settings.log_level)
        self._settings = found.settings
        return Reload(
            settings=found.settings, changed=changed, restart=found.restart, problems=problems
        )


def _has_terminal() -> bool:
    """Return True if this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True

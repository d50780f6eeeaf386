"""Reloads the tokens, certificates and config file of a server at SIGHUP."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec

from holdfast.base.errors import HoldfastError
from holdfast.engine.linux.daemon_threads import DaemonThreads
from holdfast.engine.supervision.guardian import notify_service_manager
from holdfast.engine.supervision.service_manager import READY, RELOADING
from holdfast.server.operate.listener_auth import ListenerAuth, Part
from holdfast.server.operate.logs import set_level
from holdfast.server.principals import PrincipalLimits

__all__ = ["LiveSettings", "Reload", "Reloading", "Reread"]

logger = logging.getLogger(__name__)

# Seconds to read the files, after which the attempt is abandoned until the next SIGHUP.
_SLOW: Final = 5.0

# Maximum threads stuck in reading the same file.
_MOST_STUCK: Final = 4

# Seconds after SIGHUP until a closed terminal can be distinguished from a reload.
_HANGUP_LOOK: Final = 0.5


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the config file that can change without a restart."""

    log_level: str = "error"
    limits: PrincipalLimits = PrincipalLimits()


class Reread(NamedTuple):
    """The reloaded config file."""

    settings: LiveSettings
    restart: Sequence[str]
    """Options that differ from those at the start and need a restart."""


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a reload."""

    settings: LiveSettings | None = None
    """None if there is no config file, or it is invalid."""
    changed: Sequence[str] = ()
    """Sentences about changed settings."""
    restart: Sequence[str] = ()
    problems: Sequence[str] = ()


class _Reading:
    """An attempt to read all files, each in its own thread."""

    def __init__(self, slow: asyncio.TimerHandle) -> None:
        self.slow = slow
        self.left: list[str] = []
        self.problems: list[str] = []
        self.found: Reread | None = None


class Reloading:
    """Handles SIGHUP by reloading the files, each in a thread."""

    def __init__(
        self,
        listener_auth: ListenerAuth,
        terminal_gone: Callable[[], None],
        *,
        settings: LiveSettings,
        reread: Callable[[], Reread] | None = None,
    ) -> None:
        """
        Note whether the server was started on a terminal.

        Args:
            listener_auth: Tokens and certificates.
            terminal_gone: Called if SIGHUP was sent because that terminal was closed.
            settings: Settings at the start.
            reread: Reads the config file, in any thread; may raise `HoldfastError`.
        """
        self.follow: Callable[[Reload], None] | None = None
        """Called in the event loop with the result of each reload; set by the server."""
        self._settings = settings
        self._reread = reread
        self._loop = asyncio.get_running_loop()
        self._listener_auth = listener_auth
        self._terminal_gone = terminal_gone
        self._had_terminal = _has_terminal()
        # The current attempt, if any; others are out of date.
        self._reading: _Reading | None = None
        # By the name of the file they read; some may hang.
        self._threads: dict[str, DaemonThreads] = {}
        self._again = False
        self._looking: asyncio.TimerHandle | None = None

    def hang_up(self) -> None:
        """Handle a SIGHUP, sent by an operator for a reload or because a terminal closed."""
        if self._had_terminal and self._looking is None:
            # The kernel sends the signal before it detaches the terminal.
            self._looking = self._loop.call_later(_HANGUP_LOOK, self._look_for_terminal)
        if self._reading is not None:
            # The files may have changed after they were read: read them once more.
            self._again = True
            return
        notify_service_manager(RELOADING)
        reading = self._reading = _Reading(self._loop.call_later(_SLOW, self._give_up))
        for name, read in self._parts():
            problem = self._start(reading, name, read)
            if problem is not None:
                reading.problems.append(problem)
        if not reading.left:
            self._done(reading)

    def _parts(self) -> Iterator[Part]:
        yield from self._listener_auth.parts()
        if self._reread is not None:
            yield "the config file", partial(self._read_config, self._reread)

    def _read_config(self, reread: Callable[[], Reread]) -> Callable[[], None]:
        found = reread()

        def keep() -> None:
            # Only called for the current attempt.
            assert self._reading is not None
            self._reading.found = found

        return keep

    def _start(
        self, reading: _Reading, name: str, read: Callable[[], Callable[[], None]]
    ) -> str | None:
        """Read a file in a thread; return the problem if that is impossible."""
        if name not in self._threads:
            self._threads[name] = DaemonThreads("holdfast-reload", _MOST_STUCK, kept=0)
        if self._threads[name].is_full:
            return f"{_MOST_STUCK} earlier attempts to read {name} are still blocked"
        # Not in the event loop's executor, whose threads the server would wait for at its end: a
        # file on a dead mount can hang for ever.
        try:
            self._threads[name].start(partial(self._read, reading, name, read))
        except RuntimeError as error:
            return f"{name} cannot be read: {error}"
        reading.left.append(name)
        return None

    def _read(self, reading: _Reading, name: str, read: Callable[[], Callable[[], None]]) -> None:
        """Read a file, in a thread, and apply it in the event loop."""
        use, problem = None, None
        try:
            use = read()
        except Exception as error:  # noqa: BLE001 - the operator is waiting for an answer
            problem = _problem(error)
        # The server and its event loop may have ended meanwhile.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, reading, name, use, problem)

    def _take(
        self,
        reading: _Reading,
        name: str,
        use: Callable[[], None] | None,
        problem: str | None,
    ) -> None:
        """Apply a file, unless its attempt was abandoned."""
        if self._reading is not reading:
            return
        if use is not None:
            use()
        if problem is not None:
            reading.problems.append(problem)
        reading.left.remove(name)
        if not reading.left:
            self._done(reading)

    def _give_up(self) -> None:
        """Abandon this attempt, so that the next SIGHUP starts another."""
        # The end of an attempt cancels the timer.
        assert self._reading is not None
        for name in self._reading.left:
            self._reading.problems.append(f"{name} could not be read within {_SLOW:g} s")
        self._done(self._reading)

    def _look_for_terminal(self) -> None:
        self._looking = None
        if not _has_terminal():
            self._terminal_gone()

    def _done(self, reading: _Reading) -> None:
        self._reading = None
        reading.slow.cancel()
        self._end(reading.problems, reading.found)
        if self._again:
            self._again = False
            self.hang_up()

    def _end(self, problems: list[str], found: Reread | None) -> None:
        """Log and record the result of a reload, and apply the settings."""
        notify_service_manager(READY)
        for problem in problems:
            logger.error("SIGHUP: %s; the previous values stay in use", problem)
        if not problems:
            logger.info("SIGHUP: tokens and certificates were reloaded")
        result = Reload(problems=problems)
        if found is not None:
            result = self._apply(found, problems)
        if self.follow is not None:
            self.follow(result)

    def _apply(self, found: Reread, problems: list[str]) -> Reload:
        changed = list(_changes(self._settings, found.settings))
        # Before or after the messages, so that a change of the log level is itself logged.
        if not logger.isEnabledFor(logging.INFO):
            set_level(found.settings.log_level)
        for line in changed:
            logger.info("SIGHUP: %s", line)
        # At level `error`: a token that was to be revoked may still be valid.
        for name in found.restart:
            logger.error("SIGHUP: %s changed, which needs a restart", name)
        set_level(found.settings.log_level)
        self._settings = found.settings
        return Reload(
            settings=found.settings, changed=changed, restart=found.restart, problems=problems
        )


def _changes(old: LiveSettings, new: LiveSettings) -> Iterator[str]:
    """Yield a sentence for each changed setting."""
    if new.log_level != old.log_level:
        yield f"log-level changed from {old.log_level} to {new.log_level}"
    for name in PrincipalLimits.__struct_fields__:
        was, now = getattr(old.limits, name), getattr(new.limits, name)
        if was != now:
            yield f"max-{name.replace('_', '-')} changed from {_number(was)} to {_number(now)}"


def _number(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _problem(error: Exception) -> str:
    """Return the text of an error; log an unexpected one with its traceback."""
    if isinstance(error, HoldfastError):
        return str(error)
    logger.error("the files of the server could not be read", exc_info=error)
    return repr(error)


def _has_terminal() -> bool:
    """Return True if this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True

"""
Observers of the processes of one owner, called at each start and each end, in order.

Sessions, telemetry and recorders are observers. This module knows none of them, and an exception
of one breaks neither a start nor another observer.
"""

import logging
from collections.abc import Iterable
from typing import Literal

from holdfast.engine.process.logged import LoggedProcess, sandbox_type
from holdfast.events import Verdict
from holdfast.wire.protocol.process import StartParams

__all__ = ["Observers", "Preparation", "ProcessObserver", "ProcessStart"]

logger = logging.getLogger(__name__)

# A bug of an observer is logged with its traceback, and does not become an error of a client.
_FAILED = "an observer of processes failed: %r"

Preparation = Literal["sandbox", "shell_snapshot"]
"""The last preparation that has to be complete before a process can be spawned."""


class ProcessStart:
    """
    One attempt to start a process.

    Two attempts with the same id are two objects. Each is compared by identity and can be
    referenced weakly, so an observer may keep its own record of it in a `WeakKeyDictionary`.
    """

    # `__weakref__` for the `WeakKeyDictionary` of observers.
    __slots__ = ("__weakref__", "params", "preparation")

    def __init__(self, params: StartParams) -> None:
        self.params = params
        """The request as the client made it."""
        self.preparation: Preparation = "shell_snapshot"
        """
        The last preparation, known when `ProcessObserver.prepared` is called.

        `sandbox` for a process that is spawned in one. All others have `shell_snapshot`,
        even if there was none to prepare: telemetry names the phase like that.
        """

    @property
    def sandbox_type(self) -> str:
        """The requested kind of sandbox, in the protocol's words."""
        return sandbox_type(self.params)


class ProcessObserver:
    """
    Base class of observers; every method does nothing unless overridden.

    All methods are called in the thread of the event loop and must return at once. An
    exception is logged and changes nothing else.
    """

    def preparing(self, start: ProcessStart) -> None:
        """
        Handle a request for a process, before it is checked.

        One call of `started` or `failed` follows. Neither follows if the caller drops a
        `PendingStart` without awaiting it.
        """

    def prepared(self, start: ProcessStart) -> None:
        """Handle the moment before the spawn; see `ProcessStart.preparation`."""

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        """Handle the start of a process; its log has no entry yet."""

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        """
        Handle a start that failed.

        The error is `SpawnFailed` if the kernel refused, another one if the request was
        refused, and `CancelledError` if the caller gave up.
        """

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        """Handle the exit of a process, which is in its log already; output may follow."""

    def closed(self, process: LoggedProcess) -> None:
        """Handle the close of a process, after which its log gets no more entries."""

    def forgotten(self, process: LoggedProcess) -> None:
        """Handle the removal of a closed process; drop all references to it."""


class Observers(ProcessObserver):
    """Composite of any number of observers, called in the order in which they were added."""

    def __init__(self, observers: Iterable[ProcessObserver] = ()) -> None:
        # Replaced, never changed: an observer may be added while the tuple is iterated.
        self._observers = tuple(observers)

    def add(self, observer: ProcessObserver) -> None:
        """Call one more observer, from the next event on."""
        self._observers = (*self._observers, observer)

    # Written out instead of one generic method: each is called for every process, and a
    # lookup by name would cost as much as the call.

    def preparing(self, start: ProcessStart) -> None:
        for observer in self._observers:
            try:
                observer.preparing(start)
            except Exception:
                logger.exception(_FAILED, observer)

    def prepared(self, start: ProcessStart) -> None:
        for observer in self._observers:
            try:
                observer.prepared(start)
            except Exception:
                logger.exception(_FAILED, observer)

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        for observer in self._observers:
            try:
                observer.started(start, process)
            except Exception:
                logger.exception(_FAILED, observer)

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        for observer in self._observers:
            try:
                observer.failed(start, error)
            except Exception:
                logger.exception(_FAILED, observer)

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        for observer in self._observers:
            try:
                observer.exited(process, verdict)
            except Exception:
                logger.exception(_FAILED, observer)

    def closed(self, process: LoggedProcess) -> None:
        for observer in self._observers:
            try:
                observer.closed(process)
            except Exception:
                logger.exception(_FAILED, observer)

    def forgotten(self, process: LoggedProcess) -> None:
        for observer in self._observers:
            try:
                observer.forgotten(process)
            except Exception:
                logger.exception(_FAILED, observer)

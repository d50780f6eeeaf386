"""
Observers of the processes of one owner: told of each start and each end, in order.

Sessions, telemetry and recorders are such. None of them is known here, and none can
break a start or another observer.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from holdfast.events import Verdict
from holdfast.protocol.process import StartParams

if TYPE_CHECKING:
    from holdfast.process.process import LocalProcess

__all__ = ["Observers", "Preparation", "ProcessObserver", "ProcessStart", "sandbox_type"]

logger = logging.getLogger(__name__)

_FAILED = "an observer of processes failed: %r"

Preparation = Literal["sandbox", "shell_snapshot"]
"""The last thing that had to be there before a process could be spawned."""


class ProcessStart:
    """
    One attempt to start a process.

    Two attempts with the same id are two objects. Each is compared by identity and can be
    referenced weakly, so an observer may keep its own record of it in a `WeakKeyDictionary`.
    """

    __slots__ = ("__weakref__", "params", "preparation")

    def __init__(self, params: StartParams) -> None:
        self.params = params
        """As it was asked for."""
        self.preparation: Preparation = "shell_snapshot"
        """
        What is prepared last, known when `ProcessObserver.prepared` is called.

        `sandbox` for what is spawned in one. Everything else is `shell_snapshot`, whether
        there was one to prepare or not.
        """

    @property
    def sandbox_type(self) -> str:
        """The kind of sandbox that was asked for, as on the wire."""
        return sandbox_type(self.params)


def sandbox_type(params: StartParams) -> str:
    """Return the kind of sandbox of a process that was started with these params."""
    # Also for a profile that isolates nothing, as the real server says it [sandbox.type].
    return "none" if params.sandbox is None else "linuxSeccomp"


class ProcessObserver:
    """
    Base of observers; every method does nothing unless overridden.

    All are called in the thread of the event loop, and must return at once. An exception
    is logged and changes nothing else.
    """

    def preparing(self, start: ProcessStart) -> None:
        """
        Take note of a request for a process, before it is looked at.

        One `started` or `failed` follows. Neither does if whoever asked drops a start that
        has to wait before it runs.
        """

    def prepared(self, start: ProcessStart) -> None:
        """Take note that the process is about to be spawned; see `ProcessStart.preparation`."""

    def started(self, start: ProcessStart, process: "LocalProcess") -> None:
        """Take a process that runs; nothing was logged for it yet."""

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        """
        Take the reason why there is no process.

        It is `SpawnFailed` if the system refused, another error if the request was, and
        `CancelledError` if whoever asked gave up.
        """

    def exited(self, process: "LocalProcess", verdict: Verdict) -> None:
        """Take the exit of a process, which is in its log by now; output may follow."""

    def closed(self, process: "LocalProcess") -> None:
        """Take the close of a process, after which nothing is logged for it."""

    def forgotten(self, process: "LocalProcess") -> None:
        """Take note that a closed process cannot be found any more, and let go of it."""


class Observers(ProcessObserver):
    """Any number of observers, as one; called in the order in which they were added."""

    def __init__(self, observers: Iterable[ProcessObserver] = ()) -> None:
        # Replaced, never changed: an observer may be added while others are being told.
        self._observers = tuple(observers)

    def add(self, observer: ProcessObserver) -> None:
        """Tell one more, from the next event on."""
        self._observers = (*self._observers, observer)

    # Spelled out, not one method for all: each is on the way of every process.

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

    def started(self, start: ProcessStart, process: "LocalProcess") -> None:
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

    def exited(self, process: "LocalProcess", verdict: Verdict) -> None:
        for observer in self._observers:
            try:
                observer.exited(process, verdict)
            except Exception:
                logger.exception(_FAILED, observer)

    def closed(self, process: "LocalProcess") -> None:
        for observer in self._observers:
            try:
                observer.closed(process)
            except Exception:
                logger.exception(_FAILED, observer)

    def forgotten(self, process: "LocalProcess") -> None:
        for observer in self._observers:
            try:
                observer.forgotten(process)
            except Exception:
                logger.exception(_FAILED, observer)

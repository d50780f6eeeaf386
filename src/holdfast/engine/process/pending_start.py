"""A start that has to wait before its process can be spawned."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Generic, TypeVar

from holdfast.base.errors import InvalidRequest
from holdfast.engine.process.served import ServedProcess

__all__ = ["PendingStart"]

P = TypeVar("P", bound=ServedProcess)


class PendingStart(Generic[P]):
    """
    A start that has to wait for files, a sandbox, limits or another machine.

    Nothing of it runs before it is awaited.
    """

    def __init__(
        self,
        process_id: str,
        run: Callable[["PendingStart[P]"], Coroutine[object, None, P]],
        *,
        is_plain: bool = False,
    ) -> None:
        """
        Args:
            process_id: The client's id of the process, for the error.
            run: Makes the start; called once, with this object.
            is_plain: True if callers are to see no difference to a start that is made at once,
                as when only files are waited for (see `ProcessTable.call_after_start`).
        """
        self._process_id = process_id
        self._run = run
        self.called_off = False
        """True after `call_off`; `check` reports it at the next step."""
        self.afterwards: list[Callable[[], None]] | None = [] if is_plain else None
        """Callbacks for its end, called in order; None unless it is plain."""
        self.task: asyncio.Task[None] | None = None
        """The task that makes it, once its connection is lost; `call_off` cancels it."""

    def call_off(self) -> None:
        """Cancel the start; it notices at its next step, and cleans up what it has made."""
        self.called_off = True
        # Nobody waits for the answer of this one, so it need not come to its next step.
        if self.task is not None:
            self.task.cancel()

    def check(self) -> None:
        """
        Raise if the start was called off; call this after each wait.

        Raises:
            InvalidRequest: The start was called off.
        """
        if self.called_off:
            raise InvalidRequest(f"process {self._process_id} start was cancelled")

    # Not a task: a start that its caller drops must not run, and its id must be free again.
    def __await__(self) -> Generator[object, None, P]:
        return self._run(self).__await__()

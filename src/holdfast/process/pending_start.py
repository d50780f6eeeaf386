"""A start that cannot be made at once, as its owner sees it until it is made."""

from collections.abc import Callable, Coroutine, Generator

from holdfast.errors import InvalidRequest
from holdfast.process.process import LocalProcess

__all__ = ["PendingStart"]


class PendingStart:
    """A start that has to wait for something. Nothing of it runs before it is awaited."""

    def __init__(
        self,
        process_id: str,
        run: Callable[["PendingStart"], Coroutine[object, None, LocalProcess]],
        *,
        is_plain: bool = False,
    ) -> None:
        """`is_plain`: it waits for files only, and would otherwise have been made at once."""
        self._process_id = process_id
        self._run = run
        self.called_off = False
        self.afterwards: list[Callable[[], None]] | None = [] if is_plain else None
        """Called at its end, in order; of a plain start only."""

    def check(self) -> None:
        """
        Whether it is still wanted.

        Raises:
            InvalidRequest: It was called off.
        """
        if self.called_off:
            raise InvalidRequest(f"process {self._process_id} start was cancelled")

    def __await__(self) -> Generator[object, None, LocalProcess]:
        return self._run(self).__await__()

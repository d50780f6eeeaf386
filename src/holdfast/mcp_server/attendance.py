"""Registry of running requests, by the principals that they belong to."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Attendance"]


def _ignore(key: str) -> None:
    """Do nothing: nobody wants to know."""


class Attendance:
    """
    Counts requests, and tells of the first and of the last one of a principal.

    A stream of a client is a request that lasts.
    """

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self.arrived: Callable[[str], None] = _ignore
        """Called with a key when its first request begins."""
        self.left: Callable[[str], None] = _ignore
        """Called with a key when its last request is over."""
        self.gone: Callable[[str], None] = _ignore
        """Called with a key that nobody can show any more."""

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """Count a request for the block."""
        self._requests[key] += 1
        if self._requests[key] == 1:
            self.arrived(key)
        try:
            yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]
                self.left(key)

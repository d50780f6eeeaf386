"""Counts the running requests of each principal."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from holdfast.base.errors import Overloaded

__all__ = ["Attendance", "Revoked"]

# Maximum running requests of a principal: a quarter of the server's connections.
_REQUESTS: Final = 1_024


class Revoked(Exception):
    """The token of a running request was revoked."""


def _ignore(key: str) -> None:
    """Do nothing, by default."""


class Attendance:
    """
    Counts requests, and notifies of the first and last one of a principal.

    An open stream counts as a request.
    """

    def __init__(self) -> None:
        # Timeouts of running requests, which expire when the token is revoked.
        self._requests: dict[str, set[asyncio.Timeout]] = {}
        self._revoked: set[str] = set()
        self.arrived: Callable[[str], None] = _ignore
        """Called with a key when its first request begins."""
        self.left: Callable[[str], None] = _ignore
        """Called with a key when its last request ends."""
        self.gone: Callable[[str], None] = _ignore
        """Called with a key that no client can use again."""
        self.has_commands: Callable[[str], bool] = lambda key: False
        """Returns True for a key whose principal has running commands."""

    @asynccontextmanager
    async def request(self, key: str) -> AsyncIterator[None]:
        """
        Count a request during the block.

        Raises:
            Overloaded: The principal has too many, which would keep others from connecting.
            Revoked: Its token was revoked meanwhile.
        """
        limit = asyncio.timeout(None)
        # The token may have been added again.
        self._revoked.discard(key)
        if len(self._requests.get(key, ())) >= _REQUESTS:
            raise Overloaded(f"this client has {_REQUESTS:,} running requests and streams")
        requests = self._requests.setdefault(key, set())
        requests.add(limit)
        if len(requests) == 1:
            self.arrived(key)
        try:
            async with limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise Revoked from None
            raise
        finally:
            requests.discard(limit)
            if not requests and self._requests.get(key) is requests:
                del self._requests[key]
                self.left(key)

    def revoke(self, key: str) -> int:
        """End the requests and the principal of a key; return the number of requests."""
        self._revoked.add(key)
        now = asyncio.get_running_loop().time()
        requests = self._requests.get(key, set())
        for limit in requests:
            if not limit.expired():
                limit.reschedule(now)
        self.gone(key)
        return len(requests)

    def is_revoked(self, key: str) -> bool:
        """Return True if the key was revoked; for running requests."""
        return key in self._revoked

"""Registry of running requests, by the principals that they belong to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from holdfast.base.errors import Overloaded

__all__ = ["Attendance", "Revoked"]

# Requests of one principal under way: a quarter of the connections that the server takes.
_REQUESTS: Final = 1_024


class Revoked(Exception):
    """The token of a request was revoked while it was under way."""


def _ignore(key: str) -> None:
    """Do nothing: nobody wants to know."""


class Attendance:
    """
    Counts requests, and tells of the first and of the last one of a principal.

    A stream of a client is a request that lasts.
    """

    def __init__(self) -> None:
        # The time limits of running requests; a revoked one lets them expire.
        self._requests: dict[str, set[asyncio.Timeout]] = {}
        self._revoked: set[str] = set()
        self.arrived: Callable[[str], None] = _ignore
        """Called with a key when its first request begins."""
        self.left: Callable[[str], None] = _ignore
        """Called with a key when its last request is over."""
        self.gone: Callable[[str], None] = _ignore
        """Called with a key that nobody can show any more."""
        self.has_commands: Callable[[str], bool] = lambda key: False
        """Returns True for a key whose principal has running commands."""

    @asynccontextmanager
    async def request(self, key: str) -> AsyncIterator[None]:
        """
        Count a request for the block.

        Raises:
            Overloaded: The principal has too many, so that others could not connect.
            Revoked: Its token was revoked meanwhile.
        """
        limit = asyncio.timeout(None)
        # The same token may have been added again.
        self._revoked.discard(key)
        if len(self._requests.get(key, ())) >= _REQUESTS:
            raise Overloaded(f"this client has {_REQUESTS:,} requests and streams under way")
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
        """End the requests of a key and its principal; return the number of requests."""
        self._revoked.add(key)
        now = asyncio.get_running_loop().time()
        requests = self._requests.get(key, set())
        for limit in requests:
            if not limit.expired():
                limit.reschedule(now)
        self.gone(key)
        return len(requests)

    def is_revoked(self, key: str) -> bool:
        """Return True if the key was revoked, for a request that is still under way."""
        return key in self._revoked

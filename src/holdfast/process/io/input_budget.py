"""
Bounds on the input that waits in memory for processes that do not read it.

Whoever owns processes has a budget, and all owners of a server share a total. When half of it
is used, each process gets little ahead: its next write is answered when it has read. So an
owner that waits for the answers is only held up. A write whose bytes do not fit at all is
refused, so it costs nothing to hold, and the owner can still terminate a process that does not
read. One owner may fill the total, but each of the others keeps a small share of its own.
"""

from holdfast.errors import InvalidRequest

__all__ = ["MAX_OWNER_BYTES", "MAX_TOTAL_BYTES", "SHARE_BYTES", "InputBudget", "InputTotal"]

MAX_OWNER_BYTES = 64 << 20
"""Bytes that wait for all processes of one owner, such as a session; one message has as many."""

MAX_TOTAL_BYTES = 256 << 20
"""Bytes that wait in all; beyond them, each owner has only its share."""

SHARE_BYTES = 1 << 20
"""Bytes that every owner may have waiting, however much others have."""


class InputTotal:
    """The bytes that wait for all owners together."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0


class InputBudget:
    """The bytes that wait for the processes of one owner."""

    __slots__ = ("_total", "waiting")

    def __init__(self, total: InputTotal | None = None) -> None:
        """`total` is shared with other owners; none by default."""
        self._total = InputTotal() if total is None else total
        self.waiting = 0

    @property
    def is_tight(self) -> bool:
        """True if half of what may wait does."""
        return 2 * self.waiting > MAX_OWNER_BYTES or 2 * self._total.waiting > MAX_TOTAL_BYTES

    def take(self, size: int) -> None:
        """
        Book bytes that have to wait.

        One write may have any size while nothing else waits: that is up to who sends it.

        Raises:
            InvalidRequest: They are more than may wait.
        """
        mine = self.waiting + size
        if self.waiting and mine > MAX_OWNER_BYTES:
            raise InvalidRequest(
                f"{self.waiting} bytes of input wait for processes that do not read them, and"
                f" {size} more would exceed the limit of {MAX_OWNER_BYTES} for one client"
            )
        total = self._total.waiting
        if total and mine > SHARE_BYTES and total + size > MAX_TOTAL_BYTES:
            raise InvalidRequest(
                f"{total} bytes of input wait for processes that do not read them,"
                f" and {size} more would exceed the limit of {MAX_TOTAL_BYTES} for this server"
            )
        self.waiting = mine
        self._total.waiting += size

    def give_back(self, size: int) -> None:
        """Note that bytes wait no more."""
        self.waiting -= size
        self._total.waiting -= size

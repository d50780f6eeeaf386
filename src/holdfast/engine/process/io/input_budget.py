"""
Limits of the input that is queued in memory for processes that do not read it.

Each owner of processes has a budget, and all owners of a server share a total. When half of either
is used, each process may queue only a little: its next write is answered once it has read. So an
owner that waits for answers is slowed down, but loses nothing. A write that does not fit at all is
refused, and the owner can still terminate the process that does not read. One owner may fill the
total, but each of the others keeps a small share.
"""

from holdfast.base.errors import InvalidRequest

__all__ = ["MAX_OWNER_BYTES", "MAX_TOTAL_BYTES", "SHARE_BYTES", "InputBudget", "InputTotal"]

# Bytes queued for all processes of one owner, such as a session; the size of one message.
MAX_OWNER_BYTES = 64 << 20

# Bytes queued for all owners together; beyond them, each owner has only its share.
MAX_TOTAL_BYTES = 256 << 20

# Bytes that every owner may queue, however much others have.
SHARE_BYTES = 1 << 20


class InputTotal:
    """Counter of the bytes queued for all owners together."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0


class InputBudget:
    """Counter of the bytes queued for the processes of one owner, with its limits."""

    __slots__ = ("_total", "waiting")

    def __init__(self, total: InputTotal | None = None) -> None:
        """`total` is shared with other owners; by default there are no others."""
        self._total = InputTotal() if total is None else total
        self.waiting = 0

    @property
    def is_tight(self) -> bool:
        """True if more than half of the owner's budget or of the total is used."""
        return 2 * self.waiting > MAX_OWNER_BYTES or 2 * self._total.waiting > MAX_TOTAL_BYTES

    def take(self, size: int) -> None:
        """
        Book bytes that are about to be queued.

        A single write may have any size while nothing else is queued: the transport bounds it.

        Raises:
            InvalidRequest: The bytes exceed a limit.
        """
        mine = self.waiting + size
        # `self.waiting and`: a single write of any size passes while nothing else is queued.
        if self.waiting and mine > MAX_OWNER_BYTES:
            raise InvalidRequest(
                f"{self.waiting} bytes of input wait for processes that do not read them, and"
                f" {size} more would exceed the limit of {MAX_OWNER_BYTES} for one client"
            )
        # The share comes first: one owner that fills the total must not stop all others.
        total = self._total.waiting
        if total and mine > SHARE_BYTES and total + size > MAX_TOTAL_BYTES:
            raise InvalidRequest(
                f"{total} bytes of input wait for processes that do not read them,"
                f" and {size} more would exceed the limit of {MAX_TOTAL_BYTES} for this server"
            )
        self.waiting = mine
        self._total.waiting += size

    def give_back(self, size: int) -> None:
        """Release bytes that are no longer queued."""
        self.waiting -= size
        self._total.waiting -= size

"""Starts, calls, output and exits on a backend, in order."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias, TypeVar

from holdfast.base.errors import HoldfastError
from holdfast.events import Exited, ProcessEvent, Verdict
from holdfast.testing.fake_calls import Asked
from holdfast.testing.fake_line import Changes
from holdfast.wire.protocol.process import OutputChunk, OutputStream, StartParams

__all__ = ["MAX_RECORDED", "LostProcess", "Recorded", "Recording", "written"]

MAX_RECORDED = 64 << 20
"""Most bytes of output and input that a recording keeps."""

T = TypeVar("T")


class LostProcess(NamedTuple):
    """The loss of a process that can no longer be reached."""

    error: HoldfastError


What: TypeAlias = StartParams | HoldfastError | Asked | ProcessEvent | LostProcess


class Recorded(NamedTuple):
    """One entry about one process."""

    process_id: str
    what: What
    """
    The request of its start, the error of a failed start, a call of the seam, an event, or the
    loss of a started process.
    """


class Recording:
    """
    Everything that happened on a backend, oldest first.

    Entries of one process are in the order of its events, with calls where they were made.
    """

    def __init__(self, max_bytes: int = MAX_RECORDED) -> None:
        """`max_bytes` bounds the total of output and input that is kept."""
        self.entries: list[Recorded] = []
        self.truncated = False
        """True if output or input beyond `max_bytes` was left out."""
        self._left = max_bytes
        self._changes = Changes()

    def __iter__(self) -> Iterator[Recorded]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, process_id: str, what: What) -> None:
        """Add an entry, unless its bytes exceed the limit."""
        # Only bytes are counted: a test makes few entries without any.
        size = _size(what)
        if size > self._left:
            self.truncated = True
        else:
            self._left -= size
            self.entries.append(Recorded(process_id, what))
        self._changes.notify()

    async def until(self, holds: Callable[[], bool]) -> None:
        """
        Wait until a condition holds. It is checked after each new entry.

        Raises:
            TimeoutError: It did not hold within 5 s.
        """
        await self._changes.until(holds)

    # -- for the test

    @property
    def starts(self) -> list[StartParams]:
        """The requests of all starts, including failed ones."""
        return self._all(StartParams)

    @property
    def failures(self) -> list[HoldfastError]:
        """The errors of all failed starts."""
        return self._all(HoldfastError)

    def calls(self, process_id: str) -> list[Asked]:
        """Return the calls of a process, except reads."""
        return self._all(Asked, process_id)

    def output(self, process_id: str, stream: OutputStream | None = None) -> bytes:
        """Return the output of a process, from one stream or all."""
        chunks = self._all(OutputChunk, process_id)
        return b"".join(it.chunk for it in chunks if stream is None or it.stream == stream)

    def input(self, process_id: str) -> bytes:
        """Return the bytes written to a process."""
        return b"".join(written(call) for call in self.calls(process_id))

    def verdict(self, process_id: str) -> Verdict | None:
        """Return how a process ended; None while it runs."""
        ends = self._all(Exited, process_id)
        return ends[0].verdict if ends else None

    def _all(self, kind: type[T], process_id: str | None = None) -> list[T]:
        return [
            it.what
            for it in self.entries
            if isinstance(it.what, kind) and process_id in (None, it.process_id)
        ]


def written(call: Asked) -> bytes:
    """Return the bytes of a write; empty for any other call."""
    data = call.arguments[0] if call.call == "write" else b""
    return data if isinstance(data, bytes) else b""


def _size(what: object) -> int:
    if isinstance(what, OutputChunk):
        return len(what.chunk)
    return len(written(what)) if isinstance(what, Asked) else 0

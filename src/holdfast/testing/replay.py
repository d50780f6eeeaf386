"""Plays a recording again, on a fake backend."""

from collections import Counter

from holdfast.base.errors import HoldfastError
from holdfast.events import Closed, Exited, Gap, ProcessEvent, StreamEnded
from holdfast.testing.fake_backend import FakeBackend
from holdfast.testing.fake_calls import Asked
from holdfast.testing.fake_process import FakeProcess
from holdfast.testing.recording import LostProcess, Recorded, Recording, written
from holdfast.wire.protocol.process import OutputChunk, StartParams

__all__ = ["replay"]


def replay(recording: Recording) -> FakeBackend:
    """
    Return a backend on which the recorded commands do again what they did.

    A start is answered by the first recorded one with the same arguments that was not played
    yet, an error or a loss included. The process waits for as much input as was written before each
    output. A start that was not recorded is left to the test, as on any `FakeBackend`.
    """
    backend = FakeBackend()
    # In the order of the recording: the first that matches is played.
    for start in _by_start(recording):
        take = _Take(start)
        backend.on(take.matches, take.error or take.play)
    return backend


class _Take:
    """One recorded process, which is played once."""

    def __init__(self, entries: list[Recorded]) -> None:
        params, *self._entries = [entry.what for entry in entries]
        # The first entry of each process is its start.
        assert isinstance(params, StartParams)
        self._argv = params.argv
        self._taken = False
        first = self._entries[0] if self._entries else None
        self.error = first if isinstance(first, HoldfastError) else None

    def matches(self, params: StartParams) -> bool:
        """Return True for the first start with these arguments, and never again."""
        # Only by the arguments: variables and directories differ from machine to machine.
        if self._taken or params.argv != self._argv:
            return False
        self._taken = True
        return True

    async def play(self, process: FakeProcess) -> int:
        """Do what the recorded process did, in its order."""
        asked: Counter[str] = Counter()
        for what in self._entries:
            if isinstance(what, Asked):
                asked[what.call] += 1
                await _wait_for(process, what, asked[what.call])
            elif isinstance(what, LostProcess):
                process.fail(what.error)
            elif not isinstance(what, StartParams | HoldfastError):
                _happen(process, what)
        # Without a recorded exit it runs on, until it is killed.
        await process.line.changes.wait(lambda: not process.running)
        return 0


async def _wait_for(process: FakeProcess, asked: Asked, count: int) -> None:
    """Wait until the process is asked what it was asked then, for so many times in all."""
    if asked.call == "write":
        left = len(written(asked))
        # All its bytes: they may come in other pieces this time.
        while left > 0 and (data := await process.next_input(left)):
            left -= len(data)
        return
    await process.line.changes.wait(
        lambda: sum(it.call == asked.call for it in process.asked) >= count
    )


def _happen(process: FakeProcess, event: ProcessEvent) -> None:
    match event:
        case OutputChunk():
            process.output(event.chunk, event.stream)
        case StreamEnded():
            process.stream_ended(event.stream)
        case Gap():
            process.gap(event.last_seq - event.first_seq + 1)
        case Exited():
            process.exit(event.verdict)
        case Closed():
            process.close()


def _by_start(recording: Recording) -> list[list[Recorded]]:
    """Return the entries of each start, with what happened to its process."""
    found: list[list[Recorded]] = []
    latest: dict[str, list[Recorded]] = {}
    for entry in recording:
        if isinstance(entry.what, StartParams):
            latest[entry.process_id] = []
            found.append(latest[entry.process_id])
        # A recording begins with the start of each process; an id may be used again later.
        latest[entry.process_id].append(entry)
    return found

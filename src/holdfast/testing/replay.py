"""Replays a recording on a fake backend."""

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
    Return a backend that replays the recorded commands.

    A start replays the first recorded start with the same arguments that was not replayed yet,
    including errors and losses. Before each output, the process waits for as much input as was
    written then. The test drives starts that were not recorded, as on any `FakeBackend`.
    """
    backend = FakeBackend()
    # In the order of the recording: the first match is played.
    for start in _by_start(recording):
        take = _Take(start)
        backend.on(take.matches, take.error or take.play)
    return backend


class _Take:
    """One recorded process, to be played once."""

    def __init__(self, entries: list[Recorded]) -> None:
        params, *self._entries = [entry.what for entry in entries]
        # The first entry of each process is its start.
        assert isinstance(params, StartParams)
        self._argv = params.argv
        self._taken = False
        first = self._entries[0] if self._entries else None
        self.error = first if isinstance(first, HoldfastError) else None

    def matches(self, params: StartParams) -> bool:
        """Return True for the first start with these arguments, and False afterwards."""
        # Only the arguments count: variables and directories differ between machines.
        if self._taken or params.argv != self._argv:
            return False
        self._taken = True
        return True

    async def play(self, process: FakeProcess) -> int:
        """Do what the recorded process did, in order."""
        asked: Counter[str] = Counter()
        for what in self._entries:
            if isinstance(what, Asked):
                asked[what.call] += 1
                await _wait_for(process, what, asked[what.call])
            elif isinstance(what, LostProcess):
                process.fail(what.error)
            elif not isinstance(what, StartParams | HoldfastError):
                _happen(process, what)
        # Without a recorded exit it runs until it is killed.
        await process.line.changes.wait(lambda: not process.running)
        return 0


async def _wait_for(process: FakeProcess, asked: Asked, count: int) -> None:
    """Wait for a recorded call, until the process has received `count` such calls in total."""
    if asked.call == "write":
        left = len(written(asked))
        # Wait for all bytes: this time they may come in different pieces.
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
    """Return the entries of each start and its process."""
    found: list[list[Recorded]] = []
    latest: dict[str, list[Recorded]] = {}
    for entry in recording:
        if isinstance(entry.what, StartParams):
            latest[entry.process_id] = []
            found.append(latest[entry.process_id])
        # The first entry of each process is its start; an id may be reused later.
        latest[entry.process_id].append(entry)
    return found

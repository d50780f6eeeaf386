"""
Ends of commands by chance, in virtual time, against a model of [command-exec.end.*].

`HOLDFAST_COMMAND_RUNS=1000` plays so many on each kind of environment, and 70 otherwise.
"""

import asyncio
import os
import random
from dataclasses import dataclass, field

import pytest

from holdfast.front.app_server.command_exec import (
    Command,
    CommandExec,
    DrainPolicy,
    DuplicateCommand,
)
from holdfast.front.app_server.command_exec import NoLongerRunning as Late
from holdfast.testing import FakeEnvironment, FakeProcess
from holdfast.wire.protocol.process import OutputStream
from tests.depth import times

pytestmark = pytest.mark.virtual_time

RUNS = int(os.environ.get("HOLDFAST_COMMAND_RUNS", times(70)))
QUIET = DrainPolicy().quiet or 0.0
LIMIT = DrainPolicy().limit
STREAMS: tuple[OutputStream, ...] = ("stdout", "stderr")


@dataclass
class Stream:
    """Events of one stream, and the result that the specification demands."""

    writes: list[tuple[float, bytes]]
    """In order of their times."""
    end: float | None
    """The time at which the last holder closes it; `None`: it stays open."""
    kept: bytes = b""
    over: float = 0.0
    given_up: bool = False

    def judge(self, exit_time: float, cap: int | None) -> None:
        """Work out which bytes are kept, and when the stream is over."""
        since = exit_time
        for when, data in self.writes:
            due = min(since + QUIET, exit_time + LIMIT)
            if when > due:
                self.over, self.given_up = due, True
                return
            since = max(since, when)
            self.kept += data
            if cap is not None and len(self.kept) >= cap:
                self.kept, self.over = self.kept[:cap], since
                return
        due = min(since + QUIET, exit_time + LIMIT)
        self.given_up = self.end is None or self.end > due
        self.over = due if self.given_up or self.end is None else max(self.end, exit_time)


@dataclass
class Schedule:
    """One command from its start to its end; all times count from the start."""

    exit_time: float
    cap: int | None
    streams: dict[OutputStream, Stream]
    controls: list[float]
    events: list[tuple[float, OutputStream | None, bytes | None]] = field(default_factory=list)
    """Everything that happens, in order: no stream is the exit, no bytes are an end."""

    @property
    def over(self) -> float:
        return max(self.exit_time, *(stream.over for stream in self.streams.values()))

    @property
    def given_up(self) -> bool:
        return any(stream.given_up for stream in self.streams.values())


def made_up(made: random.Random, *, ends_are_told: bool) -> Schedule:
    """Return a schedule by chance whose times are never the same."""
    exit_time = made.uniform(0.01, 0.3)
    cap = made.choice([None, None, 0, 1, 5, 40])
    streams: dict[OutputStream, Stream] = {}
    for name in STREAMS:
        writes = []
        now = made.uniform(0, 0.3)
        # Most pauses after the exit are just within the window or just beyond it.
        longest = made.choice([0.02, 0.049, 0.049, 0.06])
        for number in range(made.choice([0, 1, 3, 10, 100])):
            writes.append((now, b"%d," % number))
            now += made.uniform(0.001, longest)
        end = now if made.random() < 0.5 else None
        streams[name] = Stream(writes, end)
    if not ends_are_told:
        # Such a server tells of the end of both, as the close, and not before the exit.
        ends = [stream.end for stream in streams.values()]
        last = None if None in ends else max([exit_time, *(end for end in ends if end is not None)])
        for stream in streams.values():
            stream.end = last
    schedule = Schedule(exit_time, cap, streams, [made.uniform(0, 0.5) for _ in range(3)])
    for name, stream in streams.items():
        stream.judge(exit_time, cap)
        schedule.events += [(when, name, data) for when, data in stream.writes]
        if stream.end is not None:
            schedule.events.append((stream.end, name, None))
    schedule.events.append((exit_time, None, None))
    schedule.events.sort(key=lambda event: event[0])
    return schedule


class Player:
    """Lets a fake process do what a schedule says."""

    def __init__(self, process: FakeProcess, schedule: Schedule) -> None:
        self._process = process
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()

    async def at(self, when: float) -> None:
        await asyncio.sleep(self._start + when - self._loop.time())

    @property
    def now(self) -> float:
        return self._loop.time() - self._start

    async def play(self) -> None:
        ended = set()
        process = self._process
        for when, name, data in self._schedule.events:
            await self.at(when)
            if name is None:
                process.exit(7)
            elif data is not None:
                process.output(data, name)
            else:
                ended.add(name)
                if process.running or len(ended) < len(STREAMS):
                    process.stream_ended(name)
            if not process.running and len(ended) == len(STREAMS):
                process.close()
                return

    async def control(self, commands: CommandExec, command: Command, when: float) -> None:
        """A control works before the exit, and fails from then on; the id is taken meanwhile."""
        await self.at(when)
        if when < self._schedule.exit_time:
            await command.write(b"x")
        else:
            with pytest.raises(Late):
                await command.write(b"x")
            with pytest.raises(Late):
                await command.terminate()
        if when < self._schedule.over:
            with pytest.raises(DuplicateCommand):
                await commands.start(["other"], process_id="c")


async def run(
    commands: CommandExec, env: FakeEnvironment, schedule: Schedule, stream: bool
) -> None:
    command = await commands.start(
        ["fake"],
        process_id="c",
        stream=stream,
        stdin=True,
        cap=schedule.cap,
        timeout=None,
        accept_missing=["closeStdin"],
    )
    process = env.backend.processes[-1]
    # What comes too late would have it killed, which is another matter.
    process.dies_when_killed = False
    player = Player(process, schedule)
    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(player.play())
        controls = [
            tasks.create_task(player.control(commands, command, when)) for when in schedule.controls
        ]
        found = {"stdout": b"", "stderr": b""}
        if stream:
            async for delta in command.output():
                found[delta.stream] += delta.data
        done = await command.wait()
        assert player.now == pytest.approx(schedule.over, abs=1e-6)
        assert (done.exit_code, done.drain_timed_out) == (7, schedule.given_up)
        out, err = (schedule.streams[name].kept for name in STREAMS)
        if stream:
            assert found == {"stdout": out, "stderr": err}
        else:
            assert (done.stdout, done.stderr) == (out, err)
        await asyncio.wait([playing, *controls])


@pytest.mark.requirement("command-exec.end.by-chance")
async def test_every_end_is_as_specified(fake: FakeEnvironment) -> None:
    ends_are_told = (await fake.capabilities()).process_ack
    for number in range(RUNS):
        made = random.Random(number)
        schedule = made_up(made, ends_are_told=ends_are_told)
        async with CommandExec(fake) as commands:
            try:
                await run(commands, fake, schedule, stream=made.random() < 0.5)
            except BaseException as error:
                error.add_note(f"schedule {number}: {schedule}")
                raise
        fake.backend.processes.clear()

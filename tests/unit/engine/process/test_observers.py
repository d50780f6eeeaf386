"""Observers of processes: what they are told, in which order, and that they break nothing."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import DuplicateProcess, InvalidParams, InvalidRequest, SpawnFailed
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.process import ShellSnapshotParams, ShellSnapshotShell, StartParams
from tests.unit.engine.process.starting import LIMIT, PATH, closed, launch, output, program, shell


class Diary(ProcessObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.starts: list[ProcessStart] = []

    @property
    def words(self) -> list[str]:
        return [entry[0] for entry in self.told]

    def preparing(self, start: ProcessStart) -> None:
        self.starts.append(start)
        self.told.append(("preparing", start.params.process_id))

    def prepared(self, start: ProcessStart) -> None:
        assert start in self.starts
        self.told.append(("prepared", start.preparation))

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        assert start in self.starts
        self.told.append(("started", process.process_id, process.log.next_seq))

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        assert start in self.starts
        self.told.append(("failed", type(error)))

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        assert process.log.verdict is verdict
        self.told.append(("exited", verdict.reason, process.log.closed))

    def closed(self, process: LoggedProcess) -> None:
        assert process.log.closed
        self.told.append(("closed", process.process_id))


def login(folder: Path, **more: Any) -> StartParams:
    """A start that has to wait for a profile."""
    bash = ShellSnapshotShell(name="bash", path="/bin/bash")
    env = {"HOME": str(folder), "PATH": PATH}
    request = ShellSnapshotParams(scope_id="s", shell=bash)
    return program("/bin/bash", "-lc", "exit 3", env=env, shell_snapshot=request, **more)


async def test_a_life_is_told_from_the_request_to_the_close() -> None:
    diary = Diary()
    processes = ProcessRegistry(observers=[diary])
    await closed(launch(processes, shell("echo out; exit 2")))
    assert diary.told == [
        ("preparing", "p"),
        ("prepared", "shell_snapshot"),
        ("started", "p", 1),  # nothing is logged yet
        ("exited", Reason.EXITED, False),
        ("closed", "p"),
    ]


async def test_who_subscribes_at_the_start_misses_nothing(tmp_path: Path) -> None:
    seen: list[bytes] = []

    class Subscriber(ProcessObserver):
        def started(self, start: ProcessStart, process: LoggedProcess) -> None:
            process.log.wake_once(lambda: seen.append(output(process)))

    processes = ProcessRegistry(observers=[Subscriber()])
    await closed(launch(processes, shell("echo out")))
    assert seen == [b"out\n"]


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        (program(), InvalidParams, ["preparing", "failed"]),
        (program("/no/such"), SpawnFailed, ["preparing", "prepared", "failed"]),
    ],
    ids=["refused", "not spawned"],
)
async def test_a_start_that_fails_is_told_with_its_error(
    params: StartParams, error: type[Exception], words: list[str]
) -> None:
    diary = Diary()
    processes = ProcessRegistry(observers=[diary])
    with pytest.raises(error):
        processes.launch(params)
    assert diary.words == words
    told, kind = diary.told[-1]
    assert told == "failed"
    assert issubclass(kind, error)


async def test_two_attempts_with_one_id_are_told_apart() -> None:
    diary = Diary()
    processes = ProcessRegistry(observers=[diary])
    params = program("/bin/cat", pipe_stdin=True)
    process = launch(processes, params)
    with pytest.raises(DuplicateProcess):
        processes.launch(params)  # even the very same params
    first, second = diary.starts
    assert first is not second
    assert first.params is second.params is params
    assert diary.told[-1] == ("failed", DuplicateProcess)
    await process.terminate()
    await closed(process)


async def test_a_start_that_waits_is_told_like_any_other(tmp_path: Path) -> None:
    diary = Diary()
    processes = ProcessRegistry(observers=[diary])
    waiting = processes.launch(login(tmp_path))
    assert isinstance(waiting, Awaitable)
    assert diary.words == ["preparing"]
    async with asyncio.timeout(LIMIT):
        await closed(await waiting)
    assert diary.words == ["preparing", "prepared", "started", "exited", "closed"]


async def test_a_start_that_is_called_off_or_given_up_has_failed(tmp_path: Path) -> None:
    diary = Diary()
    processes = ProcessRegistry(observers=[diary])
    waiting = processes.launch(login(tmp_path))
    assert isinstance(waiting, Awaitable)
    await processes.terminate("p")
    with pytest.raises(InvalidRequest, match="start was cancelled"):
        await waiting
    assert diary.words[-1] == "failed"

    (tmp_path / ".bash_profile").write_text("sleep 60")
    again = processes.launch(login(tmp_path, cwd=str(tmp_path)))
    assert isinstance(again, Awaitable)
    task = asyncio.ensure_future(again)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert diary.told[-1] == ("failed", asyncio.CancelledError)


async def test_a_start_that_is_dropped_leaves_no_record(tmp_path: Path) -> None:
    records: weakref.WeakKeyDictionary[ProcessStart, str] = weakref.WeakKeyDictionary()

    class Recorder(ProcessObserver):
        def preparing(self, start: ProcessStart) -> None:
            records[start] = "mine"

    processes = ProcessRegistry(observers=[Recorder()])
    waiting = processes.launch(login(tmp_path))
    assert len(records) == 1
    del waiting
    gc.collect()
    assert len(records) == 0


class Broken(ProcessObserver):
    """Fails whatever it is told."""

    def preparing(self, start: ProcessStart) -> None:
        raise RuntimeError("preparing")

    def prepared(self, start: ProcessStart) -> None:
        raise RuntimeError("prepared")

    def started(self, start: ProcessStart, process: LoggedProcess) -> None:
        raise RuntimeError("started")

    def failed(self, start: ProcessStart, error: BaseException) -> None:
        raise RuntimeError("failed")

    def exited(self, process: LoggedProcess, verdict: Verdict) -> None:
        raise RuntimeError("exited")

    def closed(self, process: LoggedProcess) -> None:
        raise RuntimeError("closed")


async def test_an_observer_that_fails_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    diary = Diary()
    processes = ProcessRegistry(observers=[Broken(), diary])
    with caplog.at_level(logging.ERROR):
        assert (await closed(launch(processes, shell("exit 2")))).exit_code == 2
        with pytest.raises(SpawnFailed):
            processes.launch(program("/no/such", process_id="q"))
    assert len(diary.told) == len(caplog.records) == 8
    assert {record.name for record in caplog.records} == {"holdfast.engine.process.observers"}
    assert all(record.exc_info for record in caplog.records)


async def test_an_observer_may_come_later() -> None:
    processes = ProcessRegistry()
    process = launch(processes, program("/bin/cat", pipe_stdin=True))
    diary = Diary()
    processes.add_observer(diary)
    await process.close_stdin()
    await closed(process)
    assert diary.words == ["exited", "closed"]


async def test_an_observer_may_add_another() -> None:
    diary = Diary()

    class Adder(ProcessObserver):
        def started(self, start: ProcessStart, process: LoggedProcess) -> None:
            processes.add_observer(diary)

    processes = ProcessRegistry(observers=[Adder()])
    await closed(launch(processes, shell("exit 0")))
    assert diary.words == ["exited", "closed"]

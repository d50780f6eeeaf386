"""Output of closed processes, bounded for all of a table together."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.process_table import ClosedProcesses
from holdfast.events import Exited, Gap, Reason, Verdict

KIB = 1 << 10


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.process.process_table.MAX_OUTPUT", 8 * KIB)


def table(retention: float = 80.0) -> ClosedProcesses:
    return ClosedProcesses(asyncio.get_running_loop(), retention, lambda process: None)


def close(
    processes: ClosedProcesses, size: int, *, chunks: int = 1, pinned_after: int | None = None
) -> OutputLog:
    """Close a process that has written so many bytes, and return its log."""
    log = OutputLog()
    log.pin(pinned_after)
    for _ in range(chunks):
        log.append("stdout", bytes(size // chunks))
    log.exit(Verdict(reason=Reason.EXITED, exit_code=0))
    log.close()
    processes.add(cast("LoggedProcess", SimpleNamespace(log=log)))
    return log


def kept(logs: list[OutputLog]) -> list[int]:
    return [log.retained_bytes // KIB for log in logs]


async def test_the_oldest_output_is_dropped_and_the_end_of_its_process_stays() -> None:
    processes = table()
    logs = [close(processes, KIB) for _ in range(7)]
    assert kept(logs) == [1] * 7
    logs.append(close(processes, KIB))
    # Down to three quarters of the limit, so that not every close drops something.
    assert kept(logs) == [0] * 3 + [1] * 5
    gap, end, _ = logs[0].entries()
    assert isinstance(gap, Gap)
    assert isinstance(end, Exited)
    assert logs[0].read().next_seq == 4
    assert not processes.exceeds()


async def test_small_chunks_count_with_the_memory_that_they_take() -> None:
    processes = table()
    logs = [close(processes, 40, chunks=40) for _ in range(2)]
    assert [log.retained_bytes for log in logs] == [0, 40]


async def test_what_is_not_acknowledged_stays_until_it_is() -> None:
    processes = table()
    logs = [close(processes, 4 * KIB, chunks=4, pinned_after=0) for _ in range(3)]
    assert kept(logs) == [4, 4, 4]
    assert processes.exceeds()
    logs[1].pin(2)
    assert kept(logs) == [4, 2, 4]
    assert processes.exceeds()
    logs[2].pin(6)
    assert kept(logs) == [4, 2, 0]
    assert not processes.exceeds()


async def test_output_is_not_counted_twice_that_was_acknowledged_meanwhile() -> None:
    processes = table()
    first = close(processes, 6 * KIB, chunks=6, pinned_after=0)
    first.pin(6)
    first.drop_output()
    second = close(processes, 4 * KIB)
    assert kept([first, second]) == [0, 4]


async def test_a_log_that_is_kept_by_a_reader_alone_is_left_alone() -> None:
    processes = table(retention=0.0)
    logs = [close(processes, 4 * KIB) for _ in range(4)]
    assert kept(logs) == [4] * 4
    assert not processes.exceeds()

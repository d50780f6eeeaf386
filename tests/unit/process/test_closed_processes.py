"""Output of closed processes, bounded for all of them together."""

import gc

from holdfast.events import Exited, Gap, Reason, Verdict
from holdfast.process.closed_processes import ClosedOutput
from holdfast.process.io.log import OutputLog

KIB = 1 << 10


def closed(size: int, *, chunks: int = 1, pinned_after: int | None = None) -> OutputLog:
    """Return the log of a process that has written so many bytes and is closed."""
    log = OutputLog()
    log.pin(pinned_after)
    for _ in range(chunks):
        log.append("stdout", bytes(size // chunks))
    log.exit(Verdict(reason=Reason.EXITED, exit_code=0))
    log.close()
    return log


def kept(logs: list[OutputLog]) -> list[bool]:
    return [log.retained_bytes > 0 for log in logs]


def test_the_oldest_output_is_dropped_and_the_end_of_its_process_stays() -> None:
    output = ClosedOutput(8 * KIB)
    logs = [closed(KIB) for _ in range(7)]
    for log in logs:
        output.add(log)
    assert kept(logs) == [True] * 7
    logs.append(closed(KIB))
    output.add(logs[-1])
    # Down to three quarters of the limit, so that not every close drops something.
    assert kept(logs) == [False] * 3 + [True] * 5
    gap, end, _ = logs[0].entries()
    assert isinstance(gap, Gap)
    assert isinstance(end, Exited)
    assert logs[0].read().next_seq == 4
    assert not output.exceeds()


def test_small_chunks_count_with_what_they_take() -> None:
    output = ClosedOutput(64 * KIB)
    logs = [closed(300, chunks=300), closed(300, chunks=300)]
    for log in logs:
        output.add(log)
    assert kept(logs) == [False, True]


def test_what_is_not_acknowledged_stays_until_it_is() -> None:
    output = ClosedOutput(8 * KIB)
    logs = [closed(4 * KIB, chunks=4, pinned_after=0) for _ in range(3)]
    for log in logs:
        output.add(log)
    assert [log.retained_bytes for log in logs] == [4 * KIB] * 3
    assert output.exceeds()
    # Later output is dropped although older output has to stay.
    last = closed(KIB)
    logs[0].pin(2)
    assert logs[0].retained_bytes == 2 * KIB
    output.add(last)
    assert output.exceeds()
    logs[1].pin(4)
    logs[2].pin(4)
    assert not output.exceeds()
    assert kept(logs) == [True, False, False]


def test_logs_of_a_table_that_has_ended_do_not_count() -> None:
    output = ClosedOutput(8 * KIB)
    for _ in range(3):
        output.add(closed(4 * KIB, pinned_after=0))
    gc.collect()
    assert not output.exceeds()
    log = closed(4 * KIB)
    output.add(log)
    assert kept([log]) == [True]


def test_a_process_without_output_costs_nothing() -> None:
    output = ClosedOutput(KIB)
    for _ in range(100):
        output.add(closed(0, chunks=0))
    assert not output.exceeds()

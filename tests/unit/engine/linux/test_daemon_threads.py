"""Pools of daemon threads: bounded, used again, and none in the child of a fork."""

import threading
from queue import SimpleQueue

import pytest

from holdfast.engine.linux.daemon_threads import DaemonThreads

LIMIT = 5.0


class Held:
    """Work that has begun in a thread and waits there."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.may_end.wait(LIMIT)


def test_no_more_threads_than_the_bound_are_at_work() -> None:
    pool, works = DaemonThreads("test", 2), [Held(), Held()]
    for work in works:
        pool.start(work)
        assert work.begun.wait(LIMIT)
    with pytest.raises(RuntimeError, match="all 2 threads `test` are in use"):
        pool.start(Held())
    assert pool.is_full
    late: SimpleQueue[threading.Thread] = SimpleQueue()
    pool.start(lambda: late.put(threading.current_thread()), may_wait=True)
    assert late.empty()
    works[1].may_end.set()
    assert late.get(timeout=LIMIT) is works[1].thread
    works[0].may_end.set()


def test_threads_end_beyond_those_that_are_kept_and_after_a_close() -> None:
    pool, works = DaemonThreads("test", 3, kept=1), [Held(), Held(), Held()]
    for work in works:
        pool.start(work)
        assert work.begun.wait(LIMIT)
    for work in works[:2]:
        work.may_end.set()
    first, second, third = (work.thread for work in works)
    assert first is not None
    assert second is not None
    assert third is not None
    while first.is_alive() and second.is_alive():
        threading.Event().wait(0.001)
    pool.close()
    first.join(LIMIT)
    second.join(LIMIT)
    assert third.is_alive()
    works[2].may_end.set()
    third.join(LIMIT)
    assert not any(thread.is_alive() for thread in (first, second, third))


def test_a_thread_whose_work_fails_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    pool, done = DaemonThreads("test", 1), threading.Event()
    pool.start(lambda: 1 // 0)
    pool.start(done.set, may_wait=True)
    assert done.wait(LIMIT)
    assert "the work of a thread failed" in caplog.text


def test_work_after_the_close_has_a_thread_that_ends() -> None:
    pool, work = DaemonThreads("test", 1), Held()
    pool.close()
    pool.start(work)
    assert work.begun.wait(LIMIT)
    work.may_end.set()
    assert work.thread is not None
    work.thread.join(LIMIT)
    assert not work.thread.is_alive()

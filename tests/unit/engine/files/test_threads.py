"""Work in threads: in order where it has to be, and nothing waits for what never ends."""

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from holdfast.base.errors import NotFound
from holdfast.engine.files import threads as module
from holdfast.engine.files.threads import CORE, SHARE, FileThreads, SerialQueue
from tests.unit.fakes import LIMIT


@pytest.fixture
async def threads() -> AsyncIterator[FileThreads]:
    made = FileThreads()
    yield made
    await made.aclose()


async def test_a_result_and_an_error_come_back(threads: FileThreads) -> None:
    assert await threads.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)


async def test_an_error_of_the_system_comes_back_in_the_words_of_the_protocol(
    threads: FileThreads,
) -> None:
    with pytest.raises(NotFound, match=r"No such file or directory \(os error 2\)"):
        await threads.run(lambda: os.stat("/no/such/file"))


async def test_calls_that_hang_hold_up_nothing_else(threads: FileThreads) -> None:
    let_go = threading.Event()
    stuck = [threads.run(let_go.wait) for _ in range(3 * CORE)]
    try:
        async with asyncio.timeout(5):
            assert await threads.run(lambda: "served") == "served"
        assert not any(future.done() for future in stuck)
    finally:
        let_go.set()
    await asyncio.gather(*stuck)


async def test_threads_in_place_of_stuck_ones_go_again(threads: FileThreads) -> None:
    let_go = threading.Event()
    stuck = [threads.run(let_go.wait) for _ in range(3 * CORE)]
    await threads.run(lambda: None)
    let_go.set()
    await asyncio.gather(*stuck)
    assert threads._workers <= 2 * CORE


async def test_what_nobody_waits_for_is_undone(threads: FileThreads) -> None:
    begun, let_go = threading.Event(), threading.Event()
    undone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def work() -> str:
        begun.set()
        let_go.wait()
        return "opened"

    def undo(result: str) -> None:
        loop.call_soon_threadsafe(undone.set_result, result)

    future = threads.run(work, undo=undo)
    await threads.run(begun.wait)
    future.cancel()
    let_go.set()
    async with asyncio.timeout(5):
        assert await undone == "opened"


async def test_work_in_a_lane_is_done_in_order(threads: FileThreads) -> None:
    lane = SerialQueue(threads)
    done: list[int] = []
    await asyncio.gather(*[lane.run(lambda n=n: done.append(n)) for n in range(100)])  # type: ignore[misc]
    assert done == list(range(100))


async def test_a_piece_that_nobody_waits_for_still_ends_before_the_next(
    threads: FileThreads,
) -> None:
    lane = SerialQueue(threads)
    begun, let_go = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        begun.set()
        let_go.wait()
        done.append("slow")

    first = lane.run(slow)
    skipped = lane.run(lambda: done.append("skipped"))
    last = lane.run(lambda: done.append("last"))
    await threads.run(begun.wait)
    first.cancel()
    skipped.cancel()
    let_go.set()
    await last
    assert done == ["slow", "last"]


async def test_an_error_that_nobody_waits_for_is_not_logged(
    threads: FileThreads, caplog: pytest.LogCaptureFixture
) -> None:
    """It is that of a request whose client has gone."""
    lane = SerialQueue(threads)
    lane.run(lambda: 1 // 0)
    await lane.run(lambda: None)
    gc.collect()
    assert not caplog.records


async def test_an_error_in_a_lane_does_not_end_it(threads: FileThreads) -> None:
    lane = SerialQueue(threads)
    failed = lane.run(lambda: 1 // 0)
    assert await lane.run(lambda: "next") == "next"
    with pytest.raises(ZeroDivisionError):
        await failed


async def test_what_is_let_go_of_after_the_end_is_still_done() -> None:
    threads = FileThreads()
    assert await threads.run(lambda: 1) == 1
    await threads.aclose()
    before = threading.active_count()
    async with asyncio.timeout(5):
        assert await threads.run(lambda: 2) == 2
    # Its thread is told to end as well.
    async with asyncio.timeout(5):
        while threading.active_count() > before:  # noqa: ASYNC110 - a thread tells of no end
            await asyncio.sleep(0.001)


@pytest.mark.requirement("security.others.files")
async def test_a_share_whose_calls_hang_waits_alone(threads: FileThreads) -> None:
    let_go = threading.Event()
    mine, other = threads.share(), threads.share()
    stuck = [mine.run(let_go.wait) for _ in range(20 * CORE)]
    try:
        async with asyncio.timeout(5):
            assert await other.run(lambda: "served") == "served"
            assert await threads.run(lambda: "served") == "served"
            late = mine.run(lambda: "late")
            await other.run(lambda: None)
        assert not late.done()
        assert threads._workers <= SHARE + CORE
    finally:
        let_go.set()
    await asyncio.gather(*stuck, late)


async def test_shares_take_turns(threads: FileThreads) -> None:
    """Who asks for one thing does not wait for all that another has asked for before."""
    let_go = threading.Event()
    busy = [threads.run(let_go.wait) for _ in range(CORE)]
    order: list[str] = []
    many, few = threads.share(), threads.share()
    work = [many.run(lambda: order.append("many")) for _ in range(50)]
    work.append(few.run(lambda: order.append("few")))
    let_go.set()
    await asyncio.gather(*busy, *work)
    assert order.index("few") <= 2 * CORE


async def test_what_a_client_that_left_asked_for_is_not_begun(threads: FileThreads) -> None:
    let_go = threading.Event()
    share, begun = threads.share(), []
    stuck = [share.run(let_go.wait) for _ in range(SHARE)]
    never = [share.run(lambda: begun.append(1)) for _ in range(10)]
    for futures in (stuck, never):
        for future in futures:
            future.cancel()
    let_go.set()
    assert await share.run(lambda: "next") == "next"
    assert begun == []


async def test_files_of_a_client_that_left_are_let_go_of_beside_its_stuck_calls(
    threads: FileThreads,
) -> None:
    let_go = threading.Event()
    share = threads.share()
    stuck = [share.run(let_go.wait) for _ in range(SHARE)]
    opening, opened = SerialQueue(share), []
    never = opening.run(lambda: opened.append("file"))
    closed = asyncio.gather(*(SerialQueue(share).run(lambda: "closed") for _ in range(50)))
    never.cancel()
    for future in stuck:
        future.cancel()
    try:
        share.leave()
        async with asyncio.timeout(5):
            assert set(await closed) == {"closed"}
        assert opened == []
    finally:
        let_go.set()


async def test_nothing_is_kept_of_clients_that_left_but_their_stuck_calls(
    threads: FileThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FAREWELL", 0.001)
    let_go = threading.Event()
    try:
        for _ in range(3):
            share = threads.share()
            asked = [share.run(let_go.wait) for _ in range(10 * SHARE)]
            async with asyncio.timeout(5):
                while share.running < SHARE:  # noqa: ASYNC110 - threads tell of no beginning
                    await asyncio.sleep(0.001)
            for future in asked:
                future.cancel()
            share.leave()
            async with asyncio.timeout(5):
                while share.waiting:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.001)
        assert len(threads._jobs) == 3 * SHARE
        async with asyncio.timeout(5):
            assert await threads.share().run(lambda: "served") == "served"
    finally:
        let_go.set()


async def test_calls_wait_while_the_system_can_start_no_thread(
    threads: FileThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0

    def refuse(thread: threading.Thread) -> None:
        nonlocal failed
        failed += 1
        if failed == 5:
            monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls = [threads.run(partial(int, number)) for number in range(3)]
    async with asyncio.timeout(LIMIT):
        assert await asyncio.gather(*calls) == [0, 1, 2]
    assert failed == 5

"""A loop whose clock jumps."""

import asyncio
import os
import threading
import time

import pytest

from holdfast.testing import VirtualTimeLoop, WaitsForEver, run_virtual


@pytest.mark.virtual_time
async def test_an_hour_takes_no_time() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    began = time.monotonic()
    await asyncio.sleep(3600)
    assert loop.time() == pytest.approx(3600)
    assert time.monotonic() - began < 60
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await asyncio.Event().wait()
    assert loop.time() == pytest.approx(3660)


@pytest.mark.virtual_time
async def test_timers_keep_their_order() -> None:
    order: list[int] = []

    async def after(seconds: int) -> None:
        await asyncio.sleep(seconds)
        order.append(seconds)

    await asyncio.gather(*(after(seconds) for seconds in (300, 1, 20)))
    assert order == [1, 20, 300]


@pytest.mark.virtual_time
async def test_the_clock_stands_still_while_a_thread_works() -> None:
    go = threading.Event()
    working = asyncio.ensure_future(asyncio.to_thread(go.wait))
    late = asyncio.ensure_future(asyncio.sleep(10))
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.get_running_loop().time() == 0
    go.set()
    assert await working
    assert not late.done()
    await late


def test_waiting_for_nothing_is_an_error() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(WaitsForEver, match="no timer, descriptor or thread"):
        run_virtual(forever())


def test_a_descriptor_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.virtual_time.PATIENCE", 1.0)
    reader, writer = os.pipe()

    async def wait(*, written: bool) -> bytes:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(reader, ready.set)
        try:
            if written:
                threading.Thread(target=os.write, args=(writer, b"x")).start()
            await ready.wait()
            return os.read(reader, 1)
        finally:
            loop.remove_reader(reader)

    try:
        assert run_virtual(wait(written=True)) == b"x"
        with pytest.raises(WaitsForEver, match="nothing happened on a descriptor"):
            run_virtual(wait(written=False))
    finally:
        os.close(reader)
        os.close(writer)


def test_the_result_is_handed_on() -> None:
    async def answer() -> int:
        await asyncio.sleep(1)
        return 42

    assert run_virtual(answer()) == 42

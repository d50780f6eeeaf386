"""After much output, memory is given back once all is quiet."""

import asyncio

import pytest

from holdfast.unified_exec.sessions.freed_memory import QUIET, WORTH, FreedMemory


class Counted(FreedMemory):
    """Counts how often memory is given back."""

    def __init__(self) -> None:
        super().__init__()
        self.given_back = 0
        self._trim = self._count

    def _count(self, pad: int) -> None:
        assert pad == 0
        self.given_back += 1


@pytest.mark.virtual_time
async def test_memory_is_given_back_once_after_a_flood() -> None:
    memory = Counted()
    memory.output(1, bytes(WORTH - 1))
    await asyncio.sleep(10 * QUIET)
    assert memory.given_back == 0  # not worth it
    for _ in range(20):
        memory.output(2, bytes(1000))
        await asyncio.sleep(QUIET / 2)
    assert memory.given_back == 0  # it still writes
    await asyncio.sleep(QUIET)
    assert memory.given_back == 1
    await asyncio.sleep(10 * QUIET)
    assert memory.given_back == 1


@pytest.mark.virtual_time
async def test_nothing_is_given_back_after_the_close() -> None:
    memory = Counted()
    memory.output(1, bytes(WORTH))
    memory.close()
    memory.output(2, bytes(WORTH))
    await asyncio.sleep(10 * QUIET)
    assert memory.given_back == 0

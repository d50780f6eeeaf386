"""After much output, memory is given back once all is quiet."""

import asyncio

import pytest

from holdfast.agent.unified_exec.sessions.owner import FREED_BYTES, FREED_QUIET, FreedMemory


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
    memory.output(1, bytes(FREED_BYTES - 1))
    await asyncio.sleep(10 * FREED_QUIET)
    assert memory.given_back == 0  # not worth it
    for _ in range(20):
        memory.output(2, bytes(1000))
        await asyncio.sleep(FREED_QUIET / 2)
    assert memory.given_back == 0  # it still writes
    await asyncio.sleep(FREED_QUIET)
    assert memory.given_back == 1
    await asyncio.sleep(10 * FREED_QUIET)
    assert memory.given_back == 1


@pytest.mark.virtual_time
async def test_nothing_is_given_back_after_the_close() -> None:
    memory = Counted()
    memory.output(1, bytes(FREED_BYTES))
    memory.close()
    memory.output(2, bytes(FREED_BYTES))
    await asyncio.sleep(10 * FREED_QUIET)
    assert memory.given_back == 0

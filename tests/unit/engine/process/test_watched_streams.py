"""Watchers of the output of a process: at first one epoll instance, then the event loop."""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.io.output_reader import OutputReader

pytestmark = pytest.mark.both_loops


class LoopWithoutRoom:
    """An event loop that takes one descriptor, that of the epoll instance, and no other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = False

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        if self._taken:
            raise OSError(errno.ENOSPC, "no room")
        self._taken = True
        self._loop.add_reader(fd, callback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_stream_that_goes_on_is_read_to_its_end(has_room: bool) -> None:
    loop = asyncio.get_running_loop()
    given: Any = loop if has_room else LoopWithoutRoom(loop)
    ends, writer = os.pipe()
    os.set_blocking(ends, False)
    log, ended = OutputLog(), asyncio.Event()
    reader = OutputReader(given, ends, "stdout", log, ended.set)
    async with asyncio.timeout(10):
        for number in range(1, 9):
            os.write(writer, b"x")
            while log.total_bytes < number:  # noqa: ASYNC110 - a log tells nobody here
                await asyncio.sleep(0)
        assert reader._by_loop is has_room
        reader.hold()
        os.write(writer, b"held")
        reader.release()
        os.close(writer)
        await ended.wait()
    assert log.total_bytes == 12
    if not has_room:
        loop.remove_reader(reader._readers.fileno())

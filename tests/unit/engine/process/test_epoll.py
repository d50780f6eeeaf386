"""The epoll instance that the descriptors of all processes of a loop share."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from holdfast.engine.process.io.output_reader import Readers, readers_of

pytestmark = pytest.mark.both_loops


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    with ExitStack() as stack:
        made = [os.pipe() for _ in range(300)]
        for reader, writer in made:
            stack.callback(os.close, reader)
            stack.callback(os.close, writer)
        yield made


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0.001)


async def test_a_loop_has_one() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(readers_of(loop), Readers)
    assert readers_of(loop) is readers_of(loop)


async def test_each_is_called_while_it_can_be_read(pipes: list[tuple[int, int]]) -> None:
    readers = readers_of(asyncio.get_running_loop())
    heard: set[int] = set()
    everything = asyncio.Event()

    def hear(fd: int) -> None:
        heard.add(fd)
        os.read(fd, 1)
        if len(heard) == len(pipes):
            everything.set()

    for reader, writer in pipes:
        readers.add(reader, partial(hear, reader))
        os.write(writer, b"x")
    # More than are served in one turn.
    await asyncio.wait_for(everything.wait(), 10)
    for reader, writer in pipes:
        readers.remove(reader)
        readers.remove(reader)
        os.write(writer, b"x")
    heard.clear()
    await turns()
    assert not heard


async def test_one_that_fails_keeps_no_other_from_its_turn(pipes: list[tuple[int, int]]) -> None:
    loop = asyncio.get_running_loop()
    readers = readers_of(loop)
    complaints: list[object] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context["exception"]))
    served = asyncio.Event()
    (bad, bad_end), (good, good_end) = pipes[:2]

    def fail() -> None:
        readers.remove(bad)
        raise ValueError("of a callback")

    def serve() -> None:
        readers.remove(good)
        served.set()

    readers.add(bad, fail)
    readers.add(good, serve)
    os.write(bad_end, b"x")
    os.write(good_end, b"x")
    await asyncio.wait_for(served.wait(), 10)
    assert [str(error) for error in complaints] == ["of a callback"]


async def test_one_that_was_removed_by_another_is_not_called(
    pipes: list[tuple[int, int]],
) -> None:
    readers = readers_of(asyncio.get_running_loop())
    called: list[int] = []
    watched = [reader for reader, _ in pipes[:2]]

    def first_come(fd: int) -> None:
        called.append(fd)
        for each in watched:
            readers.remove(each)

    for reader, writer in pipes[:2]:
        os.write(writer, b"x")
        readers.add(reader, partial(first_come, reader))
    await turns()
    assert len(called) == 1

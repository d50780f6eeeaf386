"""Standard streams of every kind: pipes, terminals, files, devices."""

import asyncio
import errno
import os
import pty
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.front.cli.streams import OutputWriter, is_null, read_chunks

MUCH = bytes(range(256)) * 16384
"""Four mebibytes: more than a pipe and all queues hold."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its two ends; a test may close either."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            continue  # the test has done so


async def _all(fd: int) -> bytes:
    async with asyncio.timeout(5):
        return b"".join([chunk async for chunk in read_chunks(fd)])


def _read_in_thread(fd: int) -> asyncio.Future[bytes]:
    def read() -> bytes:
        parts: list[bytes] = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)

    return asyncio.get_running_loop().run_in_executor(None, read)


# -- reading


async def test_a_pipe_is_read_to_its_end(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"hello")
    os.close(writer)
    assert await _all(reader) == b"hello"


async def test_what_is_there_is_read_at_once(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    chunks = read_chunks(reader)
    async with asyncio.timeout(5):
        for text in (b"one", b"two"):
            os.write(writer, text)
            assert await anext(chunks) == text


@pytest.mark.parametrize("size", [0, 1, len(MUCH)])
async def test_a_file_is_read_to_its_end(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(MUCH[:size])
    with file.open("rb") as opened:
        assert await _all(opened.fileno()) == MUCH[:size]


async def test_a_device_that_cannot_be_waited_for_is_read_too() -> None:
    zero = os.open("/dev/zero", os.O_RDONLY)
    try:
        assert not any(await anext(read_chunks(zero)))
    finally:
        os.close(zero)


async def test_a_terminal_that_was_hung_up_is_at_its_end() -> None:
    master, slave = pty.openpty()
    try:
        os.close(master)
        assert await _all(slave) == b""
    finally:
        os.close(slave)


async def test_a_reader_that_gives_up_leaves_nothing_watched(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(read_chunks(reader))
    os.write(writer, b"for somebody else")
    assert os.read(reader, 100) == b"for somebody else"


def test_no_input_is_told_from_input(pipe: tuple[int, int]) -> None:
    with Path(os.devnull).open("rb") as null, Path("/dev/zero").open("rb") as zero:
        assert is_null(null.fileno())
        assert not is_null(zero.fileno())
    assert not is_null(pipe[0])
    os.close(pipe[0])
    assert is_null(pipe[0])


async def test_a_descriptor_that_is_shared_stays_as_it_is(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    writer = OutputWriter(fd)
    await writer.write(b"hello")
    async with asyncio.timeout(5):
        assert await anext(read_chunks(reader)) == b"hello"
    writer.close()
    assert await writer.wait() is None
    assert os.get_blocking(reader)
    assert os.get_blocking(fd)


async def test_a_descriptor_that_others_made_non_blocking_works_too(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    os.set_blocking(reader, False)
    os.set_blocking(fd, False)
    writer = OutputWriter(fd)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(_all(reader))
        await writer.write(MUCH)
        writer.close()
        assert await writer.wait() is None
        os.close(fd)
    assert reading.result() == MUCH


# -- writing


async def test_everything_is_written_before_the_end(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    reading = _read_in_thread(reader)
    writer = OutputWriter(fd)
    async with asyncio.timeout(5):
        for start in range(0, len(MUCH), 65536):
            await writer.write(MUCH[start : start + 65536])
        await writer.write(b"")
        writer.close()
        assert await writer.wait() is None
        os.close(fd)
        assert await reading == MUCH


async def test_a_socket_is_written_to_as_well() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = OutputWriter(ours.fileno())
        await writer.write(b"hello")
        writer.close()
        assert await writer.wait() is None
        assert theirs.recv(100) == b"hello"


async def test_while_nobody_reads_a_writer_waits_and_others_do_not(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    writer = OutputWriter(fd)
    await writer.write(MUCH[:1000])
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(writer.write(MUCH[1000:]))
        # The loop is free to wait for the pipe, with the writer stuck in it.
        assert await anext(read_chunks(reader)) != b""
        assert not writing.done()
        reading = _read_in_thread(reader)
    writer.close()
    async with asyncio.timeout(5):
        assert await writer.wait() is None
        os.close(fd)
        assert MUCH.endswith(await reading)


async def test_a_reader_that_left_is_an_error_and_what_follows_goes_nowhere(
    pipe: tuple[int, int],
) -> None:
    reader, fd = pipe
    os.close(reader)
    writer = OutputWriter(fd)
    async with asyncio.timeout(5):
        await writer.write(b"hello")
        assert isinstance(await writer.wait(), BrokenPipeError)
        await writer.write(MUCH)
        writer.close()
        assert isinstance(await writer.wait(), BrokenPipeError)


async def test_a_reader_that_leaves_frees_a_writer_that_waits(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    writer = OutputWriter(fd)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.write(MUCH))
        await asyncio.sleep(0)
        os.close(reader)
    assert isinstance(await writer.wait(), BrokenPipeError)
    writer.close()


async def test_a_file_is_written_to_directly(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as opened:
        writer = OutputWriter(opened.fileno())
        await writer.write(b"hello")
        assert file.read_bytes() == b"hello"
        writer.close()
        assert await writer.wait() is None


async def test_a_file_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open("rb") as opened:
        writer = OutputWriter(opened.fileno())
        await writer.write(b"hello")
        writer.close()
        error = await writer.wait()
    assert error is not None
    assert error.errno == errno.EBADF

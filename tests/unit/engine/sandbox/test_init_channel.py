"""The line to a sandbox that is being built, from both ends."""

import asyncio
import errno
import os
import signal
import socket
import struct
from collections.abc import Iterator

import pytest

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.limits.prologue import BUILT, GO
from holdfast.engine.sandbox.bubblewrap.init_channel import InitChannel
from holdfast.engine.sandbox.bubblewrap.init_program import READY
from tests.unit.engine.process.starting import LIMIT


@pytest.fixture
def report() -> Iterator[InitChannel]:
    report = InitChannel()
    yield report
    report.close()


def error(number: int, size: int) -> bytes:
    return (-number).to_bytes(4, "little", signed=True).ljust(size, b"\0")


async def test_it_tells_who_has_built(report: InitChannel) -> None:
    report.theirs.send(BUILT)

    async with asyncio.timeout(LIMIT):
        assert await report.built() == os.getpid()

    report.go()
    assert report.theirs.recv(9) == GO


async def test_it_tells_when_all_is_applied(report: InitChannel) -> None:
    report.theirs.send(READY)

    async with asyncio.timeout(LIMIT):
        assert await report.ready()

    assert report.take_listener() is None


async def test_a_descriptor_comes_with_it(report: InitChannel) -> None:
    theirs, other = os.pipe()
    socket.send_fds(report.theirs, [READY], [theirs])

    async with asyncio.timeout(LIMIT):
        assert await report.ready()

    listener = report.take_listener()
    assert listener is not None
    assert not os.get_inheritable(listener)
    os.write(other, b"x")
    assert os.read(listener, 1) == b"x"
    for fd in (theirs, other, listener):
        os.close(fd)


async def test_a_descriptor_that_nobody_takes_is_closed(report: InitChannel) -> None:
    theirs, other = os.pipe()
    socket.send_fds(report.theirs, [READY], [theirs])
    os.close(theirs)

    async with asyncio.timeout(LIMIT):
        assert await report.ready()
    report.close()

    with pytest.raises(BrokenPipeError):
        os.write(other, b"x")
    os.close(other)


@pytest.mark.parametrize("method", ["built", "ready"])
async def test_a_launcher_that_fails_says_nothing(report: InitChannel, method: str) -> None:
    report.theirs.close()

    async with asyncio.timeout(LIMIT):
        assert not await getattr(report, method)()


@pytest.mark.parametrize("method", ["built", "ready"])
async def test_what_cannot_be_applied_is_an_error_of_the_start(
    report: InitChannel, method: str
) -> None:
    report.theirs.send(error(errno.EINVAL, 8))

    with pytest.raises(SpawnFailed, match="could not be completed: Invalid argument") as caught:
        await getattr(report, method)()

    assert caught.value.errno == errno.EINVAL


async def test_one_that_ends_without_having_heard_us_has_failed(report: InitChannel) -> None:
    report.go()
    report.theirs.close()

    async with asyncio.timeout(LIMIT):
        assert not await report.ready()
    report.go()  # which nobody hears


async def test_its_last_words_are_heard_even_if_it_has_not_heard_ours(report: InitChannel) -> None:
    report.go()
    report.theirs.send(error(errno.EINVAL, 8))
    report.theirs.close()

    with pytest.raises(SpawnFailed, match="could not be completed: Invalid argument"):
        await report.ready()


async def test_an_error_of_the_exec_is_told_after_that(report: InitChannel) -> None:
    assert report.exec_error() is None  # nothing is said yet

    report.theirs.send(error(errno.ENOENT, 4))
    report.theirs.close()

    assert report.exec_error() == errno.ENOENT
    assert report.end() is None
    report.close()
    assert report.exec_error() == errno.ENOENT  # it does not change


@pytest.mark.parametrize(
    ("code", "status"), [(os.CLD_STOPPED, 19), (0, 0), (os.CLD_EXITED, 256), (os.CLD_KILLED, -1)]
)
async def test_an_end_that_cannot_be_is_not_believed(
    report: InitChannel, code: int, status: int
) -> None:
    report.theirs.send(struct.pack("=iii4xiii", signal.SIGCHLD, 0, code, 2, 1000, status))
    report.theirs.send(b"something else")

    assert report.end() is None
    assert report.exec_error() is None


async def test_who_says_too_much_is_not_listened_to(report: InitChannel) -> None:
    for number in range(1, 9):
        report.theirs.send(error(number, 4))

    assert report.exec_error() == 4


async def test_the_end_of_the_command_is_told_last(report: InitChannel) -> None:
    assert report.end() is None

    report.theirs.send(error(errno.EACCES, 4))
    report.theirs.send(struct.pack("=iii4xiii", signal.SIGCHLD, 0, os.CLD_KILLED, 2, 1000, 15))

    end = report.end()
    assert end is not None
    assert (end.si_code, end.si_status) == (os.CLD_KILLED, 15)
    assert report.exec_error() == errno.EACCES

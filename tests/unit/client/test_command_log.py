"""The stderr of a server command."""

import logging
import os
from collections.abc import Iterator

import pytest

from holdfast.client.serving_command import CommandLog


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The end to read from, which the log closes, and the one to write to."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(writer)


async def test_a_line_that_has_not_ended_counts(pipe: tuple[int, int]) -> None:
    log = CommandLog(pipe[0])
    os.write(pipe[1], b"one\ntwo: fa")
    os.write(pipe[1], b"iled\r")
    assert await log.last_words() == "two: failed"
    log.close()


async def test_blank_lines_say_nothing(pipe: tuple[int, int]) -> None:
    log = CommandLog(pipe[0])
    os.write(pipe[1], b"last\n\n  \n")
    assert await log.last_words() == "last"
    log.close()


async def test_silence_is_none(pipe: tuple[int, int]) -> None:
    log = CommandLog(pipe[0])
    assert await log.last_words() is None
    log.close()
    log.close()  # harmless
    assert await log.last_words() is None


async def test_a_line_without_end_is_not_kept_whole(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast.client.serving_command")
    log = CommandLog(pipe[0])
    os.write(pipe[1], b"x" * 20_000)
    words = await log.last_words()
    assert words is not None
    assert len(words) <= 4096
    log.close()
    logged = [record.getMessage().removeprefix("exec-server stderr: ") for record in caplog.records]
    assert "".join(logged) == "x" * 20_000

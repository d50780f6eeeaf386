"""Runs that end before a command was started."""

import argparse
import asyncio
import os
from collections.abc import Iterator

import pytest

from holdfast.base.errors import ConnectFailed, RemoteError
from holdfast.client import ExecServerClient
from holdfast.front.cli.exit_status import Ended
from holdfast.front.cli.parser import make_parser
from holdfast.front.cli.run_foreground import attend


@pytest.fixture
def lifeline() -> Iterator[int]:
    """Of a guardian that lives and has nothing to say."""
    reader, writer = os.pipe()
    yield reader
    os.close(reader)
    os.close(writer)


def _options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["run", *arguments])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectFailed("nobody\nis there"), "nobody is there"),
        (RemoteError(-32600, "go away"), "exec-server rejected request (-32600): go away"),
    ],
)
async def test_a_server_that_fails_is_a_line_to_read(
    lifeline: int, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    async def connect(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(ExecServerClient, "connect", connect)
    with pytest.raises(Ended) as end:
        async with asyncio.timeout(5):
            await attend(_options("--url", "ws://h:1", "cmd"), lifeline)
    assert (end.value.status, end.value.text) == (125, text)


async def test_a_mistake_of_our_own_is_not_hidden(
    lifeline: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ExecServerClient, "connect", connect)
    with pytest.raises(Ended) as end:
        async with asyncio.timeout(5):
            await attend(_options("--url", "ws://h:1", "cmd"), lifeline)
    assert (end.value.status, end.value.text) == (125, "ZeroDivisionError()")
    (record,) = caplog.records
    assert record.exc_info is not None  # a traceback, which goes to stderr

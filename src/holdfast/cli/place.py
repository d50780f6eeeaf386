"""The server that `--url` or `--cmd` names."""

import argparse
import logging
import shlex
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from holdfast.cli.request import bearer_token
from holdfast.cli.status import FAILED, Ended
from holdfast.errors import ConnectionLost

if TYPE_CHECKING:
    from holdfast.client import ExecServerClient

__all__ = ["connected"]


@asynccontextmanager
async def connected(options: argparse.Namespace) -> "AsyncIterator[ExecServerClient]":
    """
    Connect to the server of the options, and disconnect at the end.

    Raises:
        Ended: The command cannot be read, or its server is lost.
        ConnectionLost: The server of the URL is lost, or was never reached.
    """
    from holdfast.client import ExecServerClient  # not needed for what happens here

    if options.url is not None:
        token = bearer_token(options)
        async with await ExecServerClient.connect(options.url, bearer_token=token) as client:
            yield client
        return
    with _last_words() as words:
        try:
            async with await ExecServerClient.connect(_split(options.cmd)) as client:
                yield client
        except ConnectionLost as error:
            # Why a command such as ssh gave up is in what it wrote, and nowhere else.
            raise Ended(FAILED, ": ".join([str(error), *words])) from error


@contextmanager
def _last_words() -> Iterator[deque[str]]:
    """The last line, if there is one, that a serving command has written to its stderr."""
    words: deque[str] = deque(maxlen=1)

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())

    logger = logging.getLogger("holdfast.client.command")
    handler = Keep(logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield words
    finally:
        logger.removeHandler(handler)


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Ended(FAILED, f"cannot read the command `{command}`: {error}") from error

"""Arguments of a process's methods: what every implementation of the seam refuses alike."""

from typing import get_args

from holdfast.errors import InvalidParams
from holdfast.protocol.process import StreamsAtEnd

__all__ = ["WriteIds", "check_after_seq", "check_input", "check_read", "check_streams"]

_STREAMS_AT_END = get_args(StreamsAtEnd)

_LONGEST_NUMBER = 18
"""Digits of an id that is counted; a process never gets as many writes."""


def check_streams(streams: str) -> None:
    """
    Refuse what is no value for `streams` of a termination.

    Raises:
        InvalidParams: It names the word.
    """
    if streams not in _STREAMS_AT_END:
        raise InvalidParams(f"unknown variant `{streams}`, expected `close` or `keep`")


def check_after_seq(after_seq: int) -> None:
    """
    Refuse a number that no event can have come before.

    Raises:
        InvalidParams: It is below zero.
    """
    if after_seq < 0:
        raise InvalidParams(f"after_seq is {after_seq}, expected 0 or more")


def check_read(after_seq: int, max_bytes: int | None, wait: float) -> None:
    """
    Refuse arguments of a read that make no sense.

    Raises:
        InvalidParams: One is below zero, or `wait` is not a number.
    """
    check_after_seq(after_seq)
    if max_bytes is not None and max_bytes < 0:
        raise InvalidParams(f"max_bytes is {max_bytes}, expected 0 or more")
    if not wait >= 0:  # also true of NaN
        raise InvalidParams(f"wait is {wait}, expected seconds, 0 or more")


def check_input(data: bytes, write_id: str | None) -> bytes:
    """
    Return the bytes of a write, as they are now.

    Raises:
        TypeError: They are no bytes, but a text, for instance.
        InvalidParams: The id is empty.
    """
    if write_id == "":
        raise InvalidParams("writeId must not be empty")
    if type(data) is bytes:
        return data
    # What is queued must not change with the buffer of the caller.
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"input is {type(data).__name__}, expected bytes")


class WriteIds:
    """Ids of the writes to one process: "1", "2" and so on, but none that a caller has used."""

    def __init__(self) -> None:
        self._last = 0

    def give(self, write_id: str | None) -> str:
        """Return the caller's own id, or a fresh one if that is None."""
        if write_id is None:
            self._last += 1
            return str(self._last)
        if len(write_id) <= _LONGEST_NUMBER and write_id.isascii() and write_id.isdecimal():
            self._last = max(self._last, int(write_id))
        return write_id

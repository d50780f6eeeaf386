"""Checks of the arguments of `ExecProcess` methods, shared by all its implementations."""

import signal as signals
from typing import get_args

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.process import StreamsAtEnd

__all__ = [
    "WriteIds",
    "check_after_seq",
    "check_input",
    "check_read",
    "check_streams",
    "signal_number",
]

_STREAMS_AT_END = get_args(StreamsAtEnd)

# Digits of a caller's id that moves the counter. A process never gets 10**18 writes, and `int()`
# of a longer text would take quadratic time.
_LONGEST_NUMBER = 18


def check_streams(streams: str) -> None:
    """
    Refuse an unknown value of a termination's `streams`.

    Raises:
        InvalidParams: The message names the value.
    """
    if streams not in _STREAMS_AT_END:
        raise InvalidParams(f"unknown variant `{streams}`, expected `close` or `keep`")


def check_after_seq(after_seq: int) -> None:
    """
    Refuse a negative sequence number.

    Raises:
        InvalidParams: The number is below zero.
    """
    if after_seq < 0:
        raise InvalidParams(f"after_seq is {after_seq}, expected 0 or more")


def check_read(after_seq: int, max_bytes: int | None, wait: float) -> None:
    """
    Refuse negative arguments of a read.

    Raises:
        InvalidParams: An argument is below zero, or `wait` is not a number.
    """
    check_after_seq(after_seq)
    if max_bytes is not None and max_bytes < 0:
        raise InvalidParams(f"max_bytes is {max_bytes}, expected 0 or more")
    # Not `wait < 0`, which NaN would pass.
    if not wait >= 0:
        raise InvalidParams(f"wait is {wait}, expected seconds, 0 or more")


def check_input(data: bytes, write_id: str | None) -> bytes:
    """
    Return an immutable copy of the bytes of a write.

    Raises:
        TypeError: `data` is not bytes-like; a `str`, for instance.
        InvalidParams: The id is empty.
    """
    if write_id == "":
        raise InvalidParams(texts.WRITE_ID_EMPTY)
    if type(data) is bytes:
        return data
    # A queued write must not change when the caller reuses its buffer.
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"input is {type(data).__name__}, expected bytes")


def signal_number(name: str) -> int:
    """
    Return the number of a signal, given the protocol's `interrupt` or a name such as `SIGTERM`.

    Raises:
        InvalidParams: No signal has that name.
    """
    if name == "interrupt":
        return signals.SIGINT
    # Our extension. The protocol's names are lower case, so the two can never collide.
    if name.startswith("SIG") and name in signals.Signals.__members__:
        return signals.Signals[name]
    raise InvalidParams(texts.unknown_signal(name))


class WriteIds:
    """Generator of write ids for one process: "1", "2", … but none that a caller has used."""

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

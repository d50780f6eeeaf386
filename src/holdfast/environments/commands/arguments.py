"""
Checks of the arguments of `run` and `start`, made before anything is started.

A wrong type would otherwise fail in a background task, while the process waits for input that
never comes.
"""

import math
import os
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.process import TerminalSize

__all__ = [
    "Command",
    "as_argv",
    "as_bytes",
    "as_cap",
    "as_items",
    "as_names",
    "as_signal_name",
    "as_terminal_size",
    "as_variables",
    "seconds",
]

Command = str | Sequence[str | os.PathLike[str]]
"""A text for the shell, or a program and its arguments."""


def as_argv(command: Command) -> list[str]:
    """
    Return the program and its arguments.

    Raises:
        InvalidParams: It is empty.
        TypeError: A part of it is no text.
    """
    if isinstance(command, str):
        # A shell would do nothing, which is never meant.
        if not command.strip():
            raise InvalidParams("the command is empty")
        # A fixed shell, so that a command means the same for every user and on every server.
        return ["/bin/sh", "-c", command]
    parts = as_items(command, "a command is a text or a list of texts")
    argv = [_as_argument(part) for part in parts]
    if not argv or not argv[0]:
        raise InvalidParams("the command is empty")
    return argv


def as_items(given: object, expected: str) -> list[object]:
    """
    Return the items of a list or of another iterable.

    Args:
        given: The list.
        expected: How the error begins, such as `argv is a list of texts`.

    Raises:
        TypeError: It is no iterable, or it is text or bytes.
    """
    # Text and bytes are iterable, and would be taken for lists of characters and of numbers.
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{expected}, not {type(given).__name__}")
    return list(given)


def _as_argument(part: object) -> str:
    text = os.fspath(part) if isinstance(part, os.PathLike) else part
    if not isinstance(text, str):
        raise TypeError(f"an argument is text, not {type(part).__name__}: {part!r}")
    return text


def as_bytes(data: object, name: str) -> bytes:
    """
    Return text or bytes of any kind as bytes.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"{name} is text or bytes, not {type(data).__name__}")


def seconds(value: object, name: str) -> float:
    """
    Return a number of seconds that a timer accepts.

    Raises:
        TypeError: It is no number.
        InvalidParams: It is NaN, infinite or negative.
    """
    # A bool is an int in Python, and never meant as a time.
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is a number of seconds, not {type(value).__name__}")
    if not math.isfinite(value):
        raise InvalidParams(f"{name} must be a number of seconds, not {value}; None has no limit")
    if value < 0:
        raise InvalidParams(f"{name} must not be negative, but is {value}")
    return value


def as_cap(value: object) -> int:
    """
    Return a number of bytes to keep.

    Raises:
        TypeError: It is no whole number.
        InvalidParams: It is negative.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"cap is a number of bytes, not {type(value).__name__}")
    if value < 0:
        raise InvalidParams("cap must not be negative")
    return value


def as_variables(env: object) -> dict[str, str]:
    """
    Return the variables of a command.

    Raises:
        TypeError: It is no mapping of text to text.
        InvalidParams: A name is empty or has a `=` in it, and so would set another variable.
    """
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"env is a mapping of names to values, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env has text only, not {name!r}: {value!r}")
        # It would set another variable than the one that is named.
        if not name or "=" in name:
            raise InvalidParams(
                f"env has {name!r}, which is no name of a variable:"
                " it must not be empty or contain `=`"
            )
    return dict(env)


def as_names(unset: object) -> list[str]:
    """
    Return the names of variables that a command does not get.

    Raises:
        TypeError: It is no list of texts.
        InvalidParams: One of them is no name.
    """
    names: list[str] = []
    for name in as_items(unset, "unset is a list of names"):
        if not isinstance(name, str):
            raise TypeError(f"unset has names of variables only, not {name!r}")
        if not name or "=" in name or "\0" in name:
            raise InvalidParams(
                f"unset has {name!r}, which is no name of a variable:"
                " it must not be empty or contain `=` or NUL"
            )
        names.append(name)
    return names


def as_signal_name(which: object) -> str:
    """
    Return the name of a signal, such as `SIGTERM`.

    Args:
        which: A number or a name; `interrupt` is the protocol's word for `SIGINT`.

    Raises:
        TypeError: It is neither.
        InvalidParams: There is no such signal.
    """
    if isinstance(which, str):
        # The only name in the base protocol.
        if which == "interrupt":
            return "SIGINT"
        if which in signals.Signals.__members__:
            return which
    elif not isinstance(which, int) or isinstance(which, bool):
        raise TypeError(f"a signal is a name or a number, not {type(which).__name__}")
    else:
        with suppress(ValueError):
            return signals.Signals(which).name
    raise InvalidParams(f"there is no signal {which!r}: expected a number or a name like SIGTERM")


def as_terminal_size(size: object) -> TerminalSize:
    """
    Return rows and columns.

    Raises:
        TypeError: It is no pair of numbers.
        InvalidParams: There is no terminal of that size.
    """
    match size:
        case (int(rows), int(cols)):
            try:
                return TerminalSize(rows=rows, cols=cols)
            except ValueError as error:
                raise InvalidParams(str(error)) from None
    raise TypeError(f"size is a pair of rows and columns, not {size!r}")

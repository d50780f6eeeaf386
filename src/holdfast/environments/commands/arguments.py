"""
Validation of the arguments of `run` and `start`, before anything is started.

Otherwise a wrong type would fail in a background task, while the process waits for input that
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
"""A command line for the shell, or a program and its arguments."""


def as_argv(command: Command) -> list[str]:
    """
    Return the program and its arguments.

    Raises:
        InvalidParams: It is empty.
        TypeError: One of its parts is not a string.
    """
    if isinstance(command, str):
        # A shell would do nothing, which is never intended.
        if not command.strip():
            raise InvalidParams("the command is empty")
        # Always the same shell, so that a command means the same for every user and server.
        return ["/bin/sh", "-c", command]
    parts = as_items(command, "a command must be a string or a list of strings")
    argv = [_as_argument(part) for part in parts]
    if not argv or not argv[0]:
        raise InvalidParams("the command is empty")
    return argv


def as_items(given: object, expected: str) -> list[object]:
    """
    Return the items of a list or another iterable.

    Args:
        given: The list.
        expected: Start of the error, such as `argv must be a list of strings`.

    Raises:
        TypeError: It is not iterable, or it is a string or bytes.
    """
    # Strings and bytes are iterable, and would pass as lists of characters or numbers.
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{expected}, not {type(given).__name__}")
    return list(given)


def _as_argument(part: object) -> str:
    text = os.fspath(part) if isinstance(part, os.PathLike) else part
    if not isinstance(text, str):
        raise TypeError(f"an argument must be a string, not {type(part).__name__}: {part!r}")
    return text


def as_bytes(data: object, name: str) -> bytes:
    """
    Return a string or any bytes-like object as bytes.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"{name} must be a string or bytes, not {type(data).__name__}")


def seconds(value: object, name: str) -> float:
    """
    Return a duration in seconds that a timer accepts.

    Raises:
        TypeError: It is not a number.
        InvalidParams: It is NaN, infinite or negative.
    """
    # A bool is an int in Python, but never a duration.
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not math.isfinite(value):
        raise InvalidParams(f"{name} must be a number of seconds, not {value}; None means no limit")
    if value < 0:
        raise InvalidParams(f"{name} must not be negative, but is {value}")
    return value


def as_cap(value: object) -> int:
    """
    Return a number of bytes to keep.

    Raises:
        TypeError: It is not an integer.
        InvalidParams: It is negative.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"cap must be a number of bytes, not {type(value).__name__}")
    if value < 0:
        raise InvalidParams("cap must not be negative")
    return value


def as_variables(env: object) -> dict[str, str]:
    """
    Return the environment variables of a command.

    Raises:
        TypeError: It does not map strings to strings.
        InvalidParams: A name is empty or contains `=`, which would set another variable.
    """
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"env must map names to values, but is {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env must map strings to strings, not {name!r}: {value!r}")
        if not name or "=" in name:
            raise InvalidParams(
                f"env has an invalid name {name!r}: it must not be empty or contain `=`"
            )
    return dict(env)


def as_names(unset: object) -> list[str]:
    """
    Return the names of variables to remove from the environment of a command.

    Raises:
        TypeError: It is not a list of strings.
        InvalidParams: One of them cannot be the name of a variable.
    """
    names: list[str] = []
    for name in as_items(unset, "unset must be a list of names"):
        if not isinstance(name, str):
            raise TypeError(f"unset must be a list of names, not {name!r}")
        if not name or "=" in name or "\0" in name:
            raise InvalidParams(
                f"unset has an invalid name {name!r}: it must not be empty or contain `=` or NUL"
            )
        names.append(name)
    return names


def as_signal_name(which: object) -> str:
    """
    Return the name of a signal, such as `SIGTERM`.

    Args:
        which: A number or a name; the protocol calls `SIGINT` `interrupt`.

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
        raise TypeError(f"a signal must be a name or a number, not {type(which).__name__}")
    else:
        with suppress(ValueError):
            return signals.Signals(which).name
    raise InvalidParams(f"there is no signal {which!r}: expected a number or a name like SIGTERM")


def as_terminal_size(size: object) -> TerminalSize:
    """
    Return the size of a terminal, given as rows and columns.

    Raises:
        TypeError: It is not a pair of numbers.
        InvalidParams: A terminal cannot have that size.
    """
    match size:
        case (int(rows), int(cols)):
            try:
                return TerminalSize(rows=rows, cols=cols)
            except ValueError as error:
                raise InvalidParams(str(error)) from None
    raise TypeError(f"size must be a pair of rows and columns, not {size!r}")

"""
Validation before a start, in the order of [app-server.decoding].

Each check is a separate function, so that a server can insert its own.
"""

import os
from collections.abc import Collection, Mapping

from holdfast.base.errors import InvalidParams
from holdfast.environments.commands.arguments import as_cap, as_items, seconds
from holdfast.front.app_server.command_exec.command_errors import (
    EXTENSIONS,
    EmptyCommand,
    ExtensionMissing,
    InvalidSize,
    NegativeTimeout,
    SizeNeedsTerminal,
)
from holdfast.wire.protocol.handshake import Capabilities
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import EnvPolicy, TerminalSize

__all__ = [
    "as_argv",
    "as_output_cap",
    "as_process_id",
    "as_size",
    "as_timeout",
    "as_variables",
    "check_extensions",
    "check_size_has_terminal",
    "check_types",
]


def as_argv(argv: object) -> list[str]:
    """
    Return the program and its arguments.

    Raises:
        EmptyCommand: It is empty.
        TypeError: It is not a list of strings.
    """
    parts: list[str] = []
    for part in as_items(argv, "argv must be a list of strings"):
        if not isinstance(part, str):
            raise TypeError(f"an argument must be a string, not {type(part).__name__}: {part!r}")
        parts.append(part)
    if not parts:
        raise EmptyCommand
    return parts


def check_size_has_terminal(size: object, *, tty: bool) -> None:
    """
    Refuse a size without a terminal.

    Raises:
        SizeNeedsTerminal: `tty` is False.
    """
    if size is not None and not tty:
        raise SizeNeedsTerminal


def as_output_cap(cap: object) -> int | None:
    """
    Return the number of bytes to keep of each stream; `None` for all.

    Raises:
        TypeError: It is not an integer.
        InvalidParams: It is negative.
    """
    return None if cap is None else as_cap(cap)


def as_timeout(timeout: object) -> float | None:
    """
    Return the timeout of a command in seconds; `None` for no limit.

    Raises:
        TypeError: It is not a number.
        NegativeTimeout: It is negative.
        InvalidParams: It is not finite.
    """
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout < 0:
        # Before `seconds`, which does not have the protocol's text.
        raise NegativeTimeout(_milliseconds(timeout))
    return seconds(timeout, "timeout")


def _milliseconds(value: float) -> int:
    try:
        return int(value * 1000)
    except OverflowError:
        raise InvalidParams(f"timeout must be a number of seconds, not {value}") from None


def as_size(size: object) -> TerminalSize:
    """
    Return the size of a terminal.

    Raises:
        InvalidSize: A terminal cannot have that size.
        TypeError: It is not a pair of numbers.
    """
    match size:
        case (int(rows), int(cols)) if not isinstance(rows, bool) and not isinstance(cols, bool):
            try:
                return TerminalSize(rows=rows, cols=cols)
            except ValueError:
                raise InvalidSize(rows, cols) from None
    raise TypeError(f"size must be a pair of rows and columns, not {size!r}")


def as_process_id(process_id: object) -> str | None:
    """
    Return an id, which may be any string.

    Raises:
        TypeError: It is not a string.
    """
    if process_id is not None and not isinstance(process_id, str):
        raise TypeError(f"process_id must be a string, not {type(process_id).__name__}")
    return process_id


def as_variables(env: object) -> Mapping[str, str | None]:
    """
    Return variables to set or, with `None`, to remove. Names are not checked.

    Raises:
        TypeError: It does not map strings to strings or `None`.
    """
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"env must map names to values, but is {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise TypeError(f"env must map strings to strings or None, not {name!r}: {value!r}")
    return env


def check_types(cwd: object, env_policy: object, accept_missing: object) -> None:
    """
    Refuse arguments of the wrong type and unknown extensions.

    Raises:
        TypeError: One has the wrong type.
        ValueError: An extension is unknown.
    """
    if cwd is not None and not isinstance(cwd, str | os.PathLike | PathUri):
        raise TypeError(f"cwd must be a path, not {type(cwd).__name__}")
    if env_policy is not None and not isinstance(env_policy, EnvPolicy):
        raise TypeError(f"env_policy must be an EnvPolicy, not {type(env_policy).__name__}")
    if isinstance(accept_missing, str) or not isinstance(accept_missing, Collection):
        raise TypeError(f"accept_missing must be a list of names, not {accept_missing!r}")
    for name in accept_missing:
        if name not in EXTENSIONS:
            known = ", ".join(EXTENSIONS)
            raise ValueError(f"accept_missing has unknown name {name!r}; known: {known}")


def check_extensions(
    has: Capabilities,
    environment_id: str,
    *,
    tty: bool,
    size: bool,
    stdin: bool,
    unset: bool,
    accepted: Collection[str],
) -> None:
    """
    Refuse, before the start, what the server could not do later.

    Args:
        has: Capabilities of the server.
        environment_id: Id of the environment, for the message.
        tty: True if the command has a terminal, which may be resized.
        size: True if the terminal has an initial size.
        stdin: True if the command has a stdin pipe, which may be closed.
        unset: True if variables are removed.
        accepted: Extensions that the caller can do without.

    Raises:
        ExtensionMissing: The server lacks one.
    """
    for extension, wanted, can in (
        ("size", size, has.process_resize),
        ("resize", tty, has.process_resize),
        ("closeStdin", stdin and not tty, has.process_close_stdin),
        ("unset", unset, has.process_unset),
    ):
        # These are never optional: without them the command would run differently.
        if wanted and not can and (extension in ("size", "unset") or extension not in accepted):
            raise ExtensionMissing(extension, environment_id)

"""
Reads the config file of `holdfast serve`: its options by name, in TOML.

The parser defines the allowed keys, so every option can be in the file. The command line takes
precedence.
"""

import argparse
import os

from holdfast.base.errors import InvalidConfig
from holdfast.base.late_import import load
from holdfast.base.regular_files import read_regular
from holdfast.base.suggestions import closest
from holdfast.base.url_schemes import is_stdio
from holdfast.front.cli.listen_parser import ListenAction

# Not `typing.TYPE_CHECKING`, to keep `typing` out of every guardian.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["with_config"]

# Maximum bytes; a larger file is not a config file.
_MAX_BYTES = 1 << 20

# Metavars of options with a path, which in the file is relative to the file's directory.
_PATHS = ("PATH", "FILE")


def with_config(options: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """
    Return the options merged with those of the config file.

    Args:
        options: The parsed command line. `config` names the file, by default `default_config`
            if it exists. A server on stdio only reads a named file, since it belongs to its
            client.
        parser: The parser of the options.

    Raises:
        InvalidConfig: The file cannot be read, or has an unknown key.
    """
    path = options.config
    if path is None:
        path = options.default_config
        streams = is_stdio(options.listen) or options.keep or options.attach
        if path is None or streams or not os.path.lexists(path):
            return options
    known = _options_of(parser)
    found: dict[str, Any] = {}
    for key, value in _read(path).items():
        action = known.get(key)
        if action is None:
            # Escaped, since the key may contain anything.
            shown = key.encode("unicode_escape").decode()
            raise InvalidConfig(f"{path}: unknown option `{shown}`{_suggestion(key, known)}")
        try:
            first, *more = _converted(action, value, os.path.dirname(os.path.abspath(path)))
        except (argparse.ArgumentTypeError, TypeError, ValueError) as error:
            raise InvalidConfig(f"{path}: {key}: {error}") from error
        found[action.dest] = first
        if isinstance(action, ListenAction):
            found["also_listen"] = tuple(more)
    # argparse keeps values of a namespace unless the command line sets them.
    merged = parser.parse_args(options.arguments[1:], argparse.Namespace(**found))
    return argparse.Namespace(**{**vars(options), **vars(merged)})


def _options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options allowed in a file, by long name without the dashes."""
    return {
        name.removeprefix("--"): action
        for action in parser._actions  # noqa: SLF001 - there is no other way to look at them
        for name in action.option_strings
        if name.startswith("--") and action.dest not in ("help", "config")
    }


def _read(path: str) -> "dict[str, Any]":
    try:
        content = read_regular(path, largest=_MAX_BYTES)
    except OSError as error:
        raise InvalidConfig(
            f"cannot read {path}: {error.strerror}", errno=error.errno, path=path
        ) from error
    try:
        # Imported only if there is a file, to keep the guardian small.
        table: dict[str, Any] = load("tomllib:loads")(content.decode())
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path} is not UTF-8 text") from error
    # `tomllib.TOMLDecodeError` is a ValueError.
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path}: {error}") from error
    return table


def _suggestion(key: str, known: dict[str, argparse.Action]) -> str:
    close = closest(key.replace("_", "-"), known)
    return f"; did you mean `{close}`?" if close else ""


def _converted(action: argparse.Action, value: object, folder: str) -> "list[Any]":
    """
    Return the values of an option in the file in the form of the command line.

    Only `listen`, which may be repeated there, accepts a list and may have several values.

    Raises:
        TypeError: The type is wrong, such as a string for a switch.
        ValueError: The option does not accept it.
    """
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise TypeError(f"expected true or false, not {_type_name(value)}")
        return [value]
    values = value if isinstance(value, list) and isinstance(action, ListenAction) else [value]
    if not values:
        raise ValueError("the list is empty")
    return [_one(action, item, folder) for item in values]


def _one(action: argparse.Action, value: object, folder: str) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"expected a string or a number, not {_type_name(value)}")
    if action.type is None and not isinstance(value, str):
        raise TypeError(f"expected a string, not {_type_name(value)}")
    text = str(value)
    if "\0" in text:
        raise ValueError("NUL is not allowed")
    if action.metavar in _PATHS:
        text = os.path.join(folder, text)
    try:
        found = action.type(text) if callable(action.type) else text
    except (TypeError, ValueError) as error:
        raise ValueError(f"invalid value {text!r}") from error
    if action.choices is not None and found not in action.choices:
        raise ValueError(f"expected {' or '.join(map(str, action.choices))}, not {text!r}")
    return found


def _type_name(value: object) -> str:
    names = {bool: "true or false", str: "a string", int: "a number", float: "a number"}
    names |= {list: "a list", dict: "a table"}
    return names.get(type(value), "a date or a time")

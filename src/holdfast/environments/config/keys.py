"""
The keys of `environments.toml` and the types of their values [environments.file.keys].

Errors use the words of the library with which the real client reads the file.
"""

import math
import tomllib
from collections.abc import Callable, Mapping
from typing import Final, TypedDict, cast

from holdfast.base.dialect import wrong_type
from holdfast.base.suggestions import did_you_mean

__all__ = ["EntryKeys", "FileKeys", "Unfit", "read_keys"]

# A timeout must be below 2**64 seconds, the limit of Rust's `Duration`.
_LONGEST: Final = 2.0**64


class EntryKeys(TypedDict, total=False):
    """The keys of one environment; only `id` is required."""

    id: str
    skills: object
    """Accepted, since other programs read the same file; not used here."""
    url: str
    auth_bearer_token: str
    program: str
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    connect_timeout_sec: float
    initialize_timeout_sec: float


class FileKeys(TypedDict, total=False):
    """The keys of a file."""

    default: str
    include_local: bool
    environments: list[EntryKeys]


class Unfit(Exception):
    """Invalid TOML, or a key that is unknown, missing or of the wrong type."""

    def __init__(self, text: str, key_path: str = "") -> None:
        super().__init__(f"{text} in `{key_path}`" if key_path else text)


def read_keys(text: str) -> FileKeys:
    """
    Read the text of a file.

    Raises:
        Unfit: The text is invalid; the message says why.
    """
    try:
        # Editors on Windows write a byte order mark, which is not valid TOML.
        table = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise Unfit(str(error)) from error
    except RecursionError as error:
        raise Unfit("nested too deeply") from error
    # The readers below return the types declared above.
    return cast(FileKeys, _table(table, _FILE, ""))


# Takes a value and its path in the file; returns the converted value.
_Reader = Callable[[object, str], object]


def _table(value: object, readers: Mapping[str, _Reader], key_path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Unfit(wrong_type(value, "a table", exact=True), key_path)
    read: dict[str, object] = {}
    for key, inner in value.items():
        if key not in readers:
            known = ", ".join(f"`{name}`" for name in readers)
            expected = f"one of {known}" if len(readers) > 1 else known
            meant = did_you_mean(key, readers)
            raise Unfit(f"unknown field `{key}`{meant}, expected {expected}", key_path)
        read[key] = readers[key](inner, f"{key_path}.{key}" if key_path else key)
    return read


def _entries(value: object, key_path: str) -> list[object]:
    return [_entry(item, key_path) for item in _list(value, key_path)]


def _entry(value: object, key_path: str) -> dict[str, object]:
    read = _table(value, _ENTRY, key_path)
    if "id" not in read:
        raise Unfit("missing field `id`", key_path)
    return read


def _text(value: object, key_path: str) -> str:
    if not isinstance(value, str):
        raise Unfit(wrong_type(value, "a string", exact=True), key_path)
    return value


def _flag(value: object, key_path: str) -> bool:
    if not isinstance(value, bool):
        raise Unfit(wrong_type(value, "a boolean", exact=True), key_path)
    return value


def _list(value: object, key_path: str) -> list[object]:
    if not isinstance(value, list):
        raise Unfit(wrong_type(value, "a sequence", exact=True), key_path)
    return value


def _texts(value: object, key_path: str) -> tuple[str, ...]:
    return tuple(_text(item, key_path) for item in _list(value, key_path))


def _variables(value: object, key_path: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Unfit(wrong_type(value, "a map", exact=True), key_path)
    return {name: _text(item, f"{key_path}.{name}") for name, item in value.items()}


def _seconds(value: object, key_path: str) -> float:
    # A bool is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit(wrong_type(value, "f64", exact=True), key_path)
    fault = "cannot convert float seconds to Duration: value is"
    if value < 0:
        raise Unfit(f"{fault} negative", key_path)
    if math.isnan(value) or value >= _LONGEST:
        raise Unfit(f"{fault} either too big or NaN", key_path)
    return float(value)


def _skills(value: object, key_path: str) -> dict[str, object]:
    return _table(value, {"required": _texts}, key_path)


_ENTRY: Final[Mapping[str, _Reader]] = {
    "id": _text,
    "skills": _skills,
    "url": _text,
    "auth_bearer_token": _text,
    "program": _text,
    "args": _texts,
    "env": _variables,
    "cwd": _text,
    "connect_timeout_sec": _seconds,
    "initialize_timeout_sec": _seconds,
}
_FILE: Final[Mapping[str, _Reader]] = {
    "default": _text,
    "include_local": _flag,
    "environments": _entries,
}

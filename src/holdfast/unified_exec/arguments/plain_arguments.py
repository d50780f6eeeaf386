"""
Reads arguments that are plainly right, in a tenth of the time of the exact reader.

Almost every call is such a one. Whatever is unusual is left to `json_reader`, which alone
knows which fault the original tells: a wrong type, a doubled member, a nested value, a number
that is not positive, half a surrogate pair. So a mistake here costs time, never a wrong answer.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, TypeAlias

__all__ = [
    "Check",
    "flag",
    "has_only_scalars",
    "integer",
    "one_of",
    "optional",
    "read_plain",
    "text",
    "texts",
]

Check: TypeAlias = Callable[[object], bool]
"""Returns True for a value that the exact reader would take as it is."""


class _Members(list[tuple[str, object]]):
    """The members of one object in their order, doubled ones too."""


def read_plain(
    given: str | Mapping[str, object], fields: Mapping[str, Check]
) -> dict[str, object] | None:
    """
    Return the members that are asked for, or None if the exact reader has to look.

    Args:
        given: The JSON text, or the members of the object.
        fields: What each member that is known must be; others are passed over.
    """
    members: Iterable[tuple[str, object]] | None
    if isinstance(given, str):
        members = _parsed(given)
    else:
        members = given.items() if has_only_scalars(given) else None
    if members is None:
        return None
    found: dict[str, object] = {}
    for key, value in members:
        check = fields.get(key)
        if check is not None:
            if key in found or not check(value):
                return None
            found[key] = value
        elif not key.isascii():
            # Its characters would have to be examined: the full scanner does that.
            return None
    return found


def _parsed(given: str) -> Iterable[tuple[str, object]] | None:
    try:
        members = _decoder.decode(given)
    except (ValueError, RecursionError):
        return None
    return members if type(members) is _Members else None


def has_only_scalars(given: Mapping[str, object]) -> bool:
    """Return True if every member is a text, an integer, a boolean or None."""
    return all(type(key) is str and type(value) in _SCALARS for key, value in given.items())


_SCALARS = (str, int, bool, type(None))


def _refuse(constant: str) -> NoReturn:
    """Refuse `NaN` and the infinities, which Python takes and JSON does not have."""
    raise ValueError(constant)


_decoder = json.JSONDecoder(object_pairs_hook=_Members, parse_constant=_refuse)


# -- checks


def text(value: object) -> bool:
    """Return True for a text without half surrogate pairs."""
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def flag(value: object) -> bool:
    """Return True for `true` and `false`."""
    return type(value) is bool


def integer(high: int) -> Check:
    """Return a check for whole numbers from 1 to `high`; `-0` and the like are left out."""
    return lambda value: type(value) is int and 0 < value <= high


def one_of(names: tuple[str, ...]) -> Check:
    """Return a check for one of several names."""
    return lambda value: type(value) is str and value in names


def texts(value: object) -> bool:
    """Return True for a list of texts."""
    return type(value) is list and all(map(text, value))


def optional(check: Check) -> Check:
    """Return a check that takes `null`, too."""
    return lambda value: value is None or check(value)

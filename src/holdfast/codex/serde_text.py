"""
Error texts for values of the wrong type, in serde's wording [envelope.params.*].

msgspec decodes, but its errors read differently. So values that msgspec has refused are walked
again here to find the first fault.
"""

import json
from collections.abc import Iterable
from functools import cache
from typing import Literal, get_args, get_origin

from msgspec import inspect, structs

from holdfast.codex.rust_text import debug_text, float_text

__all__ = ["blame", "oversized", "wrong_type"]

_I64_MIN = -(1 << 63)
_U64_MAX = (1 << 64) - 1


def blame(value: object, kind: object, *, exact: bool = False) -> str:
    """
    Return the text for `value`, which could not be decoded as `kind`.

    Args:
        value: Decoded JSON.
        kind: The expected type.
        exact: True if the peer's decoder quotes every number that it refuses; see `_blame`.
    """
    return _blame(value, _type_info(kind), exact=exact) or "invalid value"


@cache
def _type_info(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def _blame(value: object, kind: inspect.Type, *, exact: bool = False) -> str | None:
    """
    Return the first fault in the order of the text, or None.

    Args:
        exact: True if numbers are quoted. serde quotes them inside a tagged union, which it reads
            in two steps.
    """
    match kind:
        case inspect.StructType():
            return _blame_struct(value, kind, exact=exact)
        case inspect.UnionType():
            return _blame_union(value, kind, exact=exact)
        case inspect.Metadata():
            return _blame_named(value, kind, exact=exact)
        case inspect.IntType():
            wanted = "a nonzero usize" if kind.ge == 1 else "u64"
            if isinstance(value, bool) or not isinstance(value, int | float):
                return wrong_type(value, wanted, exact=exact)
            # serde reports any number outside u64, and any float, with the same text.
            if kind.ge != 1:
                return "invalid number"
            if isinstance(value, float):
                return wrong_type(value, wanted, exact=exact)
            return f"invalid value: integer `{value}`, expected {wanted}"
        case inspect.BoolType():
            return None if isinstance(value, bool) else wrong_type(value, "a boolean", exact=exact)
        case inspect.ListType() | inspect.VarTupleType():
            if not isinstance(value, list):
                return wrong_type(value, "a sequence", exact=exact)
            return _first(value, kind.item_type, exact=exact)
        case inspect.DictType():
            if not isinstance(value, dict):
                return wrong_type(value, "a map", exact=exact)
            return _first(value.values(), kind.value_type, exact=exact)
        case inspect.AnyType():
            return None
        case _:
            # Strings, and types decoded from a string.
            return None if isinstance(value, str) else wrong_type(value, "a string", exact=exact)


def _blame_named(value: object, kind: inspect.Metadata, *, exact: bool) -> str | None:
    """Find the fault of a value whose type has its own name: `u16`, `path string`."""
    named = kind.extra or {}
    wanted = str(named["wire"])
    if not isinstance(kind.type, inspect.IntType):
        return None if isinstance(value, str) else wrong_type(value, wanted, exact=exact)
    if isinstance(value, bool) or not isinstance(value, int):
        return wrong_type(value, wanted, exact=exact)
    low, high = kind.type.ge, kind.type.le
    if (low is None or value >= low) and (high is None or value <= high):
        return oversized(value)
    return oversized(value) or f"invalid value: integer `{value}`, expected {wanted}"


def oversized(value: int) -> str | None:
    """Return the text for an integer that does not fit into 64 bits; None for others."""
    if _I64_MIN <= value <= _U64_MAX:
        return None
    width = "u128" if value > 0 else "i128"
    return f"invalid type: integer `{value}` as {width}, expected any value"


def _first(values: Iterable[object], kind: inspect.Type, *, exact: bool) -> str | None:
    return next(filter(None, (_blame(value, kind, exact=exact) for value in values)), None)


def _blame_union(value: object, kind: inspect.UnionType, *, exact: bool) -> str | None:
    some = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    if value is None and len(some) < len(kind.types):
        return None
    shapes = [one for one in some if isinstance(one, inspect.StructType)]
    if len(shapes) > 1:
        return _blame_shape(value, shapes, exact=exact)
    (one,) = some
    return _blame(value, one, exact=exact)


def _blame_shape(value: object, shapes: list[inspect.StructType], *, exact: bool) -> str | None:
    """Return the fault of an object of a tagged union."""
    if not isinstance(value, dict):
        return wrong_type(value, _name(shapes[0].cls), exact=True)
    member = shapes[0].tag_field
    if member not in value:
        return f"missing field `{member}`"
    tag = value[member]
    # serde treats a non-negative integer as the index of the variant.
    if exact and type(tag) is int and tag >= 0:
        index = f"variant index 0 <= i < {len(shapes)}"
        return oversized(tag) or f"invalid value: integer `{tag}`, expected {index}"
    if not isinstance(tag, str):
        return wrong_type(tag, "variant identifier", exact=exact)
    by_tag = {str(shape.tag): shape for shape in shapes}
    if value[member] not in by_tag:
        return _blame_variant(value[member], list(by_tag), exact=True)
    return _blame_struct(value, by_tag[value[member]], exact=True)


def _blame_struct(value: object, kind: inspect.StructType, *, exact: bool) -> str | None:
    if exact and isinstance(value, list):
        # A decoder that accepts a list as a structure expects all its members.
        count = len(kind.fields)
        return f"invalid length {len(value)}, expected {_name(kind.cls)} with {count} elements"
    if not isinstance(value, dict):
        return wrong_type(value, _name(kind.cls), exact=exact)
    fields = {field.encode_name: field for field in kind.fields}
    for name, member in value.items():
        field = fields.get(name)
        if field is None or _fits(member, field.type):
            continue
        choices = _choices(kind.cls, field.name)
        if choices:
            found = _blame_variant(member, choices, exact=exact)
        else:
            found = _blame(member, field.type, exact=exact)
        if found:
            return found
    for name, field in fields.items():
        if field.required and name not in value:
            return f"missing field `{name}`"
    return None


def _name(struct: type) -> str:
    """Return the name of a wire type in error texts."""
    return getattr(struct, "wire_name", None) or f"struct {struct.__name__}"


def _fits(value: object, kind: inspect.Type) -> bool:
    """Return True if a number or null has the right type; the walk checks other values."""
    if isinstance(kind, inspect.UnionType):
        return any(_fits(value, some) for some in kind.types)
    if isinstance(kind, inspect.IntType):
        return type(value) is int and (kind.ge is None or value >= kind.ge)
    if isinstance(kind, inspect.Metadata):
        # `_blame_named` checks the value itself.
        return False
    return value is None and isinstance(kind, inspect.NoneType)


def _choices(struct: type, name: str) -> list[str]:
    """
    Return the values of a `Literal` in their declared order, which msgspec does not preserve.
    """
    (kind,) = [field.type for field in structs.fields(struct) if field.name == name]
    literals = [one for one in (kind, *get_args(kind)) if get_origin(one) is Literal]
    return [str(choice) for literal in literals for choice in get_args(literal)]


def _blame_variant(value: object, choices: list[str], *, exact: bool) -> str | None:
    if not isinstance(value, str):
        return wrong_type(value, "string or map", exact=exact)
    if value in choices:
        return None
    quoted = [f"`{choice}`" for choice in choices]
    expected = f"one of {', '.join(quoted)}" if len(quoted) > 2 else " or ".join(quoted)
    return f"unknown variant `{value}`, expected {expected}"


def wrong_type(value: object, wanted: str, *, exact: bool = False) -> str:
    """Return the text for a value that is not of the type `wanted`."""
    match value:
        case None:
            got = "null"
        case bool():
            got = f"boolean `{json.dumps(value)}`"
        case int() if exact:
            got = f"integer `{value}`"
        case float() if exact:
            got = f"floating point `{float_text(value)}`"
        case int() | float():
            got = "number"
        case str():
            got = f"string {debug_text(value)}"
        case list():
            got = "sequence"
        case _:
            got = "map"
    return f"invalid type: {got}, expected {wanted}"

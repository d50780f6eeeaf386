"""
Says in the protocol's words why a value does not fit a type (exec-server spec 2.5).

Decoding is left to msgspec, which is fast but words its errors differently. Only
when it has refused a value is that value walked again, here, to name the first
thing wrong with it.
"""

import json
from functools import cache
from typing import get_args

from msgspec import inspect, structs

__all__ = ["blame", "wrong_type"]


def blame(value: object, kind: object) -> str:
    """The text for `value`, which could not be decoded as `kind`."""
    return _blame(value, _type_info(kind)) or "invalid value"


@cache
def _type_info(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def _blame(value: object, kind: inspect.Type) -> str | None:
    """The first fault in the order in which a reader of the text meets it, if there is one."""
    match kind:
        case inspect.StructType():
            return _blame_struct(value, kind)
        case inspect.UnionType():
            if value is None and any(isinstance(t, inspect.NoneType) for t in kind.types):
                return None
            (some,) = [t for t in kind.types if not isinstance(t, inspect.NoneType)]
            return _blame(value, some)
        case inspect.IntType():
            if isinstance(value, bool) or not isinstance(value, int | float):
                return wrong_type(value, "u64")
            return "invalid number"
        case inspect.BoolType():
            return None if isinstance(value, bool) else wrong_type(value, "a boolean")
        case inspect.ListType() | inspect.VarTupleType():
            if not isinstance(value, list):
                return wrong_type(value, "a sequence")
            return next(filter(None, (_blame(item, kind.item_type) for item in value)), None)
        case inspect.DictType():
            if not isinstance(value, dict):
                return wrong_type(value, "a map")
            return next(
                filter(None, (_blame(item, kind.value_type) for item in value.values())), None
            )
        case inspect.AnyType():
            return None
        case _:
            # Texts, and the types that are made from a text.
            return None if isinstance(value, str) else wrong_type(value, "a string")


def _blame_struct(value: object, kind: inspect.StructType) -> str | None:
    if not isinstance(value, dict):
        return wrong_type(value, f"struct {kind.cls.__name__}")
    fields = {field.encode_name: field for field in kind.fields}
    for name, member in value.items():
        field = fields.get(name)
        if field is None or _fits(member, field.type):
            continue
        if isinstance(field.type, inspect.LiteralType):
            found = _blame_variant(member, _choices(kind.cls, field.name))
        else:
            found = _blame(member, field.type)
        if found:
            return found
    for name, field in fields.items():
        if field.required and name not in value:
            return f"missing field `{name}`"
    return None


def _fits(value: object, kind: inspect.Type) -> bool:
    """Whether a number is fine as it is; for all else the walk itself finds out."""
    if isinstance(kind, inspect.UnionType):
        return any(_fits(value, some) for some in kind.types)
    if isinstance(kind, inspect.IntType):
        return type(value) is int and (kind.ge is None or value >= kind.ge)
    return False


def _choices(struct: type, name: str) -> list[str]:
    """The values of a `Literal` in the order of their declaration, which inspection loses."""
    (kind,) = [field.type for field in structs.fields(struct) if field.name == name]
    return [str(choice) for choice in get_args(kind)]


def _blame_variant(value: object, choices: list[str]) -> str | None:
    if not isinstance(value, str):
        return wrong_type(value, "string or map")
    if value in choices:
        return None
    quoted = [f"`{choice}`" for choice in choices]
    expected = f"one of {', '.join(quoted)}" if len(quoted) > 2 else " or ".join(quoted)
    return f"unknown variant `{value}`, expected {expected}"


def wrong_type(value: object, wanted: str) -> str:
    """The text for a value of another type than the one that is wanted."""
    match value:
        case None:
            got = "null"
        case bool():
            got = f"boolean `{json.dumps(value)}`"
        case int() | float():
            got = "number"
        case str():
            got = f"string {json.dumps(value, ensure_ascii=False)}"
        case list():
            got = "sequence"
        case _:
            got = "map"
    return f"invalid type: {got}, expected {wanted}"

"""Conversion of params to the type of their method, with the error text if they do not fit."""

import re
from typing import TypeVar

import msgspec

from holdfast.base.dialect import blame, wrong_type
from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.fs import FileContent
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import ThreadId
from holdfast.wire.protocol.wire_types import Base64, Empty
from holdfast.wire.rpc.base64 import decode_base64

__all__ = ["decode_params", "decode_result"]

T = TypeVar("T")

# The spellings that Rust's `uuid` crate accepts.
_UUID = re.compile(
    r"(?:urn:uuid:)?\{?([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})\}?",
    re.IGNORECASE,
)


def decode_params(params: object, kind: type[T]) -> T:
    """
    Turn decoded JSON into the type of a method.

    Raises:
        InvalidParams: With the protocol's text for the first fault.
    """
    if kind is Empty:
        if params is None or params == {}:
            return kind()
        raise InvalidParams(wrong_type(params, "unit"))
    try:
        return msgspec.convert(params, kind, dec_hook=_from_text)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ValueError):
            # A string that does not parse, or a rule of the type: it has its own error text.
            raise InvalidParams(str(error.__cause__)) from None
        raise InvalidParams(blame(params, kind)) from None


def decode_result(result: object, kind: type[T]) -> T:
    """
    Turn the result of a call into the type of its method.

    Raises:
        msgspec.ValidationError: The peer answered with another type.
    """
    if kind is Empty:
        return kind()
    return msgspec.convert(result, kind, dec_hook=_from_text)


def _from_text(kind: type, value: object) -> object:
    """Build the wire types that are a string in JSON."""
    if not isinstance(value, str):
        # `blame` finds the error text.
        raise TypeError
    if kind is Base64:
        return Base64(decode_base64(value))
    if kind is FileContent:
        return FileContent(value)
    if kind is PathUri:
        return PathUri.parse(value)
    # The only other type with this hook.
    assert kind is ThreadId
    found = _UUID.fullmatch(value)
    if found is None:
        raise ValueError(f"invalid UUID `{value}`")
    return ThreadId("-".join(found.groups()).lower())

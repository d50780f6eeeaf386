"""Params of a request to the type its method names, and the text when they do not fit."""

import re
from typing import TypeVar

import msgspec

from holdfast.errors import InvalidParams
from holdfast.protocol.base import Base64, Empty
from holdfast.protocol.paths import PathUri
from holdfast.protocol.process import ThreadId
from holdfast.rpc.base64 import decode_base64
from holdfast.rpc.blame import blame, wrong_type

__all__ = ["decode_params", "decode_result"]

T = TypeVar("T")

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
            # A text that does not parse, or a rule of the type itself: its own words.
            raise InvalidParams(str(error.__cause__)) from None
        raise InvalidParams(blame(params, kind)) from None


def decode_result(result: object, kind: type[T]) -> T:
    """
    Turn the result of a call into the type of its method.

    Raises:
        msgspec.ValidationError: The peer answered with something else.
    """
    if kind is Empty:
        return kind()
    return msgspec.convert(result, kind, dec_hook=_from_text)


def _from_text(kind: type, value: object) -> object:
    """Make the types of the protocol that are a text on the wire."""
    if not isinstance(value, str):
        raise TypeError  # the walk in `blame` words it
    if kind is Base64:
        return Base64(decode_base64(value))
    if kind is PathUri:
        return PathUri.parse(value)
    assert kind is ThreadId  # the only other one
    found = _UUID.fullmatch(value)
    if found is None:
        raise ValueError(f"invalid UUID `{value}`")
    return ThreadId("-".join(found.groups()).lower())

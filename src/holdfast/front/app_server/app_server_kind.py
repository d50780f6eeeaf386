"""
The app-server's dialect: the exec-server's envelope with different rules.

Malformed messages get no response, notifications have a timestamp, and params that cannot be
decoded are an invalid request [app-server.decoding].
"""

import time
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from holdfast.base.dialect import blame, texts
from holdfast.base.errors import InvalidRequest, MalformedMessage, Overloaded, Refused
from holdfast.wire.protocol.command_exec import (
    COMMAND_EXEC_RESIZE,
    COMMAND_EXEC_TERMINATE,
    COMMAND_EXEC_WRITE,
    PROCESS_KILL,
    PROCESS_RESIZE_PTY,
    PROCESS_WRITE_STDIN,
)
from holdfast.wire.rpc.base64 import encode_base64
from holdfast.wire.rpc.decode import decode_any_keys
from holdfast.wire.rpc.encode import encode_value
from holdfast.wire.rpc.server_kind import ServerKind

__all__ = [
    "APP_SERVER",
    "AppServerKind",
    "DeltaEncoder",
]

T = TypeVar("T")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _encode_notification(method: str, params: object) -> bytes:
    return encode_value({"method": method, "params": params, "emittedAtMs": _now_ms()})


def _decode_params(params: object, kind: type[T]) -> T:
    if params is None:
        raise InvalidRequest(texts.bad_params("missing field `params`"))
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        named = _by_name(params, kind)
        # At most one retry: an object is not converted again.
        if named is not params:
            return _decode_params(named, kind)
        # A rule of the type has its own text.
        rule = isinstance(error.__cause__, ValueError)
        text = str(error.__cause__) if rule else blame(params, kind, exact=True)
        raise InvalidRequest(texts.bad_params(text)) from None


class AppServerKind(ServerKind):
    """The app-server, where it differs from the exec-server."""

    control = frozenset(
        method.name
        for method in (
            COMMAND_EXEC_WRITE,
            COMMAND_EXEC_RESIZE,
            COMMAND_EXEC_TERMINATE,
            PROCESS_WRITE_STDIN,
            PROCESS_RESIZE_PTY,
            PROCESS_KILL,
        )
    )
    decode_message = staticmethod(decode_any_keys)
    decode_params = staticmethod(_decode_params)
    encode_notification = staticmethod(_encode_notification)
    # Unlike the exec-server, which closes the connection.
    ignores_stray_replies = True

    def unknown_method(self, method: str, known: Iterable[str]) -> Refused:
        choices = ", ".join(f"`{name}`" for name in known)
        return InvalidRequest(
            texts.bad_params(f"unknown variant `{method}`, expected one of {choices}")
        )

    def parse_failure(self, error: MalformedMessage, kind: str, label: str) -> str | None:
        return None

    def overload(self) -> Overloaded:
        return Overloaded(texts.SERVER_OVERLOADED)


APP_SERVER = AppServerKind()


def _by_name(value: object, kind: object) -> object:
    """
    Convert params given as a list to an object, if no member is missing.

    Returns:
        The same value if there is no such list.
    """
    # serde accepts a list for a structure; clients often send `size` that way.
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return value
    fields = msgspec.structs.fields(kind)
    if isinstance(value, list) and len(value) == len(fields):
        value = {field.encode_name: item for field, item in zip(fields, value, strict=True)}
    if not isinstance(value, dict):
        return value
    for field in fields:
        member = value.get(field.encode_name)
        if isinstance(member, list):
            for shape in _structs(field.type):
                named = _by_name(member, shape)
                if named is not member:
                    value = {**value, field.encode_name: named}
    return value


def _structs(kind: object) -> list[type]:
    """Return the only untagged structure allowed for a member, if there is exactly one."""
    options = getattr(kind, "__args__", (kind,))
    structs = [one for one in options if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    return structs if len(structs) == 1 else []


class DeltaEncoder:
    """Encodes output notifications of a command without copying their base64."""

    def __init__(self, method: str, id_member: str, command_id: str) -> None:
        shown = (encode_value(method), encode_value(id_member), encode_value(command_id))
        self._head = b'{"method":%b,"params":{%b:%b,"stream":"' % shown

    def encode(self, stream: str, data: bytes, cap_reached: bool) -> tuple[bytes, bytes, bytes]:
        """Return a notification in parts."""
        flag = b"true" if cap_reached else b"false"
        return (
            b'%b%b","deltaBase64":"' % (self._head, stream.encode()),
            encode_base64(data),
            b'","capReached":%b},"emittedAtMs":%d}' % (flag, _now_ms()),
        )

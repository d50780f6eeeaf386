"""
Decodes `additional_permissions`, which a command requests beyond its sandbox.

Models use two forms of `file_system`: lists of directories to read and to write, and entries as in
a permission profile. A value in neither form always gets the same error text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast, get_args

from holdfast.agent.unified_exec.arguments.json_reader import (
    JsonReader,
    Number,
    Read,
    UnlocatedFault,
)
from holdfast.wire.protocol.sandbox import Access, SpecialKind

__all__ = ["RequestedFiles", "RequestedPermissions", "read_requested_permissions"]

T = TypeVar("T")

_ACCESS = frozenset(get_args(Access))
_SPECIAL = frozenset(get_args(SpecialKind))

_Pairs: TypeAlias = "tuple[tuple[str, object], ...]"


class _Mismatch(Exception):
    """A value does not have the form being tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFiles:
    """Files that a command requests, either with `read` and `write` or with `entries`."""

    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    """Paths as the model wrote them; relative ones start at the command's directory."""
    entries: tuple[dict[str, object], ...] | None = None
    """Entries of a permission profile, as JSON objects."""
    glob_scan_max_depth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPermissions:
    """Permissions that a command requests beyond its sandbox; None for an absent member."""

    network: bool | None = None
    file_system: RequestedFiles | None = None


def read_requested_permissions(reader: JsonReader) -> RequestedPermissions:
    """Read the value of `additional_permissions` at the reader's position."""
    fields: dict[str, Read] = {
        "network": reader.optional(lambda: _network(reader)),
        "file_system": reader.optional(lambda: _file_system(reader)),
    }
    found = reader.structure("struct AdditionalPermissionProfile", fields, required=2)
    return RequestedPermissions(**found)  # type: ignore[arg-type]  # read with their types


def _network(reader: JsonReader) -> bool | None:
    fields: dict[str, Read] = {"enabled": reader.optional(reader.boolean)}
    found = reader.structure("struct NetworkPermissions", fields, required=1)
    return cast("bool | None", found.get("enabled"))


def _file_system(reader: JsonReader) -> RequestedFiles:
    value = reader.anything()
    for form in (_profile_form, _directory_form):
        try:
            return form(value)
        except _Mismatch:
            continue
    raise UnlocatedFault("data did not match any variant of untagged enum FileSystemPermissionsDe")


def _profile_form(value: object) -> RequestedFiles:
    members = _members(value, ("entries", "glob_scan_max_depth"), strict=True)
    entries = members.get("entries", [])
    if not isinstance(entries, list):
        raise _Mismatch
    depth = members.get("glob_scan_max_depth")
    return RequestedFiles(
        entries=tuple(_entry(one) for one in entries),
        glob_scan_max_depth=None if depth is None else _count(depth),
    )


def _directory_form(value: object) -> RequestedFiles:
    members = _members(value, ("read", "write"), strict=True)
    return RequestedFiles(
        read=_optional(members.get("read"), _texts), write=_optional(members.get("write"), _texts)
    )


def _members(value: object, names: tuple[str, ...], *, strict: bool) -> dict[str, object]:
    """Return the members of an object, or of a list with the members in order."""
    if isinstance(value, list):
        if len(value) > len(names):
            raise _Mismatch
        return dict(zip(names, value, strict=False))
    if not isinstance(value, tuple):
        raise _Mismatch
    members: dict[str, object] = {}
    for name, member in cast("_Pairs", value):
        if name in members or (strict and name not in names):
            raise _Mismatch
        if name in names:
            members[name] = member
    return members


def _entry(value: object) -> dict[str, object]:
    members = _members(value, ("path", "access"), strict=False)
    access = members.get("access")
    if not isinstance(access, str) or access not in _ACCESS:
        raise _Mismatch
    path = _members(members.get("path"), ("type", "path", "pattern", "value"), strict=False)
    match path:
        case {"type": "path", "path": str(text)} if not isinstance(text, Number):
            return {"path": {"type": "path", "path": text}, "access": access}
        case {"type": "glob_pattern", "pattern": str(text)} if not isinstance(text, Number):
            return {"path": {"type": "glob_pattern", "pattern": text}, "access": access}
        case {"type": "special", "value": special}:
            return {"path": {"type": "special", "value": _special(special)}, "access": access}
    raise _Mismatch


def _special(value: object) -> dict[str, object]:
    members = _members(value, ("kind", "subpath", "path"), strict=False)
    kind = members.get("kind")
    if not isinstance(kind, str) or kind not in _SPECIAL:
        raise _Mismatch
    found: dict[str, object] = {"kind": kind}
    for name in ("subpath", "path"):
        text = _optional(members.get(name), _text)
        if text is not None:
            found[name] = text
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        raise _Mismatch
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Mismatch
    return tuple(_text(one) for one in value)


def _count(value: object) -> int:
    if not isinstance(value, Number) or not value.isdigit() or not 1 <= len(value) <= 20:
        raise _Mismatch
    count = int(value)
    if not 1 <= count < 2**64:
        raise _Mismatch
    return count


def _optional(value: object, read: Callable[[object], T]) -> T | None:
    return None if value is None else read(value)

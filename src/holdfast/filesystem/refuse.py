"""
Decides whether an operation may run without a sandbox (filesystem spec 4).

There is none yet, so a profile that restricts anything is refused. A client
believes a server that ignores its profile, so that is never an option.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidParams
from holdfast.protocol.fs import FileSandbox
from holdfast.rpc.blame import wrong_type

__all__ = ["refuse_restricted"]

_UNSUPPORTED = "sandboxed file operations are not supported by this exec-server"


def refuse_restricted(sandbox: FileSandbox | None) -> None:
    """
    Check a sandbox context, and that it asks for nothing.

    Raises:
        InvalidParams: It is malformed, or restricts what may be touched.
    """
    if sandbox is None:
        return
    permissions = sandbox.permissions
    kind = _variant(permissions, "type", ("managed", "disabled", "external"))
    if kind == "disabled":
        return
    if kind == "external":
        _variant(permissions, "network", ("restricted", "enabled"))
        return
    files = _member(permissions, "file_system")
    if not isinstance(files, dict):
        raise InvalidParams(wrong_type(files, "internally tagged enum"))
    access = _variant(files, "type", ("restricted", "unrestricted"))
    if access == "restricted":
        _member(files, "entries")
    _variant(permissions, "network", ("restricted", "enabled"))
    if access == "restricted":
        raise InvalidParams(_UNSUPPORTED)


def _member(of: Mapping[str, Any], name: str) -> Any:
    if name not in of:
        raise InvalidParams(f"missing field `{name}`")
    return of[name]


def _variant(of: Mapping[str, Any], name: str, choices: Sequence[str]) -> str:
    value = _member(of, name)
    if not isinstance(value, str):
        raise InvalidParams(wrong_type(value, "variant identifier"))
    if value not in choices:
        listed = [f"`{choice}`" for choice in choices]
        expected = " or ".join(listed) if len(listed) == 2 else f"one of {', '.join(listed)}"
        raise InvalidParams(f"unknown variant `{value}`, expected {expected}")
    return value

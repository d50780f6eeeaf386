"""
Reads arguments that are plainly right, in a tenth of the time of the exact reader.

Almost every call is of this kind. `scripts/bench --without plain-arguments` shows the gain.
Whatever is unusual is left to `json_reader`, which alone knows the text of each fault: a wrong
type, a doubled member, a number that is not positive, half a surrogate pair. So a mistake here
costs time, never a wrong answer.
"""

import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["PlainExec", "PlainWrite", "SandboxPermissions", "read_plain"]

SandboxPermissions: TypeAlias = Literal[
    "use_default", "require_escalated", "with_additional_permissions"
]
"""The sandbox that a command asks for."""

# A member ends its name with a quote and a colon, and so may a text.
_NAME_END = re.compile(rb'"[ \t\r\n]*:')

_Text: TypeAlias = str | UnsetType | None
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_I32: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _Extras(msgspec.Struct):
    """Members of the extras."""

    wait_for: UnsetType | None = UNSET
    head: _I32 | UnsetType | None = UNSET
    tail: _I32 | UnsetType | None = UNSET
    grep: _Text = UNSET


class PlainExec(_Extras, kw_only=True):
    """The members of `exec_command`."""

    cmd: str
    workdir: _Text = UNSET
    environment_id: _Text = UNSET
    shell: _Text = UNSET
    login: bool | UnsetType | None = UNSET
    tty: bool | UnsetType = UNSET
    yield_time_ms: _Positive | UnsetType = UNSET
    max_output_tokens: _Positive | UnsetType | None = UNSET
    sandbox_permissions: SandboxPermissions | UnsetType | None = UNSET
    additional_permissions: UnsetType | None = UNSET
    justification: _Text = UNSET
    prefix_rule: tuple[str, ...] | UnsetType | None = UNSET


class PlainWrite(_Extras, kw_only=True):
    """The members of `write_stdin`."""

    session_id: _I32
    chars: str | UnsetType = UNSET
    yield_time_ms: _Positive | UnsetType = UNSET
    max_output_tokens: _Positive | UnsetType | None = UNSET


def read_plain(
    data: bytes, kind: type[msgspec.Struct], *, extras: bool
) -> dict[str, object] | None:
    """
    Return the members that are there, or None if the exact reader has to look.

    Args:
        data: The JSON text.
        kind: All members and their types.
        extras: True if the extras are members; else they are ignored.
    """
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    given = msgspec.structs.asdict(found)
    members = {name: value for name, value in given.items() if value is not UNSET}
    if not extras and not members.keys().isdisjoint(_Extras.__struct_fields__):
        return None
    # As many names as members: none is doubled, unknown or inside of another.
    return members if len(_NAME_END.findall(data)) == len(members) else None

"""
Decodes the arguments of the tools as the model wrote them.

Decoding takes several steps, with checks in between: an unknown environment hides an invalid
`workdir`, and an unknown session hides all errors except in its number. So each step is a method of
`Arguments`, to be called in this order: `environment_id`, `workdir`, `exec_command`; or
`session_id`, `write_stdin`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import Annotated, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.agent.unified_exec.arguments.json_reader import (
    Fault,
    JsonReader,
    Read,
    UnlocatedFault,
)
from holdfast.agent.unified_exec.arguments.requested_permissions import (
    RequestedPermissions,
    read_requested_permissions,
)
from holdfast.base.dialect import limits, texts
from holdfast.base.errors import HoldfastError, InvalidParams

__all__ = [
    "EXEC_YIELD_MS",
    "WRITE_YIELD_MS",
    "ArgumentError",
    "Arguments",
    "ExecArguments",
    "OutputArguments",
    "PermissionArguments",
    "ReadArguments",
    "SandboxPermissions",
    "WaitForArguments",
    "WriteArguments",
    "read_plain",
]

SandboxPermissions: TypeAlias = Literal[
    "use_default", "require_escalated", "with_additional_permissions"
]
"""The sandbox that a command requests."""

# The end of a member's name. Text inside a string may look the same.
_NAME_END = re.compile(rb'"[ \t\r\n]*:')

_Text: TypeAlias = str | UnsetType | None
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _Extras(msgspec.Struct):
    """Members of the extras."""

    wait_for: UnsetType | None = UNSET
    head: _Int32 | UnsetType | None = UNSET
    tail: _Int32 | UnsetType | None = UNSET
    grep: _Text = UNSET


class _PlainExec(_Extras, kw_only=True):
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


class _PlainWrite(_Extras, kw_only=True):
    """The members of `write_stdin`."""

    session_id: _Int32
    chars: str | UnsetType = UNSET
    yield_time_ms: _Positive | UnsetType = UNSET
    max_output_tokens: _Positive | UnsetType | None = UNSET


def read_plain(
    data: bytes, kind: type[msgspec.Struct], *, extras: bool
) -> dict[str, object] | None:
    """
    Return the members of plain arguments, or None if the exact reader is needed.

    Almost all arguments are plain, and take a tenth of the time to read
    (`scripts/bench --without plain-arguments`). Only `json_reader` knows the text of each fault: a
    wrong type, a duplicate member, a number that is not positive, a lone surrogate. So a false
    None only costs time.

    Args:
        data: The JSON text.
        kind: All members and their types.
        extras: True to read the extras; otherwise they are ignored.
    """
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    given = msgspec.structs.asdict(found)
    members = {name: value for name, value in given.items() if value is not UNSET}
    if not extras and not members.keys().isdisjoint(_Extras.__struct_fields__):
        return None
    # As many names as members: none is duplicate, unknown or nested.
    return members if len(_NAME_END.findall(data)) == len(members) else None


_SANDBOX_PERMISSIONS = get_args(SandboxPermissions)

_I32 = (-(2**31), 2**31 - 1)
_U64 = (0, 2**64 - 1)
_LINES = (1, 2**31 - 1)
_QUIET_MS = (1, 86_400_000)
_QUIET = "milliseconds from 1 to 86400000"

EXEC_YIELD_MS = limits.TOOL_WAIT_MS
"""Milliseconds that `exec_command` waits by default."""

WRITE_YIELD_MS = limits.TOOL_WRITE_WAIT_MS
"""Milliseconds that `write_stdin` waits by default; with `wait_for`, as long as `exec_command`."""


class ArgumentError(HoldfastError):
    """The arguments of a tool are invalid; the model reads the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForArguments:
    """Conditions that end the wait of a call early. At least one is set; the first met counts."""

    pattern: str | None = None
    """A regular expression to search the output for."""
    quiet_ms: int | None = None
    """Milliseconds without output."""
    port: int | None = None
    """A TCP port on which a program listens."""
    input: bool = False
    """The command waits for input from its terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputArguments:
    """The extras of a call: conditions to wait for, and a selection of lines."""

    wait_for: WaitForArguments | None = None
    head: int | None = None
    tail: int | None = None
    grep: str | None = None

    @property
    def selective(self) -> bool:
        """True if any extra is given."""
        lines = (self.head, self.tail, self.grep)
        return self.wait_for is not None or lines != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecArguments(OutputArguments):
    """
    The arguments of `exec_command`. None for arguments that the model did not give.

    Raises:
        TypeError: A value has the wrong type; the text names its argument.
        InvalidParams: A number is out of range.
    """

    cmd: str
    workdir: str | None = None
    """The directory as the model wrote it; an empty string counts as absent."""
    tty: bool = False
    yield_time_ms: int = EXEC_YIELD_MS
    """Not clamped."""
    max_output_tokens: int | None = None
    shell: str | None = None
    login: bool | None = None
    environment_id: str | None = None
    sandbox_permissions: SandboxPermissions | None = None
    justification: str | None = None
    prefix_rule: tuple[str, ...] | None = None
    additional_permissions: RequestedPermissions | None = None

    def __post_init__(self) -> None:
        _check_types(self, _EXEC_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteArguments(OutputArguments):
    """
    The arguments of `write_stdin`. None for arguments that the model did not give.

    Raises:
        TypeError: A value has the wrong type; the text names its argument.
        InvalidParams: A number is out of range.
    """

    session_id: int
    chars: str = ""
    yield_time_ms: int = WRITE_YIELD_MS
    """Not clamped."""
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_types(self, _WRITE_TYPES)


_NONE = type(None)

_SIZES = ("yield_time_ms", "max_output_tokens")


def _types_of(kind: type) -> dict[str, tuple[type, ...]]:
    """Return the permitted classes for the value of each attribute."""
    return {
        name: tuple(
            str if get_origin(one) is Literal else get_origin(one) or one
            for one in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))
        )
        for name, hint in get_type_hints(kind).items()
    }


_EXEC_TYPES = _types_of(ExecArguments)
_WRITE_TYPES = _types_of(WriteArguments)


def _check_types(arguments: object, types: Mapping[str, tuple[type, ...]]) -> None:
    """Check the types of arguments from a program; those from a model are checked on reading."""
    for name, allowed in types.items():
        value = getattr(arguments, name)
        if type(value) not in allowed and (
            not isinstance(value, allowed) or isinstance(value, bool)
        ):
            expected = " or ".join("None" if one is _NONE else one.__name__ for one in allowed)
            raise TypeError(f"{name} is {value!r}, it must be {expected}")
        if name in _SIZES and value is not None and not 0 <= value <= _U64[1]:
            raise InvalidParams(f"{name} is {value}, it must be from 0 to {_U64[1]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArguments:
    """The arguments of `read_output`. Exactly one of the first two is set."""

    call_id: str | None = None
    session_id: int | None = None
    from_seq: int | None = None
    lines: tuple[int, int | None] | None = None
    """First and last line, from 1; negative numbers count from the end."""
    pattern: str | None = None

    @property
    def id(self) -> str | int:
        """The given call id or session id."""
        found = self.call_id if self.session_id is None else self.session_id
        # The constructor requires one of the two.
        assert found is not None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionArguments:
    """The arguments of `request_permissions`."""

    permissions: RequestedPermissions
    reason: str | None = None
    environment_id: str | None = None


class Arguments:
    """The arguments of one call. Every method raises `ArgumentError` if they are invalid."""

    def __init__(self, given: str | Mapping[str, object], *, extras: bool = False) -> None:
        """
        Args:
            given: The JSON text of the model, or its members. Members are first encoded
                compactly; columns in errors refer to that text.
            extras: Accept `wait_for`, `head`, `tail` and `grep`. Otherwise they are ignored,
                like all unknown members.

        Raises:
            ArgumentError: A member cannot be encoded as JSON.
        """
        # Values other than objects, such as None, get the error for their JSON text.
        text = given if isinstance(given, str) else _encoded(given)
        # A lone surrogate cannot be encoded as UTF-8, but JSON can escape it.
        self._data = text.encode("utf-8", "backslashreplace")
        self._extras = extras
        # Results of the first two steps, which the last step includes.
        self._location: dict[str, str | None] = {}

    # -- exec_command

    @cached_property
    def _plain_exec(self) -> ExecArguments | None:
        """All arguments of `exec_command`, if they can be read without the exact reader."""
        found = read_plain(self._data, _PlainExec, extras=self._extras)
        if found is None:
            return None
        if found.get("justification") is not None and found.get("sandbox_permissions") is None:
            return None
        found["workdir"] = found.get("workdir") or None
        return ExecArguments(**found)  # type: ignore[arg-type]  # each was checked for its type

    def environment_id(self) -> str | None:
        """Return the id of the environment; an empty string is an id."""
        if self._plain_exec is not None:
            return self._plain_exec.environment_id
        return self._optional_text("environment_id", required=1)

    def workdir(self) -> str | None:
        """Return the directory as the model wrote it; None for an empty string."""
        if self._plain_exec is not None:
            return self._plain_exec.workdir
        return self._optional_text("workdir", required=0) or None

    def _optional_text(self, name: str, *, required: int) -> str | None:
        if name not in self._location:
            reader = JsonReader(self._data.decode())
            fields: dict[str, Read] = {name: reader.optional(reader.string)}
            found = _document(reader, "struct ToolEnvironmentArgs", fields, required=required)
            self._location[name] = cast("str | None", found.get(name))
        return self._location[name]

    def exec_command(self) -> ExecArguments:
        """Return all arguments of `exec_command`, including the two above."""
        if self._plain_exec is not None:
            return self._plain_exec
        environment_id, workdir = self.environment_id(), self.workdir()
        reader = JsonReader(self._data.decode())
        text = reader.optional(reader.string)
        fields: dict[str, Read] = {
            "cmd": reader.string,
            "shell": text,
            "login": reader.optional(reader.boolean),
            "tty": reader.boolean,
            "yield_time_ms": lambda: reader.integer("u64", *_U64),
            "max_output_tokens": reader.optional(lambda: reader.integer("usize", *_U64)),
            "sandbox_permissions": reader.optional(lambda: reader.variant(_SANDBOX_PERMISSIONS)),
            "additional_permissions": reader.optional(lambda: read_requested_permissions(reader)),
            "justification": text,
            "prefix_rule": reader.optional(reader.strings),
        }
        if self._extras:
            fields |= _extra_fields(reader)
        found = _document(reader, "struct ExecCommandArgs", fields, required=1, needs="cmd")
        if found.get("justification") is not None and found.get("sandbox_permissions") is None:
            raise ArgumentError(texts.JUSTIFICATION_ALONE)
        return ExecArguments(
            **found,  # type: ignore[arg-type]  # each member was read with its type
            workdir=workdir,
            environment_id=environment_id,
        )

    # -- write_stdin

    @cached_property
    def _plain_write(self) -> WriteArguments | None:
        """All arguments of `write_stdin`, if they can be read without the exact reader."""
        found = read_plain(self._data, _PlainWrite, extras=self._extras)
        if found is None:
            return None
        return WriteArguments(**found)  # type: ignore[arg-type]  # each was checked for its type

    def session_id(self) -> int:
        """Return the number of the session, without decoding the other arguments."""
        if self._plain_write is not None:
            return self._plain_write.session_id
        reader = JsonReader(self._data.decode())
        fields: dict[str, Read] = {"session_id": lambda: reader.integer("i32", *_I32)}
        found = _document(
            reader, "struct TerminalSessionArgs", fields, required=1, needs="session_id"
        )
        return cast("int", found["session_id"])

    def write_stdin(self) -> WriteArguments:
        """Return all arguments of `write_stdin`, once the session is known to exist."""
        if self._plain_write is not None:
            return self._plain_write
        reader = JsonReader(self._data.decode())
        fields: dict[str, Read] = {
            "session_id": lambda: reader.integer("i32", *_I32),
            "chars": reader.string,
            "yield_time_ms": lambda: reader.integer("u64", *_U64),
            "max_output_tokens": reader.optional(lambda: reader.integer("usize", *_U64)),
        }
        if self._extras:
            fields |= _extra_fields(reader)
        found = _document(reader, "struct WriteStdinArgs", fields, required=1, needs="session_id")
        if found.get("wait_for") is not None:
            # Too short to see that a program waits for input, or usually for a port to open.
            found.setdefault("yield_time_ms", EXEC_YIELD_MS)
        return WriteArguments(**found)  # type: ignore[arg-type]  # each was read with its type

    # -- request_permissions

    def request_permissions(self) -> PermissionArguments:
        """Return the arguments of `request_permissions`."""
        environment_id = self.environment_id()
        reader = JsonReader(self._data.decode())
        fields: dict[str, Read] = {
            "permissions": lambda: read_requested_permissions(reader),
            "reason": reader.optional(reader.string),
        }
        found = _document(
            reader, "struct RequestPermissionsArgs", fields, required=1, needs="permissions"
        )
        return PermissionArguments(
            **found,  # type: ignore[arg-type]  # each member was read with its type
            environment_id=environment_id,
        )

    # -- view_image

    def view_image(self) -> str:
        """Return the path of the image."""
        reader = JsonReader(self._data.decode())
        fields: dict[str, Read] = {"path": reader.string}
        found = _document(reader, "struct ViewImageArgs", fields, required=1, needs="path")
        return cast("str", found["path"])

    # -- read_output

    def read_output(self) -> ReadArguments:
        """Return the arguments of `read_output`, a tool of the extras."""
        reader = JsonReader(self._data.decode())
        read: dict[str, Read] = {
            "call_id": reader.string,
            "session_id": lambda: reader.integer("i32", *_I32),
            "from_seq": lambda: reader.integer("a sequence number from 1", 1, _U64[1]),
            "lines": lambda: _line_range(reader),
            "pattern": reader.string,
        }
        fields = {name: reader.optional(_named(name, one)) for name, one in read.items()}
        found = _document(reader, "an object", fields, required=len(fields))
        wanted = ReadArguments(**found)  # type: ignore[arg-type]  # each was read with its type
        if (wanted.call_id is None) == (wanted.session_id is None):
            raise ArgumentError("give either `call_id` or `session_id`")
        if wanted.from_seq is not None and wanted.lines is not None:
            raise ArgumentError("give either `from_seq` or `lines`")
        return wanted


def _document(
    reader: JsonReader,
    name: str,
    fields: Mapping[str, Read],
    *,
    required: int,
    needs: str | None = None,
) -> dict[str, object]:
    try:
        return reader.document(name, fields, required=required, needs=needs)
    except Fault as fault:
        raise ArgumentError(texts.bad_arguments(fault.text)) from None


# `json.dumps` would create a new encoder for each call.
_as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _encoded(members: object) -> str:
    try:
        given = dict(members) if isinstance(members, Mapping) else members
        return _as_json(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(texts.bad_arguments(error)) from None


# -- the extras


def _extra_fields(reader: JsonReader) -> dict[str, Read]:
    lines = "a number of lines from 1"
    read = {
        "wait_for": lambda: _wait_for(reader),
        "head": lambda: reader.integer(lines, *_LINES),
        "tail": lambda: reader.integer(lines, *_LINES),
        "grep": reader.string,
    }
    return {name: reader.optional(_named(name, one)) for name, one in read.items()}


def _wait_for(reader: JsonReader) -> WaitForArguments:
    found = reader.strict_object(
        {
            "pattern": reader.optional(_named("pattern", reader.string)),
            "quiet_ms": reader.optional(
                _named("quiet_ms", lambda: reader.integer(_QUIET, *_QUIET_MS))
            ),
            "port": reader.optional(
                _named("port", lambda: reader.integer("a port from 1 to 65535", 1, 65535))
            ),
            "input": _named("input", reader.boolean),
        }
    )
    wanted = WaitForArguments(**found)  # type: ignore[arg-type]  # each was read with its type
    if wanted == WaitForArguments():
        raise UnlocatedFault("`wait_for`: needs one of `pattern`, `quiet_ms`, `port`, `input`")
    return wanted


def _line_range(reader: JsonReader) -> tuple[int, int | None]:
    found = reader.integers("a line number", *_I32)
    if not 1 <= len(found) <= 2:
        raise UnlocatedFault("`lines`: needs the first line, or the first and the last")
    return found[0], found[1] if len(found) == 2 else None


def _named(name: str, read: Read) -> Read:
    """Return a reader whose faults start with the name of the member."""

    def read_named() -> object:
        try:
            return read()
        except Fault as fault:
            raise Fault(f"`{name}`: {fault.text}") from None

    return read_named

"""The result of a tool call, and the forms for showing it to a model."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from holdfast.agent.unified_exec.arguments.schemas import SchemaKind, check_kind
from holdfast.agent.unified_exec.output.pages import Page
from holdfast.agent.unified_exec.output.selection import Selected
from holdfast.agent.unified_exec.text.answer import answer_object, answer_text, original_token_count
from holdfast.agent.unified_exec.text.truncate import (
    DEFAULT_MODEL_POLICY,
    TruncationPolicy,
    format_output,
    used_policy,
)
from holdfast.environments.collect.head_tail import Captured
from holdfast.environments.notes import Note
from holdfast.events import Verdict, WaitingFor
from holdfast.wire.rpc.base64 import encode_base64

# Only loaded for tools with approvals or patches.
if TYPE_CHECKING:
    from holdfast.agent.approvals.permissions import AddedPermissions
    from holdfast.agent.approvals.question import GrantScope
    from holdfast.agent.patching.apply import PatchResult

__all__ = [
    "ExecResult",
    "ImageResult",
    "PermissionGrant",
    "ReadResult",
    "ToolError",
    "text_content",
]


def text_content(kind: SchemaKind, text: str) -> dict[str, object]:
    """
    Return a text as a content part.

    Raises:
        ValueError: `kind` is unknown.
    """
    check_kind(kind)
    return {"type": "input_text" if kind == "openai" else "text", "text": text}


def _image_content(kind: SchemaKind, data: bytes, mime_type: str) -> dict[str, object]:
    """
    Return an image as a content part.

    Raises:
        ValueError: `kind` is unknown.
    """
    check_kind(kind)
    match kind:
        case "openai":
            url = _data_url(data, mime_type)
            return {"type": "input_image", "image_url": url, "detail": "high"}
        case "anthropic":
            encoded = encode_base64(data).decode()
            source = {"type": "base64", "media_type": mime_type, "data": encoded}
            return {"type": "image", "source": source}
        case "langchain":
            image = {"url": _data_url(data, mime_type), "detail": "high"}
            return {"type": "image_url", "image_url": image}
        case "mcp":
            return {"type": "image", "data": encode_base64(data).decode(), "mimeType": mime_type}
        case _:
            assert_never(kind)


def _data_url(data: bytes, mime_type: str) -> str:
    """Return a URL that contains an image."""
    return f"data:{mime_type};base64,{encode_base64(data).decode()}"


class _TextResult:
    """A result whose content is a text."""

    __slots__ = ()

    def text(self, *, notes: bool | None = None) -> str:
        """
        Return the text for the model.

        Args:
            notes: Include notes; by default as `Options.notes` says.
        """
        raise NotImplementedError

    def content(self, kind: SchemaKind) -> list[dict[str, object]]:
        """Return the content parts for the model, in the form of an interface."""
        return [text_content(kind, self.text())]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult(_TextResult):
    """Output of a command during one call, and the state of the command."""

    call_id: str
    """The id of this call."""
    chunk_id: str
    """Six random hexadecimal digits."""
    wall_time: float
    """Seconds that this call waited, excluding the 150 ms after a start."""
    captured: Captured = field(repr=False)
    """The output of this call, before it is truncated for the model."""
    exit_code: int | None
    """None while the command runs; -1 if the tools killed it."""
    session_id: int | None
    """The number for `write_stdin`; None once it has ended."""
    command: tuple[str, ...]
    """The argv of the command."""
    verdict: Verdict | None = None
    """The verdict; None while the command runs, or if unknown."""
    killed: bool = False
    """True if the tools killed the command during this call; the text then has no exit code."""
    left_behind: bool = False
    """True if the command left processes in its group that were ended with it."""
    output_lost: bool = False
    """True if output since the last call was lost: the server no longer had it."""
    pruned_sessions: tuple[int, ...] = ()
    """Sessions that were ended to make room for this one."""
    selected: Selected | None = None
    """The lines that the call requested with `head`, `tail` or `grep`."""
    ended_by: str | None = None
    """The condition of `wait_for` that ended the wait early, with its details."""
    pattern_given_up: bool = False
    """True if the search for the pattern of `wait_for` was too slow and given up."""
    waiting_for: WaitingFor | None = None
    """`LINE`, `PASSWORD` or `KEY` if the command is known to wait for input on its terminal."""
    patch: "PatchResult | None" = None
    """The changes if the command was a patch, which starts no process."""
    notes: tuple[Note, ...] = ()
    """Sentences about what happened and what to do; `text(notes=True)` includes them."""
    show_notes: bool = False
    """True if `text` includes the notes by default."""
    max_output_tokens: int | None = None
    """The budget requested by the call."""
    model_policy: TruncationPolicy = DEFAULT_MODEL_POLICY
    """The budget of the model."""

    @property
    def raw_output(self) -> bytes:
        """The output as bytes, with a marker in place of omitted bytes."""
        return bytes(self.captured)

    @property
    def output(self) -> str:
        """The output as text, truncated to the budget of the call."""
        return format_output(self._shown, used_policy(self.max_output_tokens, self.model_policy))

    @property
    def omitted_bytes(self) -> int:
        """Bytes of this call that are missing because the buffer is limited to 1 MiB."""
        return self.captured.omitted

    @property
    def original_token_count(self) -> int:
        """Tokens of the whole output, at four bytes each."""
        return original_token_count(self.captured)

    def text(self, *, notes: bool | None = None) -> str:
        """
        Return the text for the model.

        Args:
            notes: Include notes; by default as `Options.notes` says.
        """
        return answer_text(
            self._shown,
            chunk_id=self.chunk_id,
            wall_time=self.wall_time,
            exit_code=None if self.killed or self.patch else self.exit_code,
            session_id=self.session_id,
            max_output_tokens=self.max_output_tokens,
            model=self.model_policy,
            notes=self._shown_notes(self.show_notes if notes is None else notes),
            original_tokens=self.original_token_count,
            show_tokens=self.patch is None,
        )

    def _shown_notes(self, notes: bool) -> tuple[str, ...]:
        # A call with a condition always gets the reason.
        reasons = [] if self.ended_by is None else [f"Wait ended by {self.ended_by}"]
        if self.pattern_given_up:
            reasons.append("wait_for: pattern was given up, it takes too long to search for")
        return (*map(str, self.notes), *reasons) if notes else tuple(reasons)

    @property
    def _shown(self) -> Captured:
        """The output, or the requested part of it."""
        if self.selected is None:
            return self.captured
        # The model does not know the id of its call.
        hint = f'read_output with call_id "{self.call_id}" shows the rest'
        return Captured(self.selected.output(hint), marker=self.captured.marker)

    def object(self) -> dict[str, object]:
        """Return the result for code written by a model, in place of the text."""
        return answer_object(
            self._shown,
            chunk_id=self.chunk_id,
            wall_time=self.wall_time,
            exit_code=None if self.killed else self.exit_code,
            session_id=self.session_id,
            max_output_tokens=self.max_output_tokens,
            model=self.model_policy,
            original_tokens=self.original_token_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult(_TextResult):
    """A page of a command's output, for a call of `read_output`."""

    call_id: str
    """The id of this call."""
    page: Page
    """The lines, and their position in the whole output."""

    def text(self, *, notes: bool | None = None) -> str:
        """Return the text for the model."""
        return self.page.output

    def object(self) -> dict[str, object]:
        """Return the result for code written by a model, in place of the text."""
        page = self.page
        counts = {
            "first_line": page.first_line,
            "last_line": page.last_line,
            "matching_lines": page.matching_lines,
            "next_line": page.next_line,
            "next_seq": page.next_seq,
            "total_lines": page.total_lines,
        }
        known = {name: count for name, count in counts.items() if count is not None}
        return known | {"output": page.output}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResult(_TextResult):
    """An image, for a call of `view_image`."""

    call_id: str
    """The id of this call."""
    path: str
    """The absolute path of the file."""
    data: bytes = field(repr=False)
    """The content of the file."""
    mime_type: str
    """`image/png`, `image/jpeg`, `image/gif` or `image/webp`."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""

    def text(self, *, notes: bool | None = None) -> str:
        """Return a description of the image, for interfaces that do not accept images."""
        size = f"{self.width} x {self.height} pixels, {len(self.data)} bytes"
        return f"{self.path}: {self.mime_type}, {size}"

    def content(self, kind: SchemaKind) -> list[dict[str, object]]:
        """Return the image as content for the model, in the form of an interface."""
        return [_image_content(kind, self.data, self.mime_type)]

    def object(self) -> dict[str, object]:
        """Return the result for code written by a model, in place of the image."""
        return {"image_url": _data_url(self.data, self.mime_type), "detail": "high"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionGrant(_TextResult):
    """Permissions for later commands, granted through a call of `request_permissions`."""

    call_id: str
    """The id of this call."""
    permissions: "AddedPermissions"
    """The granted permissions: possibly none, and never more than requested."""
    scope: "GrantScope"
    """Duration of the grant: this turn or the session."""

    def text(self, *, notes: bool | None = None) -> str:
        """Return the text for the model."""
        return json.dumps(self.object(), ensure_ascii=False, separators=(",", ":"))

    def object(self) -> dict[str, object]:
        """Return the result for code written by a model, in place of the text."""
        return {"permissions": self.permissions.to_json(), "scope": self.scope}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolError(_TextResult):
    """A failed call; the model reads the reason and can continue."""

    call_id: str
    """The id of this call."""
    message: str
    """The complete text for the model."""
    cause: Exception = field(repr=False)
    """The error that caused it."""
    notes: tuple[Note, ...] = ()
    """Sentences about what happened and what to do; `text(notes=True)` appends them."""
    show_notes: bool = False
    """True if `text` includes the notes by default."""

    def text(self, *, notes: bool | None = None) -> str:
        """Return the text for the model."""
        shown = self.show_notes if notes is None else notes
        return "\n".join((self.message, *map(str, self.notes))) if shown else self.message

"""A tool of the MCP server: a row of `tools.TOOLS`, and a function."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import msgspec
from mcp_types import CallToolResult, TextContent

from holdfast.base.errors import HoldfastError
from holdfast.front.mcp.mcp_principals import Principal

__all__ = [
    "Effect",
    "McpTool",
    "ToolFailed",
    "ToolRequest",
    "convert",
    "failure",
    "number",
    "object_of",
    "success",
    "text",
]

_Wanted = TypeVar("_Wanted")


class Effect(Enum):
    """The worst effect of a tool, by which clients decide whether to ask."""

    READS = "reads"
    REPLACES = "replaces"
    """Changes something; repeating the call has no further effect."""
    CHANGES = "changes"
    RUNS = "runs"
    """Everything that the sandbox or the user allows a command to do."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call, as passed to a tool."""

    principal: Principal
    name: str
    arguments: Mapping[str, Any]
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """The description of a tool for clients, and its function."""

    name: str
    title: str
    effect: Effect
    call: Callable[[ToolRequest], Awaitable[CallToolResult]]
    """Runs the tool; `ToolFailed` becomes a result for the model."""
    description: str = ""
    arguments: Mapping[str, Any] | None = None
    """Schema of its arguments; None for a tool of unified exec, which has its own."""
    result: Mapping[str, Any] | None = None


class ToolFailed(HoldfastError):
    """A tool call failed; the message is for the model."""


def convert(arguments: Mapping[str, Any], kind: type[_Wanted]) -> _Wanted:
    """
    Return the arguments of a tool.

    Raises:
        ToolFailed: One is missing or has the wrong type.
    """
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"failed to parse function arguments: {error}") from error


# -- results


def success(text: str, structured: Mapping[str, Any]) -> CallToolResult:
    """Return the result of a successful call."""
    return CallToolResult(
        content=[TextContent(text=text)], structured_content=dict(structured), is_error=False
    )


def failure(text: str) -> CallToolResult:
    """Return the result of a failed call, with the reason for the model."""
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


# -- schemas


def object_of(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def number(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "description": description, **more}

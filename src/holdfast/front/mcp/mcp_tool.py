"""A tool of the MCP server: a row of `tools.TOOLS`, and a function that does the work."""

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
    """The worst that a tool may do: clients decide by it whether to ask."""

    READS = "reads"
    REPLACES = "replaces"
    """Changes something; a second call with the same arguments changes nothing."""
    CHANGES = "changes"
    RUNS = "runs"
    """Does what the sandbox lets a command do, and what a person may let it do besides."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One call, as a tool sees it."""

    principal: Principal
    name: str
    arguments: Mapping[str, Any]
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool as clients see it, and its function."""

    name: str
    title: str
    effect: Effect
    call: Callable[[ToolRequest], Awaitable[CallToolResult]]
    """Does the work; a `ToolFailed` is a result that the model reads."""
    description: str = ""
    arguments: Mapping[str, Any] | None = None
    """The schema of its arguments; None for a tool of unified exec, which has its own."""
    result: Mapping[str, Any] | None = None


class ToolFailed(HoldfastError):
    """A call of a tool cannot be done; the model reads the text."""


def convert(arguments: Mapping[str, Any], kind: type[_Wanted]) -> _Wanted:
    """
    Return the arguments of a tool.

    Raises:
        ToolFailed: One is missing or of a wrong type.
    """
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"failed to parse function arguments: {error}") from error


# -- results


def success(text: str, structured: Mapping[str, Any]) -> CallToolResult:
    """Return the result of a call that did what it was asked for."""
    return CallToolResult(
        content=[TextContent(text=text)], structured_content=dict(structured), is_error=False
    )


def failure(text: str) -> CallToolResult:
    """Return the result of a call that failed; the model reads why."""
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

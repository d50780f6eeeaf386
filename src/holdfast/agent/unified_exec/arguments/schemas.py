"""
Descriptions of the tools for a model, in the forms of four interfaces.

Names and types of parameters are those that models know; the descriptions are our own. `extras`
adds features that only Holdfast has.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Literal, TypeAlias, assert_never

__all__ = ["SchemaKind", "check_kind", "schemas"]

SchemaKind: TypeAlias = Literal["openai", "anthropic", "langchain", "mcp"]

_Schema: TypeAlias = "dict[str, object]"


def check_kind(kind: str) -> None:
    """
    Check the name of an interface.

    Raises:
        ValueError: The interface is unknown.
    """
    if kind not in ("openai", "anthropic", "langchain", "mcp"):
        raise ValueError(
            f"unknown kind of schema `{kind}`, expected `openai`, `anthropic`, `langchain` or `mcp`"
        )


def schemas(
    kind: SchemaKind,
    *,
    environments: Sequence[str] = (),
    extras: bool = False,
    patterns: bool = True,
    login: bool = True,
    shell: bool = True,
    additional_permissions: bool = False,
    permission_requests: bool = False,
    view_image: bool = False,
) -> list[dict[str, object]]:
    """
    Return the descriptions of all tools.

    Args:
        kind: `openai` for the Responses API, `anthropic` for the Messages API, `langchain`
            for `bind_tools` (the form of chat completions), `mcp` for `tools/list`.
        environments: Ids of the environments to choose from, the default first. With fewer
            than two, the parameter is left out.
        extras: Offer our own additions: `wait_for`, `head`, `tail`, `grep` and
            the tool `read_output`.
        patterns: Offer regular expressions in the extras.
        login: Allow login shells. Without them the parameter is left out.
        shell: Let the model choose a shell.
        additional_permissions: Let a command request more than its sandbox allows and still
            run in it.
        permission_requests: Offer the tool `request_permissions`.
        view_image: Offer the tool `view_image`.

    Raises:
        ValueError: `kind` is unknown.
    """
    check_kind(kind)
    exec_command = _exec_command(
        environments=environments,
        login=login,
        shell=shell,
        additional_permissions=additional_permissions,
    )
    write_stdin = _write_stdin()
    if extras:
        exec_command |= _extras(patterns=patterns)
        write_stdin |= _extras(patterns=patterns)
    tools = [
        _tool(kind, "exec_command", _EXEC_COMMAND, exec_command, ["cmd"], _RESULT),
        _tool(kind, "write_stdin", _WRITE_STDIN, write_stdin, ["session_id"], _RESULT),
    ]
    if extras:
        read_output = _read_output(patterns=patterns)
        described = _READ_OUTPUT if patterns else _READ_OUTPUT_LINES
        tools.append(_tool(kind, "read_output", described, read_output, [], _READ_RESULT))
    if permission_requests:
        name, request = "request_permissions", _request_permissions(environments)
        tools.append(_tool(kind, name, _REQUEST_PERMISSIONS, request, ["permissions"], _GRANT))
    if view_image:
        name, properties = "view_image", _view_image(environments)
        # Without a result schema: an image is not an object.
        tools.append(_tool(kind, name, _VIEW_IMAGE, properties, ["path"], None))
    return tools


_EXEC_COMMAND = (
    "Run a command in a shell. Returns its output and exit code if it ends in time,"
    " otherwise a session id to go on with."
)
_WRITE_STDIN = (
    "Send input to a running session, or look for new output by sending nothing."
    " Returns what the command has written since the last call."
)
_READ_OUTPUT = (
    "Read output that was not shown, of a running session or of an ended call:"
    " a range of lines, or the lines that match a pattern."
)
_REQUEST_PERMISSIONS = (
    "Ask the user to let later commands read or write more files, or reach the network."
    " Returns what was granted, and whether it holds for this turn or for the session."
)
_VIEW_IMAGE = "Look at an image file: PNG, JPEG, GIF or WebP."
_READ_OUTPUT_LINES = (
    "Read output that was not shown, of a running session or of an ended call: a range of lines."
)


def _exec_command(
    *, environments: Sequence[str], login: bool, shell: bool, additional_permissions: bool
) -> _Schema:
    permissions = ["use_default", "require_escalated"]
    found: _Schema = {
        "cmd": _text("Shell script to run."),
        "justification": _text(
            "Question for the user who has to approve the command. Only together with"
            " `sandbox_permissions`."
        ),
        "login": _flag(
            "Start the shell as a login shell. Default: true."
            if login
            else "Login shells are not available: leave it out."
        ),
        "max_output_tokens": _MAX_OUTPUT_TOKENS,
        "prefix_rule": {
            "type": "array",
            "items": {"type": "string"},
            "description": (
                "First words of the command, as a prefix that the user may allow for good."
                " Use it with `require_escalated`."
            ),
        },
        "tty": _flag("Give the command a terminal. Needed to send it input later. Default: false."),
        "workdir": _text(
            "Folder to run in, absolute or relative to the default folder."
            " Default: the default folder."
        ),
        "yield_time_ms": _number(
            "Milliseconds to wait for the end of the command. Default 10000, at least 250,"
            " at most 30000."
        ),
    }
    if len(environments) > 1:
        default, *others = (f"`{each}`" for each in environments)
        found["environment_id"] = _text(
            f"Id of the environment to run in: {default} (the default) or {', '.join(others)}."
        )
    if shell:
        found["shell"] = _text("Kind of shell, such as `bash`. Default: the user's shell.")
    if additional_permissions:
        permissions.append("with_additional_permissions")
        found["additional_permissions"] = _ADDITIONAL_PERMISSIONS
    found["sandbox_permissions"] = {
        "type": "string",
        "enum": permissions,
        "description": (
            "What the command may do. `require_escalated` asks the user to run it without"
            " a sandbox. Default: `use_default`."
        ),
    }
    return found


def _write_stdin() -> _Schema:
    return {
        "chars": _text("Input to send, exactly as given. Empty: only look for output."),
        "max_output_tokens": _MAX_OUTPUT_TOKENS,
        "session_id": _number("Number of the session, from an earlier result."),
        "yield_time_ms": _number(
            "Milliseconds to wait for output. Default 250. With input 250 to 30000, without"
            " input at least 5000."
        ),
    }


def _extras(*, patterns: bool) -> _Schema:
    conditions: _Schema = {
        "input": _flag("The command waits for input from its terminal. Needs `tty`."),
        **({"pattern": _text("The output matches this regular expression.")} if patterns else {}),
        "port": {
            "type": "integer",
            "minimum": 1,
            "maximum": 65535,
            "description": "A program listens on this TCP port.",
        },
        "quiet_ms": _count("There was no output for so many milliseconds."),
    }
    found: _Schema = {
        "head": _count("Show only so many lines from the beginning."),
        "tail": _count("Show only so many lines from the end."),
        "wait_for": {
            "type": "object",
            "description": (
                "Stop waiting as soon as one of these is true, at the latest after `yield_time_ms`,"
                " which is 10000 then unless given. Give at least one of them."
            ),
            "properties": conditions,
            "additionalProperties": False,
        },
    }
    if patterns:
        found["grep"] = _text("Show only the lines that match this regular expression.")
    return found


def _read_output(*, patterns: bool) -> _Schema:
    found: _Schema = {
        "call_id": _text("Id of the call whose output to read. Or give `session_id`."),
        "from_seq": _count("Read on from this sequence number of an earlier answer."),
        "lines": {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 1,
            "maxItems": 2,
            "description": (
                "First and last line to read, counted from 1, or only the first."
                " Negative numbers count from the end."
            ),
        },
        "session_id": _number("Number of the session whose output to read."),
    }
    if patterns:
        found["pattern"] = _text("Read only the lines that match this regular expression.")
    return found


def _request_permissions(environments: Sequence[str]) -> _Schema:
    found: _Schema = {
        "permissions": {**_ADDITIONAL_PERMISSIONS, "description": "What later commands need."},
        "reason": _text("Why they need it, for the user."),
    }
    if len(environments) > 1:
        found["environment_id"] = _text("Id of the environment that it is for.")
    return found


def _view_image(environments: Sequence[str]) -> _Schema:
    found: _Schema = {
        "path": _text("Path of the image, absolute or relative to the default folder.")
    }
    if len(environments) > 1:
        found["environment_id"] = _text("Id of the environment that has the image.")
    return found


def _text(description: str) -> _Schema:
    return {"type": "string", "description": description}


def _flag(description: str) -> _Schema:
    return {"type": "boolean", "description": description}


def _number(description: str) -> _Schema:
    return {"type": "number", "description": description}


def _count(description: str) -> _Schema:
    return {"type": "integer", "minimum": 1, "description": description}


_MAX_OUTPUT_TOKENS = _number(
    "Tokens of output to show at most; the middle of longer output is left out. Default 10000."
)

_PATHS = {"type": "array", "items": {"type": "string"}}

_ADDITIONAL_PERMISSIONS: _Schema = {
    "type": "object",
    "description": (
        "What the command needs beyond its sandbox. Only with"
        " `sandbox_permissions: with_additional_permissions`."
    ),
    "properties": {
        "file_system": {
            "type": "object",
            "properties": {
                "read": {**_PATHS, "description": "Files and folders to read."},
                "write": {**_PATHS, "description": "Files and folders to write."},
            },
            "additionalProperties": False,
        },
        "network": {
            "type": "object",
            "properties": {"enabled": _flag("Whether the command needs the network.")},
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}

_GRANT: _Schema = {
    "type": "object",
    "properties": {
        "permissions": {"type": "object", "description": "What was granted; possibly nothing."},
        "scope": {"type": "string", "enum": ["turn", "session"]},
    },
    "required": ["permissions", "scope"],
    "additionalProperties": False,
}

_RESULT: _Schema = {
    "type": "object",
    "properties": {
        "chunk_id": _text("Names this piece of output."),
        "exit_code": _number("Exit code, if the command has ended."),
        "original_token_count": _number("Tokens of the whole output, before it was cut."),
        "output": _text("What the command wrote, possibly cut."),
        "session_id": _number("Number of the session, while the command runs."),
        "wall_time_seconds": _number("Seconds that the call waited."),
    },
    "required": ["wall_time_seconds", "output"],
    "additionalProperties": False,
}

_READ_RESULT: _Schema = {
    "type": "object",
    "properties": {
        "first_line": _number("Number of the first line, from 1."),
        "last_line": _number("Number of the last line."),
        "matching_lines": _number("How many lines match the pattern."),
        "next_line": _number("The line to go on with, if there is more."),
        "next_seq": _number("The sequence number to go on with, if there is more."),
        "output": _text("The lines that were asked for, after a remark about them."),
        "total_lines": _number("Lines that the command ever wrote."),
    },
    "required": ["total_lines", "output"],
    "additionalProperties": False,
}


def _tool(
    kind: SchemaKind,
    name: str,
    description: str,
    properties: Mapping[str, object],
    required: list[str],
    result: dict[str, object] | None,
) -> _Schema:
    parameters: _Schema = {
        "type": "object",
        # Copies: the caller may modify the result.
        "properties": {key: deepcopy(properties[key]) for key in sorted(properties)},
        "additionalProperties": False,
    }
    if required:
        parameters["required"] = required
    match kind:
        case "openai":
            return {
                "type": "function",
                "name": name,
                "description": description,
                "strict": False,
                "parameters": parameters,
            }
        case "anthropic":
            return {"name": name, "description": description, "input_schema": parameters}
        case "langchain":
            function = {"name": name, "description": description, "parameters": parameters}
            return {"type": "function", "function": function}
        case "mcp":
            tool: _Schema = {
                "name": name,
                "description": description,
                "inputSchema": parameters,
            }
            return tool if result is None else tool | {"outputSchema": deepcopy(result)}
        case _:
            assert_never(kind)

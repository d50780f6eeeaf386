"""The tools are described alike in every form, and a caller may change what it gets."""

from typing import Any, get_args

import pytest

from holdfast.agent.unified_exec import ImageResult, ToolError
from holdfast.agent.unified_exec.arguments.schemas import SchemaKind, schemas
from holdfast.agent.unified_exec.result import text_content

PARAMETERS: dict[SchemaKind, tuple[str, ...]] = {
    "openai": ("parameters",),
    "anthropic": ("input_schema",),
    "langchain": ("function", "parameters"),
    "mcp": ("inputSchema",),
}
ALL: dict[str, Any] = {
    "environments": ["local", "lab"],
    "extras": True,
    "additional_permissions": True,
}


def parameters(kind: SchemaKind, tool: Any) -> Any:
    for key in PARAMETERS[kind]:
        tool = tool[key]
    return tool


def properties(**options: Any) -> list[str]:
    return list(parameters("openai", schemas("openai", **options)[0])["properties"])


@pytest.mark.requirement("unified-exec.schemas.parameters")
def test_the_parameters_of_the_contract_in_alphabetical_order() -> None:
    started, written = schemas("openai")
    assert (started["name"], written["name"]) == ("exec_command", "write_stdin")
    assert properties() == [
        "cmd",
        "justification",
        "login",
        "max_output_tokens",
        "prefix_rule",
        "sandbox_permissions",
        "shell",
        "tty",
        "workdir",
        "yield_time_ms",
    ]
    assert list(parameters("openai", written)["properties"]) == [
        "chars",
        "max_output_tokens",
        "session_id",
        "yield_time_ms",
    ]
    for tool in (started, written):
        assert tool["type"] == "function"
        assert tool["strict"] is False
        assert parameters("openai", tool)["additionalProperties"] is False


def test_options_add_and_remove_parameters() -> None:
    assert "shell" not in properties(shell=False)
    assert "environment_id" in properties(environments=["local", "lab"])
    assert "environment_id" not in properties(environments=["local"])
    assert "additional_permissions" in properties(additional_permissions=True)
    assert {"grep", "head", "tail", "wait_for"} <= set(properties(extras=True))
    assert properties(**ALL) == sorted(properties(**ALL))
    named = [tool["name"] for tool in schemas("openai", extras=True)]
    assert named == ["exec_command", "write_stdin", "read_output"]


@pytest.mark.parametrize("kind", get_args(SchemaKind))
def test_every_form_describes_the_same(kind: SchemaKind) -> None:
    for ours, theirs in zip(schemas(kind, **ALL), schemas("openai", **ALL), strict=True):
        assert parameters(kind, ours) == theirs["parameters"]
        named: Any = ours["function"] if kind == "langchain" else ours
        assert (named["name"], named["description"]) == (theirs["name"], theirs["description"])
    if kind == "mcp":
        result: Any = schemas(kind)[0]["outputSchema"]
        assert result["required"] == ["wall_time_seconds", "output"]


def test_a_change_by_a_caller_stays_with_the_caller() -> None:
    parameters("mcp", schemas("mcp")[0])["properties"]["max_output_tokens"]["type"] = "changed"
    again = parameters("mcp", schemas("mcp")[0])["properties"]["max_output_tokens"]
    assert again["type"] == "number"


def test_a_model_is_told_which_environments_there_are() -> None:
    tool = schemas("openai", environments=["local", "lab", "build"])[0]
    described = parameters("openai", tool)["properties"]["environment_id"]["description"]
    assert described == (
        "Id of the environment to run in: `local` (the default) or `lab`, `build`."
    )


def test_without_login_shells_the_parameter_says_so() -> None:
    tool = schemas("openai", login=False)[0]
    described = parameters("openai", tool)["properties"]["login"]["description"]
    assert described == "Login shells are not available: leave it out."


def test_without_an_engine_no_pattern_is_offered() -> None:
    started, written, read = (
        parameters("openai", tool)["properties"]
        for tool in schemas("openai", extras=True, patterns=False)
    )
    for offered in (started, written):
        assert "grep" not in offered
        assert list(offered["wait_for"]["properties"]) == ["input", "port", "quiet_ms"]
    assert "pattern" not in read


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(ValueError, match="`yaml`"):
        schemas("yaml")  # type: ignore[arg-type]


@pytest.mark.requirement("tools.images")
@pytest.mark.parametrize("kind", get_args(SchemaKind))
def test_an_image_is_named_by_its_path_alone(kind: SchemaKind) -> None:
    (tool,) = schemas(kind, view_image=True)[2:]
    assert list(parameters(kind, tool)["properties"]) == ["path"]
    assert parameters(kind, tool)["required"] == ["path"]
    (tool,) = schemas(kind, view_image=True, environments=["local", "lab"])[2:]
    assert list(parameters(kind, tool)["properties"]) == ["environment_id", "path"]
    assert "outputSchema" not in tool


@pytest.mark.requirement("tools.images")
def test_results_in_the_form_of_each_interface() -> None:
    image = ImageResult(
        call_id="c", path="/a.gif", data=b"GIF", mime_type="image/gif", width=2, height=1
    )
    url = "data:image/gif;base64,R0lG"
    assert {kind: image.content(kind) for kind in get_args(SchemaKind)} == {
        "openai": [{"type": "input_image", "image_url": url, "detail": "high"}],
        "anthropic": [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/gif", "data": "R0lG"},
            }
        ],
        "langchain": [{"type": "image_url", "image_url": {"url": url, "detail": "high"}}],
        "mcp": [{"type": "image", "data": "R0lG", "mimeType": "image/gif"}],
    }
    assert image.object() == {"image_url": url, "detail": "high"}
    assert image.text() == "/a.gif: image/gif, 2 x 1 pixels, 3 bytes"
    error = ToolError(call_id="c", message="no", cause=ValueError())
    assert error.content("openai") == [{"type": "input_text", "text": "no"}]
    assert error.content("anthropic") == [{"type": "text", "text": "no"}]


def test_content_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of schema `claude`"):
        text_content("claude", "hello")  # type: ignore[arg-type]

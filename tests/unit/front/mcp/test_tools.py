"""Descriptions of the tools: the worst that they may do."""

import pytest

from holdfast.agent.unified_exec import Options, UnifiedExec
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.tools import TOOLS, described_tools
from holdfast.testing import FakeEnvironment


@pytest.mark.requirement("security.mcp.annotations")
@pytest.mark.parametrize(
    ("sandbox", "policy", "ruled", "read_only", "open_world"),
    [
        ("danger-full-access", "never", False, False, True),
        ("workspace-write", "on-request", False, False, True),
        ("workspace-write", "never", True, False, True),
        ("workspace-write", "never", False, False, False),
        ("read-only", "on-request", False, False, True),
        ("read-only", "never", True, False, True),
        ("read-only", "never", False, True, False),
        ("mine.toml", "never", False, False, True),
    ],
)
async def test_a_command_is_as_harmless_as_its_sandbox(
    sandbox: str, policy: str, ruled: bool, read_only: bool, open_world: bool
) -> None:
    options = ServerOptions(sandbox=sandbox, ask_for_approval=policy)
    async with (
        FakeEnvironment() as environment,
        UnifiedExec(environment, options=Options(extras=True, view_image=True)) as tools,
    ):
        described = {tool.name: tool for tool in described_tools(options, tools, ruled=ruled)}
    assert tuple(described) == tuple(TOOLS)
    for name in ("exec_command", "write_stdin"):
        hints = described[name].annotations
        assert hints is not None
        assert hints.read_only_hint is read_only
        assert hints.destructive_hint is not read_only
        assert hints.open_world_hint is open_world
    for tool in described.values():
        assert tool.description
        # An image is not an object.
        assert (tool.output_schema is None) == (tool.name == "view_image")
        assert tool.input_schema["additionalProperties"] is False

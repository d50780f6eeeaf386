"""An agent's side of `holdfast mcp`: tools, a terminal, an approval, a patch, an image."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client import ClientRequestContext
from mcp.types import ElicitRequestParams, ElicitResult, ImageContent

DOT = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
"""An image of one pixel, in base64."""

asked: list[str] = []


async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Answer a question as a person would who sees the command."""
    print(f"asked: {params.message}\n")
    asked.append(params.message)
    return ElicitResult(action="accept", content={"decision": "accept"})


async def main(folder: Path) -> None:
    """Use every kind of tool once."""
    server = StdioServerParameters(command="holdfast", args=["mcp", "--cwd", str(folder)])
    async with Client(server, elicitation_callback=answer) as client:

        async def call(tool: str, **arguments: object) -> Any:
            result = await client.call_tool(tool, arguments)
            print(f"{tool}: {result.structured_content}\n")
            assert not result.is_error, result.content
            return result.structured_content

        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {"exec_command", "write_stdin", "apply_patch"} <= set(names)

        # A program that asks gets a terminal, and goes on after the call.
        script = "read -p 'Your name? ' name; echo Hello, $name."
        began = await call("exec_command", cmd=script, tty=True, yield_time_ms=500)
        typed = {"session_id": began["session_id"], "chars": "Ada\n", "yield_time_ms": 10_000}
        ended = await call("write_stdin", **typed)
        assert "Hello, Ada." in ended["output"]
        assert ended["exit_code"] == 0

        # What wants to leave the sandbox has to be approved.
        reason = {"sandbox_permissions": "require_escalated", "justification": "Look around?"}
        await call("exec_command", cmd="echo outside", **reason)
        assert len(asked) == 1

        # What the sandbox denies is named, with the way to ask for it.
        denied = await call("exec_command", cmd="touch /usr/file")
        (note,) = denied["notes"]
        assert note["kind"] == "denied"
        assert "require_escalated" in note["text"]

        await call("write_file", path="notes.txt", content="one\ntwo\n")
        patch = "*** Begin Patch\n*** Update File: notes.txt\n@@\n-two\n+three\n*** End Patch\n"
        await call("apply_patch", input=patch)
        assert (await call("read_file", path="notes.txt"))["content"] == "one\nthree\n"

        # An image is not an object: the client hands it to its model as it is.
        await call("exec_command", cmd=f"echo {DOT} | base64 -d > dot.gif")
        seen = await client.call_tool("view_image", {"path": "dot.gif"})
        (image,) = seen.content
        assert isinstance(image, ImageContent)
        assert (image.mime_type, image.data) == ("image/gif", DOT)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
    sys.exit(0)

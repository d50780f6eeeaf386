"""
A model that follows a script, for a real Codex that knows of no other.

It speaks as much of the Responses API (HTTP and server-sent events) as `codex exec`
needs. Each request gets the next turn of the script; what the tools answered is in the
requests that follow.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

Item = dict[str, Any]
"""A tool call, or a message that ends the conversation."""

Turn = Sequence[Item] | Callable[["Model"], Sequence[Item]]
"""One answer of the model; a callable makes it from what came back so far."""

_SESSION = re.compile(r"Process running with session ID (\d+)")


def run(call_id: str, cmd: str, **options: object) -> Item:
    """Run a command; its result comes back under the id."""
    return _call(call_id, "exec_command", {"cmd": cmd, "login": False, **options})


def type_in(call_id: str, session: int, text: str, **options: object) -> Item:
    """Write to a command that still runs."""
    return _call(call_id, "write_stdin", {"session_id": session, "chars": text, **options})


def patch(call_id: str, *lines: str) -> Item:
    """Change files as the lines of a patch say."""
    return {
        "type": "custom_tool_call",
        "id": f"ctc-{call_id}",
        "call_id": call_id,
        "name": "apply_patch",
        "input": "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""]),
    }


def use(call_id: str, name: str, *, server: str = "", **arguments: object) -> Item:
    """Call any other tool, of an MCP server if one is named."""
    call = _call(call_id, name, arguments)
    return {**call, "namespace": f"mcp__{server}"} if server else call


def _call(call_id: str, name: str, arguments: dict[str, object]) -> Item:
    return {
        "type": "function_call",
        "id": f"fc-{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(arguments),
    }


GOODBYE: Item = {
    "type": "message",
    "role": "assistant",
    "id": "goodbye",
    "content": [{"type": "output_text", "text": "done"}],
}
"""A message that ends a turn."""


class Model:
    """Plays turns and remembers what the client's tools answered."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = [*turns, [GOODBYE]]
        self.outputs: dict[str, str] = {}
        """The full text of each tool's answer, by the id of the call."""
        self.images: dict[str, list[str]] = {}
        """The URLs of the images in it."""
        self.told = ""
        """The text of the first request: instructions, and what Codex found out by itself."""
        self.url = ""

    def play_next(self, turns: Sequence[Turn]) -> None:
        """Play these turns from the next request on, in place of what was left."""
        self._turns = list(turns)

    @property
    def finished(self) -> bool:
        """True once every turn was played."""
        return not self._turns

    def body(self, call_id: str) -> str:
        """Return the output of a command."""
        return self.outputs[call_id].partition("Output:\n")[2]

    def exit_code(self, call_id: str) -> int | None:
        """The exit code of a command, if it ended."""
        found = re.search(r"Process exited with code (\d+)\n", self.outputs[call_id])
        return int(found[1]) if found else None

    def session(self, call_id: str) -> int:
        """The number of a command that still runs."""
        found = _SESSION.search(self.outputs[call_id])
        assert found is not None, self.outputs[call_id]
        return int(found[1])

    def answer(self, request: dict[str, Any]) -> bytes:
        """Play the next turn, as a stream of events."""
        self.told = self.told or json.dumps(request, ensure_ascii=False)
        for item in request.get("input") or []:
            if item.get("type") in ("function_call_output", "custom_tool_call_output"):
                output = item.get("output")
                self.outputs.setdefault(item["call_id"], _text(output))
                self.images.setdefault(item["call_id"], _images(output))
        turn = self._turns.pop(0) if self._turns else [GOODBYE]
        items = turn(self) if callable(turn) else turn
        usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {"id": "r"}},
            *(
                {"type": "response.output_item.done", "output_index": index, "item": item}
                for index, item in enumerate(items)
            ),
            {"type": "response.completed", "response": {"id": "r", "usage": usage}},
        ]
        return "".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
        ).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one HTTP request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target, _ = head.split(" ", 2)
            length = re.search(r"(?im)^content-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            if method == "POST" and target.partition("?")[0].endswith("/responses"):
                kind, answer = "text/event-stream", self.answer(json.loads(body))
            else:
                kind, answer = "application/json", b'{"models": []}'
            writer.write(
                f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(answer)}\r\n"
                "connection: close\r\n\r\n".encode()
                + answer
            )
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it changed its mind
        finally:
            writer.close()


@asynccontextmanager
async def playing(turns: Sequence[Turn]) -> AsyncIterator[Model]:
    """A model on a free port of this machine."""
    model = Model(turns)
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield model
    finally:
        server.close()


def _text(output: object) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return "".join(part.get("text", "") for part in output)
    if isinstance(output, dict):
        return _text(output.get("content"))
    return ""


def _images(output: object) -> list[str]:
    parts = output if isinstance(output, list) else []
    return [part["image_url"] for part in parts if part.get("type") == "input_image"]

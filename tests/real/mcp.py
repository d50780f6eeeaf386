"""An MCP server with one tool: over HTTP for a test, over stdio as a program."""

import asyncio
import json
import os
import re
import sys
from typing import Any


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; the tool tells a depth and the tide."""
    params = message.get("params") or {}
    if message["method"] == "initialize":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "harbour", "version": "1"},
        }
    elif message["method"] == "tools/list":
        schema = {"type": "object", "properties": {"place": {"type": "string"}}}
        result = {"tools": [{"name": "depth", "description": "Depth.", "inputSchema": schema}]}
    else:
        text = f"{params['arguments']['place']}: 7 fathoms, {os.environ.get('TIDE')}"
        result = {"content": [{"type": "text", "text": text}]}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


async def over_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Streamable HTTP, one request per connection; the tool answers as a stream of events."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"(?im)^content-length: *(\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if not head.startswith("POST"):
        status, kind, pieces = "405 Method Not Allowed", "text/plain", [b""]
    elif "id" not in (message := json.loads(body)):
        status, kind, pieces = "202 Accepted", "text/plain", [b""]
    elif "x-harbour: open\r\n" not in head:
        status, kind, pieces = "403 Forbidden", "text/plain", [b""]
    elif message["method"] == "tools/call":
        event = b"event: message\ndata: " + json.dumps(answer(message)).encode() + b"\n\n"
        status, kind, pieces = "200 OK", "text/event-stream", [event[:40], event[40:]]
    else:
        status, kind, pieces = "200 OK", "application/json", [json.dumps(answer(message)).encode()]
    writer.write(
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nmcp-session-id: h\r\n"
        "connection: close\r\n\r\n".encode()
    )
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    writer.close()


def over_stdio() -> None:
    """A message per line."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            sys.stdout.write(json.dumps(answer(message)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    over_stdio()

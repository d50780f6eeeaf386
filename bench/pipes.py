"""A server on its standard streams: one JSON message per line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

__all__ = ["PipeClient"]


class PipeClient:
    """The client of a server that was started with pipes: plain writes, no event loop."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None, "it was started with pipes"
        assert process.stdout is not None, "it was started with pipes"
        self.pid = process.pid
        self.stdout = process.stdout
        self._stdin = process.stdin.fileno()
        self._last_id = 0

    def send(self, method: str, params: object, **members: str) -> int:
        """
        Send a request and return its id.

        Args:
            method: Its method.
            params: Its parameters.
            members: Further members of the message.
        """
        self._last_id += 1
        message: Mapping[str, object] = {
            **members,
            "id": self._last_id,
            "method": method,
            "params": params,
        }
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._stdin, data) :]
        return self._last_id

"""Replacements of the parts of fast paths: functions from the part to its replacement."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.engine.process.process_table import ProcessTable, TableSettings

__all__ = ["GENERAL_PATHS"]


def _always(value: object) -> Callable[[object], Callable[..., object]]:
    return lambda part: lambda *_, **__: value


def _value(value: object) -> Callable[[object], object]:
    return lambda part: value


def _encode_output(part: object) -> Callable[..., tuple[bytes]]:
    from holdfast.wire.protocol.process import OutputStream
    from holdfast.wire.protocol.wire_types import Base64
    from holdfast.wire.rpc.encode import encode_notification

    def encode(prefix: bytes, seq: int, stream: OutputStream, chunk: bytes) -> tuple[bytes]:
        event = json.loads(prefix + b"0}}")
        params = {**event["params"], "seq": seq, "stream": stream, "chunk": Base64(chunk)}
        return (encode_notification(event["method"], params),)

    return encode


def _content(part: object) -> Callable[[bytes], object]:
    return lambda encoded: {"dataBase64": encoded.decode("ascii")}


class _LoopReaders:
    """Watches descriptors with the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        self._loop.add_reader(fd, callback)

    def remove(self, fd: int) -> None:
        self._loop.remove_reader(fd)


class _BackendSessions:
    """Serves the processes of this machine as those of any other backend."""

    def __init__(self, shell: str) -> None:
        from holdfast.base.tasks import OwnedTasks
        from holdfast.engine.process.registry import LocalBackend, ProcessRegistry

        self._backend = LocalBackend(ProcessRegistry(shell=shell, retention=0.0))
        self._followers = OwnedTasks()

    def open_session(self, settings: "TableSettings") -> "ProcessTable":
        from holdfast.server.backend_processes import BackendProcesses

        return BackendProcesses(self._backend, self._followers, settings)


_LOCAL_FILES: Final = "holdfast.engine.files.local_files"
_READER: Final = "holdfast.engine.process.io.output_reader"

GENERAL_PATHS: Mapping[str, Callable[[Any], object]] = {
    "holdfast.agent.unified_exec.arguments.tool_arguments:read_plain": _always(None),
    "holdfast.wire.connection:may_have_many_values": _always(True),
    "holdfast.wire.connection:LARGEST_UNCOUNTED": _value(-1),
    "holdfast.wire.rpc.decode:_is_plainly_sound": _always(False),
    "holdfast.client.client_connection:Link._take_output": _always(False),
    "holdfast.wire.connection:encode_output": _encode_output,
    "holdfast.server.handlers.file_handlers:_content": _content,
    f"{_LOCAL_FILES}:cached_content": _always(None),
    f"{_LOCAL_FILES}:cached_content_of_command": _always(None),
    f"{_LOCAL_FILES}:cached_metadata": _always(None),
    "holdfast.engine.files.nowait:_MOMENT": _value(-1.0),
    "holdfast.server.app:LocalSessions": _value(_BackendSessions),
    "holdfast.engine.process.admission:can_start_without_waiting": _always(False),
    "holdfast.engine.process.reachable:_CACHED_STILL": _value(-1.0),
    f"{_READER}:readers_of": _value(_LoopReaders),
    "holdfast.engine.process.process:readers_of": _value(_LoopReaders),
    f"{_READER}:_SHORT_COMMAND": _value(1 << 62),
    f"{_READER}:_BULK_PIPE": _value(1 << 16),
    "holdfast.agent.approvals.split.simple_command:simple_commands": _always(None),
    "holdfast.server.operate.run_server:_keep_freed_memory": _always(None),
}

"""Logging of a server in a process of its own: levels, formats, and a threaded handler."""

import logging
import time
from typing import Literal

from holdfast.server.operate.line_writer import LineWriter, write_all
from holdfast.server.operate.log_lines import JsonLines, TextLines, json_event, text_head
from holdfast.wire.log_event import LogEvent

__all__ = ["LEVELS", "LogFormat", "ThreadedLog", "set_level", "start_logging"]

LogFormat = Literal["text", "json"]

# Levels in order of detail; each includes those before it.
LEVELS = ("error", "warning", "info", "debug")

_STDERR = 2

# Bytes counted for a record that is not formatted yet; `log_event.clip` bounds its texts.
_RECORD_SIZE = 1024


class ThreadedLog(logging.Handler):
    """Handler that writes to stderr in a thread, so that a stuck reader does not block."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._as_json = isinstance(formatter, JsonLines)
        self._writer: LineWriter[tuple[float, str, LogEvent] | bytes] = LineWriter(
            "log", encode=self._line, write=lambda data: write_all(_STDERR, data), gap=self._gap
        )

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 - a message that does not fit its arguments
            self.handleError(record)
        else:
            self._writer.put(line, len(line))

    def inform(self, name: str, event: LogEvent, at: float) -> None:
        """Queue a message at `info`, to be formatted in the thread."""
        # Under the handler's lock, as `emit` is: `put` is for one thread at a time.
        assert self.lock is not None
        with self.lock:
            self._writer.put((at, name, event), _RECORD_SIZE)

    def close(self) -> None:
        """Write the rest, within `CLOSE_LIMIT` seconds."""
        self._writer.close()
        super().close()

    def _line(self, item: tuple[float, str, LogEvent] | bytes) -> bytes:
        if isinstance(item, bytes):
            return item
        return self._event_line(*item, level="INFO")

    def _event_line(self, at: float, name: str, event: LogEvent, *, level: str) -> bytes:
        if self._as_json:
            return json_event(at, level, name, event) + b"\n"
        return f"{text_head(at, level, name)}{event}\n".encode()

    def _gap(self, count: int, reason: str) -> bytes:
        event = LogEvent("log lines were lost", count=count, reason=reason)
        return self._event_line(time.time(), __name__, event, level="WARNING")


def start_logging(level: str, style: LogFormat = "text", *, threaded: bool = False) -> None:
    """
    Send the log of this process to stderr.

    Args:
        level: One of `LEVELS`.
        style: Text for people, or one JSON object in each line.
        threaded: Write in a thread. `logging.shutdown`, which runs at the end of the process,
            writes the rest.

    Raises:
        ValueError: The level is unknown.
    """
    if level not in LEVELS:
        raise ValueError(level)
    formatter = JsonLines() if style == "json" else TextLines()
    handler: logging.Handler
    if threaded:
        handler = ThreadedLog(formatter)
        LogEvent.direct = handler.inform
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(formatter)
    # Our lines show neither threads nor source files, so `logging` need not find them out.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - documented to be set
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_level(level: str) -> None:
    """Change how much is logged, to one of `LEVELS`."""
    logging.getLogger().setLevel(level.upper())

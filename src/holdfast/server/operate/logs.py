"""
Logging of a server process: levels, formats, and a threaded handler.

Lines are plain text or JSON. JSON is written in ASCII, so that a line cannot control a terminal,
and is valid even for paths that are not UTF-8.
"""

import json
import logging
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from holdfast.server.operate.line_writer import LineWriter, write_all
from holdfast.server.operate.records import Record, Records
from holdfast.wire.log_event import LogEvent, printable

__all__ = [
    "LEVELS",
    "JsonLines",
    "LogFormat",
    "TextLines",
    "ThreadedLog",
    "json_line",
    "set_level",
    "start_logging",
    "time_text",
]

LogFormat = Literal["text", "json"]

# Levels from least to most detailed; each includes those before it.
LEVELS = ("error", "warning", "info", "debug")

_STDERR = 2

# Bytes counted for a record before formatting; `log_event.clip` bounds its texts.
_RECORD_SIZE = 1024


_encode = msgspec.json.Encoder().encode


def start_logging(level: str, style: LogFormat = "text", *, threaded: bool = False) -> None:
    """
    Send the log of this process to stderr.

    Args:
        level: One of `LEVELS`.
        style: Plain text, or one JSON object per line.
        threaded: True to write in a thread. `logging.shutdown`, which runs at the end of the
            process, writes the remaining lines.

    Raises:
        ValueError: The level is unknown.
    """
    if level not in LEVELS:
        raise ValueError(level)
    formatter = JsonLines() if style == "json" else TextLines()
    handler: logging.Handler
    if threaded:
        handler = ThreadedLog(formatter)
        Records.direct = handler.add
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(formatter)
    # The formats show neither threads nor source files, so `logging` need not determine them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - documented to be set
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_level(level: str) -> None:
    """Set the log level, one of `LEVELS`."""
    logging.getLogger().setLevel(level.upper())


_Queued: TypeAlias = tuple[float, str, Record, Mapping[str, str]]


class ThreadedLog(logging.Handler):
    """Handler that writes to stderr in a thread, so that a stuck reader blocks nothing else."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._as_json = isinstance(formatter, JsonLines)
        self._writer: LineWriter[_Queued | bytes] = LineWriter(
            "log", encode=self._line, write=lambda data: write_all(_STDERR, data), gap=self._gap
        )

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 - a message that does not fit its arguments
            self.handleError(record)
        else:
            self._writer.put(line, len(line))

    def add(self, at: float, name: str, record: Record, more: Mapping[str, str]) -> None:
        """Queue a record at level `info`, to be formatted in the thread; see `Records`."""
        # Under the handler's lock, like `emit`: only one thread at a time may call `put`.
        assert self.lock is not None
        with self.lock:
            self._writer.put((at, name, record, more), _RECORD_SIZE)

    def close(self) -> None:
        """Write remaining lines, within `CLOSE_LIMIT` seconds."""
        self._writer.close()
        super().close()

    def _line(self, item: _Queued | bytes) -> bytes:
        if isinstance(item, bytes):
            return item
        at, name, record, more = item
        return self._event_line(at, name, record.message(more), level="INFO")

    def _event_line(self, at: float, name: str, event: LogEvent, *, level: str) -> bytes:
        if self._as_json:
            return _json_event(at, level, name, event) + b"\n"
        return f"{_text_head(at, level, name)}{event}\n".encode()

    def _gap(self, count: int, reason: str) -> bytes:
        event = LogEvent("log lines were lost", count=count, reason=reason)
        return self._event_line(time.time(), __name__, event, level="WARNING")


class TextLines(logging.Formatter):
    """Formatter for `TIME LEVEL LOGGER: MESSAGE`, followed by an indented traceback."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        # A `LogEvent` is already escaped.
        if not isinstance(record.msg, LogEvent):
            message = printable(message)
        line = _text_head(record.created, record.levelname, record.name) + message
        trace = _traceback(self, record)
        if trace is None:
            return line
        # Indented, so that the text of an exception cannot forge a line of the log.
        return "\n  ".join([line, *map(printable, trace.split("\n"))])


class JsonLines(logging.Formatter):
    """Formatter for one JSON object per record, with the fields of a `LogEvent` as members."""

    def format(self, record: logging.LogRecord) -> str:
        event = record.msg
        if not isinstance(event, LogEvent):
            event = LogEvent(record.getMessage(), traceback=_traceback(self, record))
        return _json_event(record.created, record.levelname, record.name, event).decode()


def _text_head(at: float, level: str, logger: str) -> str:
    """Return the beginning of a plain text line."""
    return f"{time_text(at)} {level} {logger}: "


def _json_event(at: float, level: str, logger: str, event: LogEvent) -> bytes:
    """Return a message as a JSON object, without a newline."""
    line: dict[str, object] = {
        "time": time_text(at),
        "level": level.lower(),
        "logger": logger,
        "message": event.text,
    }
    line |= {name: value for name, value in event.fields.items() if value is not None}
    return json_line(line)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts) if parts else None


def time_text(seconds: float) -> str:
    """Format a Unix time in UTC with milliseconds, as in RFC 3339."""
    return _millisecond_text(int(seconds * 1000))


# On a busy server many lines share the millisecond, and most the second, of the previous line.
@lru_cache(maxsize=4)
def _millisecond_text(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{_second_text(seconds)}.{rest:03}Z"


@lru_cache(maxsize=4)
def _second_text(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def json_line(fields: Mapping[str, object] | msgspec.Struct) -> bytes:
    """Return an object as JSON in printable ASCII, without a newline."""
    try:
        line = _encode(fields)
        if line.isascii() and b"\x7f" not in line:
            return line
    except UnicodeEncodeError:
        # A lone surrogate, which represents a byte that is not UTF-8.
        pass
    # The slow path for text beyond ASCII, which this encoder escapes.
    plain = _encodable(msgspec.to_builtins(fields))
    return json.dumps(plain, separators=(",", ":")).encode()


def _encodable(value: object) -> object:
    """Return a value with lone surrogates escaped as text: JSON does not allow them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {name: _encodable(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(member) for member in value]
    return value

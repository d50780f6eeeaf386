"""
Formats log and audit records as lines: text for people, JSON for programs.

JSON is written in ASCII. So a line has no character that controls a terminal, and stays valid
for paths that are not UTF-8.
"""

import json
import logging
import time
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from holdfast.wire.log_event import LogEvent, printable

__all__ = [
    "JsonLines",
    "TextLines",
    "json_event",
    "json_line",
    "text_head",
    "time_text",
]

_encode = msgspec.json.Encoder().encode


class TextLines(logging.Formatter):
    """Formatter for `TIME LEVEL LOGGER: MESSAGE`, followed by an indented traceback."""

    def __init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        # A `LogEvent` is escaped already.
        if not isinstance(record.msg, LogEvent):
            message = printable(message)
        line = text_head(record.created, record.levelname, record.name) + message
        trace = _traceback(self, record)
        if trace is None:
            return line
        # Indented: the text of an exception must not be able to fake a line of the log.
        return "\n  ".join([line, *map(printable, trace.split("\n"))])


class JsonLines(logging.Formatter):
    """Formatter for one JSON object per record, with the fields of a `LogEvent` as members."""

    def __init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        event = record.msg
        if not isinstance(event, LogEvent):
            event = LogEvent(record.getMessage(), traceback=_traceback(self, record))
        return json_event(record.created, record.levelname, record.name, event).decode()


def text_head(at: float, level: str, logger: str) -> str:
    """Return the beginning of a line of text."""
    return f"{time_text(at)} {level} {logger}: "


def json_event(at: float, level: str, logger: str, event: LogEvent) -> bytes:
    """Return a message as one JSON object, without a line end."""
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
    """Return a time since 1970 in UTC with milliseconds, as RFC 3339 has it."""
    return _millisecond_text(int(seconds * 1000))


# On a busy server many lines have the same millisecond, and most the second of the line before.
@lru_cache(maxsize=4)
def _millisecond_text(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{_second_text(seconds)}.{rest:03}Z"


@lru_cache(maxsize=4)
def _second_text(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def json_line(fields: Mapping[str, object] | msgspec.Struct) -> bytes:
    """Return an object as JSON in printable ASCII, without a line end."""
    try:
        line = _encode(fields)
        if line.isascii() and b"\x7f" not in line:
            return line
    except UnicodeEncodeError:
        # A lone surrogate, which stands for a byte that is not UTF-8.
        pass
    # The slow way, for texts beyond ASCII: this encoder escapes them.
    plain = _encodable(msgspec.to_builtins(fields))
    return json.dumps(plain, separators=(",", ":")).encode()


def _encodable(value: object) -> object:
    """Return a value with lone surrogates escaped as text, since JSON cannot have them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {name: _encodable(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(member) for member in value]
    return value

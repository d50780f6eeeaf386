"""
Log and audit records as lines: text for people, JSON for programs.

JSON is written in ASCII. So a line has no character that a terminal acts on, and bytes of a
path that are no UTF-8 leave it valid.
"""

import logging
import time
from collections.abc import Mapping

import msgspec

from holdfast.log_event import LogEvent, printable

__all__ = ["JsonLines", "TextLines", "json_line", "time_text"]


class TextLines(logging.Formatter):
    """Formats a record as `TIME LEVEL LOGGER: MESSAGE`, followed by an indented traceback."""

    def __init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        # A `LogEvent` has its escapes already.
        if not isinstance(record.msg, LogEvent):
            message = printable(message)
        line = f"{time_text(record.created)} {record.levelname} {record.name}: {message}"
        trace = _traceback(self, record)
        if trace is None:
            return line
        # A line of an exception's text must not look like one of the log.
        return "\n  ".join([line, *map(printable, trace.split("\n"))])


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object; the fields of a `LogEvent` are members of it."""

    def __init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, LogEvent):
            line["message"] = record.msg.text
            fields = record.msg.fields
            line |= {name: value for name, value in fields.items() if value is not None}
        else:
            line["message"] = record.getMessage()
        trace = _traceback(self, record)
        if trace is not None:
            line["traceback"] = trace
        return json_line(line).decode()


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts) if parts else None


def time_text(seconds: float) -> str:
    """Return a time since 1970 in UTC with milliseconds, as RFC 3339 has it."""
    whole = int(seconds)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{stamp}.{int((seconds - whole) * 1000):03d}Z"


def json_line(fields: Mapping[str, object]) -> bytes:
    """Return an object as JSON in printable ASCII, without a line end."""
    try:
        line = msgspec.json.encode(fields)
        if line.isascii() and b"\x7f" not in line:
            return line
    except UnicodeEncodeError:
        pass  # a lone surrogate, which stands for a byte that is no UTF-8
    import json  # seldom needed

    return json.dumps(_encodable(fields), separators=(",", ":")).encode()


def _encodable(value: object) -> object:
    """Return a value without lone surrogates, which are no valid JSON: they become text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {name: _encodable(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(member) for member in value]
    return value

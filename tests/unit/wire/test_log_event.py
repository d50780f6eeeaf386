"""Messages for the log, and what a client cannot do to them."""

import logging
import sys
import time

import msgspec
import pytest

from holdfast.server.operate.logs import JsonLines, TextLines, json_line, time_text
from holdfast.wire.log_event import LogEvent, Sampled, clip, path_text, printable
from holdfast.wire.protocol.paths import PathUri

HOSTILE = 'a\n2026-01-01T00:00:00.000Z INFO forged\x1b[2J\x9b1m\u2028\u202e\udcff\x7f"=\\ b'
"""Line ends, sequences for terminals, a change of direction, a byte that is no UTF-8."""


def record(message: object, *args: object, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("holdfast.test", level, "", 0, message, args, None)
    made.created = 1_700_000_000.5
    return made


def test_a_field_without_anything_special_is_shown_as_it_is() -> None:
    event = LogEvent("process started", process="p1", pid=7, seconds=0.25, tty=True, signal=None)
    assert str(event) == "process started process=p1 pid=7 seconds=0.25 tty=yes"


@pytest.mark.parametrize("text", [HOSTILE, "\r", "\x00", "", "a b", 'a"b'])
def test_a_field_cannot_end_its_line_or_speak_to_a_terminal(text: str) -> None:
    shown = str(LogEvent("x", name=text, after="y"))
    assert shown.isprintable()
    assert shown.startswith('x name="')
    assert shown.endswith('" after=y')


def test_two_different_values_never_look_the_same() -> None:
    assert str(LogEvent("x", a="\n")) != str(LogEvent("x", a="\\n"))


def test_long_texts_are_cut_where_it_shows() -> None:
    assert clip("x" * 300) == "x" * 255 + "…"
    assert clip("x" * 256) == "x" * 256
    assert path_text(PathUri.parse("file:///C:/x")) == "file:///C:/x"
    assert len(path_text(PathUri.from_path("/" + "x" * 2000))) == 1024


@pytest.mark.parametrize("message", [HOSTILE, LogEvent("process started", process=HOSTILE)])
def test_a_message_is_one_line_of_text(message: object) -> None:
    line = TextLines().format(record(message))
    assert line.isprintable()
    assert line.startswith("2023-11-14T22:13:20.500Z INFO holdfast.test: ")


def test_an_exception_cannot_forge_a_line_either() -> None:
    made = record("it failed")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *rest = TextLines().format(made).split("\n")
    assert first.endswith("holdfast.test: it failed")
    assert len(rest) >= 3
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (HOSTILE, HOSTILE.replace("\udcff", "\\udcff")),
        (LogEvent("process started", process=HOSTILE), "process started"),
    ],
)
def test_a_message_is_one_object_of_printable_ascii(message: object, expected: str) -> None:
    line = JsonLines().format(record(message))
    assert line.isascii()
    assert line.isprintable()
    found = msgspec.json.decode(line.encode())  # strict: it refuses lone surrogates
    assert found["time"] == "2023-11-14T22:13:20.500Z"
    assert (found["level"], found["logger"]) == ("info", "holdfast.test")
    assert found["message"] == expected
    if isinstance(message, LogEvent):
        assert found["process"] == HOSTILE.replace("\udcff", "\\udcff")


def test_lists_and_numbers_are_json_too() -> None:
    assert json_line({"argv": ["a", "\udcff"], "n": 1, "b": True}) == (
        b'{"argv":["a","\\\\udcff"],"n":1,"b":true}'
    )


def test_times_have_milliseconds() -> None:
    assert time_text(0.0) == "1970-01-01T00:00:00.000Z"
    assert time_text(1.9996) == "1970-01-01T00:00:01.999Z"
    assert printable("a\tb") == r"a\tb"


def test_of_many_events_a_hundred_in_a_minute_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = Sampled()
    assert [sampled.skipped() for _ in range(250)] == [0] * 100 + [None] * 150
    now = time.monotonic()
    monkeypatch.setattr("holdfast.wire.log_event.time.monotonic", lambda: now + 61)
    assert [sampled.skipped() for _ in range(2)] == [150, 0]

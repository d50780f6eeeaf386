"""Tells where a row of the library differs from the recorded one."""

import shlex
from collections.abc import Iterator
from typing import Any

from tests.real.unified_exec.normal import Row, unpack

_WIRE = ("process/start", "process/write", "process/signal", "process/terminate")


_BY_METADATA = ("CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID")
"""Variables that servers set from the metadata of a start; Codex sends them a second time."""


def differences(recorded: Row, ours: Row) -> list[str]:
    """Return one line for each difference, with its position and both values."""
    return [
        *_answers(recorded["answers"], ours["answers"]),
        *_same("acts", recorded.get("acts"), ours.get("acts")),
        *_events(recorded.get("events", {}), ours.get("events", {})),
        *_wire(recorded.get("wire", []), ours.get("wire", [])),
        *_same("schemas", recorded.get("schemas"), _undescribed(ours.get("schemas"))),
    ]


def only_times(found: list[str]) -> bool:
    """Return True if all differences are classes of wall times, which a busy machine disturbs."""
    return all(line.partition(":")[0].endswith(" wall") for line in found)


def _answers(recorded: Row, ours: Row) -> Iterator[str]:
    for call, expected in recorded.items():
        found = ours[call]
        yield from _text(f"{call} text", unpack(expected["text"]), unpack(found["text"]))
        yield from _same(f"{call} wall", expected.get("wall"), found.get("wall"))


def _events(recorded: Row, ours: Row) -> Iterator[str]:
    yield from _same("commands with events", list(recorded), list(ours))
    for item in recorded.keys() & ours.keys():
        expected, found = recorded[item], ours[item]
        yield from _same(f"{item} order", expected["order"], found["order"])
        yield from _same(f"{item} begin", _split(expected), _split(found))
        yield from _text(f"{item} deltas", unpack(expected["deltas"]), unpack(found["deltas"]))
        for name in ("sizes", "count", "longest"):
            yield from _same(f"{item} {name}", expected.get(name), found.get(name))
        yield from _same(f"{item} stdin", expected.get("stdin"), found.get("stdin"))
        yield from _same(f"{item} end", _unpacked(expected), _unpacked(found))


def _split(events: Row) -> Any:
    begin = events.get("begin")
    return begin and {**begin, "command": shlex.split(begin["command"])}


def _unpacked(events: Row) -> Any:
    end = events.get("end")
    return end and {**end, "output": end["output"] and unpack(end["output"])}


def _wire(recorded: list[Row], ours: list[Row]) -> Iterator[str]:
    """Compare requests; fields that only ours has are extensions of the protocol."""
    sent = [request for request in ours if request["method"] in _WIRE] if recorded else []
    yield from _same(
        "requests", [request["method"] for request in recorded], [r["method"] for r in sent]
    )
    for number, (expected, found) in enumerate(zip(recorded, sent, strict=False)):
        for name, value in expected["params"].items():
            if name == "env":
                value = {key: value[key] for key in value if key not in _BY_METADATA}
            yield from _same(f"request {number} {name}", value, found["params"].get(name))


def _undescribed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _undescribed(item)
            for key, item in value.items()
            if key != "description" or not isinstance(item, str)
        }
    return value


def _same(where: str, expected: Any, found: Any) -> Iterator[str]:
    if expected != found:
        yield f"{where}: recorded {expected!r:.700}, ours {found!r:.700}"


def _text(where: str, expected: str, found: str) -> Iterator[str]:
    if expected == found:
        return
    pairs = zip(expected, found, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)))
    near = slice(max(0, at - 60), at + 100)
    yield f"{where}: at {at} recorded {expected[near]!r}, ours {found[near]!r}"

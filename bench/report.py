"""Turns measurements into a table to read and into JSON to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.figures import Better, Figure, Measurements, Subject

__all__ = ["as_json", "as_markdown"]

_TIMES = "\N{MULTIPLICATION SIGN}"
_NONE = "\N{EN DASH}"

_COLUMNS = (
    "",
    "unit",
    "client",
    "Holdfast",
    "Codex",
    "bare",
    f"{_TIMES} Codex",
    f"{_TIMES} bare",
    "target",
    "",
)

_NAMES = {Subject.HOLDFAST: "Holdfast", Subject.CODEX: "Codex", Subject.BARE: "bare"}

_NOTES = """\
Best round of each. *Client* is how the one client that all servers share acknowledges what it
receives: *ordinary* leaves that to the kernel (delayed ACKs), *quick ACKs* sets `TCP_QUICKACK`
again after each receive, which spares a server that leaves Nagle on its waits. *Bare* is the same
work by system calls from Python, with no server.

Streams are timed from their first output to the last; the client adds up sizes and checks sequence
numbers, after it has compared every byte of a smaller stream. CPU is the user and system time of
the server's own processes, without the commands they run. Memory is theirs too: PSS is lower where
others map the same files, as this benchmark does, and RSS counts twice what two of them share.
"""


def as_markdown(
    figures: Sequence[Figure],
    seen: Measurements,
    *,
    facts: Mapping[str, str],
    command: str,
    rounds: int,
    remark: str = "",
) -> str:
    """Write the table, the facts it holds for, and what broke."""
    lines = [f"`{command}`, {rounds} round{'s' if rounds != 1 else ''}{remark}", ""]
    lines += [", ".join(f"{name} {value}" for name, value in facts.items()) + ".", ""]
    lines += [_row(_COLUMNS), "|---|---|---|--:|--:|--:|--:|--:|---|---|"]
    lines += [_row(_cells(figure, seen)) for figure in figures]
    lines += ["", _NOTES]
    if seen.missing:
        lines += ["Not measured:", "", *(f"- {text}" for text in seen.missing), ""]
    if seen.failures:
        lines += ["Broken:", "", *(f"- {text}" for text in seen.failures), ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(figure: Figure, seen: Measurements) -> list[str]:
    met = seen.met(figure)
    return [
        figure.title,
        figure.unit,
        figure.client.value if figure.client is not None else "",
        *(_number(seen.best(figure, subject)) for subject in Subject),
        _number(seen.ratio(figure, Subject.CODEX)),
        _number(seen.ratio(figure, Subject.BARE)),
        _targets(figure),
        "" if met is None else "met" if met else "**missed**",
    ]


def _targets(figure: Figure) -> str:
    sign = "≤" if figure.better is Better.LOWER else "≥"
    return ", ".join(
        f"{sign} {target.factor:g}{_TIMES} {_NAMES[target.against]}" for target in figure.targets
    )


def _number(value: float | None) -> str:
    """Write three significant digits, or a dash."""
    if value is None:
        return _NONE
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def as_json(
    figures: Sequence[Figure],
    seen: Measurements,
    *,
    facts: Mapping[str, str],
    command: str,
    rounds: int,
) -> bytes:
    """Write everything that was measured, each round's value included."""
    report = {
        "command": command,
        "rounds": rounds,
        "machine": facts,
        "figures": [_entry(figure, seen) for figure in figures],
        "missing": seen.missing,
        "failures": seen.failures,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def _entry(figure: Figure, seen: Measurements) -> dict[str, object]:
    return {
        "key": figure.key,
        "title": figure.title,
        "unit": figure.unit,
        "better": figure.better.value,
        "client": figure.client.value if figure.client is not None else None,
        "rounds": {
            subject.value: seen.values.get((figure.key, subject), []) for subject in Subject
        },
        "best": {subject.value: seen.best(figure, subject) for subject in Subject},
        "median": {subject.value: seen.median(figure, subject) for subject in Subject},
        "ratio": {
            subject.value: seen.ratio(figure, subject) for subject in (Subject.CODEX, Subject.BARE)
        },
        "targets": [
            {"factor": target.factor, "against": target.against.value} for target in figure.targets
        ],
        "met": seen.met(figure),
    }

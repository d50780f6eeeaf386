"""Turns measurements into a table to read and into JSON to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.figures import Better, Figure, Limit, Measurements, Subject, Target

__all__ = ["as_json", "as_markdown"]

_TIMES = "\N{MULTIPLICATION SIGN}"
_NONE = "\N{EN DASH}"

_UNAVAILABLE = "not available"

_NAMES = {
    Subject.HOLDFAST: "Holdfast",
    Subject.CODEX: "Codex",
    Subject.BARE: "bare",
    Subject.WITHOUT: "without",
    Subject.SWE_REX: "SWE-ReX",
    Subject.OPENAI_AGENTS: "openai-agents",
}

_NOTES = """\
Best round of each. *Client* is how the one client that all servers share acknowledges what it
receives: *ordinary* leaves that to the kernel (delayed ACKs), *quick ACKs* sets `TCP_QUICKACK`
again after each receive, which spares a server that leaves Nagle on its waits. *Bare* is the same
work by what Python itself has, with no server: system calls, or where Holdfast stands beside
libraries `asyncio.create_subprocess_exec`.

Streams are timed from their first output to the last; the client adds up sizes and checks sequence
numbers, after it has compared every byte of a smaller stream. CPU is the user and system time of
the server's own processes, without the commands they run. Memory is theirs too: PSS is lower where
others map the same files, as this benchmark does, and RSS counts twice what two of them share.

A run is one call of a library, in a process that does nothing else. Its growth of memory is that
of the peak RSS. It holds the loop while a tick that is due each millisecond does not come; on a
busy machine part of that is waiting for a core, so the rest is shown too.
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
    """Return the table, the facts it depends on, and the failures."""
    lines = [f"`{command}`, {rounds} round{'s' if rounds != 1 else ''}{remark}", ""]
    lines += [", ".join(f"{name} {value}" for name, value in facts.items()) + ".", ""]
    for others in dict.fromkeys(figure.others for figure in figures):
        lines += [*_table([one for one in figures if one.others == others], others, seen), ""]
    lines += [_NOTES]
    if seen.missing:
        lines += ["Not measured:", "", *(f"- {text}" for text in seen.missing), ""]
    if seen.failures:
        lines += ["Broken:", "", *(f"- {text}" for text in seen.failures), ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(figures: Sequence[Figure], others: Sequence[Subject], seen: Measurements) -> list[str]:
    """Return the figures compared with the same subjects, without empty columns."""
    clients = any(figure.client is not None for figure in figures)
    names = [_NAMES[subject] for subject in others]
    head = ["", "unit", *(["client"] if clients else [])]
    numbers = ["Holdfast", *names, *(f"{_TIMES} {name}" for name in names)]
    return [
        _row([*head, *numbers, "target", ""]),
        "|" + "---|" * len(head) + "--:|" * len(numbers) + "---|---|",
        *(_row(_cells(figure, seen, client=clients)) for figure in figures),
    ]


def _cells(figure: Figure, seen: Measurements, *, client: bool) -> list[str]:
    met = seen.met(figure)
    name = figure.client.value if figure.client is not None else ""
    return [
        figure.title,
        figure.unit,
        *([name] if client else []),
        *(_value(figure, subject, seen) for subject in (Subject.HOLDFAST, *figure.others)),
        *(_number(seen.ratio(figure, subject)) for subject in figure.others),
        ", ".join(_target(figure, target) for target in figure.targets),
        "" if met is None else "met" if met else "**missed**",
    ]


def _value(figure: Figure, subject: Subject, seen: Measurements) -> str:
    best = seen.best(figure, subject)
    if best is None and (figure.key, subject) in seen.unavailable:
        return _UNAVAILABLE
    return _number(best)


def _target(figure: Figure, target: Target | Limit) -> str:
    sign = "≤" if figure.better is Better.LOWER else "≥"
    if isinstance(target, Limit):
        return f"{sign} {target.value:g} {figure.unit}"
    return f"{sign} {target.factor:g}{_TIMES} {_NAMES[target.against]}"


def _number(value: float | None) -> str:
    """Return three significant digits, or a dash."""
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
    """Return all measurements, including the values of each round."""
    report = {
        "command": command,
        "rounds": rounds,
        "machine": facts,
        "figures": [_entry(figure, seen) for figure in figures],
        "missing": seen.missing,
        "failures": seen.failures,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def _target_entry(target: Target | Limit) -> dict[str, object]:
    if isinstance(target, Limit):
        return {"limit": target.value}
    return {"factor": target.factor, "against": target.against.value}


def _entry(figure: Figure, seen: Measurements) -> dict[str, object]:
    subjects = (Subject.HOLDFAST, *figure.others)
    return {
        "key": figure.key,
        "title": figure.title,
        "unit": figure.unit,
        "better": figure.better.value,
        "client": figure.client.value if figure.client is not None else None,
        "rounds": {
            subject.value: seen.values.get((figure.key, subject), []) for subject in subjects
        },
        "best": {subject.value: seen.best(figure, subject) for subject in subjects},
        "median": {subject.value: seen.median(figure, subject) for subject in subjects},
        "ratio": {subject.value: seen.ratio(figure, subject) for subject in figure.others},
        "targets": [_target_entry(target) for target in figure.targets],
        "met": seen.met(figure),
    }

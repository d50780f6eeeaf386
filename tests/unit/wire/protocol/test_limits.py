"""The table of limits, and all that repeats its names."""

import resource
import signal
from dataclasses import fields
from pathlib import Path

import pytest

from holdfast.environments.limits import Limits
from holdfast.wire.protocol.limits import LIMITS, Limit, LimitKind
from holdfast.wire.protocol.process import ProcessLimits

PAGE = Path(__file__).parents[4] / "docs/reference/limits.md"
NAMES = "| what | `Limits` | command line | on the wire |"
ENFORCERS = "| `Limits` | enforced by | beyond it |"
VERDICTS = "| `Limits` | on the wire | text |"


def enforcer(limit: Limit) -> str:
    rlimit = f"`{limit.rlimit}`"
    if limit.controller is None:
        return "watchdog" if limit.rlimit is None else rlimit
    cgroup = f"cgroup, `{limit.controller}`"
    return cgroup if limit.rlimit is None else f"{cgroup}; else {rlimit}"


def named(limit: Limit) -> str:
    least = f", at least {limit.least:,}" if limit.least > 1 else ""
    return f"| {limit.about}{least} | `{limit.name}` | `{limit.option}` | `{limit.wire_name}` |"


def enforced(limit: Limit) -> str:
    return f"| `{limit.name}` | {enforcer(limit)} | {limit.beyond} |"


def verdict(limit: Limit) -> str:
    return f"| `{limit.name}` | `{limit.kind}` | {limit.verdict.replace('{}', 'N')} |"


def test_the_documented_tables_are_those_of_the_code() -> None:
    lines = PAGE.read_text().splitlines()
    for head, row in ((NAMES, named), (ENFORCERS, enforced), (VERDICTS, verdict)):
        at = lines.index(head) + 2
        assert lines[at : at + len(LIMITS) + 1] == [*map(row, LIMITS), ""]


def test_every_class_has_the_names_of_the_table() -> None:
    assert [limit.kind for limit in LIMITS] == [kind for kind in LimitKind if kind != "other"]
    assert [limit.name for limit in LIMITS] == [field.name for field in fields(Limits)]
    wire = dict(
        zip(ProcessLimits.__struct_fields__, ProcessLimits.__struct_encode_fields__, strict=True)
    )
    assert {limit.field: limit.wire_name for limit in LIMITS} == wire


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_every_row_can_be_enforced(limit: Limit) -> None:
    assert limit.rlimit is None or hasattr(resource, limit.rlimit)
    assert limit.signal is None or hasattr(signal, limit.signal)
    assert limit.controller in (None, "memory", "pids")
    # A limit of the watchdog has code of its own there.
    own = limit.kind in (LimitKind.OUTPUT, LimitKind.WALL_TIME)
    assert limit.is_kernel_enforced is not own

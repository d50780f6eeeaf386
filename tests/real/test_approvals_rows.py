"""
Questions, refusals and sandboxes of the library, compared with those of the real Codex.

`tests/real/approvals/rows.json` was recorded from `codex app-server` with a scripted model: the
same commands under every policy. What differs is stricter on purpose, and listed.
"""

import asyncio
from pathlib import Path

import pytest

from holdfast.agent.approvals import load_rules
from holdfast.agent.approvals.starlark import rules_available
from tests.real.approvals.cases import CASES, POLICIES, REQUIREMENTS, RULES
from tests.real.approvals.on_library import play_all
from tests.real.approvals.rows import Row, load

RECORDED = load()

EVERY = frozenset(POLICIES)
ASKS = EVERY - {"never", "granular-rules", "granular-none"}
"""Policies that may ask about dangerous commands."""
RETRIES = frozenset({"granular-all", "granular-sandbox"})
"""Policies that ask after a denial; `untrusted` runs what was approved again without asking."""

ON_PURPOSE: dict[str, frozenset[str]] = {
    "dangerous-subshell": ASKS,
    "dangerous-nested": ASKS,
    "dangerous-env": ASKS,
    "dangerous-trap": ASKS,
    "dangerous-hidden": EVERY,
    "dangerous-quoted": EVERY,
    "forbidden-subshell": EVERY,
    "forbidden-variable": EVERY,
    "forbidden-redirected": EVERY,
    "human-hidden": EVERY,
    "nine-wrappers-removal": ASKS,
    "option-cut-short": EVERY - {"untrusted"},
    "host-unlisted": EVERY,
    "up-ban-path": ASKS,
    "denied-late": RETRIES | {"untrusted"},
    "denied-declined": RETRIES,
}
"""Cases that differ on purpose, with the policies under which they do."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.together,
    pytest.mark.skipif(not rules_available(), reason="the extra approvals is not installed"),
]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    root = tmp_path_factory.mktemp("approvals")
    file = root / "test.rules"
    file.write_text(RULES)
    requirements = root / "requirements.toml"
    requirements.write_text(REQUIREMENTS)
    rules = load_rules(explicit=[file], requirements=requirements)
    assert not rules.broken
    return asyncio.run(play_all(list(RECORDED), rules, root))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.requirement("approvals.policies")
def test_the_same_questions_refusals_and_sandboxes(policy: str, played: dict[str, Row]) -> None:
    names = [f"{policy}/{case}" for case in CASES]
    differing = {name for name in names if played[name] != RECORDED[name]}
    expected = {f"{policy}/{case}" for case, where in ON_PURPOSE.items() if policy in where}
    shown = {name: (played[name], RECORDED[name]) for name in sorted(differing - expected)}
    assert shown == {}
    assert differing == expected


def test_what_differs_is_listed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    assert [case for case in ON_PURPOSE if f"`{case}`" not in page] == []


def test_every_case_is_recorded() -> None:
    assert set(RECORDED) == {f"{policy}/{case}" for policy in POLICIES for case in CASES}
    assert len(CASES) >= 40

"""The ledger: every behaviour of the real server is claimed by a test, and every claim is in it."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
LEDGER = TESTS / "requirements.toml"

FIELDS = {"says", "spec", "gap", "page"}


def entries(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of the ledger by id; one may stand above others, as `read.wait` does."""
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if own:
        yield prefix, own
    for key, value in table.items():
        if isinstance(value, dict):
            yield from entries(value, f"{prefix}.{key}" if prefix else key)


def claims(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Each id a file claims, with the position; from its text, so whatever was selected to run."""
    if "requirement" not in text:
        return  # to parse it would take longer than to look
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "requirement" and ast.unparse(node.func.value) == "pytest.mark":
            for argument in node.args:
                position = f"{name}:{argument.lineno}"
                assert isinstance(argument, ast.Constant), f"{position}: an id is a plain text"
                yield str(argument.value), position


@pytest.fixture(scope="module")
def ledger() -> dict[str, dict[str, Any]]:
    table = tomllib.loads(LEDGER.read_text())
    del table["explanations"]
    return dict(entries(table))


@pytest.fixture(scope="module")
def claimed() -> dict[str, str]:
    files = sorted([*TESTS.rglob("test_*.py"), *TESTS.glob("breakout/attempts/*.py")])
    return dict(
        claim
        for path in files
        if path != Path(__file__)  # what it quotes claims nothing
        for claim in claims(path.read_text(), str(path.relative_to(TESTS)))
    )


def test_every_entry_says_what_and_where(ledger: dict[str, dict[str, Any]]) -> None:
    for identity, entry in ledger.items():
        assert entry.keys() <= FIELDS, identity
        assert entry["says"].endswith("."), identity
        assert entry["spec"], identity


def test_every_claimed_behaviour_is_in_the_ledger(
    ledger: dict[str, dict[str, Any]], claimed: dict[str, str]
) -> None:
    assert {i: position for i, position in claimed.items() if i not in ledger} == {}


def test_every_behaviour_is_claimed_or_a_gap(
    ledger: dict[str, dict[str, Any]], claimed: dict[str, str]
) -> None:
    assert [i for i, entry in ledger.items() if "gap" not in entry and i not in claimed] == []


def test_a_gap_is_claimed_by_nobody(
    ledger: dict[str, dict[str, Any]], claimed: dict[str, str]
) -> None:
    assert [i for i, entry in ledger.items() if "gap" in entry and i in claimed] == []


def test_claims_are_found_wherever_a_mark_can_stand() -> None:
    text = """
pytestmark = pytest.mark.requirement("a")

@pytest.mark.requirement("b", "c")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.requirement("d"))])
def test_it(x): ...
"""
    assert dict(claims(text, "f.py")) == {
        "a": "f.py:2",
        "b": "f.py:4",
        "c": "f.py:4",
        "d": "f.py:5",
    }


def test_an_entry_may_stand_above_others() -> None:
    table = {"read": {"wait": {"says": "A.", "exit": {"says": "B."}}}}
    assert dict(entries(table)) == {"read.wait": {"says": "A."}, "read.wait.exit": {"says": "B."}}

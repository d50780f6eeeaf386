"""The check of citations finds what does not resolve, and nothing else."""

import tomllib

from scripts.checks.citations import requirement_ids, shown_twice, unresolved

IDS = {"start.check-order", "read.wait", "read.wait.exit"}
DOCUMENTS = {"docs/protocol.md": {"paths"}}


def wrong(source: str) -> list[str]:
    return list(unresolved(source, IDS, DOCUMENTS))


def test_ids_and_anchors_that_exist_resolve() -> None:
    assert wrong('"""Checks [start.check-order], reads [read.*] (docs/protocol.md#paths)."""') == []
    assert wrong("x = 1  # see docs/protocol.md and [read.wait.exit]") == []


def test_what_does_not_exist_is_named_with_its_line() -> None:
    source = (
        '"""Good.\n\nSee [start.order], [write.*] and docs/protocol.md#nowhere.\n"""\n# docs/no.md'
    )
    assert wrong(source) == [
        "3: no requirement start.order",
        "3: no requirement write.*",
        "3: no heading #nowhere in docs/protocol.md",
        "5: no document docs/no.md",
    ]


def test_a_document_outside_of_the_repository_is_refused() -> None:
    assert wrong('"""Says why (exec-server spec 2.5)."""') == [
        "1: cites what is not in the repository: spec 2.5"
    ]
    assert wrong("# The text (sandbox spec, appendix).") != []


def test_code_is_no_citation() -> None:
    assert wrong('found = table[a.b]\nuse("[tool.name] spec 3")\n"""A list `[tool.name]`."""') == []


def test_an_entry_may_stand_above_others() -> None:
    ledger = tomllib.loads('[read.wait]\nsays = "A."\n[read.wait.exit]\nsays = "B."')
    assert set(requirement_ids(ledger)) == {"read.wait", "read.wait.exit"}


def test_an_id_of_both_kinds_of_tests_is_counted_once() -> None:
    marked = '@pytest.mark.requirement("a", "b")\n@pytest.mark.requirement(\n    "c.d-e",\n)'
    sources = {
        "tests/unit/test_one.py": marked,
        "tests/unit/test_two.py": '@pytest.mark.requirement("a")',
        "tests/e2e/test_one.py": 'pytestmark = pytest.mark.requirement("c.d-e")\nuse("b")',
        "tests/contract/test_one.py": marked,
    }
    assert shown_twice(sources) == {"c.d-e"}

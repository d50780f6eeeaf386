"""The texts about values that do not fit, as the real server words them."""

from typing import Any, Literal

import pytest

from holdfast.codex.serde_text import blame, wrong_type
from holdfast.wire.protocol.process import EnvPolicy, ReadParams, StartParams
from holdfast.wire.protocol.wire_types import U64, Wire


class Inner(Wire, frozen=True, kw_only=True):
    count: U64
    mode: Literal["one", "two"] = "one"


class Outer(Wire, frozen=True, kw_only=True):
    first_name: str
    flag: bool
    inner: Inner
    items: list[str] | None = None
    table: dict[str, str] | None = None
    perhaps: Inner | None = None
    only: Literal["interrupt"] = "interrupt"
    anything: Any = None


GOOD: dict[str, object] = {"firstName": "x", "flag": True, "inner": {"count": 1}}


@pytest.mark.requirement("envelope.params.wrong-type")
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "null"),
        (True, "boolean `true`"),
        (False, "boolean `false`"),
        (1, "number"),
        (-1.5, "number"),
        ("x", 'string "x"'),
        ('a"ü\n', 'string "a\\"ü\\n"'),
        ([], "sequence"),
        ({}, "map"),
    ],
    ids=repr,
)
def test_what_was_found_is_named_by_its_kind(value: object, named: str) -> None:
    assert wrong_type(value, "unit") == f"invalid type: {named}, expected unit"


@pytest.mark.requirement("envelope.params.wrong-type")
@pytest.mark.parametrize(
    ("member", "value", "wanted"),
    [
        ("firstName", 1, "a string"),
        ("flag", "true", "a boolean"),
        ("flag", None, "a boolean"),
        ("inner", 1, "struct Inner"),
        ("inner", None, "struct Inner"),
        ("items", {}, "a sequence"),
        ("items", [1], "a string"),
        ("items", ["a", None], "a string"),
        ("table", [], "a map"),
        ("table", {"a": 1}, "a string"),
        ("perhaps", 1, "struct Inner"),
        ("perhaps", {"count": "1"}, "u64"),
        ("only", 1, "string or map"),
    ],
)
def test_what_was_wanted_is_named_too(member: str, value: object, wanted: str) -> None:
    assert blame({**GOOD, member: value}, Outer).endswith(f", expected {wanted}")


def test_the_whole_value_may_be_wrong() -> None:
    assert blame(None, Outer) == "invalid type: null, expected struct Outer"
    assert blame([1], StartParams) == "invalid type: sequence, expected struct StartParams"


@pytest.mark.requirement("envelope.params.missing")
def test_the_first_missing_member_in_declaration_order_is_named() -> None:
    assert blame({}, Outer) == "missing field `firstName`"
    assert blame({"firstName": "x"}, Outer) == "missing field `flag`"
    assert blame({"firstName": "x", "flag": True}, Outer) == "missing field `inner`"
    assert blame({**GOOD, "inner": {}}, Outer) == "missing field `count`"
    assert blame({"processId": "p"}, StartParams) == "missing field `argv`"


@pytest.mark.requirement("env.policy.required")
@pytest.mark.parametrize(
    "member", ["inherit", "ignoreDefaultExcludes", "exclude", "set", "includeOnly"]
)
def test_every_member_of_a_policy_is_required(member: str) -> None:
    policy = {
        "inherit": "all",
        "ignoreDefaultExcludes": False,
        "exclude": [],
        "set": {},
        "includeOnly": [],
    }
    del policy[member]
    assert blame(policy, EnvPolicy) == f"missing field `{member}`"


@pytest.mark.requirement("envelope.params.wrong-type")
def test_a_wrong_type_is_met_before_a_missing_member() -> None:
    assert blame({"flag": 1}, Outer) == "invalid type: number, expected a boolean"


@pytest.mark.requirement("envelope.params.wrong-type")
def test_members_are_looked_at_in_the_order_they_came() -> None:
    assert blame({"flag": "x", "firstName": 1}, Outer).endswith("expected a boolean")
    assert blame({"firstName": 1, "flag": "x"}, Outer).endswith("expected a string")


@pytest.mark.requirement("envelope.params.number")
@pytest.mark.parametrize("value", [-1, 1.0, 1.5, 1e300, float("inf")])
def test_a_number_that_does_not_fit_is_invalid(value: float) -> None:
    assert blame({"processId": "p", "afterSeq": value}, ReadParams) == "invalid number"


@pytest.mark.requirement("envelope.params.number")
@pytest.mark.parametrize("value", [True, "1", [], {}], ids=repr)
def test_what_is_no_number_is_of_the_wrong_type(value: object) -> None:
    assert blame({"processId": "p", "afterSeq": value}, ReadParams).endswith("expected u64")


def test_numbers_that_fit_are_not_blamed_for_a_later_fault() -> None:
    value = {"afterSeq": 1, "maxBytes": None, "processId": 1}
    assert blame(value, ReadParams) == "invalid type: number, expected a string"


@pytest.mark.requirement("envelope.params.variant")
def test_an_unknown_variant_is_named_with_the_known_ones() -> None:
    assert blame({**GOOD, "only": "kill"}, Outer) == (
        "unknown variant `kill`, expected `interrupt`"
    )
    assert blame({"inherit": "All"}, EnvPolicy) == (
        "unknown variant `All`, expected one of `core`, `all`, `none`"
    )


def test_unknown_members_and_those_of_any_type_are_never_to_blame() -> None:
    assert blame({"unknown": 1, "anything": [], "flag": 1}, Outer).endswith("a boolean")


def test_a_value_without_a_fault_still_gets_a_text() -> None:
    assert blame(GOOD, Outer) == "invalid value"

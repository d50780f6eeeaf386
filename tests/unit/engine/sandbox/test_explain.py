"""A policy in rows."""

from holdfast.engine.sandbox.policy.explain import Row, explain
from holdfast.engine.sandbox.policy.policy import Policy
from holdfast.engine.sandbox.profile.builtin import path_entry, special_entry
from tests.unit.engine.sandbox.trees import WS, glob_entry, policy_for

ROOT = special_entry("root", "read")
PROJECT = special_entry("project_roots", "write")


def test_no_isolation_is_said_plainly() -> None:
    assert explain(Policy()) == (
        Row("writable", "/", "nothing narrows it"),
        Row("network", "enabled", "as on the host, sockets on disk included"),
        Row("isolation", "none", "the profile asks for nothing"),
    )


def test_everything_that_holds_has_a_row() -> None:
    policy = policy_for(
        {f"{WS}/.git/config": "x", f"{WS}/p/key": "x", f"{WS}/a.env": "x"},
        ROOT,
        PROJECT,
        path_entry(f"{WS}/p/key", "deny"),
        path_entry(f"{WS}/none", "read"),
        glob_entry(f"{WS}/*.env"),
    )
    rows = explain(policy)
    assert [(row.topic, row.what) for row in rows] == [
        ("writable", WS),
        ("protected", f"{WS}/.agents"),
        ("protected", f"{WS}/.aws"),
        ("protected", f"{WS}/.codex"),
        ("protected", f"{WS}/.git"),
        ("protected", f"{WS}/none"),
        ("readable", "/"),
        ("hidden", f"{WS}/a.env"),
        ("hidden", f"{WS}/p/key"),
        ("hidden", f"{WS}/*.env"),
        ("network", "none"),
        ("isolation", "own namespaces"),
    ]
    why = {row.what: row.why for row in rows}
    assert why[f"{WS}/.aws"].endswith("missing: cannot be made")
    assert not why[f"{WS}/.git"].endswith("missing: cannot be made")


def test_what_no_entry_covers_is_hidden() -> None:
    policy = policy_for(
        {"/usr": None, WS: None}, special_entry("minimal", "read"), network="enabled"
    )
    assert explain(policy)[:2] == (
        Row("readable", "/usr", "part of `minimal`"),
        Row("hidden", "everything else", "no entry covers it"),
    )

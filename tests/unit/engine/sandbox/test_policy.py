"""Answers of a policy about a path."""

import pytest

from holdfast.engine.sandbox.policy.policy import Policy, parent_of
from holdfast.engine.sandbox.profile.builtin import path_entry, special_entry
from tests.unit.engine.sandbox.trees import WS, glob_entry, policy_for

ROOT = special_entry("root", "read")
PROJECT = special_entry("project_roots", "write")


def test_a_policy_without_rules_allows_everything() -> None:
    policy = Policy()
    assert (policy.access("/"), policy.isolates) == ("write", False)
    assert (policy.readable, policy.writable, policy.denied, policy.protected) == ((), (), (), ())


@pytest.mark.requirement("sandbox.precedence")
def test_of_two_entries_for_one_path_the_stronger_holds_whatever_their_order() -> None:
    read, write, deny = (path_entry(WS, access) for access in ("read", "write", "deny"))
    for entries, access in (
        ((read, write), "write"),
        ((write, read), "write"),
        ((deny, write), "deny"),
        ((write, read, deny), "deny"),
    ):
        assert policy_for({WS: None}, ROOT, *entries).access(WS) == access


@pytest.mark.requirement("sandbox.precedence")
def test_a_path_is_no_part_of_one_that_only_begins_like_it() -> None:
    policy = policy_for({f"{WS}/a": None, f"{WS}/ab": None}, ROOT, path_entry(f"{WS}/a", "deny"))
    assert policy.access(f"{WS}/ab") == "read"


@pytest.mark.requirement("sandbox.precedence")
def test_what_is_denied_is_told_from_what_is_not_there() -> None:
    files: dict[str, str | None] = {f"{WS}/a/b/c": "x", f"{WS}/a/s": "x", "/etc/x": "x"}
    narrow = policy_for(files, path_entry(WS, "read"), path_entry(f"{WS}/a", "deny"))
    assert narrow.standing("/etc/x") == "hidden"
    assert narrow.standing(f"{WS}/a/s") == "deny"
    assert narrow.access("/etc/x") == "deny"
    opened = policy_for(
        files, ROOT, path_entry(f"{WS}/a", "deny"), path_entry(f"{WS}/a/b", "write")
    )
    assert opened.standing(f"{WS}/a") == "deny"
    assert opened.standing(f"{WS}/a/s") == "hidden"
    assert opened.standing(f"{WS}/a/b/c") == "write"


@pytest.mark.requirement("sandbox.precedence")
def test_what_is_denied_is_not_opened_again_for_reading() -> None:
    policy = policy_for(
        {f"{WS}/a/b": None}, ROOT, path_entry(f"{WS}/a", "deny"), path_entry(f"{WS}/a/b", "read")
    )
    assert policy.standing(f"{WS}/a/b") == "deny"


def test_a_pattern_denies_files_that_appear_later_but_no_directories() -> None:
    policy = policy_for({WS: None}, ROOT, PROJECT, glob_entry(f"{WS}/**/*.env"))
    assert policy.denied == ()
    assert policy.access(f"{WS}/late.env") == "deny"
    assert policy.access(f"{WS}/late.env", patterns=False) == "write"
    assert policy.access(f"{WS}/late.txt") == "write"


def test_roots_and_what_leads_to_something_protected_keep_their_names() -> None:
    policy = policy_for({f"{WS}/a/b/key": "x"}, ROOT, PROJECT, path_entry(f"{WS}/a/b/key", "deny"))
    kept = (WS, f"{WS}/a", f"{WS}/a/b", f"{WS}/a/b/key", f"{WS}/.git")
    assert all(map(policy.keeps_name, kept))
    assert not policy.keeps_name(f"{WS}/other")
    assert policy.access(f"{WS}/a/b/other") == "write"


def test_the_parent_of_a_path() -> None:
    assert [parent_of(path) for path in ("/a/b", "/a", "/")] == ["/a", "/", "/"]

"""The text of a Seatbelt profile. Nothing here has run on macOS."""

import re

from holdfast.sandbox.names import path_entry, special_entry
from holdfast.sandbox.policy import Policy
from holdfast.sandbox.seatbelt import Seatbelt, seatbelt
from tests.unit.sandbox.trees import WS, glob_entry, policy_for

ROOT = special_entry("root", "read")
PROJECT = special_entry("project_roots", "write")


def rules(made: Seatbelt) -> list[str]:
    """The rules after the fixed ones, with the paths in place of their names."""
    text = made.text
    for name, path in made.parameters:
        text = text.replace(f'(param "{name}")', path)
    return text.partition('PowerManagement.control"))\n')[2].splitlines()


def test_everything_is_denied_at_first() -> None:
    assert seatbelt(policy_for({WS: None}, ROOT)).text.startswith("(version 1)\n(deny default)\n")


def test_reading_everything_is_one_rule() -> None:
    assert rules(seatbelt(policy_for({WS: None}, ROOT))) == ["(allow file-read*)"]


def test_what_is_protected_comes_after_what_it_is_protected_from() -> None:
    policy = policy_for(
        {f"{WS}/p/key": "x", f"{WS}/ro": None},
        ROOT,
        PROJECT,
        path_entry(f"{WS}/p/key", "deny"),
        path_entry(f"{WS}/ro", "read"),
    )
    assert rules(seatbelt(policy)) == [
        "(allow file-read*)",
        f"(allow file-write* (subpath {WS}))",
        f"(deny file-write* (subpath {WS}/.git))",
        f"(deny file-write* (subpath {WS}/.agents))",
        f"(deny file-write* (subpath {WS}/.codex))",
        f"(deny file-write* (subpath {WS}/.aws))",
        f"(deny file-write-unlink (literal {WS}/p))",
        f"(deny file-write* (subpath {WS}/ro))",
        f"(deny file-read* file-write* (subpath {WS}/p/key))",
    ]


def test_a_denied_directory_is_opened_again_for_what_is_writable_in_it() -> None:
    policy = policy_for(
        {f"{WS}/a/.git/x": "x"},
        ROOT,
        path_entry(f"{WS}/a", "deny"),
        path_entry(f"{WS}/a/.git", "write"),
    )
    assert rules(seatbelt(policy))[-2:] == [
        f"(deny file-read* file-write* (subpath {WS}/a))",
        f"(allow file-read* file-write* (subpath {WS}/a/.git))",
    ]


def test_patterns_hold_at_each_access() -> None:
    policy = policy_for({WS: None}, ROOT, glob_entry(f"{WS}/**/*.env"))
    (rule,) = (rule for rule in rules(seatbelt(policy)) if "regex" in rule)
    found = re.fullmatch(r'\(deny file-read\* file-write\* \(regex #"(.*)"\)\)', rule)
    assert found is not None
    assert re.fullmatch(found[1], f"{WS}/a/b/x.env")
    assert not re.fullmatch(found[1], f"{WS}/a/b/x.txt")
    assert "(?" not in found[1]


def test_without_the_root_directory_the_way_to_a_path_can_be_looked_up() -> None:
    policy = policy_for(
        {WS: None, "/usr": None}, special_entry("minimal", "read"), path_entry(WS, "read")
    )
    made = rules(seatbelt(policy))
    assert f"(allow file-read* (subpath {WS}))" in made
    assert "(allow file-read* (subpath /System))" in made
    assert "(allow file-read-metadata (literal /srv))" in made
    assert "(allow file-read*)" not in made


def test_the_network_is_a_matter_of_its_own() -> None:
    assert "network" not in seatbelt(policy_for({WS: None}, ROOT)).text
    assert (
        "(allow network-outbound)" in seatbelt(policy_for({WS: None}, ROOT, network="enabled")).text
    )
    free = seatbelt(Policy(network="restricted"))
    assert rules(free) == ["(allow file-read*)", "(allow file-write*)"]


def test_a_path_cannot_add_a_rule() -> None:
    evil = '/srv/x") (allow default) ("'
    made = seatbelt(policy_for({evil: None}, path_entry(evil, "read")))
    assert "allow default" not in made.text
    assert f"-DREADABLE_0={evil}" in made.arguments()

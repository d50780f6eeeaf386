"""Visibility of a path in a sandbox."""

import os

import pytest

from holdfast.engine.files.sandboxed.visibility import Sight, View
from holdfast.engine.sandbox.policy.policy import Policy, Rule
from holdfast.engine.sandbox.profile.globs import compile_glob


def view(*rules: Rule, globs: tuple[str, ...] = ()) -> View:
    made = {rule.path: rule for rule in rules}
    compiled = tuple(compile_glob(glob) for glob in globs)
    return View(Policy(full_read=False, full_write=False, rules=made, globs=compiled))


ROOT = Rule("/", "read", "directory")
NARROW = view(
    Rule("/srv/ws", "write", "directory"), Rule("/srv/ws/.git", "read", None, "protected")
)
GATED = view(ROOT, Rule("/srv", "deny", "directory"), Rule("/srv/a/ws", "write", "directory"))


@pytest.mark.parametrize(
    ("path", "sight"),
    [
        ("/", Sight.TRAVERSABLE),
        ("/srv", Sight.TRAVERSABLE),
        ("/srv/ws", Sight.WRITE),
        ("/srv/ws/a", Sight.WRITE),
        ("/srv/ws/.git", Sight.READ),
        ("/srv/ws/.git/config", Sight.READ),
        ("/srv/ws/.gitignore", Sight.WRITE),
        ("/srv/wsx", Sight.HIDDEN),
        ("/etc", Sight.HIDDEN),
        ("/dev", Sight.TRAVERSABLE),
        ("/dev/null", Sight.WRITE),
        ("/dev/sda", Sight.HIDDEN),
    ],
)
def test_a_narrow_profile_shows_what_it_names_and_the_way_there(path: str, sight: Sight) -> None:
    assert NARROW.sight(path, patterns=False) is sight


@pytest.mark.parametrize(
    ("path", "sight"),
    [
        ("/far", Sight.TRAVERSABLE),
        ("/far/vault", Sight.DENIED),
        ("/far/vault/in", Sight.DENIED),
        ("/far/vault/in/key", Sight.DENIED),
        ("/far/other", Sight.HIDDEN),
        ("/far/gone", Sight.DENIED),
        ("/no", Sight.HIDDEN),
    ],
)
def test_what_is_denied_is_seen_to_be_there_in_a_narrow_profile_too(
    path: str, sight: Sight
) -> None:
    denied = (Rule(path, "deny", "directory") for path in ("/far/vault", "/far/vault/in"))
    missing = (Rule("/far/gone", "deny", None), Rule("/no/gone", "deny", None))
    narrow = view(Rule("/srv/ws", "write", "directory"), *denied, *missing)
    assert narrow.sight(path, patterns=False) is sight


@pytest.mark.parametrize(
    ("path", "sight"),
    [
        ("/", Sight.READ),
        ("/srv", Sight.TRAVERSABLE_DENIED),
        ("/srv/other", Sight.HIDDEN),
        ("/srv/a", Sight.TRAVERSABLE),
        ("/srv/a/other", Sight.HIDDEN),
        ("/srv/a/ws/f", Sight.WRITE),
    ],
)
def test_a_denied_folder_is_a_gate_to_what_was_opened_again(path: str, sight: Sight) -> None:
    assert GATED.sight(path, patterns=False) is sight


def test_a_link_that_matches_denies_what_it_leads_to() -> None:
    denying = view(ROOT, Rule("/srv/s", "deny", "directory"), globs=("/srv/**/*.env",))
    assert denying.matches("/srv/x.env")
    assert not denying.matches("/srv/x")
    for path, sight in (
        ("/srv/a", Sight.DENIED),
        ("/srv/s/a", Sight.DENIED),
        ("/proc/1/stat", Sight.HIDDEN),
        # A sandbox has its own.
        ("/dev/null", Sight.WRITE),
        ("/proc/stat", Sight.READ),
        ("/dev/shm/a", Sight.DENIED),
    ):
        assert denying.sight_by_match(path) is sight


def test_a_pattern_is_about_files() -> None:
    denying = view(ROOT, globs=("/srv/**/*.env",))
    assert denying.sight("/srv/a/x.env") is Sight.DENIED
    assert denying.sight("/srv/a/x.env", patterns=False) is Sight.READ


@pytest.mark.parametrize(
    "path", ["/proc/1", "/proc/self/fd/3", "/proc/thread-self", "/proc/77/mem"]
)
def test_processes_are_never_shown(path: str) -> None:
    assert view(Rule("/", "write", "directory")).sight(path) is Sight.HIDDEN
    assert view(ROOT).sight("/proc/cpuinfo") is Sight.READ


@pytest.mark.parametrize("path", ["/proc", "/proc/sys/kernel/x", "/sys", "/sys/fs", "/dev/sda"])
def test_the_kernels_own_files_are_never_written(path: str) -> None:
    assert view(Rule("/", "write", "directory")).sight(path) is Sight.READ


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/x", "/developer", "/system", "/processes"])
def test_other_files_may_be(path: str) -> None:
    assert view(Rule("/", "write", "directory")).sight(path) is Sight.WRITE


def test_what_a_rule_names_keeps_its_name() -> None:
    pinned = view(
        ROOT,
        Rule("/srv/ws", "write", "directory"),
        Rule("/srv/ws/a", "write", "directory", "pin"),
        Rule("/srv/ws/a/secret", "deny", "directory"),
    )
    assert [pinned.may_go(path, patterns=False) for path in ("/srv/ws/b", "/srv/ws/a/b")] == [
        True
    ] * 2
    for path in ("/srv/ws", "/srv/ws/a", "/srv/ws/a/secret", "/srv"):
        assert not pinned.may_go(path, patterns=False)


def test_only_folders_on_the_way_show_a_part() -> None:
    assert NARROW.shows_part_of("/srv")
    assert not NARROW.shows_part_of("/srv/ws")
    assert view(ROOT).shows_part_of("/proc")  # the processes are not shown
    assert not view(ROOT).shows_part_of(os.sep)

"""Patterns of denied files."""

import re

import pytest

from holdfast.base.errors import CannotEnforce
from holdfast.engine.sandbox.profile.globs import compile_glob, expand
from tests.unit.engine.sandbox.trees import FakeDisk

FILES = ["a.env", "n/b.env", "n/m/c.env", ".hidden.env", "n/c.txt", "{a}.env", "[x"]
DISK = FakeDisk({f"/w/{name}": "x" for name in FILES})

EXPECTED = {
    "*.env": ["a.env", ".hidden.env", "{a}.env"],
    "**/*.env": ["a.env", "n/b.env", "n/m/c.env", ".hidden.env", "{a}.env"],
    "n/*.env": ["n/b.env"],
    "n*/*.env": ["n/b.env"],
    "*": ["a.env", ".hidden.env", "{a}.env", "[x"],
    "**": FILES,
    "n/**/c.env": ["n/m/c.env"],
    "**/m/*": ["n/m/c.env"],
    "?.[a-f]nv": ["a.env"],
    "**/[!a].env": ["n/b.env", "n/m/c.env"],
    "**/[^a].env": ["n/b.env", "n/m/c.env"],
    "{a,z}*.env": ["a.env"],
    "\\{a}*.env": ["{a}.env"],
    "\\a.en?": ["a.env"],
    "n*": [],
    "none/*": [],
    "[x": ["[x"],
    "a**.env": ["a.env"],
    "**a.env": ["a.env"],
    "*/./b.env": ["n/b.env"],
    "*//b.env": ["n/b.env"],
    "*/../a.*": ["a.env"],
    "n/*.env/": ["n/b.env"],
}


@pytest.mark.requirement("sandbox.globs")
@pytest.mark.parametrize("pattern", EXPECTED)
def test_a_pattern_finds_its_files(pattern: str) -> None:
    glob = compile_glob(f"/w/{pattern}")
    expected = {f"/w/{name}" for name in EXPECTED[pattern]}
    assert set(expand(glob, DISK)) == expected
    assert {f"/w/{name}" for name in FILES if glob.matches(f"/w/{name}")} == expected


@pytest.mark.requirement("sandbox.globs.depth")
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_depth_bounds_search_and_comparison(depth: int) -> None:
    glob = compile_glob("/w/**/*.env", depth)
    found = set(expand(glob, DISK))
    assert found == {path for path in DISK.files if glob.matches(path)}
    assert ("/w/n/m/c.env" in found) == (depth == 3)
    assert ("/w/n/b.env" in found) == (depth >= 2)


@pytest.mark.requirement("sandbox.globs.refused")
@pytest.mark.parametrize("pattern", ["/*.env", "/**", "*.env", "/w/a.env", "/w/{a,z}.env", "", "/"])
def test_a_pattern_needs_a_wildcard_and_a_directory(pattern: str) -> None:
    with pytest.raises(CannotEnforce) as caught:
        compile_glob(pattern)
    assert str(caught.value) == (
        f"unreadable glob `{pattern}` cannot be safely expanded; "
        "use a pattern with a non-root directory prefix"
    )


def test_links_to_files_are_found_and_linked_directories_are_not_entered() -> None:
    disk = FakeDisk(
        {"/w/f": "x", "/w/lf": "->/w/f", "/w/ld": "->/d", "/d/x": "x", "/w/no": "->/no"}
    )
    assert set(expand(compile_glob("/w/**"), disk)) == {"/w/f", "/w/lf"}


def test_too_many_matches_are_refused() -> None:
    disk = FakeDisk({f"/w/{number}": "x" for number in range(4)})
    assert len(expand(compile_glob("/w/*"), disk, limit=4)) == 4
    with pytest.raises(CannotEnforce, match=re.escape("`/w/*` matches too many files")):
        expand(compile_glob("/w/*"), disk, limit=3)


def test_a_pattern_of_many_wildcards_is_compared_at_once() -> None:
    """A regular expression for it would try for years."""
    disk = FakeDisk({"/w/" + "a" * 100: "x"})
    assert expand(compile_glob("/w/" + "*a" * 30 + "b"), disk) == []


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("/w/[z-a]*", "unreadable glob `/w/[z-a]*`: there is nothing from z to a in [z-a]"),
        (
            "/w/" + "*" * 5000,
            "its 5,003 characters are more than the 4,096 that a pattern may have",
        ),
    ],
    ids=["range", "length"],
)
def test_a_pattern_that_cannot_be_meant_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(CannotEnforce, match=re.escape(said)):
        compile_glob(pattern)


def test_a_search_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(CannotEnforce, match=re.escape("`/w/*` takes too long")):
        expand(compile_glob("/w/*"), DISK, deadline=0.0)

"""Operations in made-up trees full of links, under made-up rules: nothing gets out."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import InvalidRequest
from holdfast.engine.files.sandboxed.sandboxed_trees import SandboxedFiles
from holdfast.engine.sandbox.policy.policy import Policy, Rule
from tests.depth import times
from tests.unit.engine.files import by_path

NAMES = ("a", "b", "c")
FOLDERS = [(), *((x,) for x in NAMES), *((x, y) for x in NAMES for y in NAMES)]

names = st.sampled_from(NAMES)
paths = st.lists(st.sampled_from((*NAMES, "..")), min_size=1, max_size=5).map("/".join)
plain_paths = st.lists(names, min_size=1, max_size=4).map("/".join)
links = st.dictionaries(plain_paths, st.tuples(st.booleans(), paths), max_size=6)
files = st.sets(plain_paths, min_size=1, max_size=6)
accesses = st.dictionaries(
    st.lists(names, max_size=2).map("/".join),
    st.sampled_from(("read", "write", "deny")),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    # Deeper than any link climbs: what is built through one stays in here too.
    folder = Path(tempfile.mkdtemp()).resolve()
    base = folder.joinpath(*["deeper", "than", "any", "link", "that", "goes", "up", "can", "get"])
    base.mkdir(parents=True)
    yield base
    shutil.rmtree(folder)


def build(base: Path, linked: dict[str, tuple[bool, str]], filled: set[str]) -> Path:
    """A tree of two levels of folders, with some files and links among them."""
    shutil.rmtree(base)
    base.mkdir()
    for path, (absolute, target) in linked.items():
        with suppress(OSError):  # another link is in its way
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).symlink_to(f"{base}/{target}" if absolute else target)
    for folder in FOLDERS:
        with suppress(OSError):
            base.joinpath(*folder).mkdir()
    for path in filled:
        if not os.path.lexists(base / path) and os.path.isdir((base / path).parent):
            (base / path).write_text(os.path.realpath(base / path))
    return base


def make_policy(base: Path, granted: dict[str, str]) -> Policy:
    rules = {}
    for path, access in granted.items():
        real = str(base / path).rstrip("/")
        if os.path.isdir(real) and os.path.realpath(real) == real:
            rules[real] = Rule(real, access, "directory")  # type: ignore[arg-type]
    return Policy(full_read=False, full_write=False, rules=rules)


def contents(base: Path) -> dict[str, str]:
    """The files of a tree and the links, by their real paths."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in base.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def folders(base: Path) -> set[str]:
    """The folders of a tree; a link to one is none."""
    return {str(path) for path in base.rglob("*") if path.is_dir() and not path.is_symlink()}


@pytest.mark.slow
@pytest.mark.requirement("fs.sandbox.restricted")
@settings(max_examples=times(20), deadline=None)
@given(linked=links, filled=files, granted=accesses, path=plain_paths)
def test_what_is_read_may_be_read(
    base: Path,
    linked: dict[str, tuple[bool, str]],
    filled: set[str],
    granted: dict[str, str],
    path: str,
) -> None:
    build(base, linked, filled)
    policy = make_policy(base, granted)
    within = SandboxedFiles(policy)
    for target in (str(base / name) for name in (path, *filled, *linked)):
        real = os.path.realpath(target)
        try:
            data = by_path.read_file(within, target)
        except (OSError, InvalidRequest):
            # What has no link in it and may be read is never refused.
            plain = real == target and os.path.isfile(real)
            assert not (plain and policy.access(real) != "deny")
        else:
            assert data.decode() == real
            assert policy.access(real) in {"read", "write"}


@pytest.mark.slow
@pytest.mark.requirement("fs.sandbox.restricted")
@settings(max_examples=times(20), deadline=None)
@given(
    linked=links,
    filled=files,
    granted=accesses,
    path=plain_paths,
    other=plain_paths,
    operation=st.sampled_from(("write", "replace", "mkdir", "remove", "copy")),
)
def test_what_is_changed_may_be_written(
    base: Path,
    linked: dict[str, tuple[bool, str]],
    filled: set[str],
    granted: dict[str, str],
    path: str,
    other: str,
    operation: str,
) -> None:
    build(base, linked, filled)
    policy = make_policy(base, granted)
    within = SandboxedFiles(policy)
    before, before_folders = contents(base), folders(base)
    denied = {name for name in before if not os.path.islink(name) and policy.access(name) == "deny"}
    target, source = str(base / path), str(base / other)
    try:
        if operation == "write":
            by_path.write_file(within, target, b"new")
        elif operation == "replace":
            handle = by_path.open_file(within, target, "replace")
            handle.write(0, b"new")
            handle.close()
        elif operation == "mkdir":
            by_path.create_directory(within, target, recursive=True)
        elif operation == "remove":
            by_path.remove(within, target, recursive=True, force=True)
        else:
            by_path.copy(within, source, target, recursive=True)
    except (OSError, InvalidRequest):
        pass
    after = contents(base)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    changed |= before_folders ^ folders(base)
    for name in changed:
        assert policy.access(name) == "write", (operation, name)
    # The content of each file is its path: what may not be read is nowhere else by now.
    assert not [name for name in changed if after.get(name) in denied]

"""
Sandboxed operations while another process swaps what they work on for links that lead out.

The swap is one system call, over and over: at any moment a name is either an honest file
or folder, or a link to something outside. Whoever looks at a path first and uses it later
is caught by that, as the first test shows. Nothing here waits for a time: each test makes a
fixed number of attempts.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidRequest
from holdfast.engine.files.sandboxed.sandboxed_trees import SandboxedFiles
from holdfast.engine.sandbox.policy.policy import Policy, Rule
from holdfast.wire.protocol.fs import WalkOptions
from tests.depth import times
from tests.unit.engine.files import by_path

pytestmark = [pytest.mark.slow, pytest.mark.requirement("fs.sandbox.races")]

ROUNDS = times(80)
"""Attempts of each operation."""

SWAP = """
import ctypes, os, sys
exchange = ctypes.CDLL(None).renameat2
honest, link = (os.fsencode(name) for name in sys.argv[1:])
sys.stdout.write("."); sys.stdout.flush()
while True:
    exchange(-100, honest, -100, link, 2)
"""


@contextmanager
def swapping(honest: Path, link: Path) -> Iterator[None]:
    """Let a process swap two names without end."""
    command = [sys.executable, "-S", "-c", SWAP, str(honest), str(link)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        try:
            yield
        finally:
            process.kill()
    if honest.is_symlink():
        ctypes.CDLL(None).renameat2(-100, os.fsencode(honest), -100, os.fsencode(link), 2)


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace whose folder and file have a link as their double, and what is outside."""
    here = tmp_path.resolve()
    for folder in ("ws/d/sub", "ws/.git", "out/sub"):
        (here / folder).mkdir(parents=True)
    for file in ("ws/d/f", "ws/d/sub/g", "ws/f", "ws/.git/f"):
        (here / file).write_text("inside")
    for file in ("out/f", "out/sub/g", "out/more"):
        (here / file).write_text("outside!")
    (here / "ws/evil").symlink_to(here / "out")
    (here / "ws/evil_file").symlink_to(here / "out/f")
    (here / "ws/repository").symlink_to(".git")
    return here / "ws"


def narrow(ws: Path) -> SandboxedFiles:
    """Nothing but the workspace is there."""
    return _files(Rule(str(ws), "write", "directory"))


def workspace(ws: Path) -> SandboxedFiles:
    """Everything may be read, the workspace written but for its repository."""
    return _files(
        Rule("/", "read", "directory"),
        Rule(str(ws), "write", "directory"),
        Rule(f"{ws}/.git", "read", "directory", "protected"),
    )


def _files(*rules: Rule) -> SandboxedFiles:
    made = {rule.path: rule for rule in rules}
    return SandboxedFiles(Policy(full_read=False, full_write=False, rules=made))


def snapshot(folder: Path) -> dict[str, str | None]:
    return {
        str(path): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def attempt(work: Callable[[], object]) -> object:
    """Return the result of an operation, or `None` if it refuses."""
    with suppress(OSError, InvalidRequest):
        return work()
    return None


def test_whoever_looks_first_is_caught(ws: Path) -> None:
    def look_then_read() -> str:
        path = os.path.realpath(ws / "d/f")
        if not path.startswith(f"{ws}/"):
            raise PermissionError
        return (ws / "d/f").read_text()

    with swapping(ws / "d", ws / "evil"):
        assert any(attempt(look_then_read) == "outside!" for _ in range(100_000))


@pytest.mark.parametrize("path", ["d/f", "f"])
def test_nothing_outside_is_read(ws: Path, path: str) -> None:
    files = narrow(ws)
    target = str(ws / path)

    def by_handle() -> bytes:
        handle = by_path.open_file(files, target)
        try:
            return handle.read(0, 100)[0]
        finally:
            handle.close()

    def copied() -> bytes:
        by_path.copy(files, target, str(ws / "copy"), recursive=False)
        if (ws / "copy").is_symlink():
            (ws / "copy").unlink()  # of a link the text is copied, which leads nowhere new
            return b"inside"
        return (ws / "copy").read_bytes()

    pair = (ws / "d", ws / "evil") if path == "d/f" else (ws / "f", ws / "evil_file")
    seen = set()
    with swapping(*pair):
        for _ in range(ROUNDS):
            for follow in (True, False):
                seen.add(attempt(partial(by_path.read_file, files, target, follow_symlinks=follow)))
            seen.add(attempt(by_handle))
            seen.add(attempt(copied))
            metadata = attempt(lambda: by_path.get_metadata(files, target))
            assert metadata is None or metadata.size == len("inside")  # type: ignore[attr-defined]
            real = attempt(lambda: by_path.canonicalize(files, target))
            assert real in {None, target, str(ws / "evil/f"), str(ws / "evil_file")}
    # Both answers came, so the swap did take place under its hands.
    assert seen == {b"inside", None}


def test_nothing_outside_is_listed(ws: Path) -> None:
    files = narrow(ws)
    options = WalkOptions(
        max_depth=8, max_directories=100, max_entries=1000, follow_directory_symlinks=True
    )
    with swapping(ws / "d", ws / "evil"):
        for _ in range(ROUNDS):
            listed = attempt(lambda: by_path.read_directory(files, str(ws / "d"))) or ()
            assert {entry.file_name for entry in listed} <= {"f", "sub"}  # type: ignore[attr-defined]
            walked = by_path.walk(files, str(ws), options)
            assert not [entry for entry in walked.entries if entry.uri.endswith("/more")]


@pytest.mark.parametrize("double", ["evil", "repository"])
def test_nothing_outside_is_written(ws: Path, double: str) -> None:
    files = workspace(ws)
    outside, repository = snapshot(ws.parent / "out"), snapshot(ws / ".git")
    done = 0

    def by_handle() -> None:
        handle = by_path.open_file(files, str(ws / "d/blocks"), "replace")
        try:
            handle.write(0, b"new")
        except OSError:
            handle.discard()
            raise
        handle.close()

    def work(number: int) -> list[Callable[[], object]]:
        d = f"{ws}/d"
        return [
            lambda: by_path.write_file(files, f"{d}/f", b"new"),
            lambda: by_path.write_file(files, f"{d}/f", b"new", follow_symlinks=False),
            lambda: by_path.write_file(files, f"{d}/new{number}", b"new"),
            by_handle,
            lambda: by_path.create_directory(files, f"{d}/made{number}/x", recursive=True),
            lambda: by_path.copy(files, f"{ws}/f", f"{d}/copy{number}", recursive=False),
            lambda: by_path.copy(files, f"{ws}/d", f"{d}/../tree", recursive=True),
            lambda: by_path.remove(files, f"{d}/new{number}", recursive=True, force=False),
            lambda: by_path.remove(files, f"{d}/sub", recursive=True, force=False),
            lambda: by_path.create_directory(files, f"{d}/sub", recursive=True),
        ]

    with swapping(ws / "d", ws / double):
        for number in range(ROUNDS // 2):
            for operation in work(number):
                try:
                    operation()
                except (OSError, InvalidRequest):
                    continue
                done += 1
    assert snapshot(ws.parent / "out") == outside
    assert snapshot(ws / ".git") == repository
    assert done  # some of it came at a moment when it was right


def test_a_file_that_becomes_a_link_is_not_written_through(ws: Path) -> None:
    files = workspace(ws)
    with swapping(ws / "f", ws / "evil_file"):
        for _ in range(ROUNDS):
            for follow in (True, False):
                attempt(
                    partial(
                        by_path.write_file, files, str(ws / "f"), b"new", follow_symlinks=follow
                    )
                )
    assert (ws.parent / "out/f").read_text() == "outside!"


def test_a_tree_that_goes_takes_nothing_outside_with_it(ws: Path) -> None:
    files = workspace(ws)
    outside = snapshot(ws.parent / "out")
    for number in range(20):
        tree = ws / f"tree{number}"
        for name in ("a", "b", "d"):
            (tree / name / "inner").mkdir(parents=True)
            (tree / name / "f").write_text("inside")
        (tree / "evil").symlink_to(ws.parent / "out")
        with swapping(tree / "d", tree / "evil"):
            attempt(partial(by_path.remove, files, str(tree), recursive=True, force=True))
        assert snapshot(ws.parent / "out") == outside

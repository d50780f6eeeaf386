"""
Operations inside of a sandbox, on real files: what may be touched, and how the rest is refused.

The answers are those of the real server's helper, which sees a tree of mounts. Where they differ,
the test says so.
"""

import errno
import os
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidRequest, OperationFailed
from holdfast.engine.files.sandboxed.sandboxed_trees import SandboxedFiles
from holdfast.engine.sandbox.policy.policy import Policy, Rule
from holdfast.engine.sandbox.profile.globs import compile_glob
from holdfast.wire.protocol.fs import WalkError, WalkOptions
from holdfast.wire.protocol.paths import PathUri
from tests.unit.engine.files import by_path

OPTIONS = WalkOptions(
    max_depth=8, max_directories=100, max_entries=1000, follow_directory_symlinks=False
)


def policy(rules: Mapping[Path | str, str], *globs: str) -> Policy:
    """Rules as `resolve` makes them, by path and access."""
    made = {}
    for path, access in rules.items():
        kind = "directory" if os.path.isdir(path) else "file" if os.path.exists(path) else None
        made[str(path)] = Rule(str(path), access, kind)  # type: ignore[arg-type]
    return Policy(
        full_read=False,
        full_write=False,
        rules=made,
        globs=tuple(compile_glob(glob) for glob in globs),
    )


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace with a repository, a secret and links, and something outside beside it."""
    here = tmp_path.resolve()
    for folder in ("ws/sub/deep", "ws/.git", "ws/secret", "out/d"):
        (here / folder).mkdir(parents=True)
    for file in ("ws/a", "ws/sub/b", "ws/.git/config", "ws/secret/key", "ws/x.env", "out/o"):
        (here / file).write_text(file)
    links: dict[str, str | Path] = {
        "in": "a",
        "out": here / "out/o",
        "outd": here / "out",
        "up": "../out/o",
        "broken": "nope",
        "appear": here / "out/new",
        "secretly": "secret",
        "key": "secret/key",
        "loop": "l_loop",
        "around": "sub/../secret/../a",
    }
    for link, target in links.items():
        (here / "ws" / f"l_{link}").symlink_to(target)
    os.mkfifo(here / "ws/fifo")
    return here / "ws"


@pytest.fixture
def workspace(ws: Path) -> SandboxedFiles:
    """Everything may be read, the workspace written, the secret nothing."""
    return SandboxedFiles(
        policy(
            {"/": "read", ws: "write", ws / ".git": "read", ws / "secret": "deny"},
            f"{ws}/**/*.env",
        )
    )


@pytest.fixture
def narrow(ws: Path) -> SandboxedFiles:
    """Nothing but the workspace is there."""
    return SandboxedFiles(policy({ws: "write", ws / ".git": "read", ws / "secret": "deny"}))


def number_of(work: Callable[[], object]) -> int:
    """The error that an operation ends with."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is what is asked for
        work()
    assert caught.value.errno is not None
    return caught.value.errno


def read(files: SandboxedFiles, path: Path | str) -> bytes:
    return by_path.read_file(files, str(path))


def write(files: SandboxedFiles, path: Path | str, data: bytes = b"new") -> None:
    by_path.write_file(files, str(path), data)


def make(files: SandboxedFiles, path: Path, *, recursive: bool = True) -> None:
    by_path.create_directory(files, str(path), recursive=recursive)


def remove(
    files: SandboxedFiles, path: Path, *, recursive: bool = True, force: bool = False
) -> None:
    by_path.remove(files, str(path), recursive=recursive, force=force)


def everything(folder: Path) -> dict[str, str | None]:
    """Return the paths of a tree with their contents."""
    return {
        str(path): path.read_text() if path.is_file() and not path.is_symlink() else None
        for path in sorted(folder.rglob("*"))
    }


# -- reading


def test_what_is_in_the_sandbox_is_read(workspace: SandboxedFiles, ws: Path) -> None:
    assert read(workspace, ws / "a") == b"ws/a"
    assert read(workspace, ws / "l_in") == b"ws/a"
    assert read(workspace, ws / "l_outd/o") == b"out/o"
    assert read(workspace, ws / ".git/config") == b"ws/.git/config"
    handle = by_path.open_file(workspace, str(ws / "l_up"))
    assert handle.read(0, 9) == (b"out/o", True)
    handle.close()


@pytest.mark.requirement("fs.sandbox.denied")
@pytest.mark.parametrize(
    "path", ["secret", "secret/key", "secret/nope", "x.env", "l_secretly", "l_key", "l_around"]
)
def test_what_is_denied_is_not_permitted(workspace: SandboxedFiles, ws: Path, path: str) -> None:
    assert number_of(lambda: read(workspace, ws / path)) == errno.EACCES
    assert number_of(lambda: by_path.open_file(workspace, str(ws / path))) == errno.EACCES


@pytest.mark.requirement("fs.sandbox.hidden")
@pytest.mark.parametrize("path", ["../out/o", "l_out", "l_outd", "l_outd/o", "l_up", "l_appear"])
def test_what_no_rule_covers_is_not_there(narrow: SandboxedFiles, ws: Path, path: str) -> None:
    path = os.path.normpath(ws / path) if path.startswith("..") else str(ws / path)
    assert number_of(lambda: read(narrow, path)) == errno.ENOENT
    assert number_of(lambda: by_path.get_metadata(narrow, path)) == errno.ENOENT
    assert number_of(lambda: by_path.canonicalize(narrow, path)) == errno.ENOENT
    assert number_of(lambda: by_path.read_directory(narrow, path)) == errno.ENOENT
    assert number_of(lambda: by_path.walk(narrow, path, OPTIONS)) == errno.ENOENT


@pytest.mark.requirement("fs.sandbox.not-widened")
def test_nothing_is_added_to_what_a_narrow_profile_names(narrow: SandboxedFiles) -> None:
    assert number_of(lambda: read(narrow, "/etc/passwd")) == errno.ENOENT
    assert number_of(lambda: read(narrow, "/usr/bin/env")) == errno.ENOENT


def test_a_pattern_counts_for_files_that_appear_later(workspace: SandboxedFiles, ws: Path) -> None:
    (ws / "sub/later.env").write_text("secret")
    (ws / "folder.env").mkdir()
    (ws / "folder.env/f").write_text("no secret")
    assert number_of(lambda: read(workspace, ws / "sub/later.env")) == errno.EACCES
    assert number_of(lambda: write(workspace, ws / "sub/latest.env")) == errno.EACCES
    assert number_of(lambda: read(workspace, ws / "sub/latest.env")) == errno.ENOENT
    assert read(workspace, ws / "folder.env/f") == b"no secret"


@pytest.mark.parametrize(
    "name", ["self", "thread-self", pytest.param(str(os.getpid()), id="own"), "1"]
)
def test_processes_outside_are_not_there(workspace: SandboxedFiles, name: str) -> None:
    # Differs: with full read access the real server reads its own.
    assert number_of(lambda: read(workspace, f"/proc/{name}/status")) == errno.ENOENT
    assert number_of(lambda: read(workspace, f"/proc/{name}/root/etc/passwd")) == errno.ENOENT
    assert name not in {entry.file_name for entry in by_path.read_directory(workspace, "/proc")}
    assert read(workspace, "/proc/version")


def test_what_is_not_a_file_is_refused_in_the_same_words(
    workspace: SandboxedFiles, ws: Path
) -> None:
    for path in (ws, ws / "fifo", Path("/dev/null")):
        with pytest.raises(InvalidRequest, match=rf"^path `{path}` is not a file$"):
            read(workspace, path)
        with pytest.raises(InvalidRequest, match=r"^path is not a regular file$"):
            by_path.read_file(workspace, str(path), follow_symlinks=False)
    assert number_of(lambda: read(workspace, ws / "a/x")) == errno.ENOTDIR
    assert number_of(lambda: read(workspace, ws / "l_loop")) == errno.ELOOP


def test_links_can_be_refused_altogether(workspace: SandboxedFiles, ws: Path) -> None:
    def nofollow(path: Path | str) -> bytes:
        return by_path.read_file(workspace, str(path), follow_symlinks=False)

    assert nofollow(ws / "a") == b"ws/a"
    assert number_of(lambda: nofollow(ws / "l_in")) == errno.ELOOP
    assert number_of(lambda: nofollow(ws / "l_outd/o")) == errno.ENOTDIR
    with pytest.raises(InvalidRequest, match=r"^path must name an entry$"):
        nofollow("/")
    with pytest.raises(InvalidRequest, match=r"^path contains a symbolic link$"):
        by_path.get_metadata(workspace, str(ws / "l_in"), follow_symlinks=False)


def test_what_is_denied_tells_its_kind_and_nothing_else(
    workspace: SandboxedFiles, ws: Path
) -> None:
    folder = by_path.get_metadata(workspace, str(ws / "secret"))
    assert (folder.is_directory, folder.size, folder.modified_at_ms) == (True, 0, 0)
    file = by_path.get_metadata(workspace, str(ws / "x.env"))
    assert (file.is_file, file.size, file.modified_at_ms) == (True, 0, 0)
    assert by_path.canonicalize(workspace, str(ws / "l_secretly")) == str(ws / "secret")
    inside = str(ws / "secret/key")
    assert number_of(lambda: by_path.get_metadata(workspace, inside)) == errno.EACCES
    assert number_of(lambda: by_path.canonicalize(workspace, inside)) == errno.EACCES
    assert number_of(lambda: by_path.read_directory(workspace, str(ws / "secret"))) == errno.EACCES


def test_a_link_tells_what_it_leads_to(workspace: SandboxedFiles, ws: Path) -> None:
    found = by_path.get_metadata(workspace, str(ws / "l_out"))
    assert (found.is_symlink, found.is_file, found.size) == (True, True, 5)
    assert by_path.canonicalize(workspace, str(ws / "l_around").replace("around", "up")) == str(
        ws.parent / "out/o"
    )


def test_a_list_leaves_out_links_that_lead_out_of_sight(narrow: SandboxedFiles, ws: Path) -> None:
    names = {entry.file_name for entry in by_path.read_directory(narrow, str(ws))}
    assert names == {"a", "sub", ".git", "secret", "x.env", "fifo", "l_in", "l_secretly"}


@pytest.mark.requirement("fs.sandbox.hidden")
def test_folders_on_the_way_show_nothing_else(narrow: SandboxedFiles, ws: Path) -> None:
    (entry,) = by_path.read_directory(narrow, str(ws.parent))
    assert (entry.file_name, entry.is_directory) == ("ws", True)
    assert "etc" not in {entry.file_name for entry in by_path.read_directory(narrow, "/")}
    assert by_path.get_metadata(narrow, str(ws.parent)).is_directory


def test_a_walk_lists_what_is_denied_and_does_not_enter_it(
    workspace: SandboxedFiles, ws: Path
) -> None:
    found = by_path.walk(workspace, str(ws), OPTIONS)
    names = {os.path.relpath(entry.path.native, ws) for entry in found.entries}
    assert names == {"a", "sub", "sub/b", "sub/deep", ".git", ".git/config", "secret", "x.env"}
    assert found.errors == [
        WalkError(path=PathUri.from_path(ws / "secret"), message="Permission denied (os error 13)")
    ]
    denied = by_path.walk(workspace, str(ws / "secret"), OPTIONS)
    assert denied.errors == found.errors


def test_something_below_a_denied_folder_can_be_opened_up(ws: Path) -> None:
    files = SandboxedFiles(policy({"/": "read", ws: "deny", ws / "sub": "write"}))
    assert read(files, ws / "sub/b") == b"ws/sub/b"
    write(files, ws / "sub/new")
    for path in ("a", "secret/key", "l_in"):
        assert number_of(partial(read, files, ws / path)) == errno.ENOENT
    assert number_of(lambda: by_path.read_directory(files, str(ws))) == errno.EACCES
    assert number_of(lambda: write(files, ws / "a")) == errno.EROFS
    assert (ws / "a").read_text() == "ws/a"


# -- writing


def test_what_may_be_written_is(workspace: SandboxedFiles, ws: Path) -> None:
    write(workspace, ws / "a")
    write(workspace, ws / "l_broken")
    write(workspace, ws / "sub/.git")  # only the workspace's own is protected
    handle = by_path.open_file(workspace, str(ws / "sub/b"), "replace")
    handle.write(0, b"by blocks")
    handle.close()
    make(workspace, ws / "x/y/z")
    assert (ws / "a").read_text() == (ws / "nope").read_text() == "new"
    assert (ws / "sub/b").read_text() == "by blocks"
    assert (ws / "x/y/z").is_dir()


@pytest.mark.requirement("fs.sandbox.read-only")
@pytest.mark.parametrize(
    "path", ["../out/o", "../out/new", ".git/config", ".git/new", "l_out", "l_outd/o", "l_appear"]
)
def test_what_may_only_be_read_is_a_read_only_file_system(
    workspace: SandboxedFiles, ws: Path, path: str
) -> None:
    before = everything(ws.parent)
    target = Path(os.path.normpath(ws / path) if path.startswith("..") else ws / path)
    assert number_of(lambda: write(workspace, target)) == errno.EROFS
    assert number_of(lambda: by_path.open_file(workspace, str(target), "replace")) == errno.EROFS
    assert (
        number_of(lambda: by_path.copy(workspace, str(ws / "a"), str(target), recursive=False))
        == errno.EROFS
    )
    assert everything(ws.parent) == before


@pytest.mark.requirement("fs.sandbox.protected")
def test_protected_names_stay_even_if_they_are_missing(ws: Path) -> None:
    # Differs: the real server answers that it made them, and they are nowhere.
    files = SandboxedFiles(policy({"/": "read", ws: "write", ws / ".codex": "read"}))
    assert number_of(lambda: make(files, ws / ".codex")) == errno.EROFS
    assert number_of(lambda: make(files, ws / ".codex/x")) == errno.EROFS
    assert number_of(lambda: write(files, ws / ".codex")) == errno.EROFS
    assert number_of(lambda: read(files, ws / ".codex")) == errno.ENOENT
    # Nor is anything in them, and the same is said of it.
    inside = ws / ".codex/config"
    (ws / "link").symlink_to("a")
    for source in ("a", "link"):
        copying = partial(by_path.copy, files, str(ws / source), str(inside), recursive=False)
        assert number_of(copying) == errno.EROFS
    assert number_of(lambda: write(files, inside)) == errno.EROFS
    assert number_of(lambda: make(files, inside, recursive=False)) == errno.EROFS
    assert number_of(lambda: by_path.open_file(files, str(inside), "replace")) == errno.EROFS
    assert number_of(lambda: read(files, inside)) == errno.ENOENT
    assert number_of(lambda: write(files, ws / "none/config")) == errno.ENOENT
    assert not (ws / ".codex").exists()


@pytest.mark.requirement("fs.sandbox.lost-writes")
def test_nothing_is_written_where_it_would_be_lost(narrow: SandboxedFiles, ws: Path) -> None:
    # Differs: the real server answers that it did, and nothing is left of it.
    before = everything(ws.parent)
    assert number_of(lambda: write(narrow, ws.parent / "new")) == errno.EROFS
    assert number_of(lambda: write(narrow, ws.parent / "out")) == errno.EROFS
    assert number_of(lambda: make(narrow, ws.parent / "made/here")) == errno.EROFS
    assert (
        number_of(
            lambda: by_path.copy(narrow, str(ws / "sub"), str(ws.parent / "copy"), recursive=True)
        )
        == errno.EROFS
    )
    assert everything(ws.parent) == before


def test_a_single_file_can_be_all_that_may_be_written(ws: Path) -> None:
    files = SandboxedFiles(policy({"/": "read", ws / "a": "write"}))
    number = (ws / "a").stat().st_ino
    write(files, ws / "a")
    # No other file may be made beside it, so it is written in place.
    assert ((ws / "a").read_text(), (ws / "a").stat().st_ino) == ("new", number)
    assert number_of(lambda: write(files, ws / "b")) == errno.EROFS
    assert number_of(lambda: remove(files, ws / "a")) == errno.EROFS


def test_devices_that_every_sandbox_has_take_what_is_written(workspace: SandboxedFiles) -> None:
    write(workspace, "/dev/null")
    with pytest.raises(InvalidRequest, match=r"^path `/dev/null` is not a file$"):
        by_path.open_file(workspace, "/dev/null", "replace")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_in_the_workspace_is_not_opened(workspace: SandboxedFiles, ws: Path) -> None:
    os.mknod(ws / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    assert number_of(lambda: write(workspace, ws / "device")) == errno.EACCES
    with pytest.raises(InvalidRequest, match="is not a file"):
        read(workspace, ws / "device")


@pytest.mark.parametrize("path", ["/proc/sys/kernel/core_pattern", "/sys/power/state", "/dev/new"])
def test_the_machine_itself_is_never_written(path: str) -> None:
    everything_but = SandboxedFiles(policy({"/": "write", "/nothing/here": "deny"}))
    assert number_of(lambda: write(everything_but, path)) in {errno.EROFS, errno.ENOENT}


def test_the_words_are_those_of_a_mounted_tree(workspace: SandboxedFiles, ws: Path) -> None:
    out = ws.parent / "out"
    for path in (ws, out, ws / ".git", ws / "secret"):
        assert number_of(partial(write, workspace, path)) == errno.EISDIR
        make(workspace, path)  # it is there, and that is all that is asked for
        assert number_of(partial(make, workspace, path, recursive=False)) == errno.EEXIST
    assert number_of(lambda: make(workspace, out / "x/y")) == errno.EROFS
    assert number_of(lambda: make(workspace, out / "x/y", recursive=False)) == errno.ENOENT
    assert number_of(lambda: make(workspace, ws / "secret/x")) == errno.EACCES
    assert number_of(lambda: make(workspace, ws / "l_broken")) == errno.EEXIST
    assert number_of(lambda: make(workspace, ws / "a/x")) == errno.ENOTDIR
    assert number_of(lambda: write(workspace, ws / "none/x")) == errno.ENOENT
    assert number_of(lambda: write(workspace, ws / "x.env")) == errno.EROFS


def test_writing_without_links_keeps_to_the_sandbox_too(
    workspace: SandboxedFiles, ws: Path
) -> None:
    def nofollow(path: Path) -> None:
        by_path.write_file(workspace, str(path), b"new", follow_symlinks=False)

    nofollow(ws / "a")
    assert number_of(lambda: nofollow(ws / "l_in")) == errno.ELOOP
    assert number_of(lambda: nofollow(ws / "l_outd/o")) == errno.ENOTDIR
    assert number_of(lambda: nofollow(ws / "x.env")) == errno.EACCES
    assert number_of(lambda: nofollow(ws / ".git/config")) == errno.EROFS
    with pytest.raises(OperationFailed, match=r"^directory already exists$"):
        by_path.create_directory(workspace, "/", recursive=False, follow_symlinks=False)
    by_path.create_directory(workspace, str(ws / "m/n"), recursive=True, follow_symlinks=False)
    assert (ws / "m/n").is_dir()
    assert (
        number_of(
            lambda: by_path.create_directory(
                workspace, str(ws / "l_outd"), recursive=True, follow_symlinks=False
            )
        )
        == errno.ENOTDIR
    )


# -- removing


def test_what_may_be_written_may_go(workspace: SandboxedFiles, ws: Path) -> None:
    for path in ("a", "fifo", "l_out", "l_outd", "sub"):
        remove(workspace, ws / path)
        assert not os.path.lexists(ws / path)
    remove(workspace, ws / "nope", force=True)
    assert number_of(lambda: remove(workspace, ws / "nope")) == errno.ENOENT
    assert (ws.parent / "out/o").read_text() == "out/o"


@pytest.mark.parametrize(
    ("path", "recursive", "number"),
    [
        (".", True, errno.EROFS),
        (".", False, errno.EROFS),
        (".git", True, errno.EROFS),
        (".git", False, errno.EBUSY),
        (".git/config", True, errno.EROFS),
        ("secret", True, errno.EACCES),
        ("secret", False, errno.EBUSY),
        ("secret/key", True, errno.EACCES),
        ("x.env", True, errno.EBUSY),
        ("l_outd/o", True, errno.EROFS),
        ("l_outd/d", True, errno.EROFS),
    ],
)
def test_what_may_not_be_written_stays(
    workspace: SandboxedFiles, ws: Path, path: str, recursive: bool, number: int
) -> None:
    before = everything(ws.parent)
    target = Path(os.path.normpath(ws / path))
    assert number_of(lambda: remove(workspace, target, recursive=recursive)) == number
    assert everything(ws.parent) == before


def test_a_removal_that_cannot_finish_does_not_begin(ws: Path) -> None:
    # Differs: the real server removes what it meets before it fails.
    deep = ws / "sub/deep/kept"
    deep.write_text("")
    (ws / "sub/z.env").write_text("")
    usual: dict[Path | str, str] = {"/": "read", ws: "write"}
    for rules, globs in (
        ({**usual, deep: "read"}, ()),
        ({**usual, deep: "deny"}, ()),
        (usual, (f"{ws}/**/*.env",)),
    ):
        before = everything(ws)
        files = SandboxedFiles(policy(rules, *globs))
        assert number_of(partial(remove, files, ws / "sub")) == errno.EBUSY
        assert everything(ws) == before


def test_removal_without_links_keeps_to_the_sandbox_too(
    workspace: SandboxedFiles, ws: Path
) -> None:
    def nofollow(path: Path | str, *, recursive: bool = False) -> None:
        by_path.remove(
            workspace, str(path), recursive=recursive, force=False, follow_symlinks=False
        )

    nofollow(ws / "a")
    with pytest.raises(InvalidRequest, match=r"^path contains a symbolic link$"):
        nofollow(ws / "l_in")
    with pytest.raises(InvalidRequest, match=r"^path must name an entry$"):
        nofollow("/")
    with pytest.raises(OperationFailed, match=r"^recursive no-follow removal is unsupported$"):
        nofollow(ws / "sub", recursive=True)
    assert number_of(lambda: nofollow(ws / "l_outd/o")) == errno.ENOTDIR
    assert number_of(lambda: nofollow(ws / ".git/config")) == errno.EROFS


# -- copying


def test_both_ends_of_a_copy_are_in_the_sandbox(workspace: SandboxedFiles, ws: Path) -> None:
    by_path.copy(workspace, str(ws.parent / "out"), str(ws / "copied/here"), recursive=True)
    assert (ws / "copied/here/o").read_text() == "out/o"
    by_path.copy(workspace, str(ws / "l_out"), str(ws / "l_copy"), recursive=False)
    assert os.readlink(ws / "l_copy") == os.readlink(ws / "l_out")
    by_path.copy(workspace, str(ws / "a"), str(ws / "l_in"), recursive=False)  # onto itself
    assert (ws / "a").read_text() == "ws/a"
    for source in ("secret", "secret/key", "x.env"):
        work = partial(by_path.copy, workspace, str(ws / source), str(ws / "got"), recursive=True)
        assert number_of(work) == errno.EACCES
    assert not (ws / "got").exists()


def test_a_copy_takes_no_denied_file_with_it(workspace: SandboxedFiles, ws: Path) -> None:
    (ws / "sub/deep/z.env").write_text("secret")
    with pytest.raises(PermissionError):
        by_path.copy(workspace, str(ws / "sub"), str(ws / "got"), recursive=True)
    assert not (ws / "got/deep/z.env").exists()


def test_a_copy_is_refused_in_the_same_words(workspace: SandboxedFiles, ws: Path) -> None:
    for source, target, recursive, words in (
        ("sub", "got", False, "fs/copy requires recursive: true when sourcePath is a directory"),
        ("sub", "sub/in/it", True, "fs/copy cannot copy a directory to itself or one of"),
        ("fifo", "got", True, "fs/copy only supports regular files, directories, and symlinks"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            by_path.copy(workspace, str(ws / source), str(ws / target), recursive=recursive)
    assert (
        number_of(lambda: by_path.copy(workspace, str(ws / "l_in"), str(ws / "a"), recursive=False))
        == errno.EEXIST
    )


def test_a_tree_is_not_copied_over_what_is_protected(ws: Path) -> None:
    files = SandboxedFiles(
        policy({"/": "read", ws: "write", ws / ".git": "read", ws / ".codex": "read"})
    )
    for name in (".git", ".codex"):
        (ws / f"tree_of{name}" / name).mkdir(parents=True)
        (ws / f"tree_of{name}" / name / "config").write_text("evil")
        work = partial(by_path.copy, files, str(ws / f"tree_of{name}"), str(ws), recursive=True)
        assert number_of(work) == errno.EROFS
    assert (ws / ".git/config").read_text() == "ws/.git/config"
    assert not (ws / ".codex").exists()


def test_a_copy_to_where_a_link_leads_nowhere_is_refused(
    workspace: SandboxedFiles, ws: Path
) -> None:
    for link in ("l_loop", "l_broken", "l_key"):
        work = partial(by_path.copy, workspace, str(ws / "sub"), str(ws / link), recursive=True)
        assert number_of(work) == errno.EEXIST


# -- others who work at the same time


def test_a_folder_that_somebody_else_makes_meanwhile_is_fine(
    workspace: SandboxedFiles, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def be_late(name: str, *, dir_fd: int) -> None:
        mkdir(name, dir_fd=dir_fd)
        mkdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", be_late)
    make(workspace, ws / "new/folder")
    assert (ws / "new/folder").is_dir()


def test_a_folder_that_somebody_keeps_removing_is_given_up(
    workspace: SandboxedFiles, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkdir", lambda name, *, dir_fd: None)
    assert number_of(lambda: make(workspace, ws / "new/folder")) == errno.EBUSY


def test_a_walk_reports_names_that_are_no_text(workspace: SandboxedFiles, ws: Path) -> None:
    Path(os.fsdecode(os.fsencode(ws / "sub/deep") + b"/\xff")).touch()
    found = by_path.walk(workspace, str(ws / "sub"), OPTIONS)
    path = PathUri.parse(f"file://{ws}/sub/deep/%EF%BF%BD")
    message = "No such file or directory (os error 2)"
    assert found.errors == [WalkError(path=path, message=message)]

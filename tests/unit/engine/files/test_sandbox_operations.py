"""Operations for a context: made once for as long as the disk says the same, and not longer."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.base import own_files
from holdfast.base.errors import InvalidRequest, OperationFailed
from holdfast.base.local_servers import Reachable, hide
from holdfast.engine.files.operations import DIRECT
from holdfast.engine.files.sandboxed import sandbox_operations
from holdfast.engine.files.sandboxed.sandbox_operations import (
    operations,
    reading_operations,
    shows_as_is,
)
from holdfast.engine.linux import shared_directories
from holdfast.engine.sandbox.profile.builtin import (
    named_profile,
    path_entry,
    sandbox_context,
    special_entry,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
    FileEntry,
    ManagedProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
)
from tests.unit.engine.files import by_path


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    here = tmp_path.resolve()
    for folder in ("ws/.git", "ws/secret", "out"):
        (here / folder).mkdir(parents=True)
    for file in ("ws/a", "ws/.git/config", "ws/secret/key", "out/o"):
        (here / file).write_text(file)
    return here / "ws"


def writing(ws: Path, *more: FileEntry) -> SandboxContext:
    """A new one each time, as each request brings its own."""
    project = (special_entry("root", "read"), special_entry("project_roots", "write"), *more)
    profile = ManagedProfile(file_system=RestrictedFiles(entries=project), network="restricted")
    return sandbox_context(profile, cwd=ws)


def write(ws: Path, path: str, *more: FileEntry) -> None:
    by_path.write_file(operations(writing(ws, *more)), str(ws / path), b"new")


def test_equal_contexts_share_their_operations(ws: Path) -> None:
    assert operations(writing(ws)) is operations(writing(ws))
    assert operations(writing(ws)) is not operations(writing(ws / "secret"))
    assert operations(None) is DIRECT
    assert operations(sandbox_context(named_profile("disabled"), cwd=ws)) is DIRECT


@pytest.mark.requirement("fs.sandbox.protected-links")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links of other users")
@pytest.mark.parametrize("kind", ["link", "file"])
@pytest.mark.parametrize(
    ("mode", "refused_from"), [(0o1777, 1), (0o1770, 2), (0o777, 3)], ids=["all", "group", "none"]
)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_others_put_into_shared_directories_is_used_as_by_the_kernel(
    ws: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: int, refused_from: int, level: int
) -> None:
    monkeypatch.setattr(shared_directories, "_level", lambda setting: level)
    shared = ws / "shared"
    shared.mkdir()
    for name in ("theirs", "mine"):
        path = shared / name
        path.symlink_to("../a") if kind == "link" else path.touch(0o666)
    os.chmod(ws / "a", 0o666)
    os.chown(shared / "theirs", 4321, 4321, follow_symlinks=False)
    shared.chmod(mode)
    if kind == "file":
        (shared / "theirs").chmod(0o666)

    write(ws, "shared/mine")
    # A directory of a group matters only for files.
    if level >= refused_from and (kind == "file" or mode == 0o1777):
        with pytest.raises(PermissionError):
            write(ws, "shared/theirs")
    else:
        write(ws, "shared/theirs")


def _pointer(ws: Path) -> None:
    for path in (ws / ".git" / "config", ws / ".git"):
        path.unlink() if path.is_file() else path.rmdir()
    (ws / "repo").mkdir()
    (ws / ".git").write_text("gitdir: repo\n")


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("repo/config", _pointer),
        (".codex/config", lambda ws: (ws / ".codex").mkdir()),
        (".agents", lambda ws: (ws / ".agents").touch()),
    ],
    ids=["the repository is elsewhere", "a protected name appears", "it is a file"],
)
def test_what_comes_to_be_protected_is_so_at_once(
    ws: Path, path: str, change: Callable[[Path], object]
) -> None:
    write(ws, "a")
    change(ws)

    with pytest.raises(OSError, match="Read-only file system"):
        write(ws, path)

    write(ws, "a")


def test_a_repository_that_comes_and_goes_is_seen_each_time(ws: Path) -> None:
    _pointer(ws)
    with pytest.raises(OSError, match="Read-only file system"):
        write(ws, "repo/config")

    (ws / ".git").write_text("gitdir: elsewhere\n")
    write(ws, "repo/config")

    (ws / ".git").write_text("gitdir: repo\n")
    with pytest.raises(OSError, match="Read-only file system"):
        write(ws, "repo/config")


def test_a_root_that_becomes_a_link_is_where_it_leads(ws: Path) -> None:
    write(ws, "a")
    ws.rename(ws.with_name("moved"))
    ws.symlink_to("out")

    write(ws, "o")

    assert (ws.with_name("out") / "o").read_text() == "new"
    with pytest.raises(OSError, match="Read-only file system"):
        write(ws, str(ws.with_name("moved") / "a"))


def test_a_denied_path_that_comes_to_lead_through_a_link_is_refused(ws: Path) -> None:
    def deny() -> FileEntry:
        return path_entry(ws / "secret/key", "deny")

    def read() -> bytes:
        context = writing(ws, deny())
        return by_path.read_file(operations(context), str(ws / "a"))

    assert read() == b"ws/a"
    (ws / "secret").rename(ws / "moved")
    (ws / "secret").symlink_to("moved")
    with pytest.raises(OperationFailed, match="crosses writable symlink"):
        read()
    (ws / "secret").unlink()
    (ws / "moved").rename(ws / "secret")
    assert read() == b"ws/a"
    with pytest.raises(PermissionError):
        by_path.read_file(operations(writing(ws, deny())), str(ws / "secret/key"))


def test_who_may_read_everything_reads_on_whatever_changes(ws: Path) -> None:
    for profile in ("read-only", "workspace-write"):
        first = reading_operations(sandbox_context(profile, cwd=ws, roots=[ws]))
        (ws / profile).mkdir()
        (ws / ".codex").mkdir(exist_ok=True)

        again = reading_operations(sandbox_context(profile, cwd=ws, roots=[ws]))

        assert again is first
        assert by_path.read_file(again, str(ws / "secret/key")) == b"ws/secret/key"
        with pytest.raises(FileNotFoundError):
            by_path.read_file(again, "/proc/self/environ")


def test_who_may_not_read_everything_asks_the_disk_each_time(ws: Path) -> None:
    def read(path: str, *more: FileEntry) -> bytes:
        context = writing(ws, *more)
        return by_path.read_file(reading_operations(context), str(ws / path))

    secret = path_entry(ws / "secret", "deny")
    assert read("a", secret) == b"ws/a"
    (ws / "secret").rename(ws / "moved")
    (ws / "secret").symlink_to(ws.with_name("out"))
    (ws / "a").unlink()
    with pytest.raises(OperationFailed, match="symlink"):
        read("moved/key", secret)


def test_what_was_read_before_is_no_leave_to_write(ws: Path) -> None:
    by_path.read_file(reading_operations(writing(ws)), str(ws / "a"))
    (ws / ".codex").mkdir()

    with pytest.raises(OSError, match="Read-only file system"):
        write(ws, ".codex/config")


# -- who may read everything, and only reads


def read(asked: SandboxContext, path: Path) -> bytes:
    return by_path.read_file(reading_operations(asked), str(path))


def test_what_cannot_be_kept_does_not_matter_to_whoever_may_read_everything(ws: Path) -> None:
    (ws / "link").symlink_to("secret")
    crossing = writing(ws, path_entry(ws / "link" / "key", "read"))
    foreign = msgspec.structs.replace(writing(ws), cwd=PathUri.parse("file:///C:/x"))
    landlock = msgspec.structs.replace(writing(ws), use_legacy_landlock=True)

    for asked, error in (
        (crossing, OperationFailed),
        (foreign, InvalidRequest),
        (landlock, OperationFailed),
    ):
        assert read(asked, ws / "a") == b"ws/a"
        with pytest.raises(error):
            operations(asked)


def test_whoever_may_not_read_everything_is_refused_what_cannot_be_kept(ws: Path) -> None:
    denied = writing(ws, path_entry(ws / "secret", "deny"))
    landlock = msgspec.structs.replace(denied, use_legacy_landlock=True)
    with pytest.raises(OperationFailed, match="requires bubblewrap"):
        reading_operations(landlock)
    windows = msgspec.structs.replace(denied, windows_sandbox_level="mxc")
    with pytest.raises(InvalidRequest) as caught:
        reading_operations(windows)
    assert str(caught.value) == (
        "failed to prepare fs sandbox: failed to prepare MXC sandbox: "
        "native MXC is unavailable on this executor"
    )


def test_entries_of_another_system_matter_to_everyone(ws: Path) -> None:
    entry = FileEntry(path=PlainPath(path=PathUri.parse("file:///C:/x")), access="read")
    with pytest.raises(InvalidRequest, match=r"^invalid sandbox permission path URI"):
        reading_operations(writing(ws, entry))


def test_what_a_sandbox_changes_is_not_read_as_it_is(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_operations, "_known", None)
    with hide(Reachable((str(ws / "secret"),))):
        shown = [path for path in _PATHS if shows_as_is(writing(ws), path.format(ws=ws))]
    monkeypatch.undo()
    assert shown == ["{ws}/a", "{ws}/secrets", "/etc/passwd"]
    denying = writing(ws, path_entry(ws / "secret", "deny"))
    assert not shows_as_is(denying, f"{ws}/a")
    assert shows_as_is(sandbox_context(named_profile("disabled"), cwd=ws), f"{ws}/a")


@pytest.mark.requirement("security.own.settings")
def test_settings_of_holdfast_are_not_written_and_the_error_says_why(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "_named", own_files.OwnFiles((), ()))
    monkeypatch.setattr(sandbox_operations, "_known", None)
    own_files.keep_unchanged(ws / "a")
    own_files.keep_unchanged(ws / "rules/new")
    for path in ("a", "rules/new"):
        (ws / "rules").mkdir(exist_ok=True)
        with pytest.raises(OperationFailed) as caught:
            write(ws, path)
        assert str(caught.value) == (
            "Read-only file system (os error 30): it has settings, state or logs of Holdfast"
        )
    write(ws, "rules/other")
    assert sorted(path.name for path in (ws / "rules").iterdir()) == ["other"]


def test_settings_in_a_home_leave_room_for_those_of_other_programs(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(ws))
    monkeypatch.setattr(sandbox_operations, "_known", None)
    allowed = operations(writing(ws))
    by_path.create_directory(allowed, f"{ws}/.config/other", recursive=True)
    with pytest.raises(OperationFailed, match="settings"):
        write(ws, ".config/holdfast/mcp.toml")
    with pytest.raises(OperationFailed, match="settings"):
        by_path.create_directory(allowed, f"{ws}/.cache/holdfast/x", recursive=True)
    with pytest.raises(OSError, match="busy"):
        by_path.remove(allowed, f"{ws}/.config", recursive=True, force=False)


_PATHS = ["{ws}/a", "{ws}/secret", "{ws}/secret/key", "{ws}/secrets", "/etc/passwd", "/proc/stat"]

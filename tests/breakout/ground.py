"""The ground of an attempt: what it may go for, the profiles, and what must not change."""

import ctypes
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
    FileEntry,
    GlobPath,
    ManagedProfile,
    Network,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialPath,
    SpecialValue,
    UnrestrictedFiles,
)

__all__ = ["PROFILES", "PROTECTED", "PYTHON", "Prepared", "prepare"]

PROTECTED = (".git", ".agents", ".codex", ".aws")

NOBODY = 65534

PYTHON = (
    "/usr/bin/python3"
    if os.access("/usr/bin/python3", os.X_OK)
    else os.path.realpath(sys.executable)
)
"""What attempts run with. The system's own, if there is one: every user and profile sees it."""


@dataclass(frozen=True)
class Prepared:
    """A folder that is ready for one attempt."""

    paths: Mapping[str, Any]
    """What the attempt is told: the members of `inside.Ground`."""

    def path(self, name: str) -> Path:
        return Path(self.paths[name])

    def state(self) -> dict[str, object]:
        """All that a sandboxed command must leave as it is, whatever it was allowed."""
        return {
            str(path): _state(path)
            for start in ("outside", "linked/store", "linked/.git", "work/.git", "work/deep")
            for path in [self.path("base") / start, *sorted((self.path("base") / start).rglob("*"))]
        } | {
            str(root / name): os.path.lexists(root / name)
            for root in map(self.path, ("work", "linked", "extra", "dangling"))
            for name in PROTECTED
        }


def prepare(base: Path, outsider: Mapping[str, Any]) -> Prepared:
    """Fill a folder."""
    # The names are short: the path of a socket has room for a hundred characters.
    base.mkdir(exist_ok=True)
    work, outside, linked = base / "work", base / "outside", base / "linked"
    secret, frozen = work / "deep/er/secrets/key", work / "tree/frozen/law"
    strange = work / "strange/[a]*\n-- b"
    files = {
        work / "notes": "my own",
        work / ".git/config": "[core]",
        work / ".git/hooks/sample": "#!/bin/sh",
        secret: "the secret",
        frozen: "the law",
        strange: "the strange secret",
        work / "top.env": "TOKEN=top",
        work / "sub/inner.env": "TOKEN=inner",
        outside / "file": "not yours",
        outside / "locked/file": "not yours either",
        outside / "to-be-denied": "the other secret",
        outside / "linked-secret": "the secret behind a link",
        linked / ".git": f"gitdir: {linked}/store/repo\n",
        linked / "store/repo/config": "[core]",
        base / "dangling/.git": "gitdir: gone\n",
        base / "planted/bwrap": f'#!/bin/sh\n: > {outside}/planted\nexec /usr/bin/bwrap "$@"\n',
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (base / "planted/bwrap").chmod(0o755)
    (base / "extra").mkdir()
    (base / "extra/up").symlink_to("..")
    (work / "deep/open").mkdir()
    (work / "crossing").symlink_to("deep/er")
    (work / "linked.env").symlink_to(outside / "linked-secret")
    os.mkfifo(outside / "fifo")
    os.mkfifo(work / ".git/fifo")
    os.mkfifo(work / "deep/er/secrets/fifo")
    (outside / "alias").symlink_to(work / "deep/er")
    special = _special_files(work) if os.getuid() == 0 else {}
    paths = {
        "base": str(base),
        "work": str(work),
        "linked": str(linked),
        "extra": str(base / "extra"),
        "dangling": str(base / "dangling"),
        "outside": str(outside),
        "file": str(outside / "file"),
        "secret": str(secret),
        "frozen": str(frozen),
        "planted": str(base / "planted"),
        "strange": str(strange),
        "outsider": dict(outsider),
        "special": special,
        "handle": _handle(secret),
    }
    return Prepared(paths)


def _special_files(work: Path) -> dict[str, str]:
    """Make what only root can: a device, and programs that change who runs them."""
    null = work / "null-device"
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    program = work / "setuid-program"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    os.chown(program, NOBODY, NOBODY)
    program.chmod(0o6755)
    return {"device": str(null), "setuid": str(program)}


def _handle(path: Path) -> list[Any]:
    """The handle of a file that `open_by_handle_at` takes."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(8 + 128)
    ctypes.memmove(buffer, (128).to_bytes(4, "little"), 4)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount), 0) < 0:
        return []  # this file system has none
    length = int.from_bytes(buffer.raw[:4], "little")
    return [int.from_bytes(buffer.raw[4:8], "little"), buffer.raw[8 : 8 + length].hex()]


def _state(path: Path) -> object:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return "missing"
    if stat.S_ISDIR(status.st_mode):
        return (oct(status.st_mode), status.st_uid)
    content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    return (
        oct(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_nlink,
        status.st_mtime_ns,
        hashlib.sha256(content).hexdigest(),
        tuple(os.listxattr(path, follow_symlinks=False)),
    )


# -- profiles


def _at(path: Path, access: Literal["read", "write", "deny"]) -> FileEntry:
    return FileEntry(path=PlainPath(path=PathUri.from_path(path)), access=access)


def _special(
    kind: Literal["root", "minimal", "project_roots", "tmpdir"],
    access: Literal["read", "write"],
    **value: str,
) -> FileEntry:
    return FileEntry(path=SpecialPath(value=SpecialValue(kind=kind, **value)), access=access)


def _context(
    ground: Prepared,
    *entries: FileEntry,
    network: Network = "restricted",
    roots: tuple[str, ...] = ("work", "linked", "extra", "dangling"),
) -> SandboxContext:
    files = RestrictedFiles(entries=entries) if entries else UnrestrictedFiles()
    return SandboxContext(
        permissions=ManagedProfile(file_system=files, network=network),
        windows_sandbox_level="disabled",
        cwd=PathUri.from_path(ground.path("work")),
        workspace_roots=tuple(PathUri.from_path(ground.path(root)) for root in roots),
    )


def _workspace(ground: Prepared, **options: Any) -> SandboxContext:
    return _context(ground, _special("root", "read"), _special("project_roots", "write"), **options)


def _guarded(ground: Prepared) -> SandboxContext:
    work = ground.path("work")
    return _context(
        ground,
        _special("root", "read"),
        _special("project_roots", "write"),
        _at(ground.path("secret").parent, "deny"),
        _at(ground.path("frozen").parent, "read"),
        _at(ground.path("strange"), "deny"),
        _at(work / "deep/missing", "deny"),
        _at(ground.path("outside") / "to-be-denied", "deny"),
        FileEntry(path=GlobPath(pattern=f"{work}/**/*.env"), access="deny"),
    )


PROFILES: Mapping[str, Callable[[Prepared], SandboxContext]] = {
    "read-only": lambda ground: _context(ground, _special("root", "read")),
    "workspace": _workspace,
    # The same, with a denied directory and file, a read-only directory and a denied pattern.
    "guarded": _guarded,
    # The same as `workspace`, with the network.
    "networked": lambda ground: _workspace(ground, network="enabled"),
    # Nothing but the system's programs and the workspace is there.
    "narrow": lambda ground: _context(
        ground,
        _special("minimal", "read"),
        _special("project_roots", "write"),
        _at(Path(PYTHON).parents[1], "read"),
    ),
    # All files may be written; only the network is not there [sandbox.full-write].
    "offline": lambda ground: _context(ground),
    # All but one directory may be written.
    "root-but": lambda ground: _context(
        ground,
        FileEntry(path=SpecialPath(value=SpecialValue(kind="root")), access="write"),
        _at(ground.path("secret").parent, "deny"),
        _at(ground.path("outside"), "read"),
    ),
    # A directory is denied, and one below it is open again.
    "reopened": lambda ground: _context(
        ground,
        _special("root", "read"),
        _at(ground.path("work") / "deep", "deny"),
        _at(ground.path("work") / "deep/open", "write"),
    ),
    # A workspace inside of another.
    "nested": lambda ground: _context(
        ground,
        _special("root", "read"),
        _special("project_roots", "write"),
        _at(ground.path("work") / "sub", "write"),
    ),
    # What it denies lies behind a link that a command could change: it cannot be kept.
    "crossing": lambda ground: _context(
        ground,
        _special("root", "read"),
        _special("project_roots", "write"),
        _at(ground.path("work") / "crossing/secrets", "deny"),
    ),
    # Grants the temporary directory, of which the request names the path.
    "temporary": lambda ground: _context(
        ground,
        _special("root", "read"),
        _special("project_roots", "write"),
        _special("tmpdir", "write"),
    ),
}

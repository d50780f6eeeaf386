"""Disks that exist only in memory, and contexts for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.policy.disk import Seen, trace
from holdfast.engine.sandbox.policy.policy import Policy
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
    FileEntry,
    GlobPath,
    ManagedProfile,
    Network,
    PolicyContext,
    RestrictedFiles,
    SandboxContext,
)

WS = "/srv/ws"


class FakeDisk:
    """Paths with their text; `None` is a directory, a text that begins with `->` a link."""

    def __init__(self, files: Mapping[str, str | None]) -> None:
        self.files: dict[str, str | None] = {"/": None}
        for path, text in files.items():
            parts = path.split("/")
            for end in range(2, len(parts)):
                self.files.setdefault("/".join(parts[:end]), None)
            self.files[path] = text
        self.closed: set[str] = set()
        self.of_group: set[str] = set()

    def kind(self, path: str) -> Seen | None:
        if path not in self.files:
            return None
        text = self.files[path]
        if text is None:
            return "directory"
        return "link" if text.startswith("->") else "file"

    def target(self, path: str) -> str:
        return (self.files[path] or "").removeprefix("->")

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        inside = path.rstrip("/") + "/"
        names = [p.removeprefix(inside) for p in self.files if p.startswith(inside) and p != inside]
        found = [(name, self.kind(inside + name)) for name in names if "/" not in name]
        return [(name, kind) for name, kind in found if kind is not None]

    def leads_to_file(self, path: str) -> bool:
        return trace(path, self).kind == "file"

    def is_empty(self, path: str) -> bool:
        return self.files[path] == "" or (self.files[path] is None and not self.entries(path))

    def can_create(self, folder: str) -> bool:
        return folder not in self.closed

    def sets_group(self, folder: str) -> bool:
        return folder in self.of_group

    def text(self, path: str) -> str:
        return self.files[path] or ""


def glob_entry(pattern: str) -> FileEntry:
    return FileEntry(path=GlobPath(pattern=pattern), access="deny")


def context(
    *entries: FileEntry,
    network: Network = "restricted",
    roots: Sequence[str] = (WS,),
    cwd: str | None = WS,
    depth: int | None = None,
    policy_context: PolicyContext | None = None,
) -> SandboxContext:
    return SandboxContext(
        permissions=ManagedProfile(
            file_system=RestrictedFiles(entries=entries, glob_scan_max_depth=depth),
            network=network,
        ),
        windows_sandbox_level="disabled",
        cwd=None if cwd is None else PathUri.from_path(cwd),
        workspace_roots=tuple(map(PathUri.from_path, roots)),
        policy_context=policy_context,
    )


def policy_for(
    files: Mapping[str, str | None] | FakeDisk, *entries: FileEntry, network: Network = "restricted"
) -> Policy:
    """The policy of these entries on that disk, for a command in the workspace."""
    disk = files if isinstance(files, FakeDisk) else FakeDisk(files)
    return resolve(context(*entries, network=network), PolicyInputs(cwd=WS, disk=disk))

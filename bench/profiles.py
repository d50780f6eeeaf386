"""Sandbox contexts as clients send them: those of the named profiles, and two narrow ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["DENYING", "NARROW", "READ_ONLY", "WORKSPACE_WRITE", "make_workspace", "sandbox_context"]

READ_ONLY = "read-only"
WORKSPACE_WRITE = "workspace-write"

DENYING = "denying"
"""`workspace-write` with a directory of the workspace denied."""

NARROW = "narrow"
"""The workspace and the system's own directories, read-only; nothing else is visible."""

_DENIED = "denied"
_METADATA = (".git", ".agents", ".codex")


def make_workspace(folder: Path) -> Path:
    """Fill a directory as the profiles expect and return a small file in it."""
    (folder / ".git").mkdir()
    (folder / _DENIED).mkdir()
    (folder / _DENIED / "key").write_bytes(b"x")
    (folder / ".git" / "config").write_bytes(b"x")
    file = folder / "file"
    file.write_bytes(b"a small file\n" * 32)
    return file


def sandbox_context(profile: str, workspace: Path) -> Mapping[str, object]:
    """Return the member `sandbox` of a request."""
    entries = _ENTRIES[profile]
    if profile == DENYING:
        path = {"type": "path", "path": (workspace / _DENIED).as_uri()}
        entries = (*entries, {"path": path, "access": "deny"})
    files = {"type": "restricted", "entries": entries}
    return {
        "permissions": {"type": "managed", "file_system": files, "network": "restricted"},
        "windowsSandboxLevel": "disabled",
        "cwd": workspace.as_uri(),
        "workspaceRoots": [workspace.as_uri()],
    }


def _special(kind: str, access: str) -> Mapping[str, object]:
    return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}


def _metadata(name: str) -> Mapping[str, object]:
    value = {"kind": "project_roots", "subpath": name}
    return {
        "path": {"type": "special", "value": value},
        "access": "read",
        "missing_path_behavior": "skip",
    }


_WRITING = (
    _special("root", "read"),
    _special("project_roots", "write"),
    _special("slash_tmp", "write"),
    _special("tmpdir", "write"),
    *map(_metadata, _METADATA),
)
_ENTRIES: Mapping[str, tuple[Mapping[str, object], ...]] = {
    READ_ONLY: (_special("root", "read"),),
    WORKSPACE_WRITE: _WRITING,
    DENYING: _WRITING,
    NARROW: (_special("minimal", "read"), _special("project_roots", "read")),
}

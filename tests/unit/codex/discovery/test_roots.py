"""Discovery below directories that a client names."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidRequest
from holdfast.codex.discovery.roots import discover_roots
from holdfast.codex.discovery.uri_paths import ancestors, name_of, parent_of
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.wire.protocol.discovery import CapabilityRoot, DiscoveredRoot
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import ManagedProfile, RestrictedFiles, SandboxContext
from tests.unit.codex.discovery.trees import plugin, put, roots, skill


@pytest.fixture
async def files() -> AsyncIterator[LocalFileSystem]:
    files = LocalFileSystem()
    yield files
    await files.aclose()


async def discover(files: LocalFileSystem, base: Path, *names: str) -> list[DiscoveredRoot]:
    return await discover_roots(
        files,
        [CapabilityRoot(id=name, path=PathUri.parse(f"file://{base}/{name}")) for name in names],
    )


@pytest.mark.requirement("discovery.roots.plugin", "discovery.roots.skills")
async def test_a_plugin_is_found_with_all_its_files(files: LocalFileSystem, tmp_path: Path) -> None:
    roots(tmp_path)
    (root,) = await discover(files, tmp_path, "a")
    assert root.error is None
    assert root.warnings == ()
    assert root.plugin is not None
    assert root.plugin.manifest.contents == '{"name": "a"}'
    assert root.plugin.mcp_config is not None
    assert root.plugin.apps_config is not None
    assert [name_of(s.instructions.path) for s in root.skills] == ["SKILL.md"] * 2
    assert root.skills[0].metadata is None
    assert root.skills[1].metadata is not None
    assert [m.contents for m in root.namespace_manifests] == ['{"name": "a"}', '{"name": "nested"}']


@pytest.mark.requirement("discovery.roots.ancestor")
async def test_a_folder_inside_of_a_plugin_has_its_manifest(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    roots(tmp_path)
    (root,) = await discover(files, tmp_path, "a//skills/")
    assert str(root.path) == f"file://{tmp_path}/a//skills/"
    assert root.plugin is None
    assert [m.contents for m in root.namespace_manifests] == ['{"name": "a"}']


@pytest.mark.requirement("discovery.roots.paths", "discovery.roots.sizes", "discovery.roots.error")
async def test_troubles_are_told(files: LocalFileSystem, tmp_path: Path) -> None:
    names = roots(tmp_path)
    found = {root.id: root for root in await discover(files, tmp_path, *names)}
    assert list(found) == names
    below = "path must remain below the capability root"
    at = f"file://{tmp_path}"
    assert found["b"].warnings == (f"ignoring apps in {at}/b/.codex-plugin/plugin.json: {below}",)
    assert found["c"].warnings == (
        f"ignoring mcpServers in {at}/c/.codex-plugin/plugin.json: path must start with `./`",
    )
    assert found["c"].plugin is not None
    assert found["c"].plugin.apps_config is not None
    assert found["f"].warnings[1:] == (
        f"capability file {at}/f/SKILL.md is not UTF-8: invalid utf-8 sequence of 1 bytes"
        " from index 2",
        f"capability file {at}/f/big/SKILL.md exceeds the 1048576-byte limit",
        f"capability file {at}/f/cut/SKILL.md is not UTF-8: incomplete utf-8 byte sequence"
        " from index 0",
    )
    assert len(found["g"].skills) == 16
    assert found["g"].warnings == ("capability root bundle exceeds the 16777216-byte limit",) * 2
    assert found["file"].error == f"capability root {at}/file is not a directory"
    assert found["none"].error == (
        f"failed to inspect capability root {at}/none: No such file or directory (os error 2)"
    )
    assert len(found["h"].skills) == 2


async def test_a_file_that_cannot_be_looked_at_is_a_warning(
    files: LocalFileSystem, tmp_path: Path
) -> None:
    (plugin(tmp_path / "p", {"name": "p"}) / ".mcp.json").symlink_to(".mcp.json")
    (root,) = await discover(files, tmp_path, "p")
    assert [w.rpartition(": ")[2] for w in root.warnings] == ["Symbolic link loop (os error 40)"]


@pytest.mark.requirement("discovery.roots.order", "discovery.roots.limit")
async def test_there_may_be_128_of_them(files: LocalFileSystem, tmp_path: Path) -> None:
    assert len(await discover(files, tmp_path, *["x"] * 128)) == 128
    with pytest.raises(InvalidRequest, match="accepts at most 128 roots"):
        await discover(files, tmp_path, *["x"] * 129)


async def test_what_a_sandbox_hides_is_not_found(files: LocalFileSystem, tmp_path: Path) -> None:
    skill(tmp_path, "s")
    put(tmp_path / "x", "")
    profile = ManagedProfile(file_system=RestrictedFiles(entries=()), network="restricted")
    sandbox = SandboxContext(permissions=profile, windows_sandbox_level="disabled")
    path = PathUri.from_path(tmp_path)
    (root,) = await discover_roots(files, [CapabilityRoot(id="", path=path, sandbox=sandbox)])
    assert root.error is not None
    assert root.error.startswith(f"failed to inspect capability root {path}: ")
    assert root.skills == ()


def test_parents_end_at_the_top() -> None:
    path = PathUri.parse("file:///a//b/c%20d/")
    assert name_of(path) == "c d"
    assert [str(above) for above in ancestors(path)] == ["file:///a//b", "file:///a", "file:///"]
    assert parent_of(PathUri.parse("file:///")) is None
    assert parent_of(PathUri.from_path("/C:/x")) is None

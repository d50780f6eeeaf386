"""Discovery of installed plugins and skills."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from holdfast.codex.discovery import installed
from holdfast.codex.discovery.installed import discover_installed
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.wire.protocol.discovery import DiscoverInstalledResponse, SkillSource
from holdfast.wire.protocol.paths import PathUri
from tests.unit.codex.discovery.trees import home, plugin, skill


@pytest.fixture
async def files() -> AsyncIterator[LocalFileSystem]:
    files = LocalFileSystem()
    yield files
    await files.aclose()


async def discover(files: LocalFileSystem, base: Path) -> DiscoverInstalledResponse:
    return await discover_installed(
        files,
        codex_home=str(base / "codex"),
        user_home=str(base / "user"),
        system_directory=str(base / "etc"),
    )


@pytest.mark.requirement("discovery.installed.empty")
async def test_an_empty_home_has_nothing(files: LocalFileSystem, tmp_path: Path) -> None:
    empty = DiscoverInstalledResponse(plugins=[], skills=[], warnings=[])
    assert await discover(files, tmp_path) == empty
    (tmp_path / "codex/skills").parent.mkdir()
    (tmp_path / "codex/skills").touch()
    assert await discover(files, tmp_path) == empty


@pytest.mark.requirement("discovery.installed")
async def test_plugins_are_found_in_the_cache(files: LocalFileSystem, tmp_path: Path) -> None:
    home(tmp_path)
    found = await discover(files, tmp_path)
    plugins = {plugin.id: plugin for plugin in found.plugins}
    assert list(plugins) == sorted(plugins)
    assert plugins["ver@m"].version == "1.10.0"
    assert plugins["loc@m"].version == "local"
    assert plugins["odd@m"].version == "a+b"
    for missing in ("nover", "noman", "bad", "list", "twice", "number", "null", "face3", "face5"):
        assert f"{missing}@m" not in plugins
    assert {"apps5@m", "ok@m.x", "ok@a b"}.isdisjoint(plugins)
    shown = {plugin.id: plugin.display_name for plugin in found.plugins}
    assert (shown["shown@m"], shown["unshown@m"], shown["spaces@m"]) == ("A  B", "n", " n ")
    assert shown["blank@m"] == "1.0.0"
    inline = plugins["inline@m"].files
    assert inline.mcp_config is not None
    assert inline.mcp_config.path == inline.manifest.path
    assert inline.mcp_config.contents == '{"b":{"command":"x"},"a":[1,2]}'
    assert [skill.name for skill in plugins["nest@m"].skills] == ["inner:s", "nest:t"]
    assert [skill.name for skill in plugins["long@m"].skills] == ["n" * 70 + ":b"]
    assert plugins["nest@m"].skills[0].discovery_root is msgspec.UNSET
    remote = [plugins[f"r{n}@m"].remote_plugin_id for n in (1, 2, 3)]
    assert remote == ["x", None, None]
    assert found.warnings[0].startswith("some capability locations could not be resolved")
    assert all(w.startswith("some capability metadata") for w in found.warnings[1:])


@pytest.mark.requirement("discovery.installed")
async def test_skills_are_found_in_three_folders(files: LocalFileSystem, tmp_path: Path) -> None:
    home(tmp_path)
    skill(tmp_path / "etc/skills/all", "all")
    found = await discover(files, tmp_path)
    assert [skill.name for skill in found.skills] == [
        "sys",
        "linked",
        "one",
        "pack:inside",
        "mine",
        "all",
    ]
    sources = [skill.discovery_root for skill in found.skills]
    assert sources[-2] == SkillSource(
        id="user-agent-skills", path=PathUri.from_path(tmp_path / "user/.agents/skills")
    )
    assert [source.id for source in sources if isinstance(source, SkillSource)] == [
        *["codex-home-skills"] * 4,
        "user-agent-skills",
        "system-skills",
    ]
    (one,) = [skill for skill in found.skills if skill.name == "one"]
    assert one.policy is not None
    assert one.policy.allow_implicit_invocation is False


async def test_an_answer_stops_growing_at_its_limits(
    files: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = plugin(tmp_path / "codex/plugins/cache/m/p/1", {"name": "p"})
    for name in ("a", "b", "c"):
        skill(folder / name, name)
        skill(tmp_path / "codex/skills" / name, name)
    monkeypatch.setattr(installed, "_MAX_CAPABILITIES", 3)
    found = await discover(files, tmp_path)
    assert [skill.name for skill in found.plugins[0].skills] == ["p:a", "p:b"]
    assert found.skills == []
    assert found.warnings == ["capability discovery size limit reached"]
    monkeypatch.setattr(installed, "_MAX_CAPABILITIES", 100)
    monkeypatch.setattr(installed, "_MAX_BYTES", 500)
    found = await discover(files, tmp_path)
    assert found.plugins == []
    assert 0 < len(found.skills) < 3

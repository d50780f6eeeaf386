"""Folders full of plugins and skills, good and bad."""

import json
import os
from pathlib import Path


def put(path: Path, text: str | bytes | dict[str, object]) -> Path:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, dict):
        text = json.dumps(text)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def skill(folder: Path, name: str) -> None:
    put(folder / "SKILL.md", f"---\nname: {name}\ndescription: about {name}\n---\nbody\n")


def plugin(folder: Path, manifest: str | dict[str, object], kind: str = ".codex-plugin") -> Path:
    put(folder / kind / "plugin.json", manifest)
    return folder


def roots(base: Path) -> list[str]:
    """Folders to name in a request, each with another trouble."""
    a = plugin(base / "a", {"name": "a"})
    put(a / ".app.json", "{}")
    put(a / ".mcp.json", "{}")
    skill(a / "skills/s", "s")
    put(a / "skills/s/agents/openai.yaml", "x: 1\n")
    plugin(a / "nested", {"name": "nested"})
    plugin(a / "nested", {"name": "other"}, ".claude-plugin")
    skill(a / "nested/k", "k")
    b = plugin(base / "b", {"name": "b", "mcpServers": {"x": 1}, "apps": "./../x"})
    put(b / ".mcp.json", "{}")
    c = plugin(base / "c", {"mcpServers": "noprefix", "apps": "./sub/my%20app é.json"})
    put(c / "sub/my%20app é.json", "{}")
    put(c / ".mcp.json", "{}")
    d = plugin(base / "d", "{bad")
    put(d / ".mcp.json", "{}")
    e = plugin(base / "e", {"apps": "./"}, ".cursor-plugin")
    (e / ".mcp.json").mkdir()
    f = plugin(base / "f", {"apps": "./x\\..\\y"})
    put(f / "SKILL.md", b"ab\xffcd")
    put(f / "big/SKILL.md", b"x" * ((1 << 20) + 1))
    put(f / "cut/SKILL.md", b"\xc3")
    for number in range(18):
        put(base / f"g/{number:02}/SKILL.md", b"x" * (1 << 20))
    put(base / "file", "")
    (base / "loop").symlink_to("loop")
    skill(base / "h/1/2/3/4/5/6", "deep")
    skill(base / "h/1/2/3/4/5/6/7", "too deep")
    (base / "h/link").symlink_to("../a/skills")
    return [
        "a",
        "b",
        "c",
        "d",
        "e",
        "f",
        "g",
        "h",
        "file",
        "none",
        "loop",
        "a/skills",
        "a//skills/",
    ]


def home(base: Path) -> Path:
    """A Codex home with much installed in it; the user's own is beside it."""
    cache = base / "codex/plugins/cache"
    skills = base / "codex/skills"
    for version in ("1.9.0", "1.10.0", "1.10.0-beta"):
        plugin(cache / "m/ver" / version, {"name": "ver"})
    for version in ("1.9.0", "local"):
        plugin(cache / "m/loc" / version, {"name": "loc"})
    for version in ("1.0", "2", "a b", "a+b", "..x"):
        plugin(cache / "m/odd" / version, {"name": "odd"})
    plugin(cache / "m/nover", {"name": "nover"})
    (cache / "m/noman/1.0.0").mkdir(parents=True)
    os.symlink("../ver/1.9.0", cache / "m/noman/9.0.0")
    manifests: dict[str, str | dict[str, object]] = {
        "bad": "{nope",
        "list": "[]",
        "twice": '{"name":"a","name":"b"}',
        "number": {"name": 5},
        "null": {"name": None},
        "blank": {"name": "  "},
        "spaces": {"name": " n "},
        "shown": {"name": "n", "interface": {"displayName": "  A  B "}},
        "unshown": {"name": "n", "interface": {"displayName": None}},
        "face3": {"name": "n", "interface": 3},
        "face5": {"name": "n", "interface": {"displayName": 5}},
        "apps5": {"name": "n", "apps": 5},
        "inline": {"name": "n", "mcpServers": {"b": {"command": "x"}, "a": [1, 2]}},
        "escape": {"name": "n", "mcpServers": "../x", "apps": "./a/../../b"},
        "array": {"name": "n", "mcpServers": ["./x"]},
        "dots.in.name": {"name": "n", "version": 5},
    }
    for name, manifest in manifests.items():
        folder = plugin(cache / "m" / name / "1.0.0", manifest)
        put(folder / ".mcp.json", "{}")
        skill(folder / "skills/s", "s")
    plugin(cache / "m/claude/1", {"name": "cl"}, ".claude-plugin")
    plugin(cache / "m.x/ok/1", {"name": "x"})
    plugin(cache / "a b/ok/1", {"name": "x"})
    nest = plugin(cache / "m/nest/1", {"name": "nest"})
    plugin(nest / "in", {"name": "inner"})
    skill(nest / "in/s", "s")
    skill(nest / "t", "t")
    long = plugin(cache / "m/long/1", {"name": "n" * 70})
    skill(long / "a", "a" * 60)
    skill(long / "b", "b")
    installs: dict[str, dict[str, object]] = {
        "r1": {"schema_version": 1, "remote_plugin_id": " x "},
        "r2": {"remote_plugin_id": "x"},
        "r3": {"schema_version": 1, "remote_plugin_id": " "},
    }
    for name, metadata in installs.items():
        plugin(cache / "m" / name / "1", {"name": name})
        put(cache / "m" / name / ".codex-remote-plugin-install.json", metadata)
    skill(skills / "one", "one")
    put(skills / "one/agents/openai.yaml", "policy:\n  allow_implicit_invocation: false\n")
    skill(skills / ".system/sys", "sys")
    put(skills / "broken/SKILL.md", "no head")
    plugin(skills / "pack", {"name": "pack"})
    skill(skills / "pack/a/b", "inside")
    skill(base / "elsewhere", "linked")
    (skills / "link").symlink_to(base / "elsewhere")
    skill(base / "user/.agents/skills/mine", "mine")
    skill(base / "project/.agents/skills/theirs", "theirs")
    return base / "codex"

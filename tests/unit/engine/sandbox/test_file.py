"""Profiles in a TOML file."""

import re
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidParams
from holdfast.engine.sandbox.profile.profile_file import load_profile, parse_profile
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    GlobPath,
    ManagedProfile,
    PlainPath,
    RestrictedFiles,
    SpecialPath,
    UnrestrictedFiles,
)

EXAMPLE = """
network = "enabled"

[file_system]
glob_scan_max_depth = 4
entries = [
    { path = ":minimal", access = "read" },
    { path = ":project_roots/vendor", access = "read" },
    { path = "~/.netrc", access = "deny" },
    { path = "/srv/my ws", access = "write" },
    { path = "/srv/**/*.env", access = "deny" },
    { path = { type = "path", path = "file:///srv/x" }, access = "read" },
]
"""


def test_a_profile_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "profile.toml"
    file.write_text(EXAMPLE)
    profile = load_profile(file)
    assert isinstance(profile, ManagedProfile)
    assert profile.network == "enabled"
    files = profile.file_system
    assert isinstance(files, RestrictedFiles)
    assert files.glob_scan_max_depth == 4
    minimal, vendor, netrc, ws, env, x = (entry.path for entry in files.entries)
    assert isinstance(minimal, SpecialPath)
    assert minimal.value.kind == "minimal"
    assert isinstance(vendor, SpecialPath)
    assert (vendor.value.kind, vendor.value.subpath) == ("project_roots", "vendor")
    assert isinstance(netrc, PlainPath)
    assert netrc.path.native == "/home/me/.netrc"
    assert isinstance(ws, PlainPath)
    assert ws.path.native == "/srv/my ws"
    assert env == GlobPath(pattern="/srv/**/*.env")
    assert isinstance(x, PlainPath)
    assert x.path.native == "/srv/x"


def test_what_is_usual_may_be_left_out() -> None:
    assert parse_profile("[file_system]\nentries = []") == ManagedProfile(
        file_system=RestrictedFiles(entries=()), network="restricted"
    )
    assert parse_profile('[file_system]\ntype = "unrestricted"') == ManagedProfile(
        file_system=UnrestrictedFiles(), network="restricted"
    )
    assert parse_profile('type = "external"') == ExternalProfile(network="restricted")
    assert parse_profile('type = "disabled"') == DisabledProfile()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing field `file_system`"),
        ("x = ", "Invalid value (at end of document)"),
        ("netwrok = 1", "unknown key `netwrok` in the profile"),
        ("[file_system]\nentires = []", "unknown key `entires` in file_system"),
        ("[file_system]\nentries = [{ path = ':root', acess = 'read' }]", "unknown key `acess`"),
        ("[file_system]\nentries = [{ path = ':rot', access = 'read' }]", "unknown variant `rot`"),
        ("[file_system]\nentries = [{ path = 'ws', access = 'read' }]", "path `ws` is neither"),
        ("[file_system]\nentries = [{ path = ':root' }]", "missing field `access`"),
        ("[file_system]\nentries = [1]", "invalid type: integer `1`"),
        ("[file_system]\nentries = 1", "invalid type: integer `1`, expected a sequence"),
        ("file_system = 1", "invalid type: integer `1`"),
        ("type = 1", "expected variant identifier"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidParams, match=re.escape(words)):
        parse_profile(text)
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(InvalidParams, match=re.escape(f"sandbox profile `{file}`: ")):
        load_profile(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParams, match=r"none\.toml`: No such file or directory"):
        load_profile(tmp_path / "none.toml")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(InvalidParams, match="bytes`: 'utf-8' codec"):
        load_profile(tmp_path / "bytes")

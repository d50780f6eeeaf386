"""Sandboxes as people ask for them, and what goes over the wire."""

import pwd
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidParams
from holdfast.engine.sandbox.profile.builtin import named_profile
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.sandbox import (
    AnySandbox,
    ProfileContext,
    SandboxProfile,
    also_writing,
    as_profile,
    home_here,
    resolve_sandbox,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    FileEntry,
    GlobPath,
    ManagedProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialKind,
    SpecialPath,
    SpecialValue,
    UnrestrictedFiles,
)

FOLDER = PathUri.from_path("/srv/app")
CONTEXT = ProfileContext(folder=FOLDER, home=PathUri.from_path("/home/me"))
THERE = ProfileContext(folder=FOLDER, home=PathUri.from_path("/home/other"), here=False)


def rules(profile: SandboxProfile, context: ProfileContext = CONTEXT) -> tuple[FileEntry, ...]:
    permissions = profile.permissions(context)
    assert isinstance(permissions, ManagedProfile)
    assert isinstance(permissions.file_system, RestrictedFiles)
    return permissions.file_system.entries


def special(kind: SpecialKind, subpath: str | None = None) -> SpecialPath:
    return SpecialPath(value=SpecialValue(kind=kind, subpath=subpath))


@pytest.mark.parametrize("name", ["read-only", "workspace-write"])
def test_a_name_has_the_folder_of_the_environment_as_its_workspace(name: str) -> None:
    context = resolve_sandbox(name, CONTEXT)
    assert context is not None
    assert context.permissions == named_profile(name)
    assert (context.cwd, context.workspace_roots) == (FOLDER, (FOLDER,))


def test_what_isolates_nothing_asks_for_nothing() -> None:
    assert resolve_sandbox("disabled", CONTEXT) is None
    assert resolve_sandbox(DisabledProfile(), CONTEXT) is None


@pytest.mark.parametrize("name", ["", "readonly", "Read-Only", "full"])
def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(InvalidParams, match=r"expected one of `read-only`.*or the path of a"):
        resolve_sandbox(name, CONTEXT)


def test_what_is_on_the_wire_is_taken_as_it_is() -> None:
    permissions = ExternalProfile(network="enabled")
    context = resolve_sandbox(permissions, CONTEXT)
    assert context is not None
    assert context.permissions is permissions
    whole = SandboxContext(permissions=permissions, windows_sandbox_level="disabled")
    assert resolve_sandbox(whole, CONTEXT) is whole


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/opt/x", PlainPath(path=PathUri.from_path("/opt/x"))),
        (Path("/opt/x"), PlainPath(path=PathUri.from_path("/opt/x"))),
        (PathUri.parse("file:///C:/x"), PlainPath(path=PathUri.parse("file:///C:/x"))),
        ("vendor", special("project_roots", "vendor")),
        ("./a/../vendor/", special("project_roots", "vendor")),
        (".", special("project_roots")),
        (":root", special("root")),
        (":minimal", special("minimal")),
        (":project_roots/a/b", special("project_roots", "a/b")),
        ("~", PlainPath(path=PathUri.from_path("/home/me"))),
        ("~/.ssh", PlainPath(path=PathUri.from_path("/home/me/.ssh"))),
    ],
)
def test_a_path_of_a_rule_may_be_of_any_kind(path: str | Path | PathUri, expected: object) -> None:
    assert rules(SandboxProfile(read=[path])) == (FileEntry(path=expected, access="read"),)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["**/*.env", "/srv/**/*.pem", "key?"])
def test_a_path_with_a_wildcard_is_a_pattern(pattern: str) -> None:
    entry = FileEntry(path=GlobPath(pattern=pattern), access="deny")
    assert rules(SandboxProfile(deny=[pattern])) == (entry,)


def test_a_pattern_below_home_has_the_home_of_the_place() -> None:
    (entry,) = rules(SandboxProfile(deny=["~/*.pem"]), THERE)
    assert entry.path == GlobPath(pattern="/home/other/*.pem")


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        (SandboxProfile(read=["../x"]), "leads out of the directory"),
        (SandboxProfile(read=[".."]), "leads out of the directory"),
        (SandboxProfile(read=["a/../../x"]), "leads out of the directory"),
        (SandboxProfile(read=[""]), "is empty"),
        (SandboxProfile(read=[":nowhere"]), "unknown special path `:nowhere`"),
        (SandboxProfile(read=[":unknown"]), "unknown special path"),
        (SandboxProfile(read=["*.py"]), "only `deny` accepts patterns"),
        (SandboxProfile(write=["*.py"]), "only `deny` accepts patterns"),
        (SandboxProfile(deny="/etc"), "must be a list of paths"),
        (SandboxProfile("disabled", deny=["/etc"]), "a base that restricts something"),
        (SandboxProfile(ExternalProfile(network="enabled"), network=False), "a base that"),
        (
            SandboxProfile(
                ManagedProfile(file_system=UnrestrictedFiles(), network="restricted"), read=["/"]
            ),
            "a base that restricts files",
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(profile: SandboxProfile, text: str) -> None:
    with pytest.raises(InvalidParams, match=text):
        resolve_sandbox(profile, CONTEXT)


@pytest.mark.parametrize("home", [None, PathUri.parse("file:///C:/Users/me")])
def test_a_home_that_is_not_known_is_not_guessed(home: PathUri | None) -> None:
    with pytest.raises(InvalidParams, match="home directory there is unknown"):
        rules(SandboxProfile(deny=["~/.ssh"]), ProfileContext(folder=FOLDER, home=home))


@pytest.mark.parametrize("home", ["relative", None])
def test_a_machine_may_have_no_home(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    # A container whose user has no entry in the user database, and no variable.
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    assert home_here() is None


def test_rules_come_on_top_of_the_base() -> None:
    base = named_profile("workspace-write")
    assert isinstance(base, ManagedProfile)
    assert isinstance(base.file_system, RestrictedFiles)
    profile = SandboxProfile("workspace-write", read=["a"], write=["b"], deny=["c"])
    added = rules(profile)
    assert added[: len(base.file_system.entries)] == base.file_system.entries
    assert [entry.access for entry in added[len(base.file_system.entries) :]] == [
        "read",
        "write",
        "deny",
    ]


def test_a_limit_to_looking_for_patterns_is_kept() -> None:
    files = RestrictedFiles(entries=(), glob_scan_max_depth=3)
    base = ManagedProfile(file_system=files, network="restricted")
    permissions = SandboxProfile(base, read=["/"]).permissions(CONTEXT)
    assert isinstance(permissions, ManagedProfile)
    assert isinstance(permissions.file_system, RestrictedFiles)
    assert permissions.file_system.glob_scan_max_depth == 3


@pytest.mark.parametrize(
    ("network", "expected"), [(None, "restricted"), (True, "enabled"), (False, "restricted")]
)
def test_the_network_is_closed_unless_it_is_opened(network: bool | None, expected: str) -> None:
    for base in (None, "read-only"):
        permissions = SandboxProfile(base, network=network).permissions(CONTEXT)
        assert isinstance(permissions, ManagedProfile)
        assert permissions.network == expected


# -- files


def test_a_text_with_a_slash_or_the_right_ending_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ci.toml"
    path.write_text('[file_system]\nentries = [{ path = ":minimal", access = "read" }]\n')
    monkeypatch.chdir(tmp_path)
    named: AnySandbox
    for named in ("ci.toml", "./ci.toml", str(path), path):
        profile = as_profile(named)
        assert isinstance(profile, SandboxProfile)
        assert rules(profile) == (FileEntry(path=special("minimal"), access="read"),)


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "No such file"), ("[", "ci.toml`: "), ("color = 1", "unknown key `color`")],
)
def test_a_file_that_is_no_profile_is_named(tmp_path: Path, content: str | None, text: str) -> None:
    path = tmp_path / "ci.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidParams, match=text):
        as_profile(path)


def test_the_home_in_a_file_is_not_taken_for_that_of_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "ci.toml"
    path.write_text('[file_system]\nentries = [{ path = "~/.ssh", access = "deny" }]\n')
    assert resolve_sandbox(path, CONTEXT) is not None
    with pytest.raises(InvalidParams, match="home on this machine"):
        resolve_sandbox(path, THERE)
    path.write_text('[file_system]\nentries = [{ path = "/etc", access = "deny" }]\n')
    assert resolve_sandbox(path, THERE) is not None


# -- of an environment


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    environment = LocalEnvironment()
    environment.cwd = tmp_path
    return environment


async def test_an_environment_without_a_sandbox_confines_nothing(env: Environment) -> None:
    assert await env.sandbox_context() is None


async def test_a_command_may_have_another_sandbox_than_the_environment(
    env: Environment, tmp_path: Path
) -> None:
    env.sandbox = "read-only"
    context = await env.sandbox_context()
    assert context is not None
    assert context.workspace_roots == (PathUri.from_path(tmp_path),)
    assert await env.sandbox_context("disabled") is None
    other = await env.sandbox_context("workspace-write")
    assert other is not None
    assert other.permissions == named_profile("workspace-write")


@pytest.mark.requirement("sandbox.write-option")
def test_more_paths_can_be_written_only_in_a_sandbox() -> None:
    assert also_writing("read-only", None) == "read-only"
    assert also_writing(None, ()) is None
    made = also_writing("read-only", ["sub", "/srv/x"])
    assert isinstance(made, SandboxProfile)
    assert made.write == ("sub", "/srv/x")
    for sandbox in (None, "disabled"):
        with pytest.raises(InvalidParams, match="--sandbox-write needs a sandbox"):
            also_writing(sandbox, ["sub"])

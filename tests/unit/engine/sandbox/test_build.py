"""Meaning of entries on a disk."""

import msgspec
import pytest

from holdfast.base.errors import CannotEnforce, InvalidParams, InvalidPermissionPath
from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.policy.policy import PROTECTED_NAMES
from holdfast.engine.sandbox.profile.builtin import path_entry, project_entries, special_entry
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import (
    Access,
    DisabledProfile,
    ExternalProfile,
    FileEntry,
    ManagedProfile,
    PlainPath,
    PolicyContext,
    UnrestrictedFiles,
)
from tests.unit.engine.sandbox.trees import WS, FakeDisk, context, glob_entry, policy_for

ROOT = special_entry("root", "read")
PROJECT = special_entry("project_roots", "write")
MINIMAL = special_entry("minimal", "read")
EMPTY: dict[str, str | None] = {WS: None}


# -- which profile asks for what


def test_a_disabled_profile_asks_for_nothing() -> None:
    policy = resolve(
        msgspec.structs.replace(context(), permissions=DisabledProfile()), PolicyInputs(cwd=WS)
    )
    assert not policy.isolates
    assert policy.access("/etc/shadow") == "write"


@pytest.mark.requirement("sandbox.layers")
@pytest.mark.parametrize(
    "profile",
    [
        ExternalProfile(network="restricted"),
        ManagedProfile(file_system=UnrestrictedFiles(), network="restricted"),
    ],
)
def test_a_profile_for_the_network_alone_still_isolates(
    profile: ExternalProfile | ManagedProfile,
) -> None:
    policy = resolve(msgspec.structs.replace(context(), permissions=profile), PolicyInputs(cwd=WS))
    assert (policy.full_read, policy.full_write, policy.isolates) == (True, True, True)


@pytest.mark.requirement("sandbox.layers")
def test_writing_everywhere_with_network_needs_no_sandbox() -> None:
    everything = special_entry("root", "write")
    assert not policy_for(EMPTY, everything, network="enabled").isolates
    assert policy_for(EMPTY, everything).isolates
    assert policy_for(EMPTY, everything, PROJECT).full_write


@pytest.mark.parametrize(
    "narrowing",
    [path_entry(WS, "read"), path_entry("/none", "deny"), glob_entry(f"{WS}/*.env")],
)
def test_any_other_entry_narrows_a_writable_root(narrowing: FileEntry) -> None:
    policy = policy_for(EMPTY, special_entry("root", "write"), narrowing, network="enabled")
    assert not policy.full_write
    assert policy.isolates


@pytest.mark.requirement("sandbox.full-read")
def test_reads_are_full_without_any_denial() -> None:
    assert policy_for(EMPTY, ROOT).full_read
    assert policy_for(EMPTY, ROOT, PROJECT).full_read
    assert not policy_for(EMPTY, ROOT, path_entry("/none", "deny")).full_read
    assert not policy_for(EMPTY, ROOT, glob_entry(f"{WS}/*")).full_read
    assert not policy_for(EMPTY, path_entry(WS, "read")).full_read


# -- paths


@pytest.mark.requirement("sandbox.project-roots")
def test_project_roots_without_roots_vanish() -> None:
    disk = FakeDisk(EMPTY)
    policy = resolve(context(ROOT, PROJECT, roots=()), PolicyInputs(cwd=WS, disk=disk))
    assert policy.writable == ()
    assert policy.access(WS) == "read"


@pytest.mark.requirement("sandbox.project-roots")
def test_each_root_gets_the_entry_and_a_part_of_it_too() -> None:
    disk = FakeDisk({f"{WS}/in": None, "/srv/other/in": None})
    part = special_entry("current_working_directory", "write", subpath="in")
    policy = resolve(context(ROOT, part, roots=(WS, "/srv/other")), PolicyInputs(cwd=WS, disk=disk))
    assert policy.writable == ("/srv/other/in", f"{WS}/in")


@pytest.mark.parametrize("way_out", ["/srv/other", "../other", "in/../../other"])
def test_what_leads_out_of_a_root_grants_nothing_and_is_not_left_unprotected(way_out: str) -> None:
    disk = {WS: None, "/srv/other": None}
    part = special_entry("project_roots", "write", subpath=way_out)
    assert policy_for(disk, ROOT, part).writable == ()
    for access in ("read", "deny"):
        with pytest.raises(CannotEnforce, match="it is not a path below a project root"):
            policy_for(disk, ROOT, special_entry("project_roots", access, subpath=way_out))


@pytest.mark.parametrize("spelled", ["./in", "in/.", "."])
def test_dots_in_a_part_of_a_root_grant_nothing_and_hide_all_the_same(spelled: str) -> None:
    disk = {f"{WS}/in/file": "x"}
    part = special_entry("project_roots", "write", subpath=spelled)
    assert policy_for(disk, ROOT, part).writable == ()
    part = special_entry("project_roots", "deny", subpath=spelled)
    assert policy_for(disk, ROOT, part).access(f"{WS}/in/file") == "deny"


def test_a_policy_context_takes_the_place_of_directory_and_roots() -> None:
    disk = FakeDisk({f"{WS}/a.env": "x", "/srv/other/a.env": "x"})
    other = PathUri.from_path("/srv/other")
    newer = PolicyContext(cwd=other, workspace_roots=(other,))
    policy = resolve(
        context(ROOT, PROJECT, glob_entry("*.env"), policy_context=newer),
        PolicyInputs(cwd=WS, disk=disk),
    )
    assert policy.writable == ("/srv/other",)
    assert policy.denied == ("/srv/other/a.env",)
    without = resolve(
        context(ROOT, PROJECT, policy_context=PolicyContext(cwd=other)),
        PolicyInputs(cwd=WS, disk=disk),
    )
    assert without.writable == ()


def test_unknown_places_are_ignored() -> None:
    unknown = msgspec.convert(
        {
            "path": {"type": "special", "value": {"kind": "unknown", "path": ":new"}},
            "access": "write",
        },
        FileEntry,
    )
    assert policy_for(EMPTY, ROOT, unknown).writable == ()


@pytest.mark.requirement("sandbox.minimal")
def test_minimal_means_the_directories_of_the_system_that_are_there() -> None:
    disk = {"/usr/bin/sh": "x", "/bin": "->usr/bin", "/etc": None, "/home/me": None, WS: None}
    policy = policy_for(disk, special_entry("minimal", "read"))
    assert policy.minimal
    assert policy.readable == ("/etc", "/usr", "/usr/bin")
    assert policy.links == (("/bin", "usr/bin"),)
    assert policy.standing("/home/me") == "hidden"
    assert not policy_for(disk, ROOT, special_entry("minimal", "deny")).minimal


@pytest.mark.requirement("sandbox.slash-tmp")
def test_slash_tmp_is_a_directory_or_nothing() -> None:
    entry = special_entry("slash_tmp", "write")
    assert policy_for({"/tmp": None}, ROOT, entry).writable == ("/tmp",)
    assert policy_for(EMPTY, ROOT, entry).writable == ()


# -- TMPDIR


TMPDIR = special_entry("tmpdir", "write")


@pytest.mark.requirement("sandbox.tmpdir")
@pytest.mark.parametrize("value", [None, "", "relative", "/none"])
def test_a_tmpdir_that_is_not_there_is_ignored(value: str | None) -> None:
    facts = PolicyInputs(cwd=WS, tmpdir=value, disk=FakeDisk(EMPTY))
    assert resolve(context(ROOT, TMPDIR), facts).writable == ()


@pytest.mark.requirement("sandbox.tmpdir", "security.sandbox.tmpdir")
def test_a_tmpdir_must_not_hand_out_what_no_entry_names() -> None:
    disk = FakeDisk({WS: None, "/home/me/tmp": None, "/link": "->/srv"})

    def writable(value: str) -> tuple[str, ...]:
        facts = PolicyInputs(
            cwd=WS, tmpdir=value, own_tmpdir="/home/me/tmp", home="/home/me", disk=disk
        )
        return resolve(context(ROOT, TMPDIR), facts).writable

    assert writable("/home/me/tmp") == ("/home/me/tmp",)
    nobody = PolicyInputs(cwd=WS, tmpdir="/", disk=disk)
    with pytest.raises(InvalidParams, match="cannot make `/` writable"):
        resolve(context(ROOT, TMPDIR, roots=()), nobody)
    for wide in ("/", "/home", "/home/me", "/srv", "/link", "/home/me/tmp/.."):
        with pytest.raises(InvalidParams, match="TMPDIR has to be a separate directory"):
            writable(wide)


def test_a_wide_tmpdir_does_no_harm_where_it_adds_nothing() -> None:
    facts = PolicyInputs(cwd=WS, tmpdir="/", disk=FakeDisk(EMPTY))
    assert resolve(context(ROOT), facts).access("/x") == "read"
    reading = special_entry("tmpdir", "read")
    assert resolve(context(ROOT, reading), facts).access("/x") == "read"
    with pytest.raises(InvalidParams, match="cannot make `/` readable"):
        resolve(context(reading), facts)


@pytest.mark.requirement("sandbox.tmpdir", "security.sandbox.tmpdir")
def test_a_tmpdir_is_where_temporary_files_are_or_in_a_workspace() -> None:
    disk = FakeDisk(
        {
            f"{WS}/tmp": None,
            "/tmp/mine": None,
            "/var/tmp/mine": None,
            "/scratch/mine": None,
            "/usr/lib": None,
            "/tmp/link": "->/usr/lib",
        }
    )

    def writable(value: str, own: str | None = None) -> tuple[str, ...]:
        facts = PolicyInputs(cwd=WS, tmpdir=value, own_tmpdir=own, disk=disk)
        return resolve(context(ROOT, TMPDIR), facts).writable

    for near in (f"{WS}/tmp", "/tmp", "/tmp/mine", "/var/tmp/mine"):
        assert writable(near) == (near,)
    assert writable("/scratch/mine", own="/scratch") == ("/scratch/mine",)
    for far, own in [
        ("/usr/lib", None),
        ("/scratch/mine", None),
        ("/tmp/link", None),
        ("/tmp/../usr", None),
        ("/usr/lib", "/"),
        ("/usr/lib", "/scratch"),
    ]:
        with pytest.raises(InvalidParams, match="TMPDIR has to be in the server's own"):
            writable(far, own)


@pytest.mark.requirement("sandbox.tmpdir", "security.sandbox.tmpdir")
def test_a_tmpdir_opens_nothing_that_the_profile_keeps() -> None:
    disk = FakeDisk(
        {f"{WS}/.git/hooks": None, f"{WS}/law/book": None, f"{WS}/secrets/key": None, "/tmp": None}
    )
    kept = (
        PROJECT,
        path_entry(f"{WS}/law", "read"),
        path_entry(f"{WS}/secrets", "deny"),
    )

    for path in ("/.git", "/.git/hooks", "/law", "/law/book", "/secrets", "/secrets/key"):
        facts = PolicyInputs(cwd=WS, tmpdir=WS + path, disk=disk)
        with pytest.raises(InvalidParams, match="in what the profile protects or denies"):
            resolve(context(ROOT, *kept, TMPDIR), facts)
    # An entry that opens it up by name does so for everything in it.
    opened = (PROJECT, path_entry(f"{WS}/.git", "write"))
    facts = PolicyInputs(cwd=WS, tmpdir=f"{WS}/.git/hooks", disk=disk)
    assert f"{WS}/.git/hooks" in resolve(context(ROOT, *opened, TMPDIR), facts).writable


# -- URIs of other systems


@pytest.mark.requirement("sandbox.context.foreign")
def test_paths_of_another_system_are_refused() -> None:
    foreign = PathUri.parse("file:///C:/x")
    entry = FileEntry(path=PlainPath(path=PathUri.parse("file://server/share")), access="read")
    facts = PolicyInputs(cwd=WS, disk=FakeDisk(EMPTY))
    with pytest.raises(InvalidPermissionPath) as caught:
        resolve(context(entry), facts)
    assert str(caught.value) == (
        "invalid sandbox permission path URI: 'file://server/share' is invalid on 'linux'"
    )
    with pytest.raises(InvalidParams) as bad_cwd:
        resolve(msgspec.structs.replace(context(ROOT), cwd=foreign), facts)
    assert str(bad_cwd.value) == (
        "sandbox cwd URI `file:///C:/x` is not valid on this exec-server host: "
        "'file:///C:/x' is invalid on 'linux'"
    )
    with pytest.raises(InvalidParams, match=r"^sandbox workspace root URI `file:///C:/x` is not"):
        resolve(msgspec.structs.replace(context(ROOT), workspace_roots=(foreign,)), facts)


@pytest.mark.requirement("sandbox.context.needs-cwd")
@pytest.mark.parametrize("entry", [PROJECT, glob_entry("*.env")])
def test_an_operation_on_files_needs_a_directory_for_what_depends_on_it(entry: FileEntry) -> None:
    facts = PolicyInputs(cwd=None, disk=FakeDisk(EMPTY))
    with pytest.raises(InvalidParams) as caught:
        resolve(context(ROOT, entry, cwd=None), facts)
    assert str(caught.value) == "file system sandbox context with dynamic permissions requires cwd"
    assert resolve(context(ROOT, cwd=None), facts).full_read


@pytest.mark.requirement("sandbox.context.foreign")
def test_an_operation_on_files_is_told_of_other_systems_in_its_own_words() -> None:
    facts = PolicyInputs(cwd=None, disk=FakeDisk(EMPTY))
    foreign = PathUri.parse("file:///C:/x")
    for entry in (ROOT, PROJECT, glob_entry("*.env")):
        with pytest.raises(InvalidPermissionPath, match=r"^'file:///C:/x' is invalid on 'linux'$"):
            resolve(msgspec.structs.replace(context(entry), cwd=foreign), facts)
        with pytest.raises(InvalidPermissionPath, match=r"^file system sandbox workspace root is"):
            resolve(msgspec.structs.replace(context(entry), workspace_roots=(foreign,)), facts)


@pytest.mark.requirement("sandbox.context.foreign")
def test_a_command_is_told_of_other_systems_even_if_nothing_depends_on_it() -> None:
    foreign = (PathUri.parse("file:///C:/x"),)
    free = ExternalProfile(network="restricted")
    asked = msgspec.structs.replace(context(ROOT), permissions=free, workspace_roots=foreign)
    with pytest.raises(InvalidParams, match=r"^sandbox workspace root URI `file:///C:/x` is not"):
        resolve(asked, PolicyInputs(cwd=WS))
    assert resolve(asked, PolicyInputs(cwd=None)).full_write
    # The entries come first.
    entry = FileEntry(path=PlainPath(path=foreign[0]), access="read")
    with pytest.raises(InvalidPermissionPath, match=r"^invalid sandbox permission path URI"):
        resolve(
            msgspec.structs.replace(context(entry), workspace_roots=foreign), PolicyInputs(cwd=WS)
        )


@pytest.mark.parametrize("access", ["read", "write", "deny"])
def test_a_path_that_no_system_call_takes_is_refused(access: Access) -> None:
    """Each of its parts would be looked at: with half a million of them, for minutes."""
    longest = PathUri.from_path("/" + "x" * 4094)
    path = PathUri.from_path("/x" * 500_000)
    facts = PolicyInputs(cwd=WS, disk=FakeDisk(EMPTY))
    resolve(context(ROOT, FileEntry(path=PlainPath(path=longest), access=access)), facts)
    entry = FileEntry(path=PlainPath(path=path), access=access)
    with pytest.raises(CannotEnforce, match=r"1,000,000 bytes are more than the 4,095 of a path"):
        resolve(context(ROOT, entry), facts)
    of_tmpdir = context(ROOT, special_entry("tmpdir", access))
    long_tmpdir = PolicyInputs(cwd=WS, tmpdir=path.native, disk=FakeDisk(EMPTY))
    with pytest.raises(CannotEnforce, match=r"more than the 4,095 of a path"):
        resolve(of_tmpdir, long_tmpdir)


@pytest.mark.parametrize("access", ["read", "write", "deny"])
def test_a_path_with_a_nul_is_refused(access: Access) -> None:
    entry = FileEntry(path=PlainPath(path=PathUri.from_path("/a\0b")), access=access)
    with pytest.raises(CannotEnforce, match=r"for '/a\\x00b': there is a NUL in that path"):
        resolve(context(ROOT, entry), PolicyInputs(cwd=WS, disk=FakeDisk(EMPTY)))


def test_a_denied_root_directory_hides_what_no_other_entry_covers() -> None:
    policy = policy_for({WS: None}, ROOT, special_entry("root", "deny"), PROJECT)
    assert policy.standing("/etc") == "hidden"
    assert policy.access(WS) == "write"


# -- protected names


@pytest.mark.requirement("sandbox.protected")
def test_protected_names_of_every_writable_root_are_read_only() -> None:
    policy = policy_for(
        {f"{WS}/.git/config": "x", "/tmp": None}, ROOT, PROJECT, path_entry("/tmp", "write")
    )
    for root in (WS, "/tmp"):
        for name in PROTECTED_NAMES:
            assert policy.access(f"{root}/{name}/inside") == "read"
    assert policy.access(f"{WS}/sub/.git") == "write"  # nested ones are not protected


def test_a_single_file_can_be_made_writable() -> None:
    policy = policy_for(
        {f"{WS}/file": "x", f"{WS}/other": "x"}, ROOT, path_entry(f"{WS}/file", "write")
    )
    assert (policy.access(f"{WS}/file"), policy.access(f"{WS}/other")) == ("write", "read")
    assert policy.protected == ()
    inside = (path_entry(f"{WS}/file", "write"), path_entry(f"{WS}/file/x", "deny"))
    assert set(policy_for({f"{WS}/file": "x"}, ROOT, *inside).rules) == {"/", f"{WS}/file"}


@pytest.mark.requirement("sandbox.protected.lifted")
def test_an_entry_to_write_lifts_the_protection_at_its_path_only() -> None:
    git = {f"{WS}/.git/hooks": None, f"{WS}/.git/config": "x"}
    whole = policy_for(git, ROOT, PROJECT, path_entry(f"{WS}/.git", "write"))
    assert whole.access(f"{WS}/.git/index.lock") == "write"
    assert whole.access(f"{WS}/.git/.git") == "write"
    assert whole.access(f"{WS}/.aws") == "read"
    part = policy_for(git, ROOT, PROJECT, path_entry(f"{WS}/.git/hooks", "write"))
    assert part.access(f"{WS}/.git/config") == "read"
    assert part.access(f"{WS}/.git/hooks/pre-commit") == "write"
    for named in ((), project_entries()):
        entries = (*named, path_entry(f"{WS}/.git", "write"), *named)
        missing = policy_for(EMPTY, ROOT, PROJECT, *entries)
        assert missing.access(f"{WS}/.git") == "write"
        assert missing.access(f"{WS}/.codex") == "read"


@pytest.mark.requirement("sandbox.protected.in-git")
def test_what_steers_git_stays_read_only_in_a_writable_repository() -> None:
    git = {f"{WS}/.git/hooks": None, f"{WS}/.git/config": "x", f"{WS}/.git/modules/a/config": "x"}
    whole = policy_for(git, ROOT, PROJECT, path_entry(f"{WS}/.git", "write"))
    for name in ("hooks/pre-commit", "config", "modules/a/config"):
        assert whole.access(f"{WS}/.git/{name}") == "read"
    # A missing one is not covered: git takes an empty `commondir` for an error.
    assert whole.access(f"{WS}/.git/commondir") == "write"
    assert f"{WS}/.git/commondir" not in whole.rules
    named = (path_entry(f"{WS}/.git", "write"), path_entry(f"{WS}/.git/hooks", "write"))
    assert policy_for(git, ROOT, PROJECT, *named).access(f"{WS}/.git/hooks/x") == "write"
    # The directory of a linked worktree, whose repository is elsewhere.
    private = "/repo/.git/worktrees/agent"
    linked = {f"{private}/commondir": "../..", f"{private}/gitdir": "x", f"{private}/HEAD": "x"}
    part = policy_for(linked, ROOT, path_entry(private, "write"))
    assert part.access(f"{private}/commondir") == part.access(f"{private}/gitdir") == "read"
    assert part.access(f"{private}/HEAD") == "write"


@pytest.mark.requirement("sandbox.protected.gitdir")
@pytest.mark.parametrize(
    "said", [f"gitdir: {WS}/store/git\n", "gitdir: store/git", "\n gitdir:store/git \n"]
)
@pytest.mark.parametrize("more", [(), project_entries()], ids=["alone", "named"])
def test_a_git_file_protects_what_it_points_to(said: str, more: tuple[FileEntry, ...]) -> None:
    policy = policy_for({f"{WS}/store/git/config": "x", f"{WS}/.git": said}, ROOT, PROJECT, *more)
    assert policy.access(f"{WS}/.git") == "read"
    assert policy.access(f"{WS}/store/git/config") == "read"
    assert policy.access(f"{WS}/store/other") == "write"
    assert policy.keeps_name(f"{WS}/store")


@pytest.mark.requirement("sandbox.protected.gitdir")
@pytest.mark.parametrize(("said", "covered"), [("gone", "gone"), ("gone/git", "gone")])
def test_what_a_git_file_points_to_is_not_made_either(said: str, covered: str) -> None:
    policy = policy_for({WS: None, f"{WS}/.git": f"gitdir: {said}"}, ROOT, PROJECT)
    assert policy.access(f"{WS}/{said}/config") == "read"
    assert policy.rules[f"{WS}/{covered}"].kind is None
    assert policy.keeps_name(f"{WS}/{covered}")
    # Another command may have had it made, to mount on, and is about to remove it.
    made = {WS: None, f"{WS}/.git": f"gitdir: {said}", f"{WS}/{covered}": ""}
    assert policy_for(made, ROOT, PROJECT).rules[f"{WS}/{covered}"].empty


@pytest.mark.parametrize("said", ["gitdir: /elsewhere", "something else", ""])
def test_a_git_file_that_points_out_of_writable_places_protects_only_itself(said: str) -> None:
    policy = policy_for({WS: None, "/elsewhere": None, f"{WS}/.git": said}, ROOT, PROJECT)
    assert policy.protected == tuple(sorted(f"{WS}/{name}" for name in PROTECTED_NAMES))


def test_nothing_is_made_directly_in_the_root_directory() -> None:
    policy = policy_for(EMPTY, special_entry("root", "write"), path_entry(WS, "deny"))
    assert policy.protected == ()
    there = policy_for(
        {"/.git/config": "x", WS: None}, special_entry("root", "write"), path_entry(WS, "deny")
    )
    assert there.protected == ("/.git",)


def test_what_this_user_cannot_make_need_not_be_kept_missing() -> None:
    disk = FakeDisk({WS: None, "/opt": None})
    disk.closed.add("/opt")
    opt = (path_entry("/opt", "write"), path_entry("/opt/none", "deny"))
    policy = policy_for(disk, ROOT, PROJECT, *opt)
    assert [path for path in policy.rules if path.startswith("/opt/")] == []


# -- missing paths


@pytest.mark.requirement("sandbox.missing")
def test_a_missing_path_to_write_is_dropped() -> None:
    assert policy_for(EMPTY, ROOT, path_entry("/srv/none", "write")).writable == ()


@pytest.mark.requirement("sandbox.missing")
@pytest.mark.parametrize("access", ["read", "deny"])
def test_what_is_missing_in_a_writable_place_stays_missing(access: str) -> None:
    entry = path_entry(f"{WS}/a/b/c", "read" if access == "read" else "deny")
    policy = policy_for({f"{WS}/a": None}, ROOT, PROJECT, entry)
    cover = policy.rules[f"{WS}/a/b"]
    assert (cover.access, cover.kind, cover.why) == ("read", None, "cover")
    assert policy.rules[f"{WS}/a"].why == "pin"
    elsewhere = policy_for({WS: None}, ROOT, path_entry("/none/x", "deny"))
    assert "/none" not in elsewhere.rules


def test_a_file_in_the_way_of_a_missing_path_becomes_read_only() -> None:
    policy = policy_for({f"{WS}/file": "x"}, ROOT, PROJECT, path_entry(f"{WS}/file/in", "deny"))
    assert (policy.rules[f"{WS}/file"].access, policy.rules[f"{WS}/file"].kind) == ("read", "file")


def test_what_is_empty_may_belong_to_another_command() -> None:
    policy = policy_for(
        {f"{WS}/.git": None, f"{WS}/f": ""}, ROOT, PROJECT, path_entry(f"{WS}/f", "read")
    )
    assert policy.rules[f"{WS}/.git"].empty
    assert policy.rules[f"{WS}/f"].empty
    assert not policy_for({f"{WS}/.git/x": "x"}, ROOT, PROJECT).rules[f"{WS}/.git"].empty


# -- links


@pytest.mark.requirement("sandbox.links")
def test_a_writable_root_is_where_its_links_lead() -> None:
    disk = {"/data/ws/.git/config": "x", "/srv/ws": "->../data/ws"}
    policy = policy_for(disk, ROOT, PROJECT)
    assert policy.writable == ("/data/ws",)
    assert policy.access("/data/ws/.git") == "read"


@pytest.mark.requirement("sandbox.links.refused")
@pytest.mark.parametrize(
    ("access", "words"), [("read", "read-only"), ("deny", "deny-read")], ids=["read", "deny"]
)
@pytest.mark.parametrize("said", ["real", f"{WS}/real", "none", "link"])
def test_a_rule_through_a_link_that_the_command_may_change_is_refused(
    access: str, words: str, said: str
) -> None:
    disk = {f"{WS}/real/x": "x", f"{WS}/link": f"->{said}"}
    entry = path_entry(f"{WS}/link/x", "read" if access == "read" else "deny")
    with pytest.raises(CannotEnforce) as caught:
        policy_for(disk, ROOT, PROJECT, entry)
    assert str(caught.value) == (
        f"cannot enforce sandbox {words} path {WS}/link/x "
        f"because it crosses writable symlink {WS}/link"
    )


@pytest.mark.requirement("sandbox.links.refused")
@pytest.mark.parametrize("name", PROTECTED_NAMES)
def test_a_protected_name_that_is_a_link_is_refused(name: str) -> None:
    with pytest.raises(CannotEnforce, match=rf"read-only path {WS}/\{name} because it crosses"):
        policy_for({f"{WS}/real": None, f"{WS}/{name}": "->real"}, ROOT, PROJECT)


def test_a_link_may_not_lead_writing_out_of_where_it_can_be_changed() -> None:
    disk = {f"{WS}/real": None, f"{WS}/in": "->real", f"{WS}/out": "->/etc", "/etc": None}
    inside = policy_for(disk, ROOT, PROJECT, path_entry(f"{WS}/in", "write"))
    assert inside.access(f"{WS}/real") == "write"
    with pytest.raises(CannotEnforce, match=f"writable path {WS}/out because it crosses"):
        policy_for(disk, ROOT, PROJECT, path_entry(f"{WS}/out", "write"))


@pytest.mark.requirement("sandbox.links")
def test_a_denied_link_elsewhere_denies_what_it_leads_to() -> None:
    disk = {
        "/data/key": "x",
        "/data/link": "->key",
        "/way": "->data",
        "/far": "->/data/key",
        WS: None,
    }
    assert policy_for(disk, ROOT, path_entry("/data/link", "deny")).denied == ("/data/key",)
    assert policy_for(disk, ROOT, path_entry("/way/key", "deny")).denied == ("/data/key",)
    with pytest.raises(CannotEnforce, match="it is an absolute symlink: deny /data/key instead"):
        policy_for(disk, ROOT, path_entry("/far", "deny"))


# -- patterns


@pytest.mark.requirement("sandbox.globs")
def test_matches_are_denied_even_in_a_writable_directory_of_their_own() -> None:
    disk = {f"{WS}/a.env": "x", f"{WS}/n/b.env": "x", f"{WS}/n/c": "x"}
    policy = policy_for(disk, ROOT, path_entry(f"{WS}/n", "write"), glob_entry(f"{WS}/**/*.env"))
    assert policy.denied == (f"{WS}/a.env", f"{WS}/n/b.env")
    assert policy.access(f"{WS}/n/c") == "write"


@pytest.mark.requirement("sandbox.globs")
@pytest.mark.parametrize("access", ["read", "write"])
def test_a_match_is_denied_though_an_entry_names_the_file(access: Access) -> None:
    entries = (path_entry("/out/a.env", access), path_entry("/out/key", access))
    disk = {"/out/a.env": "x", "/out/key": "x", "/out/b": "x", "/out/c.env": "->key"}
    policy = policy_for(disk, PROJECT, *entries, glob_entry("/out/*.env"))
    assert policy.denied == ("/out/a.env", "/out/key")


@pytest.mark.requirement("sandbox.globs")
def test_patterns_start_from_the_policy_s_directory_or_from_each_root() -> None:
    disk = {f"{WS}/a.env": "x", f"{WS}/n/b.env": "x"}
    assert policy_for(disk, ROOT, glob_entry("*.env")).denied == (f"{WS}/a.env",)
    rooted = glob_entry("codex-project-roots://n/*.env")
    assert policy_for(disk, ROOT, rooted).denied == (f"{WS}/n/b.env",)


def test_patterns_to_read_or_write_mean_nothing() -> None:
    entry = msgspec.structs.replace(glob_entry(f"{WS}/*"), access="write")
    assert policy_for({f"{WS}/a": "x"}, ROOT, entry).access(f"{WS}/a") == "read"


def test_a_pattern_denies_where_its_directory_really_is() -> None:
    disk = FakeDisk({"/data/[ws]/a.env": "x", "/srv/link": "->/data/[ws]", WS: None})
    policy = policy_for(disk, ROOT, glob_entry("/srv/link/*.env"))
    assert policy.denied == ("/data/[ws]/a.env",)
    assert policy.access("/data/[ws]/later.env") == "deny"
    assert policy.access("/data/[ws]/later") == "read"
    assert policy.access("/data/w/later.env") == "read"
    with pytest.raises(CannotEnforce, match="crosses writable symlink /srv/link"):
        policy_for(disk, ROOT, path_entry("/srv", "write"), glob_entry("/srv/link/*.env"))
    with pytest.raises(CannotEnforce, match="use a pattern with a non-root directory prefix"):
        policy_for({"/srv/root": "->/"}, ROOT, glob_entry("/srv/root/*.env"))


@pytest.mark.parametrize(
    "spelled", ["/srv//ws/*.env", "/srv/./ws/*.env", "/srv/x/../ws/*.env", "/srv/ws/*.env/"]
)
def test_a_pattern_means_the_same_however_it_is_spelled(spelled: str) -> None:
    policy = policy_for({f"{WS}/a.env": "x"}, ROOT, glob_entry(spelled))
    assert policy.denied == (f"{WS}/a.env",)
    assert policy.access(f"{WS}/later.env") == "deny"


@pytest.mark.requirement("sandbox.globs.link-target")
@pytest.mark.parametrize("entries", [(ROOT,), (ROOT, PROJECT)], ids=["read-only", "writable"])
def test_a_match_that_is_a_link_denies_what_it_leads_to(entries: tuple[FileEntry, ...]) -> None:
    disk = {
        f"{WS}/a.env": "->/out/key",
        f"{WS}/b.env": "->in",
        f"{WS}/c.env": "->a.env",
        f"{WS}/d.env": "->none",
        f"{WS}/in": "x",
        "/out/key": "x",
    }
    policy = policy_for(disk, *entries, glob_entry(f"{WS}/*.env"))
    assert policy.denied == ("/out/key", f"{WS}/in")


@pytest.mark.requirement("sandbox.globs.link-target")
def test_a_matching_link_does_not_show_whether_a_hidden_file_exists() -> None:
    disk = {
        f"{WS}/a.env": "->/home/user/key",
        f"{WS}/b.env": "->secret/key",
        f"{WS}/secret/key": "x",
        "/home/user/key": "x",
    }
    hidden = path_entry(f"{WS}/secret", "deny")
    policy = policy_for(disk, PROJECT, hidden, glob_entry(f"{WS}/*.env"))
    assert policy.denied == (f"{WS}/secret",)


@pytest.mark.requirement("sandbox.globs.link-target")
def test_a_matching_link_to_a_system_file_is_denied_where_those_can_be_read() -> None:
    disk = {f"{WS}/a.env": "->/etc/key", "/etc/key": "x"}
    policy = policy_for(disk, MINIMAL, PROJECT, glob_entry(f"{WS}/*.env"))
    assert policy.denied == ("/etc/key",)


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/environ"])
def test_a_matching_link_to_what_each_sandbox_has_for_itself_denies_nothing(path: str) -> None:
    disk = {f"{WS}/a.env": f"->{path}", path: "x"}
    assert policy_for(disk, ROOT, PROJECT, glob_entry(f"{WS}/*.env")).denied == ()


def test_a_matching_link_that_leads_to_a_directory_by_then_denies_nothing() -> None:
    class Changing(FakeDisk):
        def leads_to_file(self, path: str) -> bool:
            return True

    disk = Changing({f"{WS}/a.env": "->/", f"{WS}/b.env": "->.", f"{WS}/c": "x"})
    policy = policy_for(disk, ROOT, PROJECT, glob_entry(f"{WS}/*.env"))
    assert policy.denied == ()
    assert policy.access(f"{WS}/c") == "write"


@pytest.mark.requirement("security.sandbox.set-group-id")
def test_writable_directories_of_a_group_are_found() -> None:
    disk = FakeDisk({f"{WS}/inside": None, "/read": None, "/other": None})
    disk.of_group = {WS, f"{WS}/inside", "/read"}
    policy = policy_for(disk, ROOT, PROJECT, path_entry("/other", "write"))
    assert policy.group_directories == (WS,)
    assert policy_for(FakeDisk({WS: None}), ROOT, PROJECT).group_directories == ()


# -- sockets


@pytest.mark.requirement("security.sandbox.engines")
def test_sockets_of_engines_are_hidden_once_anyone_can_connect() -> None:
    disk = {"/run/docker.sock": "x", "/var/run": "->/run", WS: None}
    assert policy_for(disk, ROOT, network="enabled").denied == ("/run/docker.sock",)
    assert policy_for(disk, ROOT).denied == ()
    asked = path_entry("/var/run/docker.sock", "write")
    assert policy_for(disk, ROOT, asked, network="enabled").denied == ()


@pytest.mark.requirement("security.sandbox.engines")
@pytest.mark.parametrize("uid", [0, 1000])
def test_sockets_that_type_into_terminals_and_those_of_root_are_hidden(uid: int) -> None:
    terminals = {f"/tmp/tmux-{uid}", "/run/screen", "/run/systemd/private"}
    bus = "/run/dbus/system_bus_socket"
    disk = FakeDisk({WS: None, bus: "x", **{f"{path}/x": "x" for path in terminals}})
    facts = PolicyInputs(cwd=WS, uid=uid, disk=disk)
    found = resolve(context(ROOT, network="enabled"), facts)
    # Others than root ask the bus for what they may do.
    assert set(found.denied) == terminals | ({bus} if uid == 0 else set())
    assert resolve(context(ROOT), facts).denied == ()


@pytest.mark.requirement("security.sandbox.engines")
@pytest.mark.parametrize("name", ["tmux", "codex-daemon"])
def test_a_link_in_place_of_such_a_directory_denies_nothing_else(name: str) -> None:
    """A command may have made it, to take its programs from the next one."""
    disk = {"/usr/bin/true": "x", f"/tmp/{name}-0": "->/usr", WS: None}
    assert policy_for(disk, ROOT, network="enabled").denied == ()


# -- again


def test_a_policy_is_made_again_once_the_disk_has_changed() -> None:
    disk = FakeDisk({f"{WS}/.git": "gitdir: store", f"{WS}/store/x": "x"})
    facts = PolicyInputs(cwd=WS, disk=disk)
    first = resolve(context(ROOT, PROJECT), facts)
    assert resolve(context(ROOT, PROJECT), facts) is first
    disk.files[f"{WS}/.git"] = "gitdir: elsewhere"
    second = resolve(context(ROOT, PROJECT), facts)
    assert first.access(f"{WS}/store") == "read"
    assert second.access(f"{WS}/store") == "write"
    disk.files[f"{WS}/.aws"] = "->store"
    with pytest.raises(CannotEnforce):
        resolve(context(ROOT, PROJECT), facts)


# -- how much a profile may name


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([path_entry(f"{WS}/{n}", "deny") for n in range(1023)], "1,025 entries: 1,024"),
        (
            [glob_entry(f"{WS}/{'*a' * 50}{n}") for n in range(21)],
            "1,050 wildcards: 1,024",
        ),
    ],
    ids=["entries", "wildcards"],
)
def test_a_profile_that_names_too_much_is_refused(entries: list[FileEntry], said: str) -> None:
    with pytest.raises(InvalidParams, match=f"the sandbox profile has {said} are the most"):
        policy_for(EMPTY, ROOT, PROJECT, *entries)


def test_the_places_of_each_root_are_counted() -> None:
    roots = tuple(PathUri.from_path(f"/w{number}") for number in range(200))
    asked = msgspec.structs.replace(context(ROOT, *[PROJECT] * 6), workspace_roots=roots)
    with pytest.raises(InvalidParams, match="1,201 paths in its workspace roots: 1,024 are"):
        resolve(asked, PolicyInputs(cwd=WS, disk=FakeDisk({})))


def test_as_many_entries_as_there_may_be_take_no_time_to_plan() -> None:
    """Each denied directory was compared with each other rule."""
    files: dict[str, str | None] = {f"{WS}/{number}": None for number in range(1000)}
    policy = policy_for(files, ROOT, *(path_entry(path, "deny") for path in files))
    assert not any(policy.opens(path) for path in files)
    assert policy.opens("/") is (policy.rules["/"].kind is None)


# -- the rules of a project


@pytest.mark.requirement("security.sandbox.project-rules")
@pytest.mark.parametrize(
    ("there", "access"),
    [({f"{WS}/.holdfast/rules/a.rules": "x"}, "read"), ({}, "write"), ({".": None}, "write")],
    ids=["there", "missing", "elsewhere"],
)
def test_rules_of_a_project_stay_as_they_are(there: dict[str, str | None], access: str) -> None:
    policy = policy_for({WS: None, **there}, ROOT, PROJECT)
    assert policy.access(f"{WS}/.holdfast/rules/a.rules") == access


def test_a_link_in_the_place_of_the_rules_keeps_no_command_from_starting() -> None:
    """A command may have made it, where there were none."""
    policy = policy_for({WS: None, f"{WS}/.holdfast": "->/etc"}, ROOT, PROJECT)
    assert f"{WS}/.holdfast" not in policy.rules

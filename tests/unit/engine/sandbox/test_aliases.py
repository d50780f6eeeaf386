"""Policies on machines that show files at several paths."""

import pytest

from holdfast.base.errors import CannotEnforce
from holdfast.base.local_servers import Reachable
from holdfast.engine.linux.mounts import MountTable, parse_mounts
from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.policy.own_paths import OwnPath
from holdfast.engine.sandbox.policy.policy import Policy
from holdfast.engine.sandbox.profile.builtin import path_entry, special_entry
from holdfast.wire.protocol.sandbox import FileEntry, Network
from tests.unit.engine.sandbox.trees import WS, FakeDisk, context, glob_entry

pytestmark = pytest.mark.requirement("security.aliases")

ROOT = special_entry("root", "read")
PROJECT = special_entry("project_roots", "write")
EVERYTHING = special_entry("root", "write")

FILES: dict[str, str | None] = {
    "/opt/venv/lib/x": "x",
    "/home/me/secret/key": "x",
    f"{WS}/opt/venv/lib/x": "x",
    f"{WS}/secret/key": "x",
    f"{WS}/lib/x": "x",
}


def mounts(*lines: str) -> MountTable:
    """Return the mounts of a machine with one disk; `directory point` is mounted on the former."""
    rows = "".join(
        f"{number} {number - 1} 8:1 {line} rw - ext4 /dev/a rw\n"
        for number, line in enumerate(("/ /", *lines), 20)
    )
    return MountTable(parse_mounts(rows))


def policy(
    table: MountTable,
    *entries: FileEntry,
    own: tuple[OwnPath, ...] = (),
    reachable: Reachable = Reachable(),  # noqa: B008 - immutable
    files: dict[str, str | None] = FILES,
    network: Network = "restricted",
) -> Policy:
    disk = FakeDisk(files)
    facts = PolicyInputs(cwd=WS, uid=1000, own=own, reachable=reachable, mounts=table, disk=disk)
    return resolve(context(*(entries or (ROOT, PROJECT)), network=network), facts)


CODE = (OwnPath("/opt/venv", "code"),)


def test_code_is_read_only_where_it_is_mounted_a_second_time() -> None:
    made = policy(mounts(f"/opt {WS}/opt"), own=CODE)
    assert made.access(f"{WS}/opt/venv/lib/x") == "read"
    assert made.access(f"{WS}/opt/other") == "write"
    # Under another name, nothing would be protected.
    assert made.keeps_name(f"{WS}/opt")
    assert made.own_reasons == {f"{WS}/opt/venv": "the server runs from it"}


def test_no_entry_makes_it_writable_there() -> None:
    entry = path_entry(f"{WS}/opt/venv/lib", "write")
    made = policy(mounts(f"/opt {WS}/opt"), ROOT, PROJECT, entry, own=CODE)
    assert made.access(f"{WS}/opt/venv/lib/x") == "read"


def test_a_part_of_an_installation_that_is_the_workspace_stays_writable() -> None:
    own = (OwnPath("/opt", "code", below="named"),)
    table = mounts(f"/opt/venv {WS}", f"/opt/venv/lib {WS}/lib")
    made = policy(table, own=own)
    assert made.access(f"{WS}/x") == "write"
    assert made.access(f"{WS}/lib/x") == "read"


def test_entries_of_sys_path_are_kept_as_under_their_own_path() -> None:
    own = (OwnPath("/opt", "code", below="named or itself"),)
    assert policy(mounts(f"/opt {WS}"), own=own).access(f"{WS}/x") == "write"
    assert policy(mounts(f"/opt {WS}/opt"), own=own).access(f"{WS}/opt/x") == "read"


def test_nothing_is_an_alias_of_the_root_directory() -> None:
    own = (OwnPath("/", "code", below="named or itself"),)
    made = policy(mounts(f"/opt {WS}/opt"), own=own)
    assert made.access(f"{WS}/opt/x") == "write"


def test_a_mount_point_that_a_mount_of_the_code_needs_keeps_its_name() -> None:
    table = MountTable(
        parse_mounts(
            "20 1 8:1 / / rw - ext4 /dev/a rw\n"
            "30 20 8:2 / /opt rw - ext4 /dev/b rw\n"
            f"31 20 8:1 / {WS}/disk rw - ext4 /dev/a rw\n"
        )
    )
    made = policy(table, own=CODE, files={**FILES, f"{WS}/disk/opt/x": "x"})
    assert made.keeps_name(f"{WS}/disk/opt")
    assert made.access(f"{WS}/disk/other") == "write"


@pytest.mark.requirement("security.own.links")
def test_a_link_to_code_is_kept_in_each_directory_that_shows_it() -> None:
    own = (OwnPath("/opt/venv", "code", links=("/home/me/bin/python",)),)
    files: dict[str, str | None] = {**FILES, "/home/me/bin/python": "->/opt/venv"}
    files[f"{WS}/me/bin/python"] = "->/opt/venv"
    made = policy(mounts(f"/home/me {WS}/me"), own=own, files=files)
    assert made.access(f"{WS}/me/bin/other") == "read"
    assert made.access(f"{WS}/me/other") == "write"
    with pytest.raises(CannotEnforce, match=f"writable symlink {WS}/python: start it from"):
        policy(mounts(f"/home/me/bin {WS}"), own=own, files=files)


SECRETS = Reachable(("/home/me/secret",), ("/home/me/secret/key",))


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param((ROOT, PROJECT), id="readable"),
        # Here the path itself is not shown at all.
        pytest.param((PROJECT,), id="narrow"),
        pytest.param((EVERYTHING,), id="all"),
        pytest.param((ROOT, PROJECT, path_entry(f"{WS}/secret", "write")), id="named"),
    ],
)
@pytest.mark.parametrize(
    ("line", "path"),
    [
        (f"/home/me/secret {WS}/secret", f"{WS}/secret/key"),
        (f"/home/me {WS}", f"{WS}/secret/key"),
        (f"/home/me/secret/key {WS}/lib/x", f"{WS}/lib/x"),
    ],
)
def test_secrets_of_servers_are_hidden_under_each_path(
    entries: tuple[FileEntry, ...], line: str, path: str
) -> None:
    made = policy(mounts(line), *entries, reachable=SECRETS)
    assert made.access(path) == "deny"
    assert made.access(f"{WS}/other") == "write"


@pytest.mark.parametrize("named", [False, True])
def test_sockets_of_engines_are_hidden_under_each_path(named: bool) -> None:
    files: dict[str, str | None] = {"/run/docker.sock": "", f"{WS}/s/docker.sock": ""}
    entries = (ROOT, PROJECT, *([path_entry("/run/docker.sock", "read")] if named else []))
    made = policy(mounts(f"/run {WS}/s"), *entries, files=files, network="enabled")
    assert made.access(f"{WS}/s/docker.sock") == ("write" if named else "deny")


# -- entries of profiles

DENIED = path_entry("/home/me/secret", "deny")


@pytest.mark.requirement("security.aliases.entries")
def test_a_denied_directory_is_denied_under_each_path() -> None:
    made = policy(mounts(f"/home/me {WS}/me"), ROOT, PROJECT, DENIED)
    assert made.access(f"{WS}/me/secret/key") == "deny"
    # Also where a command could create it.
    assert made.access("/home/me/secret/new") == "deny"


@pytest.mark.requirement("security.aliases.entries")
@pytest.mark.parametrize("entry", [f"{WS}/secret", f"{WS}/secret/key"])
def test_a_path_that_an_entry_names_keeps_its_access(entry: str) -> None:
    table = mounts(f"/home/me/secret {WS}/secret")
    made = policy(table, ROOT, PROJECT, DENIED, path_entry(entry, "write"))
    assert made.access(entry) == "write"


@pytest.mark.requirement("security.aliases.entries")
def test_a_second_path_of_everything_can_be_denied() -> None:
    """As `/run/host` of a toolbox, or `/mnt/wslg/distro`."""
    table = mounts("/ /run/host", "/home /run/host/home")
    made = policy(table, ROOT, PROJECT, path_entry("/run/host", "deny"))
    assert made.access("/run/host/opt/venv/lib/x") == "deny"
    assert made.access("/opt/venv/lib/x") == "read"
    assert made.access(f"{WS}/x") == "write"


@pytest.mark.requirement("security.aliases.entries")
def test_a_read_only_directory_in_a_writable_one_is_so_under_each_path() -> None:
    docs = path_entry(f"{WS}/docs", "read")
    files: dict[str, str | None] = {f"{WS}/docs/x": "x", f"{WS}/mirror/docs/x": "x"}
    files |= {f"{WS}/.git/config": "x", f"{WS}/mirror/.git/config": "x"}
    made = policy(mounts(f"{WS} {WS}/mirror"), ROOT, PROJECT, docs, files=files)
    assert made.access(f"{WS}/mirror/docs/x") == "read"
    assert made.access(f"{WS}/mirror/.git/config") == "read"
    # What is missing stays missing.
    assert made.access(f"{WS}/mirror/.aws/config") == "read"
    assert made.access(f"{WS}/mirror/x") == "write"


@pytest.mark.requirement("security.aliases.entries")
def test_what_is_merely_not_writable_can_be_mounted_writable() -> None:
    """As `/srv/data` at `data` in a workspace."""
    made = policy(mounts(f"/opt/venv {WS}/lib"))
    assert made.access(f"{WS}/lib/x") == "write"


@pytest.mark.requirement("security.aliases.entries")
def test_a_pattern_denies_files_under_each_path() -> None:
    table = mounts(f"/home/me/secret {WS}/secret")
    made = policy(table, ROOT, PROJECT, glob_entry("/home/me/**/key"))
    assert made.rules[f"{WS}/secret/key"].access == "deny"
    # For operations on files, which compare what appears later.
    assert made.access(f"{WS}/secret/deep/key") == "deny"
    assert made.access(f"{WS}/secret/other") == "write"


# -- plans


@pytest.mark.requirement("security.aliases.later")
def test_a_policy_is_made_anew_for_other_mounts() -> None:
    disk = FakeDisk(FILES)

    def made(table: MountTable) -> Policy:
        facts = PolicyInputs(cwd=WS, own=CODE, mounts=table, disk=disk)
        return resolve(context(ROOT, PROJECT), facts)

    first, second = mounts(f"/opt {WS}/opt"), mounts(f"/opt {WS}/other")
    known = made(first)
    assert made(first) is known
    assert made(second).access(f"{WS}/opt/venv/lib/x") == "write"
    assert made(first) is not known

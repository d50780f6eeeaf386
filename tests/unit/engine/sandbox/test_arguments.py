"""The arguments of bubblewrap, and what it does with them."""

import os
import socket
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest

from holdfast.base.errors import CannotEnforce
from holdfast.engine.sandbox.bubblewrap.bwrap_arguments import Plan, plan
from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.policy.policy import Policy
from holdfast.engine.sandbox.profile.builtin import path_entry, special_entry
from holdfast.wire.protocol.sandbox import FileEntry, Network
from tests.unit.engine.sandbox.trees import WS, FakeDisk, context, glob_entry, policy_for

ROOT = special_entry("root", "read")
PROJECT = special_entry("project_roots", "write")


def words(policy: Policy) -> list[str]:
    return plan(policy).argv(())


# -- the list


@pytest.mark.requirement("sandbox.bwrap.order")
def test_the_shortest_list() -> None:
    assert words(policy_for({WS: None}, ROOT)) == [
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--disable-userns",
        *("--cap-drop", "ALL"),
        "--unshare-net",
        *("--ro-bind", "/", "/"),
        *("--dev", "/dev"),
        *("--proc", "/proc"),
        *("--ro-bind", "/proc/sys", "/proc/sys"),
    ]


@pytest.mark.requirement("sandbox.bwrap.order")
def test_settings_of_the_kernel_are_read_only_on_top_of_its_proc() -> None:
    policy = policy_for({WS: None}, path_entry(WS, "read"))
    made = list(plan(policy, settings=("/proc/acpi", "/proc/mtrr")).argv(()))

    at = made.index("/proc/acpi")
    assert made[at - 1 : at + 5] == [
        *("--ro-bind", "/proc/acpi", "/proc/acpi"),
        *("--ro-bind", "/proc/mtrr", "/proc/mtrr"),
    ]
    assert made.index("--proc") < at
    assert "/proc/acpi" not in plan(policy, proc=False, settings=("/proc/acpi",)).argv(())


@pytest.mark.requirement("security.sandbox.proc")
def test_where_the_kernels_files_are_ones_own_all_of_proc_is_read_only() -> None:
    made = list(plan(policy_for({WS: None}, ROOT), read_only_proc=True).argv(()))

    at = made.index("--proc")
    assert made[at : at + 4] == ["--proc", "/proc", "--remount-ro", "/proc"]


def test_what_the_root_directory_is_depends_on_the_entry_for_it() -> None:
    narrow = words(policy_for({WS: None}, path_entry(WS, "read")))
    assert narrow[9:13] == ["--tmpfs", "/", "--dev", "/dev"]
    wide = words(policy_for({WS: None}, special_entry("root", "write"), path_entry(WS, "read")))
    assert " ".join(wide[9:17]) == "--bind / / --dev /dev --bind-try /dev/shm /dev/shm"


def test_writing_everywhere_without_network_is_isolated_too() -> None:
    made = words(Policy(network="restricted"))
    assert "--unshare-net" in made
    # `/`, /dev/shm, and what belongs to the kernel.
    assert " ".join(made).count("bind") == 4
    assert "--ro-bind-try /sys /sys" in " ".join(made)


def test_the_network_is_shared_where_it_is_enabled() -> None:
    assert "--unshare-net" not in words(policy_for({WS: None}, ROOT, network="enabled"))


def test_without_a_new_proc_there_is_none() -> None:
    made = " ".join(plan(policy_for({WS: None}, ROOT), proc=False).argv(()))
    assert made.endswith("--dev /dev --perms 555 --tmpfs /proc --remount-ro /proc")


@pytest.mark.requirement("sandbox.legacy-landlock")
def test_landlock_in_place_of_mounts_is_refused() -> None:
    asked = msgspec.structs.replace(context(ROOT), use_legacy_landlock=True)
    policy = resolve(asked, PolicyInputs(cwd=WS, disk=FakeDisk({WS: None})))
    with pytest.raises(CannotEnforce, match="requires bubblewrap to isolate app-server sockets"):
        plan(policy)


def test_each_descriptor_is_used_once() -> None:
    files: dict[str, str | None] = {f"{WS}/a": "x", f"{WS}/b": "x"}
    made = plan(policy_for(files, ROOT, *(path_entry(path, "deny") for path in files)))
    assert made.empty_fds == 2
    assert [word for word in made.argv([7, 8]) if word.isdigit() and word != "000"] == ["7", "8"]


# -- the real launcher

_PROBE = """
import errno, os, sys
for action in sys.argv[1:]:
    kind, path = action.split(":", 1)
    try:
        if kind == "write":
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
        elif kind == "read":
            open(path).read()
        elif kind == "list":
            os.listdir(path)
        elif kind == "mkdir":
            os.mkdir(path)
        elif kind == "move":
            os.rename(path, path + "-moved")
        print("ok")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


class Scene:
    """A directory with a workspace, and commands that run in it under bubblewrap."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.ws = top / "ws"
        self.ws.mkdir()

    def make(self, *names: str) -> None:
        for name in names:
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("v")

    def policy(self, *entries: FileEntry, network: Network = "restricted") -> Policy:
        asked = context(*entries, network=network, roots=(str(self.ws),), cwd=str(self.ws))
        return resolve(asked, PolicyInputs(cwd=str(self.ws), uid=os.getuid()))

    def tries(self, policy: Policy, *actions: str, user: int | None = None) -> list[str]:
        """Return the outcome of each action inside."""
        made = plan(policy)
        empty_fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(made.empty_fds)]
        try:
            done = subprocess.run(
                [
                    "bwrap",
                    *made.argv(empty_fds),
                    "--",
                    "/usr/bin/python3",
                    "-ISc",
                    _PROBE,
                    *actions,
                ],
                cwd=self.ws,
                env={},
                pass_fds=empty_fds,
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        finally:
            for empty in empty_fds:
                os.close(empty)
            remove_targets(made)
        assert done.stderr == ""
        return done.stdout.split()


def remove_targets(made: Plan) -> None:
    for target in made.targets:
        if not target.existed:
            (os.rmdir if target.kind == "directory" else os.unlink)(target.path)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(Path(os.path.realpath(tmp_path)))


@pytest.mark.requirement("sandbox.protected", "sandbox.missing")
def test_a_workspace_can_be_written_and_its_metadata_cannot(scene: Scene) -> None:
    scene.make("ws/.git/config", "out/f")
    deny = path_entry(scene.ws / "none" / "x", "deny")
    policy = scene.policy(ROOT, PROJECT, deny)
    assert scene.tries(
        policy,
        "write:new",
        "write:.git/config",
        "mkdir:.aws",
        "write:.aws/x",
        "write:none/x",
        "mkdir:none",
        "write:../out/f",
        "read:../out/f",
        "write:/proc/sys/kernel/core_pattern",
    )[:8] == ["ok", "EROFS", "EEXIST", "EROFS", "ENOTDIR", "EEXIST", "EROFS", "ok"]
    assert sorted(os.listdir(scene.ws)) == [".git", "new"]


@pytest.mark.requirement("sandbox.precedence", "sandbox.globs")
def test_what_is_denied_cannot_be_read(scene: Scene) -> None:
    scene.make("vault/key", "ws/a/s", "ws/a/b/f", "ws/n/x.env", "ws/n/y.txt", "single")
    policy = scene.policy(
        ROOT,
        PROJECT,
        path_entry(scene.top / "vault", "deny"),
        path_entry(scene.top / "single", "deny"),
        path_entry(scene.ws / "a", "deny"),
        path_entry(scene.ws / "a" / "b", "write"),
        glob_entry("**/*.env"),
    )
    assert scene.tries(
        policy,
        "read:../vault/key",
        "list:../vault",
        "read:../single",
        "list:a",
        "read:a/s",
        "write:a/n",
        "write:a/b/n",
        "read:n/x.env",
        "read:n/y.txt",
    ) == ["EACCES", "EACCES", "EACCES", "EACCES", "ENOENT", "EROFS", "ok", "EACCES", "ok"]


def test_pipes_and_sockets_are_denied_like_files(scene: Scene) -> None:
    os.mkfifo(scene.ws / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(scene.ws / "socket"))
        names = ("fifo", "socket")
        policy = scene.policy(ROOT, *(path_entry(scene.ws / name, "deny") for name in names))
        assert scene.tries(policy, "read:fifo", "read:socket") == ["EACCES", "EACCES"]


@pytest.mark.requirement("sandbox.protected.gitdir")
def test_nothing_on_the_way_to_something_protected_can_be_renamed(scene: Scene) -> None:
    scene.make("ws/p/q/secret", "ws/store/git/config")
    (scene.ws / ".git").write_text("gitdir: store/git\n")
    policy = scene.policy(ROOT, PROJECT, path_entry(scene.ws / "p" / "q" / "secret", "deny"))
    assert scene.tries(
        policy,
        "move:p",
        "move:p/q",
        "move:store",
        "write:p/q/n",
        "write:store/git/config",
        "move:p/q/n",
    ) == ["EBUSY", "EBUSY", "EBUSY", "ok", "EROFS", "ok"]


@pytest.mark.requirement("sandbox.minimal")
def test_without_the_root_directory_only_what_is_listed_is_there(scene: Scene) -> None:
    scene.make("ws/f", "out/real/f", "vault/key")
    (scene.top / "link").symlink_to("out/real")
    policy = scene.policy(
        special_entry("minimal", "read"),
        path_entry(scene.ws, "read"),
        path_entry(scene.top / "link", "read"),
    )
    assert scene.tries(
        policy,
        "read:f",
        "write:f",
        "read:../vault/key",
        "read:../link/f",
        "list:/var/log",
        "write:/x",
    ) == ["ok", "EROFS", "ENOENT", "ok", "ENOENT", "ok"]


def test_everything_but_one_directory_can_be_written(scene: Scene) -> None:
    scene.make("vault/key", "out/f")
    policy = scene.policy(special_entry("root", "write"), path_entry(scene.top / "vault", "deny"))
    assert scene.tries(policy, "write:../out/f", "read:../vault/key", "move:../vault") == [
        "ok",
        "EACCES",
        "EBUSY",
    ]
    # Nothing has to be made for it. What this machine has in its root may be a mount point.
    assert [target for target in plan(policy).targets if not target.existed] == []


@pytest.mark.skipif(os.getuid() != 0, reason="all of these run as an ordinary user already")
def test_an_ordinary_user_gets_the_same() -> None:
    with tempfile.TemporaryDirectory() as top:
        scene = Scene(Path(top))
        scene.make("ws/.git/config", "vault/key")
        for path in (scene.top, *scene.top.rglob("*")):
            os.chown(path, 1000, 1000)
        wide = scene.policy(special_entry("root", "write"), path_entry(scene.top / "vault", "deny"))
        assert scene.tries(wide, "write:f", "read:../vault/key", "write:/f", user=1000) == [
            "ok",
            "EACCES",
            "EACCES",
        ]
        usual = scene.policy(ROOT, PROJECT)
        assert scene.tries(usual, "write:f", "write:.git/config", "mkdir:.aws", user=1000) == [
            "ok",
            "EROFS",
            "EEXIST",
        ]

"""
Breaking out through a second path of the same files: bind mounts, overlays and the like.

Each test has a mount namespace, in which it mounts things before Holdfast is started. For an
ordinary user that belongs to a user namespace, as in a container without privileges.
"""

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.breakout.harness import LIMIT
from tests.breakout.project import USERS, Project, projects

pytestmark = pytest.mark.requirement("security.aliases")

OF_ROOT = ("unshare", "--mount", "--propagation", "private")
OF_USERS = ("unshare", "--user", "--keep-caps", "--mount")

EVERYONE = "0 0 4294967295\n"
"""A map of a user namespace that leaves all ids as they are."""

# Waits until the users of the namespace are known.
MOUNT = 'echo; read -r _; umask 0; set -e; cd "$HOME"; {}\ncd work; exec {} "$@"'


@pytest.fixture(params=USERS)
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    with projects(request.param) as project:
        project.write("work/.git/config", "")
        project.write(".config/holdfast/environments.toml", SECRET)
        yield project


def with_mounts(
    project: Project, mounts: str, *argv: str | Path, **env: str
) -> "subprocess.CompletedProcess[str]":
    """Run a program where something is mounted in addition."""
    user = project.user
    drop = ["--inh-caps=-all", "--ambient-caps=-all", "--clear-groups"]
    become = ["env"] if user is None else ["setpriv", *drop, f"--reuid={user}", f"--regid={user}"]
    script = MOUNT.format(mounts, " ".join(become))
    site = str(project.packages.relative_to(project.work))
    with subprocess.Popen(
        [*(OF_ROOT if user is None else OF_USERS), "/bin/sh", "-c", script, "sh", *argv],
        env=project.variables(SITE=site, **env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            if user is not None:
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{process.pid}/{name}").write_text(EVERYONE)
            stdout, stderr = process.communicate("\n", timeout=2 * LIMIT)
        finally:
            process.kill()
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


SECRET = '[[environments]]\nid = "x"\nurl = "ws://127.0.0.1:1"\nauth_bearer_token = "xyzzy"\n'


@dataclass(frozen=True)
class Case:
    mounts: str
    """Run in the home; the workspace is `work`."""
    tries: tuple[str, ...]
    """Run in the workspace; each gets through without a sandbox."""


OVERLAY = 'mount -t overlay -o "$O,lowerdir={lower},upperdir={upper},workdir=$HOME/wk" o {at}'

CASES = {
    "a directory above": Case(
        "mkdir work/a; mount --bind . work/a",
        (
            'echo x > "a/work/$SITE/evil.pth"',
            "echo x >> a/work/.venv/pyvenv.cfg",
            "cat a/.config/holdfast/environments.toml",
            "mkdir -p a/.config/holdfast/rules && echo x > a/.config/holdfast/rules/x.rules",
            "mkdir -p a/.local/share/holdfast/deployed && echo x > a/.local/share/holdfast/x",
            "mv a/work/.venv a/work/moved && mv a/work/moved a/work/.venv",
            "mv a/.config a/moved && mv a/moved a/.config",
        ),
    ),
    "the directory itself": Case(
        "mkdir work/a; mount --bind work/.venv work/a",
        ('echo x > "a/${SITE#*/}/evil.pth"', "echo x > a/new", "mv a/lib a/b && mv a/b a/lib"),
    ),
    "a directory below": Case(
        'mkdir work/a; mount --bind "work/$SITE" work/a',
        ("echo x > a/evil.pth", "echo x >> a/found.pth", "echo x > a/sitecustomize.py"),
    ),
    "a file": Case(
        "touch work/a work/b; mount --bind work/.venv/pyvenv.cfg work/a;"
        " mount --bind .config/holdfast/environments.toml work/b",
        ("echo x >> a", "cat b"),
    ),
    "what is mounted there": Case(
        "mv work/.venv work/real; mkdir work/.venv; mount --bind work/real work/.venv",
        ('echo x > "real/${SITE#*/}/evil.pth"', "echo x > real/new"),
    ),
    "what is mounted below it": Case(
        "mv work/.venv/lib work/real; mkdir work/.venv/lib; mount --bind work/real work/.venv/lib",
        ('echo x > "real/${SITE#*/*/}/evil.pth"',),
    ),
    "two more": Case(
        "mkdir work/a work/b; mount --bind work/.venv work/a; mount --bind .config work/b",
        ("echo x > a/new", "cat b/holdfast/environments.toml", "echo x > b/holdfast/mcp.toml"),
    ),
    "in another one": Case(
        "mkdir work/a; mount --bind . work/a; mkdir work/b; mount --bind work/.venv work/a/work/b",
        ("echo x > a/work/b/new", "echo x > a/work/.venv/new"),
    ),
    "on top of another one": Case(
        "mkdir work/a; mount -t tmpfs t work/a; mount --bind work/.venv work/a",
        ("echo x > a/new",),
    ),
    "the workspace in itself": Case(
        "mkdir work/a; mount --bind work work/a",
        ("echo x > a/.venv/new", "echo x >> a/.git/config", "mv a/.git a/g && mv a/g a/.git"),
    ),
    "odd names": Case(
        "mkdir 'work/a\tb \\040\n'; mount --bind work/.venv 'work/a\tb \\040\n'",
        ("cd a* && echo x > new",),
    ),
    "a file system in memory": Case(
        "mount -t tmpfs t .config/holdfast; mkdir work/a; mount --bind .config/holdfast work/a",
        ("echo x > a/mcp.toml", "mkdir a/rules && echo x > a/rules/x.rules"),
    ),
    "a layer of an overlay": Case(
        "mkdir lower wk; mv work/.venv/lib work/upper; mkdir work/.venv/lib;"
        + OVERLAY.format(lower="$HOME/lower", upper="$HOME/work/upper", at="work/.venv/lib"),
        ('echo x > "upper/${SITE#*/*/}/evil.pth"',),
    ),
    "an overlay of it": Case(
        "mkdir work/a upper wk;" + OVERLAY.format(lower="$HOME", upper="$HOME/upper", at="work/a"),
        ("cat a/.config/holdfast/environments.toml",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_files_of_holdfast_are_protected_under_each_path(project: Project, name: str) -> None:
    case = CASES[name]
    tries = "\n".join(
        f"({line}) >/dev/null 2>&1 && echo THROUGH {number}"
        for number, line in enumerate(case.tries)
    )
    # Without a sandbox afterwards, to see that the attempts would get through.
    both = (
        '"$PYTHON" -m holdfast run --sandbox workspace-write -- /bin/sh -c "$TRIES"\n'
        'echo; echo freely; /bin/sh -c "$TRIES"'
    )
    done = with_mounts(
        project,
        case.mounts,
        *("/bin/sh", "-c", both),
        PYTHON=str(project.python),
        TRIES=f"echo fine > mine && echo started\n{tries}\ntrue",
        O="index=off" if project.user is None else "userxattr",
    )
    sandboxed, _, freely = done.stdout.partition("\nfreely\n")
    through = [f"THROUGH {number}" for number in range(len(case.tries))]
    assert freely.splitlines() == ["started", *through], done
    assert sandboxed.splitlines() == ["started"], done


PROFILE = """
file_system = { entries = [
    { path = ":root", access = "read" },
    { path = ":project_roots", access = "write" },
    { path = "HOME/denied", access = "deny" },
    { path = "HOME/shown", access = "deny" },
    { path = "HOME/work/b", access = "write" },
    { path = "HOME/work/kept", access = "read" },
    { path = "HOME/secrets/**/*.key", access = "deny" },
] }
"""

ENTRIES = (
    # A denied directory, and a file of it.
    *("cat a/denied/file", "cat a/denied/*", "echo x >> a/denied/file", "cat c"),
    # A denied pattern.
    *("cat a/secrets/deep/my.key", "cat d/my.key"),
    # A read-only directory in a writable one, and protected names.
    *("echo x > a/work/kept/file", "echo x > a/work/.git/config", "mkdir a/work/.agents"),
)

MOUNTS_OF_ENTRIES = (
    "mkdir -p denied shown secrets/deep work/a work/b work/d work/kept; touch work/c;"
    "for file in denied/file shown/file secrets/deep/my.key; do echo secret > $file; done;"
    "touch work/kept/file; mount --bind . work/a; mount --bind shown work/b;"
    "mount --bind denied/file work/c; mount --bind secrets/deep work/d"
)


@pytest.mark.requirement("security.aliases.entries")
def test_entries_of_a_profile_hold_under_each_path(project: Project) -> None:
    profile = project.write("profile.toml", PROFILE.replace("HOME", str(project.home)))
    tries = "".join(f"({line}) >/dev/null 2>&1 && echo 'THROUGH {line}'\n" for line in ENTRIES)
    script = f"echo fine > mine\n{tries}cat b/file"
    command = ["-m", "holdfast", "run", "--sandbox", str(profile), "--", "/bin/sh", "-c", script]
    done = with_mounts(project, MOUNTS_OF_ENTRIES, project.python, *command)
    # The last one is named by an entry.
    assert done.stdout == "secret\n", done
    freely = f"rm -rf a/work/.agents\n{script}"
    done = with_mounts(project, MOUNTS_OF_ENTRIES, "/bin/sh", "-c", freely)
    assert done.stdout.splitlines() == [*(f"THROUGH {line}" for line in ENTRIES), "secret"], done


FILES = """
import asyncio, json, sys
import holdfast

async def attempt(work):
    try:
        await work
    except holdfast.HoldfastError as error:
        return str(error)
    return "THROUGH"

async def main():
    said = {}
    async with holdfast.connect("local") as env:
        files = env.files
        env.cwd = sys.argv[2] + "/work"
        for env.sandbox in (sys.argv[1], "read-only", None):
            said[str(env.sandbox)] = [
                await attempt(files.write("a/work/.venv/new", "x")),
                await attempt(files.write("a/work/.git/config", "x")),
                await attempt(files.read_text("a/.config/holdfast/environments.toml")),
                await attempt(files.read_text("a/denied/file")),
                await attempt(files.read_text("d/my.key")),
                await attempt(files.read_text("b/file")),
                await attempt(files.write("a/work/fine", "x")),
            ]
    print(json.dumps(said))

asyncio.run(main())
"""


@pytest.mark.requirement("security.aliases", "security.aliases.entries")
def test_operations_on_files_agree_with_commands(project: Project) -> None:
    profile = project.write("profile.toml", PROFILE.replace("HOME", str(project.home)))
    program = project.write("program.py", FILES)
    done = with_mounts(
        project, MOUNTS_OF_ENTRIES, project.python, program, profile, str(project.home)
    )
    said = json.loads(done.stdout or "null") or pytest.fail(done.stderr)
    assert said.pop("None") == ["THROUGH"] * 7
    assert "Permission denied" in said.pop("read-only")[2]
    (sandboxed,) = said.values()
    assert sandboxed == [
        "cannot write a/work/.venv/new: Read-only file system (os error 30):"
        " the server runs from it",
        "cannot write a/work/.git/config: Read-only file system",
        "cannot read a/.config/holdfast/environments.toml: Permission denied",
        "cannot read a/denied/file: Permission denied",
        "cannot read d/my.key: Permission denied",
        "THROUGH",
        "THROUGH",
    ]


LATER = """
import asyncio, json, os, subprocess, sys
import holdfast

async def main():
    async with holdfast.connect("local") as env:
        env.cwd, env.sandbox = os.getcwd(), "workspace-write"

        async def command(path):
            return (await env.run(f"echo x > {path}")).exit_code

        async def file(path):
            try:
                await env.files.write(path, "x")
            except holdfast.HoldfastError as error:
                return error.errno

        said = [await file("x/a/new"), await command("x/a/new")]
        subprocess.run(["mount", "--bind", ".venv", "x/a"], check=True)
        said += [await file("x/a/new"), await command("x/a/new")]
        os.rename("x", "y")
        os.makedirs("x/a")
        said += [await command("x/a/new"), await command("y/a/new")]
        subprocess.run(["umount", "y/a"], check=True)
        said += [await file("y/a/new"), await command("y/a/new")]
        print(json.dumps(said))

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts something later")
@pytest.mark.requirement("security.aliases.later")
def test_mounts_that_are_made_moved_and_removed_later_count() -> None:
    with projects(None) as project:
        program = project.write("program.py", LATER)
        done = with_mounts(project, "mkdir -p work/x/a", project.python, program)
        said = json.loads(done.stdout or "null") or pytest.fail(done.stderr)
    assert said == [None, 0, errno.EROFS, 2, 0, 2, None, 0]

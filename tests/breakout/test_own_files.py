"""
Breaking out through Holdfast itself: its code, its settings and its secrets.

What a command changes there runs outside of every sandbox, now or at the next start.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.base.local_servers import Reachable, hide
from holdfast.engine.process.registry import LocalBackend
from holdfast.wire.protocol.process import OutputChunk
from tests.breakout.ground import PROFILES, Prepared
from tests.breakout.harness import LIMIT, params, printed
from tests.breakout.project import USERS, Project, projects
from tests.e2e.wire import serving

SANDBOXED = pytest.mark.parametrize("sandboxed", [False, True], ids=["freely", "sandboxed"])
"""Each of these gets through without a sandbox, and must not in one."""


@pytest.fixture(params=USERS)
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    with projects(request.param) as project:
        yield project


def attempts(*lines: str) -> str:
    """Return a script that makes each attempt, and prints those that get through."""
    return "\n".join(f"({line}) 2>/dev/null && echo 'THROUGH: {line}'" for line in lines)


def through(stdout: str) -> list[str]:
    return [line for line in stdout.splitlines() if line.startswith("THROUGH")]


# -- the code of the server

CODE = (
    'echo "import os" > "$SITE/evil.pth"',
    'echo "import os" >> "$SITE/found.pth"',
    'echo "import os" > "$SITE/sitecustomize.py"',
    'mkdir -p "$SITE/msgspec" && echo x > "$SITE/msgspec/__init__.py"',
    "echo x >> .venv/pyvenv.cfg",
    "echo x > .venv/new",
    "ln -sf /bin/true .venv/bin/python",
    "mv .venv/lib .venv/moved && mv .venv/moved .venv/lib",
    "mv .venv moved && mv moved .venv",
)


@pytest.mark.requirement("security.own.code")
@SANDBOXED
def test_a_command_cannot_change_the_code_of_its_server(project: Project, sandboxed: bool) -> None:
    script = attempts(*reversed(CODE))
    done = project.run(script, sandboxed=sandboxed, env={"SITE": str(project.packages)})
    assert len(through(done.stdout)) == (0 if sandboxed else len(CODE)), done
    if sandboxed:
        assert sorted(path.name for path in project.packages.iterdir()) == ["found.pth"]
        assert os.readlink(project.python) != "/bin/true"


@pytest.mark.requirement("security.own.reason")
def test_a_denied_write_to_the_code_is_reported_with_its_reason(project: Project) -> None:
    done = project.run("echo fine > mine && echo x > .venv/new")
    assert (project.work / "mine").read_text() == "fine\n"
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last == (
        "holdfast: denied by the sandbox: write to .venv/new: the server runs from it"
    ), done.stderr


@pytest.mark.requirement("security.own.links")
def test_code_behind_a_link_that_a_command_could_replace_is_refused(project: Project) -> None:
    real = project.home / "real"
    (project.work / ".venv").rename(real)
    (project.work / ".venv").symlink_to(real)
    project.give(project.work / ".venv")
    done = project.run("echo started")
    assert "started" not in done.stdout
    assert f"writable symlink {project.work}/.venv: start it from" in done.stderr, done.stderr


@pytest.mark.requirement("security.own.reason")
async def test_clients_of_a_server_are_told_the_reason(project: Project) -> None:
    """Over the wire, and for files, which no sandbox is built for."""
    url = f"unix://{project.home}/socket"
    command = (str(project.python), "-m", "holdfast", "serve")
    with serving("--listen", url, command=command, env=project.variables(), **project.owner):
        async with holdfast.connect(url) as env:
            env.cwd, env.sandbox = str(project.work), "workspace-write"
            done = await env.run("echo x > .venv/new")
            with pytest.raises(holdfast.HoldfastError, match="the server runs from it"):
                await env.files.write(f"{project.work}/.venv/new", "x")
            await env.files.write(f"{project.work}/mine", "x")
    assert not (project.work / ".venv/new").exists()
    assert done.denial is not None
    assert done.denial.reason == "the server runs from it", done


PROGRAM = """
import asyncio, json, sys
import helper, package.part
import holdfast
from holdfast.base.late_import import late_module

async def main():
    async with holdfast.connect("local") as env:
        done = await env.run(sys.argv[1], cwd=sys.argv[2], sandbox="workspace-write")
        said = {"stdout": done.stdout, "gaps": done.enforcement.gaps}
    # Loaded for the first time, by this program and by Holdfast: never what the command wrote.
    import colorsys
    said["colorsys"] = colorsys.__file__
    try:
        said["extra"] = late_module("an_extra").__file__
    except ImportError as error:
        said["extra"] = str(error)
    print(json.dumps(said))

asyncio.run(main())
"""

OF_A_PROGRAM = (
    "echo x >> agent.py",
    "echo x >> helper.py",
    "echo x > package/new.py",
    "echo x > __pycache__/helper.pyc",
    "mv package moved",
    "mv agent.py moved.py",
)


@pytest.mark.requirement("security.own.code", "security.own.imports")
def test_a_program_of_a_user_that_runs_in_its_workspace_is_not_changed(project: Project) -> None:
    for name, text in (("agent.py", PROGRAM), ("helper.py", ""), ("package/part.py", "")):
        project.write(f"work/{name}", text)
    planted = "echo 'raise SystemExit(3)' > colorsys.py; cp colorsys.py an_extra.py;"
    script = f"{planted} {attempts(*OF_A_PROGRAM)}\necho mine > mine"
    done = project.call(project.python, "agent.py", script, str(project.work))
    said = json.loads(done.stdout or "null") or pytest.fail(done.stderr)
    assert through(said["stdout"]) == []
    assert (project.work / "an_extra.py").exists()  # the workspace itself is writable
    assert not said["colorsys"].startswith(str(project.work))
    assert said["extra"] == "No module named 'an_extra'"
    assert [gap for gap in said["gaps"] if f"imports modules from {project.work}," in gap]


# -- settings

SETTINGS = (
    "mkdir -p ~/.config/holdfast && echo x > ~/.config/holdfast/mcp.toml",
    "mkdir -p ~/.config/holdfast && echo x > ~/.config/holdfast/environments.toml",
    "mkdir -p ~/.config/holdfast/rules && echo x > ~/.config/holdfast/rules/x.rules",
    "mkdir -p ~/.cache/holdfast/bash && echo x > ~/.cache/holdfast/bash/holdfast-sh",
    "mkdir -p ~/.local/share/holdfast/deployed/1",
    "mkdir -p ~/.local/state/holdfast/x",
    "mkdir -p named/rules && echo x > named/rules/x.rules",
    "mv ~/.config/holdfast ~/moved",
    "mv ~/.config ~/moved2",
)


@pytest.mark.requirement("security.own.settings")
@SANDBOXED
@pytest.mark.parametrize("there", [False, True], ids=["missing", "there"])
def test_a_command_cannot_change_the_settings_of_holdfast(
    project: Project, sandboxed: bool, there: bool
) -> None:
    if there:
        for path in (".config/holdfast/mcp.toml", ".local/state/holdfast/kept", "named/x"):
            project.write(path, "")
    named = {"HOLDFAST_HOME": str(project.home / "named")}
    done = project.run(
        attempts(*SETTINGS) + "\nmkdir -p .config/other && echo fine > .config/other/x",
        sandboxed=sandboxed,
        env=named,
        cwd=project.home,
    )
    assert len(through(done.stdout)) == (0 if sandboxed else len(SETTINGS)), done
    if sandboxed:
        # Other programs keep their settings in the same directory.
        assert (project.home / ".config/other/x").read_text() == "fine\n", done


@pytest.mark.requirement("security.own.settings", "security.own.code")
def test_settings_and_code_that_lie_in_the_workspace_are_not_changed(project: Project) -> None:
    """Settings may be links to a repository of dotfiles, and `.pth` files may name `src`."""
    project.write("work/mcp.toml", "")
    project.write("work/rules/mine.rules", "")
    project.write(".config/holdfast/kept", "")
    for name in ("mcp.toml", "rules", "missing.toml"):
        link = project.home / ".config/holdfast" / name
        link.symlink_to(project.work / name)
        project.give(link)
    (project.packages / "later.pth").write_text(f"{project.work}/src\n")
    tries = attempts(
        "echo x > mcp.toml",
        "echo x > rules/x.rules",
        "mv rules moved",
        "echo x > missing.toml",
        "mkdir -p src && echo x > src/sitecustomize.py",
    )
    done = project.run(f"{tries}\necho fine > mine")
    assert (project.work / "mine").exists(), done
    assert through(done.stdout) == []


@pytest.mark.requirement("security.own.settings")
def test_files_that_options_name_are_not_changed(project: Project) -> None:
    profile = project.write(
        "work/profile.toml",
        'file_system = { entries = [{ path = ":root", access = "read" },'
        ' { path = ":project_roots", access = "write" }] }\n',
    )
    script = "echo x >> profile.toml; mv profile.toml other; echo fine > mine"
    command = ["run", "--sandbox", "./profile.toml", "--", "/bin/sh", "-c", script]
    before = profile.read_text()
    done = project.call(project.python, "-m", "holdfast", *command)
    assert (project.work / "mine").exists(), done
    assert profile.read_text() == before


# -- secrets of other servers

READ = "cat {path}/* 2>&1; ls {path} 2>&1"


@pytest.mark.requirement("security.servers.every")
@pytest.mark.parametrize("kind", ["variable", "home"])
def test_tokens_of_servers_in_other_runtime_directories_are_hidden(
    project: Project, kind: str
) -> None:
    """Each process has variables of its own: a server of cron, one of a login, one of an editor."""
    if kind == "variable":
        folder, env = project.home / "runtime", {}
        folder.mkdir(0o700)
        env["XDG_RUNTIME_DIR"] = str(folder)
    else:
        folder = project.home / "elsewhere"
        folder.mkdir(0o700)
        env = {"HOME": str(folder)}
    project.give(folder)
    command = (str(project.python), "-m", "holdfast", "serve")
    with serving(
        *("--listen", "ws://127.0.0.1:0"),
        command=command,
        env=project.variables(**env),
        **project.owner,
    ):
        (listed,) = [path for path in folder.rglob("*") if path.is_file()]
        token = json.loads(listed.read_text())["token"]
        assert token in project.run(READ.format(path=listed.parent), sandboxed=False).stdout
        done = project.run(READ.format(path=listed.parent))
    assert token not in done.stdout, done
    assert "Permission denied" in done.stdout


@contextmanager
def waiting(
    project: Project, script: str, *options: str | Path, env: Mapping[str, str] | None = None
) -> "Iterator[subprocess.Popen[str]]":
    """Run a script in a sandbox, which goes on when it gets a line."""
    words = ("-m", "holdfast", "run", *options, "--cwd", project.work)
    with subprocess.Popen(
        [
            *(project.python, *words, "--sandbox", "workspace-write"),
            *("--", "/bin/sh", "-c", f"echo up; read x; {script}; echo done"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=project.variables(**(env or {})),
        cwd=project.work,
        **project.owner,
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        yield run


@pytest.mark.requirement("security.servers.edited")
def test_tokens_stay_hidden_from_a_command_that_runs_while_they_are_edited(
    project: Project,
) -> None:
    """What hides a file is lost when another one takes its name, so the file is written over."""
    file = project.home / "tokens"
    edit = (project.python, "-m", "holdfast", "token")
    options = ("--token-file", file)
    assert project.call(*edit, "add", "first", *options).returncode == 0
    command = (str(project.python), "-m", "holdfast", "serve", "--token-file", str(file))
    with (
        serving(command=command, env=project.variables(), **project.owner) as server,
        waiting(project, f"cat {file}", "--url", server.url, *options) as run,
    ):
        assert project.call(*edit, "add", "second", *options).returncode == 0
        assert project.call(*edit, "remove", "first", *options).returncode == 0
        stdout, stderr = run.communicate("\n", timeout=2 * LIMIT)
    assert (stdout, "Permission denied" in stderr) == ("done\n", True), (stdout, stderr)


ENVIRONMENT = '[[environments]]\nid = "x"\nurl = "ws://127.0.0.1:1"\nauth_bearer_token = "xyzzy"\n'


@pytest.mark.requirement("security.servers.edited")
@pytest.mark.parametrize("folder", [".config/holdfast", "linked", "elsewhere"])
def test_environments_stay_hidden_from_a_command_that_runs_while_they_are_edited(
    project: Project, folder: str
) -> None:
    file = project.write(f"{folder}/environments.toml", ENVIRONMENT)
    env = {"HOLDFAST_HOME": str(file.parent)} if folder == "elsewhere" else {}
    if folder == "linked":
        link = project.write(".config/holdfast/sh.toml", "").with_name(file.name)
        link.symlink_to(file)
    edit = (project.python, "-m", "holdfast", "env")
    new = ("add", "y", "--url", "ws://127.0.0.1:2", "--default")
    with waiting(project, f"cat {file}", env=env) as run:
        for words in (new, ("remove", "y")):
            done = project.call(*edit, *words, env=env)
            assert done.returncode == 0, done
        stdout, stderr = run.communicate("\n", timeout=2 * LIMIT)
    assert (stdout, "Permission denied" in stderr) == ("done\n", True), (stdout, stderr)
    assert file.read_text().strip() == ENVIRONMENT.strip()


@pytest.mark.requirement("security.servers.folder")
def test_settings_stay_hidden_from_a_command_that_runs_while_an_editor_replaces_them(
    project: Project,
) -> None:
    file = project.write(".config/holdfast/environments.toml", ENVIRONMENT)
    with waiting(project, f"cat {file.parent}/*") as run:
        beside = project.write(".config/holdfast/.environments.toml.swp", ENVIRONMENT)
        beside.replace(file)
        project.write(".config/holdfast/environments.toml~", ENVIRONMENT)
        stdout, stderr = run.communicate("\n", timeout=2 * LIMIT)
    assert (stdout, "xyzzy" in stderr) == ("done\n", False), (stdout, stderr)


@pytest.mark.requirement("security.servers.folder")
def test_settings_that_a_profile_names_are_shown_without_the_tokens(project: Project) -> None:
    file = project.write(".config/holdfast/environments.toml", ENVIRONMENT)
    project.write(".config/holdfast/sh.toml", "fine")
    script = f"cat {file.parent}/sh.toml {file}; echo done"
    done = project.run(script, cwd=file.parent)
    assert (done.stdout, "Permission denied" in done.stderr) == ("finedone\n", True), done


@pytest.mark.requirement("security.servers.written")
@pytest.mark.parametrize("folder", [".config/holdfast", ".codex", "elsewhere"])
def test_tokens_that_the_user_wrote_down_are_hidden(project: Project, folder: str) -> None:
    file = project.write(
        f"{folder}/environments.toml",
        '[[environments]]\nid = "x"\nurl = "ws://127.0.0.1:1"\nauth_bearer_token = "xyzzy"\n',
    )
    env = {"CODEX_HOME": str(file.parent)} if folder == "elsewhere" else {}
    assert "xyzzy" in project.run(f"cat {file}", sandboxed=False, env=env).stdout
    done = project.run(f"cat {file}; echo done", env=env)
    assert (done.stdout, "Permission denied" in done.stderr) == ("done\n", True), done


@pytest.mark.requirement("security.servers.links")
@pytest.mark.parametrize("kind", ["certbot", "kubernetes"])
@pytest.mark.asyncio(loop_scope="session")
async def test_a_key_behind_a_link_stays_hidden_when_the_link_changes(
    backend: LocalBackend, ground: Prepared, kind: str
) -> None:
    """A renewal makes a new key, and the link of the server's option leads there."""
    folder = ground.path("outside")
    keys = [folder / str(number) / "key" for number in (1, 2, 3)]
    for key in keys:
        key.parent.mkdir()
        key.write_text("the key")
    link = folder / "live"
    named = link if kind == "certbot" else link / "key"

    def lead_to(key: Path) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(key if kind == "certbot" else key.parent)

    async def read() -> str:
        words = ("/bin/cat", *map(str, keys))
        start = params(ground, *words, sandbox=PROFILES["workspace"](ground))
        return await printed(backend, start, limit=LIMIT)

    lead_to(keys[0])
    with hide(Reachable((str(named),))):
        # The same request each time, whose policy is made once and kept.
        assert await read() == "the key" * 2
        lead_to(keys[1])
        assert await read() == "the key"
        lead_to(keys[2])
        assert await read() == ""
    assert await read() == "the key" * 3


@pytest.mark.requirement("security.servers.replaced")
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.asyncio(loop_scope="session")
async def test_a_secret_that_is_replaced_stays_hidden_in_a_separate_directory(
    backend: LocalBackend, ground: Prepared, alone: bool
) -> None:
    """An editor makes a new file and renames it, while a command runs."""
    folder = ground.path("outside") / "secrets"
    folder.mkdir()
    (folder / "key").write_text("the old key")
    if not alone:
        (folder / "other").touch()
    script = f"cat {folder}/key; echo ready; read go; cat {folder}/key; echo done"
    start = params(ground, "/bin/sh", "-c", script, sandbox=PROFILES["workspace"](ground))
    said = b""
    with hide(Reachable((str(folder / "key"),))):
        process = await backend.start(msgspec.structs.replace(start, pipe_stdin=True))
        async for event in process.events():
            if not isinstance(event, OutputChunk) or event.stream == "stderr":
                continue
            said += event.chunk
            if said == b"ready\n":
                (folder / "new").write_text("the new key\n")
                (folder / "new").rename(folder / "key")
                await process.write(b"go\n")
    assert said == b"ready\ndone\n" if alone else b"ready\nthe new key\ndone\n"


# -- what stays behind


@pytest.mark.requirement("security.sandbox.places")
def test_nothing_stays_in_a_workspace_that_a_command_has_closed(project: Project) -> None:
    """Its mount points can be made there, but neither opened nor mounted on."""
    closed = project.home / "closed"
    closed.mkdir()
    project.give(closed)
    closed.chmod(0o600)
    options = ("--sandbox", "workspace-write", "--sandbox-write", closed)
    done = project.call(project.python, "-m", "holdfast", "run", *options, "--", "/bin/true")
    if project.user is not None:
        # The text names what is at fault, which is not the shell.
        assert (done.returncode, f"{closed}/.agents" in done.stderr) == (125, True), done
    assert os.listdir(closed) == []

"""Breaking out by a rule: each program here writes outside, and only a trusted one may."""

import importlib.util
import os
import pprint
import py_compile
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.approvals import Approvals, PrefixRule, RuleSet
from holdfast.agent.unified_exec import ExecResult, Options, UnifiedExec
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.sandbox import SandboxProfile
from tests.e2e.mcp_clients import HANDSHAKE, MODERN, serving
from tests.real.stranger import stranger

pytestmark = pytest.mark.timeout(60)

PROFILE = """
[file_system]
entries = [
    { path = ":root", access = "read" },
    { path = ":project_roots", access = "write" },
]
"""


def execute(program: str, *arguments: str | Path) -> None:
    """Run a program of the system outside any sandbox."""
    subprocess.run([f"/usr/bin/{program}", *arguments], check=True)


class Place:
    """A workspace, a directory with programs that no command can write, and one to get out to."""

    def __init__(self, base: Path) -> None:
        self.workspace = base / "ws"
        self.programs = base / "bin"
        self.outside = base / "outside"
        for folder in (self.workspace, self.programs, self.outside):
            folder.mkdir()
        self.escaped = self.outside / "escaped"
        self.evil = f"#!/bin/sh\ntouch {self.escaped}\n"

    def program(self, path: Path, text: str | None = None) -> Path:
        """Write a program; by default one that gets out."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.evil if text is None else text)
        path.chmod(0o755)
        return path

    def link_tool(self) -> None:
        """A trusted directory links to a program of the workspace."""
        (self.programs / "tool").symlink_to(self.program(self.workspace / "any"))

    def link_twice(self) -> None:
        """The link is trusted, the program is trusted, a second link between them is not."""
        middle = self.workspace / "middle"
        middle.symlink_to(self.program(self.workspace / "any"))
        (self.programs / "tool").symlink_to(middle)

    def link_hard(self) -> None:
        """A program has a second name in the workspace."""
        (self.programs / "tool").hardlink_to(self.program(self.workspace / "any"))

    def load_modules(self) -> None:
        """A trusted Python program finds a module in the workspace."""
        (self.workspace / "modules").mkdir(exist_ok=True)
        evil = f"open({str(self.escaped)!r}, 'w')\n"
        (self.workspace / "modules" / "sitecustomize.py").write_text(evil)
        self.program(self.programs / "tool", f"#!{sys.executable}\n")

    def load_bytecode(self) -> None:
        """A trusted Python program finds the bytecode of its modules in the workspace."""
        source = self.workspace / "evil.py"
        source.write_text(f"open({str(self.escaped)!r}, 'w')\n")
        # Of a module of the standard library, whose source is never looked at.
        wanted = importlib.util.cache_from_source(pprint.__file__).replace("/__pycache__", "")
        py_compile.compile(
            str(source),
            cfile=f"{self.workspace}/bytecode{wanted}",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        self.program(self.programs / "tool", f"#!{sys.executable}\nimport pprint\n")

    def interpret(self) -> None:
        """A trusted script has an interpreter in the workspace."""
        self.program(self.programs / "tool", f"#!{self.program(self.workspace / 'any')}\n")

    def interpret_twice(self) -> None:
        middle = self.program(
            self.programs / "middle", f"#!{self.program(self.workspace / 'any')}\n"
        )
        self.program(self.programs / "tool", f"#!{middle}\n")

    def find_interpreter(self) -> None:
        """A trusted script leaves its interpreter to `PATH`."""
        self.program(self.workspace / "bin" / "sh-here")
        self.program(self.programs / "tool", "#!/usr/bin/env sh-here\n")

    def split_interpreter(self) -> None:
        self.program(self.workspace / "bin" / "sh-here")
        self.program(self.programs / "tool", "#!/usr/bin/env -S sh-here -x\n")

    def find_helper(self) -> None:
        """A trusted script starts a program by its name."""
        self.program(self.workspace / "bin" / "helper")
        self.program(self.programs / "tool", "#!/bin/sh\nhelper\n")

    def start_file(self) -> None:
        """A shell reads a file of the workspace before its script."""
        self.program(self.workspace / ".bash_profile")
        self.program(self.workspace / "bash-env")
        self.program(self.programs / "tool", "#!/bin/bash\n:\n")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    # The usual variables of a project: its own programs come first.
    path = f"{made.workspace}/bin:.:{made.programs}:/usr/bin:/bin"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("HOME", str(made.workspace))
    monkeypatch.setenv("BASH_ENV", str(made.workspace / "bash-env"))
    monkeypatch.setenv("PYTHONPATH", "modules")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(made.workspace / "bytecode"))
    # The base directory of all tests is below it.
    monkeypatch.delenv("TMPDIR", raising=False)
    return made


def tools(place: Place, *pattern: str, **choices: Any) -> tuple[LocalEnvironment, Options]:
    """An environment in the workspace, and options with a rule that lets a command out."""
    rule = PrefixRule(pattern=tuple((word,) for word in pattern), outside_sandbox=True)
    environment = LocalEnvironment()
    environment.cwd = place.workspace
    sandbox = SandboxProfile("read-only", write=["."])
    approvals = Approvals(policy="never", rules=RuleSet([rule], **choices))
    return environment, Options(sandbox=sandbox, approvals=approvals)


async def run(
    place: Place,
    cmd: str,
    *pattern: str,
    rules: dict[str, Any] | None = None,
    **arguments: Any,
) -> ExecResult:
    """Run a command under a rule with `sandbox="none"` for a pattern."""
    environment, options = tools(place, *pattern, **rules or {})
    async with environment, UnifiedExec(environment, options=options) as made:
        wanted = {"cmd": cmd, "yield_time_ms": 30_000, **arguments}
        result = await made.call("exec_command", wanted)
    assert isinstance(result, ExecResult), result.text()
    return result


@pytest.mark.both_loops
@pytest.mark.requirement("rules.real-program")
@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
async def test_a_program_of_the_system_leaves_the_sandbox(place: Place, tty: bool) -> None:
    made = place.outside / "made"
    result = await run(place, f"touch '{made}'", "touch", tty=tty)
    assert result.exit_code == 0, result.output
    assert made.exists()
    assert not place.escaped.exists()


@pytest.mark.requirement("rules.real-program")
@pytest.mark.parametrize("login", [False, True])
@pytest.mark.parametrize(
    ("cmd", "where"),
    [
        ("tool", "bin/tool"),
        ("tool", "tool"),
        ("./tool", "tool"),
        ("bin/tool", "bin/tool"),
        ("{ws}/tool", "tool"),
        ("{ws}/../ws/tool", "tool"),
        ("/proc/self/cwd/tool", "tool"),
    ],
)
async def test_a_program_of_the_workspace_stays_inside(
    place: Place, cmd: str, where: str, login: bool
) -> None:
    place.program(place.workspace / where)
    cmd = cmd.format(ws=place.workspace)
    result = await run(place, cmd, cmd, login=login)
    # A login shell may have another `PATH`, and then finds nothing.
    assert result.exit_code in (1, 127)
    assert not place.escaped.exists()


@pytest.mark.requirement("rules.real-program")
@pytest.mark.parametrize(
    "prepare",
    [
        Place.link_tool,
        Place.link_twice,
        Place.link_hard,
        Place.load_modules,
        Place.load_bytecode,
        Place.interpret,
        Place.interpret_twice,
        Place.find_interpreter,
        Place.split_interpreter,
        Place.find_helper,
        Place.start_file,
    ],
    ids=lambda prepare: prepare.__name__,
)
async def test_what_a_trusted_program_leads_to_stays_inside(
    place: Place, prepare: Callable[[Place], None]
) -> None:
    prepare(place)
    # A login shell may have another `PATH`, and reads other start files.
    for login in (False, True):
        await run(place, "tool", "tool", login=login)
    assert not place.escaped.exists()


@pytest.mark.requirement("rules.real-program")
@pytest.mark.parametrize(
    "cmd",
    [
        "PATH={ws}/bin touch {out}/made",
        "LD_PRELOAD={ws}/x.so touch {out}/made",
        "touch() {{ :; }}; touch {out}/made",
        "alias touch=bin/tool; touch {out}/made",
        "env touch {out}/made",
        "bash -c 'touch {out}/made'",
        "touch {out}/made; true",
        "touch {out}/made && touch {out}/more",
        "touch {out}/made > log",
        "touch $(bin/tool) {out}/made",
    ],
)
async def test_only_the_plain_command_leaves_the_sandbox(place: Place, cmd: str) -> None:
    place.program(place.workspace / "bin" / "tool")
    await run(place, cmd.format(ws=place.workspace, out=place.outside), "touch")
    assert os.listdir(place.outside) == []


@pytest.mark.requirement("rules.real-program")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_a_second_mount_of_the_workspace_stays_inside(place: Place) -> None:
    place.program(place.workspace / "sub" / "tool")
    execute("mount", "--bind", place.workspace / "sub", place.programs)
    try:
        await run(place, "tool", "tool")
    finally:
        execute("umount", place.programs)
    assert not place.escaped.exists()


@pytest.mark.requirement("rules.real-program")
async def test_a_program_keeps_its_name_and_only_a_listed_one_leaves(place: Place) -> None:
    # As busybox and similar programs do, which act by the name that they are called by.
    (place.programs / "tool").symlink_to(shutil.which("bash", path="/usr/bin:/bin") or "")
    out = place.outside / "made"
    result = await run(place, f"tool -c 'echo $0 > {out}' name", "tool")
    assert (result.exit_code, out.read_text()) == (0, "name\n")
    out.unlink()
    await run(place, f"tool -c 'echo > {out}'", "tool", tty=True)
    assert not out.exists()
    listed = {"host_executables": {"tool": ("/usr/bin/tool",)}}
    await run(place, f"tool -c 'echo > {out}'", "tool", rules=listed)
    assert not out.exists()
    # A path in the rule needs no list.
    path = str(place.programs / "tool")
    await run(place, f"{path} -c 'echo > {out}'", path, rules=listed)
    assert out.exists()


@pytest.mark.requirement("rules.real-program")
async def test_no_directory_of_the_workspace_is_searched_outside(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A link that a command may change at any time.
    (place.workspace / "link").symlink_to("/usr/bin")
    monkeypatch.setenv("PATH", f"{place.workspace}/link:{os.environ['PATH']}")
    out = place.outside / "path"
    place.program(place.programs / "tool", f"#!/bin/sh\necho $PATH > {out}\n")
    await run(place, "tool", "tool", login=False)
    searched = out.read_text().strip().split(":")
    assert all(folder.startswith("/") for folder in searched)
    assert not [folder for folder in searched if folder.startswith(str(place.workspace))]


OF_A_USER = """
import asyncio, os
from holdfast.agent.approvals import Approvals, PrefixRule, RuleSet
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.sandbox import SandboxProfile
from holdfast.agent.unified_exec import Options, UnifiedExec

os.chdir(os.environ["HOME"])
for name in ("ws", "bin", "outside"):
    os.mkdir(name)

def write(path):
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\\ntouch {os.getcwd()}/outside/{os.path.basename(path)}\\n")
    os.chmod(path, 0o755)

for path in ("ws/mine", "ws/linked", "bin/trusted"):
    write(path)
os.link("ws/linked", "bin/linked")
os.environ["PATH"] = f"{os.getcwd()}/ws:{os.getcwd()}/bin:/usr/bin:/bin"

async def main():
    names = ("mine", "linked", "trusted")
    rules = RuleSet([PrefixRule(pattern=((name,),), outside_sandbox=True) for name in names])
    environment = LocalEnvironment()
    environment.cwd = os.path.abspath("ws")
    options = Options(
        sandbox=SandboxProfile("read-only", write=["."]),
        approvals=Approvals(policy="never", rules=rules),
    )
    async with environment, UnifiedExec(environment, options=options) as tools:
        for name in names:
            await tools.call("exec_command", {"cmd": name, "login": False})

asyncio.run(main())
print(*os.listdir("outside"))
"""


@pytest.mark.soak
@pytest.mark.requirement("rules.real-program")
@pytest.mark.skipif(os.geteuid() != 0, reason="the others are run by an ordinary user here")
def test_the_rules_of_an_ordinary_user() -> None:
    with stranger() as user:
        done = subprocess.run(
            [user.python, "-c", OF_A_USER],
            **user.popen,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.stdout, done.stderr) == ("trusted\n", "")


# -- over MCP


@pytest.mark.both_loops
@pytest.mark.requirement("mcp.rules-stay-inside")
@pytest.mark.parametrize("mode", [HANDSHAKE, MODERN])
async def test_an_allowed_command_over_mcp_stays_in_its_sandbox(place: Place, mode: str) -> None:
    profile = place.outside.parent / "profile.toml"
    profile.write_text(PROFILE)
    rules = place.outside.parent / "git.rules"
    rules.write_text('prefix_rule(pattern=["git", "status"])\n')
    place.program(place.workspace / "bin" / "git")
    place.program(place.workspace / "hook")
    nested = place.workspace / "nested"
    execute("git", "init", "-q", nested)
    execute("git", "-C", nested, "config", "core.fsmonitor", place.workspace / "hook")
    made = serving("stdio", mode, place.workspace, sandbox=str(profile), rules=[str(rules)])
    async with made as served, served.client() as client:
        for cmd, workdir in (
            ("git status", "."),
            (f"{place.workspace}/bin/git status", "."),
            ("/usr/bin/git status", "nested"),
        ):
            arguments = {"cmd": cmd, "workdir": workdir, "login": False}
            await client.call_tool("exec_command", arguments)
            assert not place.escaped.exists(), cmd


@pytest.mark.requirement("mcp.rules-stay-inside")
async def test_codexs_meaning_of_rules_is_an_option(place: Place) -> None:
    profile = place.outside.parent / "profile.toml"
    profile.write_text(PROFILE)
    rules = place.outside.parent / "touch.rules"
    rules.write_text('prefix_rule(pattern=["touch"])\n')
    for as_codex in (False, True):
        made = serving(
            "stdio",
            MODERN,
            place.workspace,
            sandbox=str(profile),
            rules=[str(rules)],
            rules_leave_sandbox=as_codex,
        )
        async with made as served, served.client() as client:
            arguments = {"cmd": f"touch {place.escaped}", "login": False}
            await client.call_tool("exec_command", arguments)
        assert place.escaped.exists() is as_codex


def test_the_fixture_gets_out_without_a_sandbox(place: Place) -> None:
    evil = place.program(place.workspace / "tool")
    assert evil.stat().st_mode & stat.S_IXUSR
    subprocess.run([str(evil)], check=True)
    assert place.escaped.exists()

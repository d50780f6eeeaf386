"""An agent commits in its sandbox, as the guide on commits says, and changes no more than that."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.mcp_clients import MODERN, serving, text
from tests.e2e.shells import Shell
from tests.e2e.wire import HOLDFAST, LIMIT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PROFILE = """
[file_system]
entries = [
    { path = ":root", access = "read" },
    { path = ":project_roots", access = "write" },
]
"""

COMMIT = "echo more > more && git add more && git commit -qm more"

IDENTITY = {
    f"GIT_{who}_{what}": "someone" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
} | {"GIT_CONFIG_GLOBAL": "/dev/null"}


def git(folder: Path, *arguments: str | Path) -> str:
    """Run git outside any sandbox."""
    done = subprocess.run(
        ["git", "-C", folder, *arguments],
        env=os.environ | IDENTITY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit on `main`, and a profile beside it."""
    (tmp_path / "profile.toml").write_text(PROFILE)
    made = tmp_path / "repo"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    (made / "file").write_text("text\n")
    git(made, "add", "file")
    git(made, "commit", "-qm", "first")
    return made


def run(folder: Path, script: str, writable: Sequence[Path | str] = ()) -> tuple[int, str]:
    """Run a script as `holdfast run` does, and return the exit status and stderr."""
    added = [word for path in writable for word in ("--sandbox-write", str(path))]
    profile = folder.parent / "profile.toml"
    done = subprocess.run(
        [*HOLDFAST, "run", "--sandbox", str(profile), *added, "--", "sh", "-c", script],
        cwd=folder,
        env={**os.environ, **IDENTITY, "TMPDIR": ""},
        capture_output=True,
        text=True,
        timeout=4 * LIMIT,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.requirement("sandbox.write-option")
def test_a_worktree_takes_commits_and_nothing_else(repository: Path) -> None:
    agent = repository.parent / "agent"
    git(repository, "worktree", "add", "-q", agent, "-b", "agent/work")
    store = repository / ".git"
    status, told = run(agent, COMMIT)
    assert status != 0
    assert "see the guide `Let an agent commit`" in told
    parts = ("worktrees/agent", "objects", "refs/heads/agent", "logs/refs/heads/agent")
    writable = [store / part for part in parts]
    status, told = run(agent, COMMIT, writable)
    assert (status, told) == (0, "")
    assert git(repository, "log", "--format=%s", "agent/work") == "more\nfirst\n"
    before = (store / "config").read_text()
    status, told = run(
        agent,
        f"for name in config hooks/pre-commit commondir HEAD refs/heads/main"
        f" worktrees/agent/commondir worktrees/agent/gitdir; do"
        f" ! echo evil 2>/dev/null > {store}/$name || echo wrote $name >&2; done;"
        f" mv {store}/worktrees/agent {store}/worktrees/other 2>/dev/null && echo moved >&2;"
        f" rm -rf {store}/hooks 2>/dev/null; git config a.b c; git tag new; true",
        writable,
    )
    assert "wrote" not in told
    assert "moved" not in told
    assert (store / "config").read_text() == before
    assert git(repository, "tag") == ""
    assert git(repository, "log", "--format=%s", "main") == "first\n"
    assert git(agent, "status", "--short") == ""
    git(repository, "fsck", "--strict")


@pytest.mark.both_loops
@pytest.mark.requirement("sandbox.protected.in-git")
async def test_a_repository_over_mcp_takes_commits_but_no_hooks(repository: Path) -> None:
    profile = str(repository.parent / "profile.toml")
    before = (repository / ".git/config").read_text()
    made = serving("stdio", MODERN, repository, sandbox=profile, sandbox_write=[".git"])
    names = " ".join(f"{name}={value}" for name, value in IDENTITY.items())
    async with made as served, served.client() as client:
        for script in (
            f"export {names}; {COMMIT}",
            "echo evil > .git/config",
            "echo evil > .git/hooks/pre-commit",
            "mv .git/hooks .git/old",
            "mv .git/config .git/old",
            "mv .git old",
        ):
            arguments = {"cmd": script, "login": False}
            done = await client.call_tool("exec_command", arguments)
            assert (done.structured_content["exit_code"] == 0) is (COMMIT in script), text(done)
    assert git(repository, "log", "--format=%s") == "more\nfirst\n"
    assert (repository / ".git/config").read_text() == before
    assert not (repository / ".git/hooks/pre-commit").exists()


@pytest.mark.requirement("sandbox.write-option")
def test_holdfast_sh_lets_more_be_written(repository: Path) -> None:
    shell = Shell(repository.parent / "bash")
    settings = {"HOLDFAST_SH_SANDBOX": str(repository.parent / "profile.toml"), "TMPDIR": ""}
    env = {**shell.env, **IDENTITY, **settings}
    said = repository.parent / "stderr"

    def call(**more: str) -> int:
        with said.open("wb") as stderr:
            return subprocess.run(
                [shell.path, "-c", COMMIT],
                cwd=repository,
                env=env | more,
                stderr=stderr,
                timeout=4 * LIMIT,
                check=False,
            ).returncode

    try:
        assert call() != 0
        assert "see the guide `Let an agent commit`" in said.read_text()
        assert call(HOLDFAST_SH_SANDBOX_WRITE=".git") == 0, said.read_text()
    finally:
        shell.close()
    assert git(repository, "log", "--format=%s") == "more\nfirst\n"

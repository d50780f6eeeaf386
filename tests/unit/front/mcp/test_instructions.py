"""The instructions name the workspace, what may be written there, and the network."""

import os
from pathlib import Path

import pytest

from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.mcp_server import instructions

pytestmark = pytest.mark.requirement("tools.notes")

PROFILE = """\
network = "enabled"
[[file_system.entries]]
path = ":root"
access = "read"
[[file_system.entries]]
path = "/srv/data"
access = "write"
[[file_system.entries]]
path = "/srv/secret"
access = "deny"
"""


def test_a_profile_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(PROFILE)
    options = ServerOptions(cwd="/srv", sandbox=str(tmp_path / "mine.toml"))
    text = instructions(options)
    assert f"Commands run in `/srv` in the sandbox `{tmp_path}/mine.toml`: they may" in text
    assert " they may write `/srv/data`, and have the network. " in text
    assert text.endswith("can be asked for with `sandbox_permissions: require_escalated`.")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        ([], "`/srv/app` (but not `.git` in it), `/tmp`, "),
        (
            ["/srv/data"],
            "`/srv/app` (but not `.git` in it), `/tmp`, the temporary directory, `/srv/d",
        ),
        ([".git"], "`/srv/app`, `/tmp`, the temporary directory, `/srv/app/.git`, and"),
        (["/srv/app/.git"], "`/srv/app`, `/tmp`, the temporary directory, `/srv/app/.git`, and"),
    ],
)
def test_further_paths_are_named(write: list[str], said: str) -> None:
    options = ServerOptions(environment="local", cwd="/srv/app", sandbox_write=write)
    assert f": they may write {said}" in instructions(options)


def test_a_wide_workspace_is_called_one() -> None:
    options = ServerOptions(environment="local", cwd="/home/me", wide_workspace="/home/me, a home")
    text = instructions(options)
    assert " They may write /home/me, a home: change nothing there unasked. What it" in text


@pytest.mark.parametrize("content", [None, "broken", "[[file_system.entries]]\npath = 3\n"])
def test_a_profile_that_cannot_be_read_is_left_to_the_first_command(
    content: str | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "mine.toml").write_text(content)
    options = ServerOptions(
        cwd="/srv", sandbox=str(tmp_path / "mine.toml"), ask_for_approval="never"
    )
    text = instructions(options)
    assert text.endswith(f"in the sandbox `{tmp_path}/mine.toml`. What it denies is refused.")


def test_another_machine_may_not_say_where_commands_run() -> None:
    there = ServerOptions(environment="ssh://build")
    assert "Commands run in the sandbox `workspace-write`: they may write the" in instructions(
        there
    )
    relative = ServerOptions(environment="ssh://build", cwd="project")
    assert "Commands run in `project` in the sandbox `workspace-write`: " in instructions(relative)


def test_a_directory_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert "Commands run in the sandbox `workspace-write`: " in instructions(ServerOptions())
    finally:
        os.chdir(tmp_path)

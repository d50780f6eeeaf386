"""`holdfast env`, and `--on` for the names it knows, as a person or a script calls them."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.wire import HOLDFAST, LIMIT, ServerProcess, serving

Run = Callable[..., "subprocess.CompletedProcess[str]"]

NOWHERE = "ws://127.0.0.1:1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def holdfast(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line with a home of its own."""
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    for name in ("HOLDFAST_EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL", "HOLDFAST_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*HOLDFAST, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=6 * LIMIT,
            check=False,
        )

    return run


def done(result: "subprocess.CompletedProcess[str]") -> str:
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def error(result: "subprocess.CompletedProcess[str]", status: int = 1) -> str:
    assert (result.returncode, result.stdout) == (status, "")
    return result.stderr


def test_without_a_file_there_is_this_machine(holdfast: Run) -> None:
    assert done(holdfast("env", "list")).splitlines() == [
        "NAME   KIND   WHERE         DEFAULT",
        "local  local  this machine  default",
    ]
    (found,) = json.loads(done(holdfast("env", "check", "--json")))
    assert (found["id"], found["status"], found["error"]) == ("local", "ready", None)
    assert found["info"]["platformOs"] == "linux"


@pytest.mark.slow
def test_a_server_is_added_used_and_removed(
    holdfast: Run, server: ServerProcess, home: Path, tmp_path: Path
) -> None:
    file = home / "environments.toml"
    assert done(holdfast("env", "add", "build", "--url", server.url, "--default")) == (
        f"added `build` to {file}\n"
    )
    assert file.stat().st_mode & 0o777 == 0o600
    assert f"build  server  {server.url}" in done(holdfast("env", "list"))
    local, build = json.loads(done(holdfast("env", "check", "--json")))
    assert (local["default"], build["default"], build["status"]) == (False, True, "ready")
    assert build["latencyMs"] > 0
    assert "processResize" in done(holdfast("env", "show", "build"))
    assert done(holdfast("run", "--on", "build", "--", "echo", "there")) == "there\n"
    (tmp_path / "f").write_text("text")
    assert done(holdfast("fs", "cat", "--on", "build", str(tmp_path / "f"))) == "text"
    assert done(holdfast("env", "remove", "build")) == f"removed `build` from {file}\n"
    assert "build" not in done(holdfast("env", "list"))


@pytest.mark.slow
def test_a_command_is_added_and_used(holdfast: Run) -> None:
    serve = [*HOLDFAST, "serve", "--listen", "stdio"]
    done(holdfast("env", "add", "box", "--cmd", shlex.join(serve)))
    (found,) = (json.loads(done(holdfast("env", "show", "box", "--json"))),)
    assert (found["kind"], found["command"], found["status"]) == ("command", serve, "ready")
    assert done(holdfast("run", "--on", "box", "--", "echo", "boxed")) == "boxed\n"


def test_a_token_is_kept_and_never_shown(holdfast: Run, home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("s3cret\n")
    with serving("--ws-auth", "capability-token", "--ws-token-file", str(token)) as server:
        done(holdfast("env", "add", "safe", "--url", server.url, "--token-file", str(token)))
        assert "s3cret" in (home / "environments.toml").read_text()
        for operation in (["list"], ["list", "--json"], ["show", "safe"], ["check", "--json"]):
            assert "s3cret" not in done(holdfast("env", *operation))
        assert done(holdfast("run", "--on", "safe", "--", "echo", "in")) == "in\n"


def test_a_place_that_cannot_be_used_is_told_and_the_others_are_checked(holdfast: Run) -> None:
    done(holdfast("env", "add", "gone", "--url", NOWHERE))
    done(holdfast("env", "add", "dumb", "--cmd", "false"))
    result = holdfast("env", "check")
    assert result.returncode == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        ["local", "ready"],
        ["gone", "disconnected"],
        ["dumb", "disconnected"],
    ]
    assert "holdfast: gone: " in result.stderr
    assert "Connection refused (os error 111)" in result.stderr
    assert "holdfast: dumb: " in result.stderr
    shown = holdfast("env", "show", "gone")
    assert (shown.returncode, "disconnected: " in shown.stdout) == (1, True)


def test_a_file_of_codex_is_read_as_it_is(holdfast: Run, tmp_path: Path) -> None:
    file = tmp_path / "environments.toml"
    file.write_text(f'include_local = false\n[[environments]]\nid = "x"\nurl = "{NOWHERE}"\n')
    listed = done(holdfast("env", "list", "--file", str(file)))
    assert listed.splitlines()[1:] == [f"x     server  {NOWHERE}  -"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["show", "nope"], 1, "unknown environment id `nope`; configured: `local`"),
        (["check", "nope"], 1, "unknown environment id `nope`"),
        (["add", "local", "--url", NOWHERE], 1, "environment id `local` is reserved"),
        (["add", "a b", "--url", NOWHERE], 1, "must contain only ASCII letters"),
        (["add", "a", "--url", "http://x"], 1, "must use ws:// or wss://"),
        (["add", "a"], 2, "one of the arguments --url --cmd is required"),
        (["add", "a", "--url", NOWHERE, "--cmd", "x"], 2, "not allowed with argument"),
        (["add", "a", "--cmd", ""], 1, "environment `a` program cannot be empty"),
        (["add", "a", "--cmd", "'"], 1, "cannot parse the command"),
        (["add", "a", "--url", NOWHERE, "--cwd", "/"], 2, "--cwd can only be used with --cmd"),
        (["add", "a", "--token-file", "t", "--cmd", "x"], 2, "can only be used with --url"),
        (
            ["add", "a", "--url", NOWHERE, "--token-file", "/nope"],
            1,
            "cannot use the token file /nope",
        ),
        (["remove", "nope"], 1, "environments.toml"),
        (["list", "--file", "/nope"], 1, "failed to read environment config `/nope`"),
    ],
)
def test_a_mistake_is_told_and_changes_nothing(
    holdfast: Run, home: Path, arguments: list[str], status: int, text: str
) -> None:
    assert text in error(holdfast("env", *arguments), status)
    assert not home.exists()


def test_a_name_that_is_taken_is_refused(holdfast: Run, home: Path) -> None:
    done(holdfast("env", "add", "a", "--url", NOWHERE))
    before = (home / "environments.toml").read_text()
    assert "environment `a` already exists in " in error(
        holdfast("env", "add", "a", "--url", "ws://127.0.0.1:2")
    )
    assert (home / "environments.toml").read_text() == before


def test_an_unknown_name_is_no_place_to_run(holdfast: Run) -> None:
    assert "unknown environment id `nope`" in error(
        holdfast("run", "--on", "nope", "--", "true"), 125
    )
    assert "unknown environment id `nope`" in error(holdfast("fs", "ls", "--on", "nope"), 125)
    assert done(holdfast("run", "--on", "local", "--", "echo", "here")) == "here\n"

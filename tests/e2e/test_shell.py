"""`holdfast shell`: the tools of a model at a prompt, on a terminal and on a pipe."""

import importlib.util
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.terminals import CTRL_C, CTRL_D, Terminal, terminal
from tests.e2e.test_run import assert_gone
from tests.e2e.wire import HOLDFAST, LIMIT

pytestmark = pytest.mark.slow

SHELL = [*HOLDFAST, "shell"]
PROMPT = "holdfast>"
DETACH = "\x1d"


def script(text: str, *options: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Give lines on a pipe."""
    return subprocess.run(
        [*SHELL, *options],
        input=text,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT * 6,
        check=False,
        env={**os.environ, "HOLDFAST_HOME": str(cwd), **env},
    )


@contextmanager
def prompt(folder: Path, *options: str, plain: bool = True) -> Iterator[Terminal]:
    """Sit at a terminal, without `prompt_toolkit` or with it."""
    env = {
        **os.environ,
        "HOLDFAST_HOME": str(folder),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }
    if plain:
        # A module of that name that cannot be imported stands for one that is missing.
        (folder / "hidden").mkdir()
        (folder / "hidden/prompt_toolkit.py").write_text("raise ImportError\n")
        env["PYTHONPATH"] = str(folder / "hidden")
    with terminal(*SHELL, "--cwd", str(folder), *options, env=env) as screen:
        screen.expect(":help shows more", limit=LIMIT * 4)
        screen.expect(PROMPT, limit=LIMIT * 4)
        yield screen


def test_lines_of_a_pipe_are_run_and_shown(tmp_path: Path) -> None:
    done = script("echo out; echo err >&2; exit 3\n:list\n", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    out, err, ended, nothing = done.stdout.splitlines()
    assert (out, err, nothing) == ("out", "err", "nothing runs")
    assert ended.startswith("exit 3 after ")
    assert "\x1b" not in done.stdout


def test_what_a_model_reads_is_shown_on_request(tmp_path: Path) -> None:
    done = script("echo said\n:json\n:text\n", cwd=tmp_path)
    shown = done.stdout.partition("\n{")[2].partition("\n}\n")
    answer = json.loads("{" + shown[0] + "}")
    assert answer["call"]["name"] == "exec_command"
    assert answer["object"]["output"] == "said\n"
    assert answer["object"]["exit_code"] == 0
    assert answer["text"].startswith("Chunk ID: ")
    assert shown[2].strip() == answer["text"].strip()
    same = script("echo said\n", "--model-text", cwd=tmp_path)
    assert same.stdout.startswith("Chunk ID: ")
    assert same.stdout.endswith("Output:\nsaid\n\n")


def test_mistakes_are_told_and_the_next_line_is_read(tmp_path: Path) -> None:
    lines = [
        ":nothing",
        ":poll 5",
        ":attach 5",
        ":kill",
        ":send x y",
        ":wait soon",
        ":read",
        ":text",
        "echo on",
    ]
    done = script("\n".join(lines), cwd=tmp_path)
    assert done.returncode == 0
    assert "there is no `:nothing`" in done.stdout
    assert "Unknown process id 5" in done.stdout
    assert "there is no command 5; :list shows those that run" in done.stdout
    assert ":kill takes the number of a command" in done.stdout
    assert "`x` is not the number of a command" in done.stdout
    assert "`soon` is not a number of seconds" in done.stdout
    assert "nothing was run yet" in done.stdout
    assert "\non\n" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sandbox", "no-such"], "no-such"),
        (["--on", "no-such"], "no-such"),
        (["--url", "ws://127.0.0.1:1"], "127.0.0.1"),
    ],
)
def test_a_place_that_cannot_be_had_is_one_line(
    tmp_path: Path, options: list[str], said: str
) -> None:
    done = script("echo ran\n", *options, cwd=tmp_path)
    assert done.returncode == 125
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_runs_on_a_server(tmp_path: Path) -> None:
    server = shlex.join([*HOLDFAST, "serve", "--listen", "stdio"])
    options = ["--cmd", server, "--cwd", str(tmp_path)]
    done = script(
        "pwd; echo $((6*7)) > made\n", *options, cwd=Path("/"), HOLDFAST_HOME=str(tmp_path)
    )
    assert done.stdout.startswith(f"{tmp_path}\n"), done.stderr
    assert (tmp_path / "made").read_text() == "42\n"


def test_a_script_has_nobody_to_ask(tmp_path: Path) -> None:
    done = script("touch made\ny\n", "--policy", "untrusted", cwd=tmp_path)
    assert not (tmp_path / "made").exists()
    assert "ejected" in done.stdout


def test_a_denial_of_the_sandbox_is_told(tmp_path: Path) -> None:
    done = script("touch made\n", "--sandbox", "read-only", cwd=tmp_path)
    assert "denied by the sandbox" in done.stdout
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("plain", [True, False])
def test_a_command_goes_on_behind_the_prompt_and_comes_back(tmp_path: Path, plain: bool) -> None:
    if not plain and importlib.util.find_spec("prompt_toolkit") is None:
        pytest.skip("prompt_toolkit is not installed")
    with prompt(tmp_path, "--wait", "0.3", plain=plain) as screen:
        screen.type(":tty echo re''ady; read line; echo got $line; exit 4\r")
        screen.expect("ready")
        screen.expect("] runs on")
        screen.expect(PROMPT)
        screen.type(":list\r")
        screen.expect("COMMAND")
        screen.expect("read line")
        screen.expect(PROMPT)
        screen.type(":attach\r")
        screen.expect("Ctrl-] comes back")
        screen.type(DETACH)
        screen.expect(PROMPT)
        screen.type(":attach\r")
        screen.expect("Ctrl-] comes back")
        screen.type("keys\r")
        screen.expect("got keys")
        screen.expect("exit 4")
        screen.expect(PROMPT)
        assert not screen.is_raw or not plain
        screen.type(CTRL_D)
        assert screen.wait() == 0


def test_ctrl_c_interrupts_the_command_and_not_the_prompt(tmp_path: Path) -> None:
    with prompt(tmp_path) as screen:
        screen.type("echo re''ady; sleep 100\n")
        screen.expect("ready")
        screen.type(CTRL_C)
        screen.expect("exit 130")
        screen.expect(PROMPT)
        screen.type(CTRL_C)
        screen.expect("\r\n")  # it was noticed
        screen.type("echo still $((6*7))\n")
        screen.expect("still 42")
        screen.type(":quit\n")
        assert screen.wait() == 0


def test_everything_ends_with_the_prompt(tmp_path: Path) -> None:
    with prompt(tmp_path, "--wait", "0.3") as screen:
        screen.type("echo pid: $$; exec sleep 1000\n")
        screen.expect("pid: $$; exec sleep 1000\r\n")
        screen.expect("pid: ")
        pid = int(screen.expect("\r\n"))
        screen.expect("] runs on")
        screen.process.kill()
        screen.process.wait()
        assert_gone(pid)


def test_colours_are_for_terminals(tmp_path: Path) -> None:
    with prompt(tmp_path) as screen:
        screen.type("true\n")
        screen.expect("\x1b[32mexit 0")
        screen.type("false\n")
        screen.expect("\x1b[31mexit 1")


@pytest.mark.parametrize("answer", ["y", "n"])
def test_questions_are_asked_on_the_terminal(tmp_path: Path, answer: str) -> None:
    with prompt(tmp_path, "--policy", "untrusted") as screen:
        screen.type("touch made\n")
        screen.expect("[y]es")
        screen.expect("[n]o")
        screen.expect(": ")
        screen.type(f"{answer}\n")
        screen.expect("exit 0" if answer == "y" else "ejected")
        screen.expect(PROMPT)
    assert (tmp_path / "made").exists() == (answer == "y")


def test_read_shows_lines_after_the_end(tmp_path: Path) -> None:
    with prompt(tmp_path) as screen:
        screen.type("seq 100 120\n")
        screen.expect("120\r\n")
        screen.expect(PROMPT)
        screen.type(":kill 5\n")
        screen.expect("there is no command 5")
        screen.expect(PROMPT)
        screen.type(":help\n")
        screen.expect(":quit")

"""Completion scripts, read by the shells they are for."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.front.cli.parser import make_parser


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    options = make_parser().parse_args(["completion", shell])
    assert options.run(options) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_a_script_knows_the_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = _script(shell, capsys)
    for word in ("serve", "run", "completion", "listen", "token-file", "cwd"):
        assert word in script


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_can_read_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-n"],
        input=_script(shell, capsys),
        capture_output=True,
        text=True,
        timeout=5,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_options_folders_files_names_and_profiles(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = _script("bash", capsys)
    (tmp_path / "mine.toml").touch()
    (tmp_path / "notes.txt").touch()
    # Stands in for the command, whose own list is tested elsewhere.
    script += '\nholdfast() { [ "$*" = "env list --names" ] && printf "local\\nbuild\\n"; }\n'
    ask = """
        COMP_WORDS=(holdfast run --tok) COMP_CWORD=2; _shtab_holdfast; echo "${COMPREPLY[@]}"
        COMP_WORDS=(holdfast run --cwd /pro) COMP_CWORD=3; _shtab_holdfast; echo "${COMPREPLY[@]}"
        COMP_WORDS=(holdfast run --on bu) COMP_CWORD=3; _shtab_holdfast; echo "${COMPREPLY[@]}"
        COMP_WORDS=(holdfast run --sandbox '') COMP_CWORD=3; _shtab_holdfast; echo "${COMPREPLY[@]}"
        COMP_WORDS=(holdfast fs cat not) COMP_CWORD=3; _shtab_holdfast; echo "${COMPREPLY[@]}"
        COMP_WORDS=(holdfast env show lo) COMP_CWORD=3; _shtab_holdfast; echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script + ask],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == [
        "--token-file",
        "/proc",
        "build",
        "read-only workspace-write disabled mine.toml",
        "notes.txt",
        "local",
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_names_are_asked_for_when_they_are_needed(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "holdfast env list --names" in _script(shell, capsys)

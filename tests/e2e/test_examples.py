"""Every example does what it shows; each asserts that itself and exits non-zero when it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.wire import ROOT_WARNING
from tests.warm import PROGRAM, folder_of_commands

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*/main.py"))


@pytest.mark.slow
@pytest.mark.parametrize("program", [pytest.param(p, id=p.parent.name) for p in PROGRAMS])
def test_an_example_succeeds_and_has_nothing_to_complain_of(program: Path, tmp_path: Path) -> None:
    if program.parent.name == "hello":  # with all that an interpreter does at its start
        command, commands = [sys.executable, "-W", "error"], Path(sys.executable).parent
    else:
        command, commands = PROGRAM, folder_of_commands(tmp_path)
    folder = tmp_path / "here"
    folder.mkdir()
    done = subprocess.run(
        [*command, str(program)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=28,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}"},
    )
    # A server that an example starts warns of root.
    said = [line for line in done.stderr.splitlines() if not line.startswith(ROOT_WARNING)]
    assert (done.returncode, said) == (0, [])
    assert done.stdout


def test_every_example_says_what_it_shows() -> None:
    assert PROGRAMS
    folders = {path for path in EXAMPLES.iterdir() if path.is_dir()}
    assert {program.parent for program in PROGRAMS} == folders
    for folder in folders:
        assert (folder / "README.md").read_text().startswith("# ")

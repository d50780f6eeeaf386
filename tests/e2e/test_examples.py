"""Every example does what it shows; each asserts that itself and exits non-zero when it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*/main.py"))


@pytest.mark.slow
@pytest.mark.parametrize("program", [pytest.param(p, id=p.parent.name) for p in PROGRAMS])
def test_an_example_succeeds_and_has_nothing_to_complain_of(program: Path, tmp_path: Path) -> None:
    commands = Path(sys.executable).parent  # where `holdfast` is
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=28,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_example_says_what_it_shows() -> None:
    assert PROGRAMS
    folders = {path for path in EXAMPLES.iterdir() if path.is_dir()}
    assert {program.parent for program in PROGRAMS} == folders
    for folder in folders:
        assert (folder / "README.md").read_text().startswith("# ")

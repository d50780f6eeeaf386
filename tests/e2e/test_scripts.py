"""The scripts on a new machine, with stand-ins for programs of the system."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

INSTALLS = '#!/bin/sh\nfor word; do last=$word; done\n: > "$0.$last"\ncp /bin/true "{bin}/bwrap"\n'
FAILS = "#!/bin/sh\necho no network >&2\nexit 100\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs without bubblewrap, of an ordinary user."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "flock", "cp", "sh"):
        (programs / name).symlink_to(shutil.which(name) or name)
    give(programs, "id", "#!/bin/sh\necho 1000\n")
    return programs


def give(programs: Path, name: str, text: str) -> None:
    (programs / name).write_text(text.format(bin=programs))
    (programs / name).chmod(0o755)


def install_sandbox(programs: Path) -> subprocess.CompletedProcess[str]:
    """Do what `scripts/serve` does before it starts a server."""
    lock = programs.parent / "scripts"
    lock.mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts/lib.sh", lock)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", 'source "$0"; install_sandbox', f"{lock}/lib.sh"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_the_image_is_skipped_with_a_line_where_no_engine_answers(machine: Path) -> None:
    give(machine, "podman", FAILS)  # is installed, and its service does not run
    (machine / "timeout").symlink_to(shutil.which("timeout") or "timeout")
    done = subprocess.run(
        ["bash", ROOT / "scripts/test-docker"],
        env={"PATH": str(machine)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == 1
    assert "skipped: neither docker nor podman has a running engine here" in done.stderr


def test_serve_says_what_to_install_where_it_may_not(machine: Path) -> None:
    done = install_sandbox(machine)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "holdfast: commands that ask for a sandbox are refused until you install bubblewrap:"
        " sudo apt-get install bubblewrap\n"
    )


def test_serve_installs_it_where_it_may(machine: Path) -> None:
    give(machine, "id", "#!/bin/sh\necho 0\n")
    give(machine, "apt-get", INSTALLS)
    done = install_sandbox(machine)
    assert (done.returncode, done.stdout, done.stderr) == (
        *(0, ""),
        "holdfast: installing bubblewrap\n",
    )
    assert (machine / "apt-get.bubblewrap").exists()
    assert install_sandbox(machine).stderr == ""


def test_serve_goes_on_where_that_fails(machine: Path) -> None:
    give(machine, "id", "#!/bin/sh\necho 0\n")
    give(machine, "apt-get", FAILS)
    done = install_sandbox(machine)
    assert done.returncode == 0
    begun, told = done.stderr.splitlines()  # one line for all that apt-get said
    assert begun == "holdfast: installing bubblewrap"
    assert told.endswith(
        "sudo apt-get install bubblewrap (apt-get could not install bubblewrap: no network)"
    )


def test_serve_prepares_the_sandbox() -> None:
    assert "\ninstall_sandbox\n" in (ROOT / "scripts/serve").read_text()
    assert os.access(ROOT / "scripts/serve", os.X_OK)

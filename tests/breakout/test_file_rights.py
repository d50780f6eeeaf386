"""File operations of a server do no more than a command under the same profile could."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.breakout.harness import LIMIT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT * 12),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of several users"),
]

NOBODY = "65534"

# Some of the capabilities of root: to read what others may not, to make the files of the test,
# and to have a sandbox as root at all.
SOME = "-all,+dac_read_search,+chown,+fowner,+setfcap,+setuid,+setgid"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can get to."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-rights-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.requirement("fs.sandbox.no-capabilities")
@pytest.mark.parametrize(
    ("before", "user"),
    [((), ()), (("setpriv", f"--bounding-set={SOME}"), ()), ((), (NOBODY,))],
    ids=["root", "root with some capabilities", "an ordinary user"],
)
def test_a_file_operation_succeeds_exactly_where_a_command_does(
    folder: Path, before: tuple[str, ...], user: tuple[str, ...]
) -> None:
    program = [sys.executable, "-m", "tests.breakout.file_rights", str(folder), *user]
    done = subprocess.run(
        [*before, *program],
        stdout=subprocess.PIPE,
        timeout=LIMIT * 10,
        check=True,
        env={**os.environ, "HOME": str(folder)},
        cwd=Path(__file__).parents[2],
    )
    found = json.loads(done.stdout)
    for profile, results in found.items():
        different = {name: both for name, both in results.items() if both[0] is not both[1]}
        assert different == {}, profile
    # Both get something, and root more without a sandbox.
    for profile in ("read-only", "workspace-write", "no network"):
        assert found[profile]["read mine-755/mine-600"] == [True, True]
        assert found[profile]["read mine-755/other-600"] == [False, False]
    assert found["workspace-write"]["write mine-755/mine-600"] == [True, True]
    assert found["disabled"]["read mine-755/other-600"] == [not user, not user]

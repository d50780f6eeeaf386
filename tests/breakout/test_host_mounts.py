"""What is mounted on a machine while a sandboxed command runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.linux.mount_namespace import mounts_are_private
from holdfast.engine.sandbox.bubblewrap.support import probe_support
from tests.breakout.harness import LIMIT

pytestmark = pytest.mark.requirement("sandbox.host-mounts")

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a machine with other mounts")
HOSTS = pytest.mark.parametrize("host", ["shared", "slave", "private"])

SHARED = "the mounts of this machine are shared"


def on_host(host: str, *words: str, drop: str | None = None) -> object:
    """Run `shared_host.py` on a machine whose mounts are shared, slaves or private."""
    # Private first: otherwise what it mounts would appear on the real machine.
    machine = ["unshare", "--mount", "--propagation", "private"]
    if host != "private":
        # The shell stays, since a slave needs a master.
        machine += ["/bin/sh", "-c", 'mount --make-rshared / && "$@"; exit $?', "sh"]
    if host == "slave":
        machine += ["unshare", "--mount", "--propagation", "slave"]
    without = [] if drop is None else ["setpriv", "--bounding-set", f"-{drop}"]
    program = [sys.executable, "-m", "tests.breakout.shared_host", *words]
    done = subprocess.run(
        [*machine, *without, *program],
        stdout=subprocess.PIPE,
        timeout=LIMIT * 3,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return json.loads(done.stdout)


@ROOT
def test_what_root_mounts_meanwhile_is_not_in_a_sandbox_of_root(tmp_path: Path) -> None:
    seen = on_host("shared", "attack", str(tmp_path))
    assert seen == {
        "pipes": [],
        "a terminal": [],
        "a folder of /dev": [],
        "holdfast-sh": [],
        "no sandbox": ["mounted", "made"],
    }


@ROOT
@HOSTS
@pytest.mark.parametrize(
    ("words", "drop", "closed"),
    [
        (["gaps"], None, True),
        (["gaps", "65534"], None, False),
        # Root without the right to make a mount namespace, as in a container.
        (["gaps"], "sys_admin", False),
    ],
    ids=["root", "an ordinary user", "root of a container"],
)
def test_mounts_that_get_in_are_a_gap(
    host: str, words: list[str], drop: str | None, closed: bool
) -> None:
    reported = SHARED in str(on_host(host, *words, drop=drop))
    assert reported is (host != "private" and not closed)


def test_on_this_machine_too() -> None:
    support = probe_support()
    reported = SHARED in str(support.gaps)
    assert reported is not (support.own_mounts or mounts_are_private())

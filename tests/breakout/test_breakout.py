"""
Every attempt to break out gets through without a sandbox, and fails in one.

The attempts are in `attempts/`, a file for each family. One that fails without a sandbox as well
proves little: where that is so, and why, is written beside the attempt and shown in the summary.
Many share a sandbox; one that does not end as it should there has one for itself.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.engine.process.registry import LocalBackend
from tests.breakout.ground import PROFILES, PYTHON, Prepared, prepare
from tests.breakout.harness import THROUGH, Outsider, make_attempt, outcome, params, settled
from tests.breakout.shared_runs import SharedRuns
from tests.breakout.table import ALL, LACKS, Attempt

FAMILIES = (
    "files",
    "links",
    "protected",
    "denied",
    "proc",
    "first_process",
    "processes",
    "namespaces",
    "mounts",
    "network",
    "unix_sockets",
    "kernel",
    "devices",
    "metadata",
    "privileges",
    "terminals",
    "launcher",
)

for family in FAMILIES:
    import_module(f"tests.breakout.attempts.{family}")

REFUSALS = {"EPERM", "EACCES"}
"""How the system refuses what only root may do."""

UNKNOWN_TO_A_KERNEL = {"ENOSYS", "ENOENT", "ENOTTY", "EOPNOTSUPP", "EAFNOSUPPORT", "EIO"}
"""How a kernel answers that was built or set up without something."""

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.together]


def each_in_a_sandbox() -> Iterator[object]:
    for attempt in ALL:
        for profile in attempt.profiles:
            gap = [pytest.mark.xfail(reason=attempt.gap)] if attempt.gap else []
            identity = f"{attempt.family}-{attempt.name}-{profile}"
            yield pytest.param(attempt, profile, id=identity, marks=[*gap, *attempt.marks])


@pytest.mark.parametrize("attempt", ALL, ids=lambda attempt: f"{attempt.family}-{attempt.name}")
async def test_it_gets_through_without_a_sandbox(
    attempt: Attempt,
    backend: LocalBackend,
    outsider: Outsider,
    shared_runs: SharedRuns | None,
    tmp_path: Path,
) -> None:
    if shared_runs is not None and await shared_runs.is_through(attempt):
        return
    ground = prepare(tmp_path / "g", outsider.about)
    became = await make_attempt(backend, attempt, ground, None)
    missing, why = LACKS[attempt.needs] if attempt.needs else (False, "")
    if missing and became != THROUGH:  # some machines let everybody
        assert became in attempt.blocked_by | REFUSALS
        pytest.xfail(f"{why}: {became}")
    if attempt.kernel and became in UNKNOWN_TO_A_KERNEL:
        pytest.xfail(f"this machine is without {attempt.kernel}: {became}")
    assert became == THROUGH


@pytest.mark.requirement("security.sandbox.breakout")
@pytest.mark.parametrize(("attempt", "profile"), list(each_in_a_sandbox()))
async def test_it_is_stopped_in_a_sandbox(
    attempt: Attempt,
    profile: str,
    backend: LocalBackend,
    outsider: Outsider,
    shared_runs: SharedRuns | None,
    tmp_path: Path,
) -> None:
    if shared_runs is not None and await shared_runs.is_stopped(attempt, profile):
        return
    ground = prepare(tmp_path / "g", outsider.about)
    before, heard = ground.state(), outsider.state()
    stopped = await make_attempt(backend, attempt, ground, PROFILES[profile](ground))
    assert stopped in attempt.blocked_by
    await settled(ground, before)
    assert outsider.state() == heard


ALLOWED = """
import os, socket, subprocess, sys
with open(sys.argv[1], "w") as file:
    file.write("mine")
assert open(sys.argv[1]).read() == "mine"
os.unlink(sys.argv[1])
assert subprocess.run(["/bin/sh", "-c", "exit 3"]).returncode == 3
ours, theirs = socket.socketpair()
os.write(ours.fileno(), b"x")
assert os.read(theirs.fileno(), 1) == b"x"
assert os.getpid() in map(int, filter(str.isdigit, os.listdir("/proc")))
print("THROUGH")
"""


@pytest.mark.requirement("security.sandbox.pairs")
@pytest.mark.parametrize("profile", sorted(PROFILES.keys() - {"read-only", "reopened", "crossing"}))
async def test_a_sandbox_does_not_stop_what_the_profile_allows(
    profile: str, backend: LocalBackend, ground: Prepared
) -> None:
    """One in which nothing works at all would stop every attempt."""
    argv = (PYTHON, "-I", "-S", "-c", ALLOWED, f"{ground.path('work')}/mine")
    start = params(ground, *argv, sandbox=PROFILES[profile](ground))
    assert await outcome(backend, start) == THROUGH

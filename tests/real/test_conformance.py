"""
The cases recorded from the real server, played against ours.

They are no part of the project: `HOLDFAST_CONFORMANCE` names the folder that has them.
What fails must be what docs/compatibility.md says, case by case.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.wire import HOLDFAST, serving

ROOT = Path(__file__).parents[2]
CASE = re.compile(r"^\| `([a-z_]+\.\w+)` \|", re.MULTILINE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_CONFORMANCE"),
        reason="HOLDFAST_CONFORMANCE does not name a folder with the conformance cases",
    ),
]


def deliberate() -> set[str]:
    """The cases that the page on compatibility says are different on purpose."""
    return set(CASE.findall((ROOT / "docs" / "compatibility.md").read_text()))


def play(*options: str, limit: float) -> tuple[set[str], set[str]]:
    """Run the cases; returns those that passed and those that failed."""
    script = Path(os.environ["HOLDFAST_CONFORMANCE"], "exec_server_conformance.py")
    done = subprocess.run(
        [sys.executable, script, *options, "--verbose"],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    passed, failed = set(), set()
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FAIL":
            failed.add(rest.partition(" ")[0])
        elif word.lower() in ("pass", "ok"):
            passed.add(rest.partition(" ")[0])
    assert re.search(r"^\d+ passed, \d+ failed$", done.stdout, re.MULTILINE), done.stderr
    return passed, failed


def server(*options: str) -> str:
    return " ".join([*HOLDFAST, "exec-server", *options])


def check(passed: set[str], failed: set[str]) -> None:
    assert passed
    assert failed == deliberate() & (passed | failed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [(), ("--concurrent-requests", "1")], ids=["default", "strict"])
def test_a_server_that_the_cases_start(options: tuple[str, ...]) -> None:
    passed, failed = play("--spawn", server(*options), limit=110)
    check(passed, failed)
    assert deliberate() <= passed | failed, "a case on the page is none"


@pytest.mark.timeout(120)
def test_a_server_on_its_standard_streams() -> None:
    check(*play("--cmd", server("--listen", "stdio"), limit=110))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_server_that_listens_with_the_slow_cases() -> None:
    with serving() as listening:
        check(*play("--url", listening.url, "--slow", limit=290))

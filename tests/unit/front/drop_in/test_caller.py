"""Facts about a calling process."""

import subprocess
import sys

import pytest

from holdfast.front.drop_in.caller import read_caller

SLEEP = """
import os, sys, time
for number in sys.argv[1:]:
    os.close(int(number))
print(flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("stdin", "closed", "empty"),
    [(subprocess.DEVNULL, (), (0,)), (subprocess.PIPE, (), ()), (subprocess.PIPE, ("2",), (2,))],
    ids=["null", "pipe", "closed"],
)
def test_streams_that_lead_nowhere_are_known(
    stdin: int, closed: tuple[str, ...], empty: tuple[int, ...]
) -> None:
    """A command must not get the machine's own `/dev/null`."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEP, *closed],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it has closed what it was to close
        try:
            assert read_caller(child.pid).empty_streams == empty
        finally:
            child.kill()

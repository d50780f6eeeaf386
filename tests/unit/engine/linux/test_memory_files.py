"""Files without a name, also where the kernel refuses those that say not what they are for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.linux.memory_files import data_file, program_file

SETTING = Path("/proc/sys/vm/memfd_noexec")

PROGRAM = """
import os, subprocess, sys
from holdfast.engine.linux.memory_files import data_file, program_file
with open("/bin/echo", "rb") as file:
    fd = program_file(file.read())
subprocess.run(["echo", "executed"], executable=f"/proc/self/fd/{fd}", pass_fds=[fd], check=True)
print(os.read(data_file(b"data"), 9), os.listdir(os.environ["TMPDIR"]), flush=True)
"""


def test_what_is_written_is_read() -> None:
    fd = data_file(b"x" * 100_000)
    try:
        assert os.read(fd, 200_000) == b"x" * 100_000
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_a_program_is_executed() -> None:
    fd = program_file(Path("/bin/true").read_bytes())
    try:
        assert subprocess.run([f"/proc/self/fd/{fd}"], pass_fds=[fd], check=False).returncode == 0
    finally:
        os.close(fd)


@pytest.mark.skipif(not SETTING.exists(), reason="this kernel has no such setting")
@pytest.mark.parametrize("setting", [1, 2])
def test_a_kernel_that_lets_no_file_in_memory_be_executed(setting: int, tmp_path: Path) -> None:
    """The setting belongs to a namespace of processes, so one of its own is made."""
    inside = f'echo {setting} > {SETTING} && exec "$0" -c "$1"'
    done = subprocess.run(
        [*("unshare", "-Urpf", "--mount-proc"), "/bin/sh", "-c", inside, sys.executable, PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.splitlines() == ["executed", "b'data' []"], done.stderr

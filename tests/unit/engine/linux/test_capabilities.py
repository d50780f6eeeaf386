"""Threads that do without their capabilities for a while."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.engine.linux.capabilities import WITHOUT_CAPABILITIES, has_capabilities

pytestmark = pytest.mark.skipif(not has_capabilities(), reason="there are none to drop")


def effective() -> int:
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("CapEff:")]
    return int(line.split()[1], 16)


def test_the_block_has_none_and_the_thread_gets_its_own_back() -> None:
    before = effective()
    with WITHOUT_CAPABILITIES:
        assert effective() == 0
        assert not has_capabilities()
    assert effective() == before


def test_an_error_in_the_block_gives_them_back() -> None:
    before = effective()
    with pytest.raises(FileNotFoundError), WITHOUT_CAPABILITIES:
        os.stat("/nonexistent")
    assert effective() == before


def test_a_block_in_a_block_gives_back_nothing_too_early() -> None:
    before = effective()
    with WITHOUT_CAPABILITIES:
        with WITHOUT_CAPABILITIES:
            assert effective() == 0
        assert effective() == 0
    assert effective() == before


def test_other_threads_keep_theirs() -> None:
    before = effective()
    found: list[int] = []
    dropped, looked = threading.Event(), threading.Event()

    def look() -> None:
        dropped.wait(10)
        found.append(effective())
        looked.set()

    # Started before the block: a thread begins with the capabilities of the one that starts it.
    thread = threading.Thread(target=look)
    thread.start()
    with WITHOUT_CAPABILITIES:
        dropped.set()
        looked.wait(10)
    thread.join()
    assert found == [before]


def test_files_of_this_process_in_proc_can_still_be_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    with open(file) as held, WITHOUT_CAPABILITIES:
        again = os.open(f"/proc/self/fd/{held.fileno()}", os.O_RDONLY)
        assert os.read(again, 10) == b"content"
        os.close(again)
        assert os.listdir("/proc/self/fd")


def test_a_program_that_has_become_another_user_goes_on() -> None:
    """Its threads have no capabilities any longer, though they had some."""
    script = (
        "import os\n"
        "from holdfast.engine.linux.capabilities import WITHOUT_CAPABILITIES, has_capabilities\n"
        "with WITHOUT_CAPABILITIES: pass\n"
        "assert has_capabilities()\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "with WITHOUT_CAPABILITIES: pass\n"
        "assert not has_capabilities()\n"
    )
    if os.geteuid():
        pytest.skip("only root becomes another user")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)

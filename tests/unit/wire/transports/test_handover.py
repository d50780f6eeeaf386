"""Streams handed to a server that has no descriptor left to take them with."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.wire.transports.handover import (
    HandoverFailed,
    hand_over,
    listen_for_handovers,
    new_token,
    take_over,
)
from holdfast.wire.transports.private_directory import PrivateDirectory
from tests.e2e.wire import LIMIT
from tests.unit.wire.transports.scarcity import no_descriptor_left

RELEASE = """
import os, resource
from holdfast.server.handed_streams import _release_stderr
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
_release_stderr()
assert os.readlink("/proc/self/fd/2") == os.devnull
print("released")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateDirectory]:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = PrivateDirectory.make()
    yield made
    made.remove()
    made.close()


def test_a_server_without_descriptors_is_not_called_gone(folder: PrivateDirectory) -> None:
    token = new_token()
    with listen_for_handovers(folder) as listening, ThreadPoolExecutor(1) as threads:
        listening.setblocking(True)
        for short in (False, True):
            handing = threads.submit(hand_over, folder.path, token)
            control, _ = listening.accept()
            control.settimeout(LIMIT)
            with control:
                if not short:
                    taken = take_over(control, token)
                    assert len(taken) == 3
                    handing.result(LIMIT).close()
                    for descriptor in taken:
                        os.close(descriptor)
                    continue
                with no_descriptor_left():
                    assert take_over(control, token) == []
                with pytest.raises(HandoverFailed, match="out of descriptors") as raised:
                    handing.result(LIMIT)
                assert not raised.value.final  # its session lives: the client may try again


def test_a_server_without_descriptors_lets_go_of_stderr() -> None:
    done = subprocess.run([sys.executable, "-c", RELEASE], capture_output=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"released\n", b"", 0)


def test_a_runtime_directory_that_cannot_be_written_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    # A file system that is read-only, say: to root, no mode is in the way.
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    made = PrivateDirectory.make()
    made.remove()
    made.close()
    assert not made.path.startswith(str(tmp_path))

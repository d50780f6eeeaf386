"""Facts about processes from `/proc`."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from holdfast.engine.linux.proc import children_of, children_of_thread, stat_fields


def test_children_of_every_thread_are_found() -> None:
    started: list[subprocess.Popen[bytes]] = []
    may_end = threading.Event()

    def start() -> None:
        started.append(subprocess.Popen(["sleep", "60"]))
        may_end.wait(20)

    thread = threading.Thread(target=start)
    thread.start()
    try:
        while not started:
            thread.join(0.001)
        own = subprocess.Popen(["sleep", "60"])
        started.append(own)
        pids = {child.pid for child in started}
        assert pids <= set(children_of("self"))
        assert pids <= set(children_of(os.getpid()))
        main = f"/proc/self/task/{threading.get_native_id()}"
        assert own.pid in children_of_thread(main)
    finally:
        may_end.set()
        thread.join()
        for child in started:
            child.kill()
            child.wait()


def test_more_children_than_a_page_lists_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pids = list(range(1_000_000, 1_003_000))
    (tmp_path / "children").write_text("".join(f"{pid} " for pid in pids))
    read = os.read
    monkeypatch.setattr(os, "read", lambda file, size: read(file, min(size, 4096)))
    assert children_of_thread(str(tmp_path)) == pids


def test_a_process_that_has_ended_is_an_error() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(OSError, match="No such file"):
        children_of(child.pid)
    with pytest.raises(OSError, match="No such file"):
        stat_fields(f"/proc/{child.pid}")


def test_the_name_of_a_program_may_look_like_fields(tmp_path: Path) -> None:
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "60"])
    try:
        state, parent, group = stat_fields(f"/proc/{child.pid}")[:3]
        assert state in (b"S", b"R", b"D")
        assert (int(parent), int(group)) == (os.getpid(), os.getpgid(0))
    finally:
        child.kill()
        child.wait()

"""Threads that wait for work are not woken by the exits of children."""

import asyncio
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.engine.linux.child_signals import block_child_signals, restore_signals
from holdfast.engine.process.start_threads import call_in_daemon
from holdfast.server.operate.line_writer import LineWriter
from holdfast.wire.protocol.fs import FileContent, WriteFileParams
from holdfast.wire.protocol.paths import PathUri
from tests.unit.engine.process.starting import eventually


def blocked(thread: threading.Thread) -> bool:
    """Return True if no SIGCHLD is given to a thread."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(mask, 16) >> (signal.SIGCHLD - 1) & 1)


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def all_blocked(name: str) -> bool:
    return all(map(blocked, named(name)))


async def test_the_threads_of_a_server_sleep_through_exits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer: LineWriter[str] = LineWriter(
        "lines", encode=str.encode, write=lambda data: None, gap=lambda count, reason: b""
    )
    threading.Thread(target=writer.put, args=("x", 1)).start()
    async with LocalFileSystem() as files:
        await files.write_file(
            WriteFileParams(
                PathUri.from_path(str(tmp_path / "file")), data_base64=FileContent(b"x")
            )
        )
        await call_in_daemon(lambda: None)
        for name in ("lines", "holdfast-files", "holdfast-start"):
            assert named(name)
            await eventually(partial(all_blocked, name))
    writer.close()


async def test_a_program_that_a_start_runs_has_its_exits() -> None:
    """Its children would otherwise be waited for in vain."""

    def run() -> bytes:
        return subprocess.run(
            ["grep", "SigBlk", "/proc/self/status"], capture_output=True, check=True
        ).stdout

    assert int((await call_in_daemon(run)).split()[1], 16) == 0


async def test_what_was_blocked_is_unblocked_again() -> None:
    def ask() -> list[bool]:
        before = block_child_signals()
        seen = [blocked(threading.current_thread())]
        restore_signals(before)
        return [*seen, blocked(threading.current_thread())]

    assert await asyncio.to_thread(ask) == [True, False]


def test_a_program_that_reads_exits_from_a_signalfd_gets_all_of_them() -> None:
    """All of its threads block the signal, also those that are started for it."""
    script = """
import asyncio, signal
from holdfast.engine.process.start_threads import call_in_daemon

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])

async def main():
    print(await call_in_daemon(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [])))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert b"SIGCHLD" in done.stdout

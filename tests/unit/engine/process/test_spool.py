"""The log is the owner's choice: one that also writes to a file, and one that keeps less."""

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.child import owned_pids
from holdfast.engine.process.io.log import OutputLog, Retention
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.process import OutputStream, StartParams
from tests.unit.engine.process.starting import closed, launch, output, program, shell, started


class Spool(OutputLog):
    """Keeps little in memory, and everything in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(Retention(max_bytes=1000))
        self._path = path
        self._file: BinaryIO | None = None

    def append(self, stream: OutputStream, data: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("wb")  # not before: its process may never be started
        self._file.write(data)
        super().append(stream, data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


async def test_a_log_may_be_a_spool(tmp_path: Path) -> None:
    processes = ProcessRegistry(make_log=lambda params: Spool(tmp_path / params.process_id))
    size = 3 << 20
    process = launch(processes, program("/usr/bin/head", "-c", str(size), "/dev/zero"))
    assert isinstance(process.log, Spool)
    await closed(process)
    assert (tmp_path / "p").read_bytes() == bytes(size)
    assert process.log.retained_bytes <= 1000


async def test_a_log_is_made_for_each_process(tmp_path: Path) -> None:
    asked: list[StartParams] = []

    def make_log(params: StartParams) -> OutputLog:
        asked.append(params)
        return OutputLog()

    processes = ProcessRegistry(make_log=make_log)
    starts = [shell(f"echo {name}", process_id=name) for name in ("a", "b")]
    for params in starts:
        process = launch(processes, params)
        await closed(process)
        assert output(process) == f"{params.process_id}\n".encode()
    assert asked == starts


async def test_a_spool_without_a_process_has_no_file(tmp_path: Path) -> None:
    processes = ProcessRegistry(make_log=lambda params: Spool(tmp_path / params.process_id))
    with pytest.raises(SpawnFailed):
        processes.launch(program("/no/such"))
    assert os.listdir(tmp_path) == []


async def test_a_log_that_cannot_be_made_is_the_error_of_the_start(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def refuse(params: StartParams) -> OutputLog:
        raise OSError(errno.ENOSPC, "no room")

    processes = ProcessRegistry(make_log=refuse)
    before = owned_pids()
    with pytest.raises(OSError, match="no room"):
        await started(processes, program("/bin/touch", str(mark)))
    assert len(processes) == 0
    assert owned_pids() == before
    assert not mark.exists()


@pytest.mark.parametrize("held", [False, True])
async def test_a_log_that_fails_does_not_hide_the_end(
    held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(OutputLog):
        def append(self, stream: OutputStream, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "no room")

    processes = ProcessRegistry(make_log=lambda params: Full())
    process = launch(processes, shell("echo a; echo b; exit 3"))
    if held:
        process.log.hold("a reader")  # what it wrote is taken at its exit
    await closed(process)
    assert process.log.verdict == Verdict(reason=Reason.EXITED, exit_code=3)
    assert caplog.text.count("the log of a process failed") == 1

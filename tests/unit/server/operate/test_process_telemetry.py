"""Reports to a recorder about starts in a sandbox."""

import asyncio
from pathlib import Path

import pytest

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.server.operate.process_telemetry import ProcessRecorder
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams
from holdfast.wire.protocol.sandbox import (
    FileEntry,
    ManagedProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialPath,
    SpecialValue,
)

LIMIT = 5.0


class Recorder:
    """Stands for a telemetry, a start and a process at once, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def start(self, params: StartParams) -> "Recorder":
        return self

    def prepared(self, what: str) -> None:
        self.told.append(("prepared", what))

    def started(self, sandbox_type: str = "none") -> "Recorder":
        self.told.append(("started", sandbox_type))
        return self

    def failed(self, sandbox_type: str = "none") -> None:
        self.told.append(("failed", sandbox_type))

    def finish(self, result: str, exit_code: int | None) -> None:
        self.told.append(("finished", result, exit_code))


def entry(path: Path, access: str) -> FileEntry:
    assert access in ("write", "deny")
    plain = PlainPath(path=PathUri.from_path(str(path)))
    return FileEntry(path=plain, access="write" if access == "write" else "deny")


async def run(*entries: FileEntry, cwd: str = "/") -> list[tuple[object, ...]]:
    """Start something in a sandbox and wait for its end; what was told meanwhile."""
    recorder = Recorder()
    observer = ProcessRecorder(recorder)  # type: ignore[arg-type]  # as much as is needed
    processes = ProcessRegistry(observers=[observer], retention=0.0)
    root = FileEntry(path=SpecialPath(value=SpecialValue(kind="root")), access="read")
    files = RestrictedFiles(entries=(root, *entries))
    params = StartParams(
        process_id="p",
        argv=["/bin/true"],
        cwd=PathUri.from_path(cwd),
        env={},
        tty=False,
        sandbox=SandboxContext(
            permissions=ManagedProfile(file_system=files, network="restricted"),
            windows_sandbox_level="disabled",
        ),
    )
    async with asyncio.timeout(LIMIT):
        process = processes.launch(params)
        assert not isinstance(process, LocalProcess)
        try:
            await (await process).wait()
        except SpawnFailed:
            recorder.told.append(("raised",))
    return recorder.told


async def test_a_start_in_a_sandbox_is_recorded() -> None:
    assert await run() == [
        ("prepared", "sandbox"),
        ("started", "linuxSeccomp"),
        ("finished", "success", 0),
    ]


async def test_a_start_that_fails_is_recorded() -> None:
    assert await run(cwd="/no/such/folder") == [
        ("prepared", "sandbox"),
        ("failed", "linuxSeccomp"),
        ("raised",),
    ]


@pytest.mark.requirement("sandbox.unenforceable")
async def test_a_start_that_only_complains_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    told = await run(entry(tmp_path, "write"), entry(tmp_path / "link" / "key", "deny"))

    assert told[1:] == [("started", "linuxSeccomp"), ("finished", "error", 1)]

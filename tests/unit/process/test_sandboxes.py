"""From a profile to a child: real sandboxes on a real disk."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.errors import CannotEnforce, InvalidParams
from holdfast.events import DenialKind, Reason
from holdfast.process.local import LocalProcess
from holdfast.process.sandboxes import Sandbox, Sandboxes
from holdfast.process.table import LocalProcesses
from holdfast.protocol.paths import PathUri
from holdfast.protocol.process import ProcessLimits, StartParams
from holdfast.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    FileEntry,
    GlobPath,
    ManagedProfile,
    Network,
    PermissionProfile,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialPath,
    SpecialValue,
    UnrestrictedFiles,
)
from holdfast.sandbox import launcher as launcher_module
from holdfast.sandbox.ladder import Rung
from tests.unit.process.starting import LIMIT, closed, eventually, output, program, shell

ROOT = FileEntry(path=SpecialPath(value=SpecialValue(kind="root")), access="read")


@pytest.fixture
async def sandboxes() -> AsyncIterator[Sandboxes]:
    sandboxes = Sandboxes()
    yield sandboxes
    assert len(sandboxes.targets) == 0


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "ws"
    folder.mkdir()
    return folder


def context(profile: PermissionProfile) -> SandboxContext:
    return SandboxContext(permissions=profile, windows_sandbox_level="disabled")


def managed(*entries: FileEntry, network: Network = "restricted") -> SandboxContext:
    files = RestrictedFiles(entries=(ROOT, *entries))
    return context(ManagedProfile(file_system=files, network=network))


def writable(path: Path) -> FileEntry:
    return FileEntry(path=PlainPath(path=PathUri.from_path(str(path))), access="write")


async def start(processes: LocalProcesses, params: StartParams) -> LocalProcess:
    process = processes.launch(params)
    assert not isinstance(process, LocalProcess)  # a sandbox has to be built first
    async with asyncio.timeout(LIMIT):
        return await process


@pytest.mark.parametrize(
    "profile",
    [
        DisabledProfile(),
        ExternalProfile(network="enabled"),
        ManagedProfile(file_system=UnrestrictedFiles(), network="enabled"),
    ],
    ids=lambda profile: type(profile).__name__,
)
async def test_a_profile_that_isolates_nothing_needs_no_sandbox(
    sandboxes: Sandboxes, profile: PermissionProfile
) -> None:
    assert await sandboxes.get(context(profile), cwd="/", env={}) is None


async def test_what_can_be_enforced_is_tried_out_once(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await asyncio.gather(sandboxes.ladder(), sandboxes.ladder())
    assert first is second

    monkeypatch.setenv("PATH", "/nonexistent")
    assert await sandboxes.ladder() is first
    assert first.rung is Rung.FULL


async def test_without_a_launcher_a_profile_is_refused(
    monkeypatch: pytest.MonkeyPatch, ws: Path
) -> None:
    monkeypatch.setattr(launcher_module, "_FIXED_PLACES", ())
    sandboxes = Sandboxes({"PATH": ""})

    with pytest.raises(InvalidParams, match="cannot enforce a sandbox: bubblewrap is not install"):
        await sandboxes.get(managed(writable(ws)), cwd="/", env={})

    assert os.listdir(ws) == []


async def test_a_rule_that_cannot_be_kept_is_told(sandboxes: Sandboxes, ws: Path) -> None:
    (ws / "real").mkdir()
    (ws / "link").symlink_to("real")
    path = PlainPath(path=PathUri.from_path(f"{ws}/link/key"))
    denied = FileEntry(path=path, access="deny")

    found = await sandboxes.get(managed(writable(ws), denied), cwd="/", env={})

    assert isinstance(found, CannotEnforce)
    assert os.listdir(ws / "real") == []


async def test_places_are_there_until_the_sandbox_is_closed(sandboxes: Sandboxes, ws: Path) -> None:
    sandbox = await sandboxes.get(managed(writable(ws)), cwd="/", env={})
    assert isinstance(sandbox, Sandbox)
    assert sorted(os.listdir(ws)) == [".agents", ".aws", ".codex", ".git"]

    sandbox.close()

    assert os.listdir(ws) == []


async def test_patterns_are_looked_for_without_holding_up_others(
    sandboxes: Sandboxes, ws: Path
) -> None:
    (ws / "a.env").write_text("secret")
    pattern = FileEntry(path=GlobPath(pattern=f"{ws}/*.env"), access="deny")

    sandbox = await sandboxes.get(managed(pattern), cwd="/", env={})

    assert isinstance(sandbox, Sandbox)
    sandbox.close()


async def test_a_denial_is_in_the_verdict(processes: LocalProcesses, ws: Path) -> None:
    params = shell(f"echo x > {ws}/file", sandbox=managed())

    verdict = await closed(await start(processes, params))

    assert verdict.reason is Reason.EXITED
    assert verdict.denial is not None
    assert verdict.denial.kind is DenialKind.READ_ONLY_FILE_SYSTEM
    assert verdict.denial.path == f"{ws}/file"


async def test_a_network_attempt_is_in_the_verdict(processes: LocalProcesses) -> None:
    script = "import socket; socket.socket()"
    params = program("/usr/bin/env", "python3", "-c", script, sandbox=managed())

    verdict = await closed(await start(processes, params))

    assert verdict.denial is not None
    assert verdict.denial.kind is DenialKind.OPERATION_NOT_PERMITTED


async def test_terminate_ends_a_command_and_a_start(processes: LocalProcesses) -> None:
    process = await start(processes, program("/bin/sleep", "60", sandbox=managed()))
    assert processes.terminate("p")

    verdict = await closed(process)

    assert (verdict.reason, verdict.exit_code, verdict.signal) == (Reason.TERMINATED, 137, 9)


async def test_a_start_can_be_called_off(processes: LocalProcesses, ws: Path) -> None:
    params = program("/bin/sleep", "60", sandbox=managed(writable(ws)))
    waiting = asyncio.ensure_future(processes.launch(params))  # type: ignore[arg-type]
    await eventually(lambda: bool(os.listdir(ws)))

    assert processes.terminate("p")
    with pytest.raises(Exception, match="process p start was cancelled"):
        await waiting

    assert os.listdir(ws) == []
    assert len(processes) == 0


async def test_a_limit_ends_a_command_in_a_sandbox(processes: LocalProcesses) -> None:
    limits = ProcessLimits(wall_time_ms=30)
    params = program("/bin/sleep", "60", sandbox=managed(), limits=limits)

    verdict = await closed(await start(processes, params))

    assert verdict.reason is Reason.LIMIT
    assert verdict.detail == "ran for more than 0.03 seconds"


async def test_a_terminal_of_a_profile_that_hides_its_owner_still_works(
    processes: LocalProcesses, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.process.sandboxes._TERMINAL_OWNERS", ())

    process = await start(processes, shell("test -t 0; echo $?", sandbox=managed(), tty=True))
    await closed(process)

    assert output(process) == b"0\r\n"


async def test_a_name_that_cannot_be_given_is_refused(
    processes: LocalProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.process.sandboxes._NAMING_SHELLS", ())
    params = program("/bin/true", sandbox=managed(), arg0="x", tty=True)

    with pytest.raises(InvalidParams, match=r"arg0 needs bubblewrap 0\.9"):
        await start(processes, params)

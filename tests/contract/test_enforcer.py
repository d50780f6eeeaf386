"""Contract of every `Enforcer`: a command may do what its profile allows, and no more."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import CannotEnforce, InvalidParams
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import LocalBackend, ProcessRegistry
from holdfast.engine.sandbox.bubblewrap.bubblewrap_enforcer import BubblewrapEnforcer
from holdfast.engine.sandbox.bubblewrap.landlock import landlock_abi
from holdfast.engine.sandbox.enforcer import Enforcer
from holdfast.engine.sandbox.factory import Sandboxes
from holdfast.events import LimitKind, Reason, Verdict
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import ProcessLimits, StartParams
from holdfast.wire.protocol.sandbox import (
    FileEntry,
    ManagedProfile,
    Network,
    PlainPath,
    RestrictedFiles,
    SandboxContext,
    SpecialPath,
    SpecialValue,
)
from tests.contract.landlock_enforcer import LandlockEnforcer

LIMIT = 10.0
"""Seconds any command may take."""

ENFORCERS = {
    "bubblewrap": lambda: BubblewrapEnforcer(os.environ),
    "landlock": LandlockEnforcer,
}


@pytest.fixture(params=ENFORCERS)
def enforcer(request: pytest.FixtureRequest) -> Enforcer:
    if request.param == "landlock" and not landlock_abi():
        pytest.skip("this kernel has no Landlock")
    made: Enforcer = ENFORCERS[request.param]()
    return made


@pytest.fixture
async def backend(enforcer: Enforcer) -> AsyncIterator[LocalBackend]:
    async with LocalBackend(ProcessRegistry(sandboxes=Sandboxes(enforcer))) as backend:
        yield backend


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that may be read, beside a file that nothing is said about."""
    folder = tmp_path.resolve() / "readable"
    folder.mkdir()
    (folder / "inside").write_text("for all\n")
    (tmp_path / "outside").write_text("a secret\n")
    return folder


def reading(folder: Path, network: Network = "enabled") -> SandboxContext:
    paths = (
        SpecialPath(value=SpecialValue(kind="minimal")),
        PlainPath(path=PathUri.from_path(str(folder))),
    )
    files = RestrictedFiles(entries=tuple(FileEntry(path=path, access="read") for path in paths))
    return SandboxContext(
        permissions=ManagedProfile(file_system=files, network=network),
        windows_sandbox_level="disabled",
    )


async def run(
    backend: LocalBackend,
    folder: Path,
    script: str,
    *,
    tty: bool = False,
    limits: ProcessLimits | None = None,
    **env: str,
) -> tuple[Verdict, bytes, LocalProcess]:
    async with asyncio.timeout(LIMIT):
        process = await backend.start(
            StartParams(
                process_id=script,
                argv=["sh", "-c", script],
                cwd=PathUri.from_path(str(folder)),
                env={"PATH": "/usr/bin:/bin", **env},
                tty=tty,
                sandbox=reading(folder),
                limits=limits,
            )
        )
        verdict = await process.wait()
        return verdict, b"".join([one.chunk for one in (await process.read()).chunks]), process


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
async def test_what_may_be_read_is_read(backend: LocalBackend, folder: Path, tty: bool) -> None:
    verdict, output, process = await run(backend, folder, "cat inside; exit 3", tty=tty)

    assert (verdict.exit_code, verdict.reason) == (3, Reason.EXITED)
    assert output.splitlines() == [b"for all"]
    assert process.enforcement is not None
    assert process.enforcement.isolation == "full"


async def test_nothing_else_is_read_or_written(backend: LocalBackend, folder: Path) -> None:
    verdict, output, _ = await run(backend, folder, "cat inside && cat ../outside")
    assert verdict.exit_code
    assert output.startswith(b"for all\n")
    assert b"secret" not in output

    verdict, _, _ = await run(backend, folder, "echo more >> inside")
    assert verdict.exit_code
    assert verdict.denial is not None
    assert (folder / "inside").read_text() == "for all\n"


async def test_a_token_of_a_server_is_kept_from_it(backend: LocalBackend, folder: Path) -> None:
    script = 'echo "[$HOLDFAST_TOKEN] $OTHER"'
    _, output, _ = await run(backend, folder, script, HOLDFAST_TOKEN="a-token", OTHER="kept")
    assert output == b"[] kept\n"


async def test_limits_hold_inside(backend: LocalBackend, folder: Path) -> None:
    limits = ProcessLimits(open_files=30, output_bytes=100)

    _, output, _ = await run(backend, folder, "ulimit -n", limits=limits)
    assert output == b"30\n"
    verdict, output, _ = await run(backend, folder, "yes", limits=limits)
    assert verdict.limit is LimitKind.OUTPUT
    assert len(output) == 100


async def test_a_command_can_be_ended(backend: LocalBackend, folder: Path) -> None:
    params = StartParams(
        process_id="p",
        argv=["sleep", "60"],
        cwd=PathUri.from_path(str(folder)),
        env={"PATH": "/usr/bin:/bin"},
        tty=False,
        sandbox=reading(folder),
    )
    async with asyncio.timeout(LIMIT):
        process = await backend.start(params)
        assert await process.terminate()
        assert (await process.wait()).reason is Reason.TERMINATED


@pytest.mark.requirement("security.sandbox.whole")
async def test_what_an_enforcer_cannot_do_is_refused_before_anything_runs(folder: Path) -> None:
    profile = reading(folder, network="restricted")
    with pytest.raises(CannotEnforce, match=r"^Landlock cannot keep a command from the network$"):
        await Sandboxes(LandlockEnforcer()).get(profile, cwd="/", env={})


@pytest.mark.requirement("security.sandbox.whole")
async def test_a_machine_that_can_enforce_nothing_refuses_every_profile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.contract.landlock_enforcer.landlock_abi", lambda: 0)
    with pytest.raises(InvalidParams, match="cannot enforce a sandbox: this kernel has no Landl"):
        await Sandboxes(LandlockEnforcer()).get(reading(folder), cwd="/", env={})

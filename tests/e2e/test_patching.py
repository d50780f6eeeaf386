"""Patches on a server: the same as here, in its sandbox, and with a line that breaks."""

import asyncio
import os
from pathlib import Path

import pytest

import holdfast
from holdfast.agent.patching import PatchFailed, PatchMismatch, apply_patch
from holdfast.agent.unified_exec import UnifiedExec
from holdfast.environments.sandbox import SandboxProfile
from tests.e2e.cutting import cutting
from tests.e2e.wire import ServerProcess
from tests.real.patching import on_library

pytestmark = [pytest.mark.timeout(60)]


@pytest.fixture
def url(server: ServerProcess) -> str:
    return server.url


@pytest.mark.slow
async def test_recorded_patches_on_a_server(url: str, tmp_path: Path) -> None:
    async with holdfast.connect(url) as environment:
        assert await on_library.differences(environment.filesystem, tmp_path) == []


async def test_a_command_of_a_model_on_a_server(url: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\n")
    patch = "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch"
    async with holdfast.connect(url) as environment:
        environment.cwd = str(tmp_path)
        async with UnifiedExec(environment) as tools:
            result = await tools.call("exec_command", {"cmd": f"apply_patch <<'E'\n{patch}\nE\n"})
    assert result.text().endswith("Success. Updated the following files:\nM f\n")
    assert (tmp_path / "f").read_text() == "b\n"


async def test_the_sandbox_of_a_server(url: str, tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    text = "*** Begin Patch\n*** Add File: n\n+x\n*** Add File: ../out\n+x\n*** End Patch"
    async with holdfast.connect(url) as environment:
        environment.cwd = str(inside)
        profile = SandboxProfile("read-only", write=[str(inside)])
        sandbox = await environment.sandbox_context(profile)
        with pytest.raises(PatchFailed, match=f"Failed to write file {tmp_path}/out"):
            await apply_patch(text, files=environment.filesystem, cwd=str(inside), sandbox=sandbox)
    assert list(inside.iterdir()) == []


async def test_a_line_that_breaks(url: str, tmp_path: Path) -> None:
    """The line comes back within the patch, and every file is written once."""
    text = "*** Begin Patch\n" + "".join(f"*** Add File: n{number}\n+x\n" for number in range(40))
    async with cutting(url) as proxy, holdfast.connect(proxy.url) as environment:
        call = asyncio.create_task(
            apply_patch(f"{text}*** End Patch", files=environment.filesystem, cwd=str(tmp_path))
        )
        await proxy.until_carried(60, 10)
        proxy.cut()
        try:
            await call
        except (PatchFailed, PatchMismatch, holdfast.ConnectionLost):
            assert len(os.listdir(tmp_path)) <= 1
        else:
            assert len(os.listdir(tmp_path)) == 40

"""A file system that never answers: it costs the client that uses it, and nobody else."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import dead_mount
from tests.dead_mount import MOUNTED, OWN_MOUNTS, can_mount
from tests.e2e.test_sandbox import context, entry, special
from tests.e2e.wire import (
    HOLDFAST,
    LIMIT,
    Client,
    Run,
    ServerProcess,
    connect,
    file_uri,
    serving,
    start_params,
    to_base64,
)

pytestmark = pytest.mark.skipif(not can_mount(), reason="nothing can be mounted here")


@pytest.fixture(scope="module")
def lonely() -> Iterator[ServerProcess]:
    """A server whose mounts nobody else sees."""
    with serving(command=(*OWN_MOUNTS, *HOLDFAST, "exec-server")) as server:
        yield server


@asynccontextmanager
async def dead(server: ServerProcess, folder: Path) -> AsyncIterator[Client]:
    """A client that has mounted something dead; with its session the mount answers errors."""
    os.mkdir(folder)
    async with connect(server.url) as client:
        program = [sys.executable, str(Path(dead_mount.__file__)), str(folder)]
        await client.start("mount", program, pipeStdin=True)
        assert await client.output("mount", MOUNTED) == MOUNTED
        yield client
        await client.terminate("mount")


async def is_served(server: ServerProcess, folder: Path) -> None:
    """Another client gets all that it asks for."""
    async with asyncio.timeout(LIMIT), connect(server.url) as other:
        assert await other.is_ready()
        file = {"path": file_uri(folder / "other")}
        await other.call("fs/writeFile", {**file, "dataBase64": to_base64(b"x")})
        listed = await other.call("fs/readDirectory", {"path": file_uri(folder)})
        assert "other" in [found["fileName"] for found in listed["entries"]]
        assert await other.run(["/bin/echo", "fine"]) == Run(0, stdout=b"fine\n")
        profile = context(folder, special("root", "read"), special("tmpdir", "read"))
        run = await other.run(["/bin/echo", "in"], sandbox=profile, cwd=file_uri(folder))
        assert run == Run(0, stdout=b"in\n")
        assert await other.is_ready()


@pytest.mark.requirement("process.start.dead-mount", "security.others.starts")
async def test_starts_on_a_dead_mount_hold_up_nobody(lonely: ServerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    elsewhere = file_uri(tmp_path)
    on_it = context(folder, special("root", "read"), entry(folder / "in", "write"))
    script = tmp_path / "script"
    script.write_text(f"#!{folder}/sh\n")
    script.chmod(0o755)
    async with dead(lonely, folder) as client:
        starts: list[tuple[list[str], dict[str, Any]]] = [
            (["/bin/true"], {"cwd": file_uri(folder)}),
            ([str(folder / "program")], {"cwd": elsewhere}),
            (["program"], {"cwd": elsewhere, "env": {"PATH": str(folder)}}),
            (["/bin/true"], {"cwd": file_uri(folder), "tty": True}),
            (["/bin/true"], {"cwd": elsewhere, "sandbox": on_it}),
            (["/bin/true"], {"cwd": file_uri(folder / "in"), "sandbox": on_it}),
            (["/bin/true"], {"cwd": file_uri(folder), "limits": {"openFiles": 64}}),
            ([str(script)], {"cwd": elsewhere}),
            (["/bin/true"], {"cwd": elsewhere, "tty": True, "arg0": str(folder / "program")}),
            # Seen from another mount namespace: no list of mounts names it.
            (["/bin/true"], {"cwd": f"file:///proc/self/root{folder}"}),
        ]
        for number, (argv, more) in enumerate(starts):
            await client.request("process/start", start_params(str(number), argv, **more))
            await is_served(lonely, tmp_path)
        assert await client.is_ready()


@pytest.mark.requirement("fs.dead-mount")
async def test_stuck_files_cost_only_who_asked_for_them(
    lonely: ServerProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "dead"
    file = {"path": file_uri(folder / "file")}
    async with dead(lonely, folder):
        async with connect(lonely.url) as client:
            for number in range(100):
                await client.request("fs/writeFile", {**file, "dataBase64": ""})
                await client.request("fs/getMetadata", {"path": file_uri(folder / str(number))})
            missing = {"watchId": 1, "missing": [file["path"]], "present": None}
            await client.request("fs/watchMissing", missing)
            config = {"cwd": file_uri(folder), "configPaths": [["model"]], "requirementsPaths": []}
            for _ in range(20):
                await client.request("environmentConfig/read", config)
            await is_served(lonely, tmp_path)
            assert await client.is_ready()
            # It waits for itself, and its threads are few.
            tasks = os.listdir(f"/proc/{lonely.serving_pid}/task")
            assert len(tasks) < 60
            await client.vanish()
        await is_served(lonely, tmp_path)  # nothing of it is left to wait for


async def test_a_command_that_cannot_be_killed_holds_up_nobody(
    lonely: ServerProcess, tmp_path: Path
) -> None:
    """A profile's capture, and its shell, wait for the mount although both are killed."""
    folder = tmp_path / "dead"
    async with dead(lonely, folder) as client:
        script = f"exec 3<{folder}/file"
        await client.shell("p", script, cwd=file_uri(tmp_path))
        await client.terminate("p")
        await is_served(lonely, tmp_path)
        assert await client.is_ready()

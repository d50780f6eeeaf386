"""Starts where a mount may be dead: nobody else waits for them."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SpawnFailed
from holdfast.process import reachable, table
from holdfast.process.backend import LocalBackend
from holdfast.process.reachable import call_in_daemon, mounts_may_hang, wait_reachable
from holdfast.protocol.paths import PathUri
from holdfast.protocol.process import StartParams


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A path that no call comes back from, until the end of the test."""
    released = threading.Event()
    look = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith("/stuck"):
            released.wait(60)
        return look(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    yield "/stuck"
    released.set()


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("ext4", False),
        ("tmpfs", False),
        ("fusectl", False),
        ("fuse", True),
        ("fuse.sshfs", True),
        ("fuseblk", True),
        ("nfs4", True),
        ("autofs", True),
    ],
)
def test_mounts_of_others_may_hang(
    kind: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachable, "_seen", (-10.0, False))
    root = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    file = tmp_path / "mountinfo"
    file.write_text(f"{root}36 22 0:33 / /mnt/a\\040-\\040b rw - {kind} source rw\n")
    assert mounts_may_hang(str(file)) is found
    file.unlink()
    assert mounts_may_hang(str(file)) is found  # it is believed for a moment


def test_without_a_list_of_mounts_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "_seen", (-10.0, False))
    assert not mounts_may_hang("/no/such/file")


@pytest.mark.requirement("process.start.dead-mount")
@pytest.mark.parametrize(
    ("program", "cwd", "path", "tty"),
    [
        ("/bin/true", "/stuck/a", "/stuck/a", False),
        ("/stuck/b", "/", "/stuck/b", False),
        ("prog", "/", "/stuck/c/prog", False),
        ("/bin/true", "/", "/stuck/home", True),
    ],
    ids=["folder", "program", "PATH", "home"],
)
async def test_a_file_that_does_not_answer_fails_the_start(
    program: str, cwd: str, path: str, tty: bool, stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachable, "LOOK_LIMIT", 0.05)
    env = {"PATH": "/no:/stuck/c", "HOME": "/stuck/home"}
    with pytest.raises(SpawnFailed) as raised:
        await wait_reachable([program], cwd, env, tty=tty)
    assert (raised.value.errno, raised.value.path) == (errno.ETIMEDOUT, path)
    assert raised.value.program == program


async def test_only_so_many_looks_are_stuck(stuck: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "MAX_LOOKS", len(reachable._looking) + 1)
    first = asyncio.create_task(call_in_daemon(lambda: os.stat("/stuck")))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError, match="have not returned"):
        await call_in_daemon(lambda: None)
    first.cancel()


async def test_a_look_has_a_result_or_an_error() -> None:
    assert await call_in_daemon(lambda: 7) == 7
    with pytest.raises(KeyError):
        await call_in_daemon(lambda: os.environ["NO_SUCH"])


@pytest.mark.requirement("process.start.dead-mount")
async def test_a_start_beside_such_a_mount_is_as_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "mounts_may_hang", lambda: True)

    def params(number: int, *argv: str, cwd: Path = tmp_path) -> StartParams:
        return StartParams(
            process_id=str(number),
            argv=list(argv),
            cwd=PathUri.from_path(str(cwd)),
            env={"PATH": "/usr/bin:/bin"},
            tty=False,
        )

    async with LocalBackend() as backend:
        process = await backend.start(params(1, "pwd"))
        assert (await process.wait()).exit_code == 0
        for wrong in (params(2, "no-such"), params(2, "pwd", cwd=Path("/no"))):
            with pytest.raises(SpawnFailed, match="No such file or directory"):
                await backend.start(wrong)

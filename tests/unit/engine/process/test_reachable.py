"""Starts where a mount may be dead: nobody else waits for them."""

import asyncio
import errno
import os
import resource
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import SpawnFailed
from holdfast.engine.linux.daemon_threads import DaemonThreads
from holdfast.engine.process import admission, reachable, spawn, start_threads
from holdfast.engine.process.reachable import (
    call_after_stat,
    can_start_without_waiting,
    mounts_may_hang,
    paths_to_check,
)
from holdfast.engine.process.registry import LocalBackend
from holdfast.engine.process.start_threads import MAX_CALLS, StartThreads, call_in_daemon
from holdfast.wire import connection
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams
from tests.unit.fakes import LIMIT


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


@pytest.mark.requirement("process.start.dead-mount", "security.others.starts")
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
    monkeypatch.setattr(start_threads, "CALL_LIMIT", 0.05)
    env = {"PATH": "/no:/stuck/c", "HOME": "/stuck/home"}
    looked_at = paths_to_check([program], cwd, env, tty=tty)
    with pytest.raises(SpawnFailed) as raised:
        await call_after_stat(StartThreads(), looked_at, lambda: None, program=program)
    assert (raised.value.errno, raised.value.path) == (errno.ETIMEDOUT, path)
    assert raised.value.program == program


@pytest.mark.requirement("security.others.starts")
async def test_an_owner_whose_calls_hang_waits_alone(
    stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_threads, "CALL_LIMIT", 0.05)
    mine, other = StartThreads(), StartThreads()
    hanging = [mine.call(lambda: os.stat("/stuck")) for _ in range(MAX_CALLS)]
    results = await asyncio.gather(*hanging, return_exceptions=True)
    assert {type(result) for result in results} == {TimeoutError}
    with pytest.raises(TimeoutError):
        await mine.call(lambda: 7)
    assert await other.call(lambda: 7) == 7


async def test_what_comes_too_late_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_threads, "CALL_LIMIT", 0.01)
    let_go, undone = threading.Event(), threading.Event()

    def work() -> str:
        let_go.wait(5)
        return "child"

    with pytest.raises(TimeoutError):
        await StartThreads().call(work, lambda result: undone.set())
    let_go.set()
    monkeypatch.setattr(start_threads, "CALL_LIMIT", 5)
    assert await call_in_daemon(lambda: undone.wait(5))


async def test_a_look_has_a_result_or_an_error() -> None:
    assert await call_in_daemon(lambda: 7) == 7
    with pytest.raises(KeyError):
        await call_in_daemon(lambda: os.environ["NO_SUCH"])


@pytest.mark.requirement("process.start.dead-mount")
@pytest.mark.parametrize("raised", [False, True], ids=["limit as it is", "limit raised"])
async def test_a_start_in_a_thread_is_as_any_other(
    raised: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(admission, "can_start_without_waiting", lambda *start, **more: False)
    soft, hard = 512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if raised:
        monkeypatch.setattr(spawn, "_own_limit", (soft, hard))

    def params(number: int, *argv: str, cwd: Path = tmp_path, tty: bool = False) -> StartParams:
        return StartParams(
            process_id=str(number),
            argv=list(argv),
            cwd=PathUri.from_path(str(cwd)),
            env={"PATH": "/usr/bin:/bin"},
            tty=tty,
        )

    async with LocalBackend() as backend:
        process = await backend.start(params(1, "sh", "-c", "pwd; ulimit -Sn; ulimit -Hn"))
        assert (await process.wait()).exit_code == 0
        said = b"".join([chunk.chunk for chunk in (await process.read()).chunks]).split()
        assert said[0].decode() == str(tmp_path)
        if raised:
            assert said[1:] == [b"512", str(hard).encode() if hard >= 0 else b"unlimited"]
        process = await backend.start(params(2, "sh", "-c", "exit 7", tty=True))
        assert (await process.wait()).exit_code == 7
        for wrong in (params(3, "no-such"), params(3, "pwd", cwd=Path("/no"))):
            with pytest.raises(SpawnFailed, match="No such file or directory"):
                await backend.start(wrong)


@pytest.mark.requirement("process.start.dead-mount")
async def test_what_a_thread_starts_outlives_it_and_hears_of_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel means the thread, not the process, by the parent whose end a child is told."""
    monkeypatch.setattr(admission, "can_start_without_waiting", lambda *start, **more: False)
    script = "import ctypes; ctypes.CDLL(None).prctl(1, 9); print('up', flush=True); input()"
    async with LocalBackend() as backend:
        process = await backend.start(
            StartParams(
                process_id="p",
                argv=[sys.executable, "-c", script],
                cwd=PathUri.from_path("/"),
                env={},
                tty=False,
                pipe_stdin=True,
            )
        )
        async for _ in process.events():
            break
        for _ in range(4 * MAX_CALLS):
            await call_in_daemon(lambda: None)
        await process.write(b"\n")
        assert (await process.wait()).exit_code == 0


async def test_what_is_in_memory_is_at_hand_and_else_nothing(tmp_path: Path) -> None:
    if not reachable._kernel_tells():
        pytest.skip("the kernel does not tell what it has in memory")
    env = {"PATH": f"{tmp_path}:/usr/bin"}
    os.stat(tmp_path)
    os.stat("/usr/bin/env")
    with suppress(FileNotFoundError):
        os.stat(tmp_path / "env")
    here = str(tmp_path)
    # The kernel tells nothing while something is renamed or mounted elsewhere.
    assert any(can_start_without_waiting(["/usr/bin/env"], here, {}, tty=False) for _ in range(50))
    assert any(can_start_without_waiting(["env"], here, env, tty=True) for _ in range(50))
    assert not can_start_without_waiting(["/usr/bin/env"], "/proc/self", {}, tty=False)
    assert not can_start_without_waiting(["/proc/self/exe"], here, {}, tty=False)
    unknown = f"{here}/never looked at"
    assert not can_start_without_waiting(["/usr/bin/env"], unknown, {}, tty=True)
    assert not can_start_without_waiting(["/usr/bin/env"], unknown, {"HOME": here}, tty=True)
    assert not can_start_without_waiting(["e"], here, {"PATH": ":".join(["/"] * 1000)}, tty=False)


async def test_a_program_is_at_hand_only_with_what_it_is_run_by(tmp_path: Path) -> None:
    if not reachable._kernel_tells():
        pytest.skip("the kernel does not tell what it has in memory")

    def script(name: str, first: str) -> str:
        path = tmp_path / name
        path.write_text(f"{first}\nexit 0\n")
        path.chmod(0o755)
        path.read_text()
        return str(path)

    def at_hand(program: str) -> bool:
        # The kernel tells nothing while something is renamed or mounted elsewhere.
        return any(can_start_without_waiting([program], "/", {}, tty=False) for _ in range(50))

    os.stat("/bin/sh")
    shell = script("shell", "#!/bin/sh -e")
    assert at_hand(shell)
    assert at_hand(script("twice", f"#! {shell}"))
    assert at_hand(script("none", "no header"))
    assert at_hand(script("itself", f"#!{tmp_path}/itself"))
    assert not at_hand(script("proc", "#!/proc/self/exe"))
    assert not at_hand(script("relative", "#!bin/sh"))
    assert at_hand(sys.executable)  # whose header names the dynamic loader
    assert "/lib" in str(reachable._known)


async def test_what_is_found_cached_is_looked_up_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reachable._kernel_tells():
        pytest.skip("the kernel does not tell what it has in memory")
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    os.stat("/usr/bin/env")

    def at_hand(path: str) -> bool:
        return can_start_without_waiting(["/usr/bin/env"], "/", {"PATH": path}, tty=False)

    assert any(at_hand("/bin") for _ in range(50))
    monkeypatch.setattr(reachable, "_kind", lambda path: "?")
    assert at_hand("/bin")
    assert not at_hand("/sbin")
    now += 2 * reachable._CACHED_STILL
    assert not at_hand("/bin")
    assert not at_hand("/bin" * reachable._MAX_KEY)
    assert all(len(start[2] or "") < reachable._MAX_KEY for start in reachable._ready)


async def test_threads_that_could_not_start_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(start_threads, "_pool", DaemonThreads("holdfast-start", 2))
    threads = StartThreads()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(MAX_CALLS):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await threads.call(int)
    async with asyncio.timeout(LIMIT):
        assert await threads.call(lambda: 1) == 1
    # A thread that is there takes what another one cannot be started for.
    go_on = threading.Event()
    first = asyncio.ensure_future(threads.call(go_on.wait))
    await asyncio.sleep(0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        second = asyncio.ensure_future(threads.call(lambda: 2))
        await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(LIMIT):
        assert (await first, await second) == (True, 2)


def test_the_child_of_a_fork_has_threads_of_its_own() -> None:
    async def use_both() -> None:
        async with asyncio.timeout(LIMIT):
            await call_in_daemon(int)
            await asyncio.wrap_future(connection._decoding_thread().submit(int))

    asyncio.run(use_both())
    with warnings.catch_warnings():
        # Newer versions of Python warn about a fork beside threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        status = 1
        try:
            asyncio.run(use_both())
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0

"""Profiles captured once, for starts that ask for it; the texts are in test_shell_snapshot."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import DuplicateProcess, InvalidParams, InvalidRequest, SpawnFailed
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.engine.process.snapshots import snapshot_cache as module
from holdfast.events import Reason
from holdfast.wire.protocol.process import ShellSnapshotParams, ShellSnapshotShell, StartParams
from tests.unit.engine.process.starting import LIMIT, PATH, closed, output, program

BASH = ShellSnapshotShell(name="bash", path="/bin/bash")


class Home:
    """A folder with a profile that counts how often it was sourced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profile("")

    def profile(self, text: str) -> None:
        script = f"echo sourced >> {self.folder}/log\n{text}\n"
        (self.folder / ".bash_profile").write_text(script)

    @property
    def sourced(self) -> int:
        log = self.folder / "log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def command(self, script: str, *, scope: str = "s", **more: Any) -> StartParams:
        """A login command that asks for a snapshot."""
        more.setdefault("shell_snapshot", ShellSnapshotParams(scope_id=scope, shell=BASH))
        more.setdefault("env", {"HOME": str(self.folder), "PATH": PATH})
        return program("/bin/bash", "-lc", script, cwd=str(self.folder), **more)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def start(processes: ProcessRegistry, params: StartParams) -> LocalProcess:
    waiting = processes.launch(params)
    assert isinstance(waiting, Awaitable)
    async with asyncio.timeout(LIMIT):
        return await waiting


async def run(processes: ProcessRegistry, params: StartParams) -> bytes:
    process = await start(processes, params)
    await closed(process)
    return output(process)


@pytest.mark.requirement("snapshot.reuse")
async def test_a_profile_is_sourced_once_and_its_result_is_there_each_time(
    processes: ProcessRegistry, home: Home
) -> None:
    home.profile("export FROM_PROFILE=yes\ngreet() { echo hello $1; }")
    script = "echo $FROM_PROFILE; greet you"
    assert await run(processes, home.command(script, process_id="1")) == b"yes\nhello you\n"
    assert await run(processes, home.command(script, process_id="2")) == b"yes\nhello you\n"
    assert home.sourced == 1


@pytest.mark.requirement("snapshot.reuse")
async def test_another_scope_is_captured_on_its_own(processes: ProcessRegistry, home: Home) -> None:
    await run(processes, home.command("true", process_id="1", scope="a"))
    await run(processes, home.command("true", process_id="2", scope="b"))
    assert home.sourced == 2


@pytest.mark.requirement("snapshot.reuse")
async def test_starts_at_the_same_time_wait_for_one_capture(
    processes: ProcessRegistry, home: Home
) -> None:
    home.profile("export FROM_PROFILE=yes")
    async with asyncio.TaskGroup() as tasks:
        runs = [
            tasks.create_task(run(processes, home.command("echo $FROM_PROFILE", process_id=str(n))))
            for n in range(5)
        ]
    assert {task.result() for task in runs} == {b"yes\n"}
    assert home.sourced == 1


async def test_what_is_to_be_unset_does_not_come_back_from_a_profile(
    processes: ProcessRegistry, home: Home
) -> None:
    home.profile('export FROM_PROFILE=yes DEPENDS="x${GIVEN-}"')
    env = {"HOME": str(home.folder), "PATH": PATH, "GIVEN": "1"}
    script = "echo ${FROM_PROFILE-none} ${GIVEN-none} $DEPENDS"
    unset = ["FROM_PROFILE", "GIVEN"]
    for number in ("1", "2"):
        params = home.command(script, process_id=number, env=env, unset=unset)
        assert await run(processes, params) == b"none none x\n"
    # And what was captured without them is not for one that has them.
    params = home.command(script, process_id="3", env=env)
    assert await run(processes, params) == b"yes 1 x1\n"
    assert home.sourced == 2


@pytest.mark.requirement("snapshot.applies")
async def test_a_command_that_is_none_of_that_shell_starts_at_once(
    processes: ProcessRegistry, home: Home
) -> None:
    request = ShellSnapshotParams(scope_id="s", shell=BASH)
    process = processes.launch(program("/bin/bash", "-c", "echo plain", shell_snapshot=request))
    assert isinstance(process, LocalProcess)
    await closed(process)
    assert output(process) == b"plain\n"
    assert home.sourced == 0


@pytest.mark.requirement("snapshot.refused")
async def test_a_scope_that_is_no_key_and_a_shell_that_is_unknown_are_refused(
    processes: ProcessRegistry, home: Home
) -> None:
    with pytest.raises(InvalidParams, match="scope must be non-empty and at most 256 bytes"):
        processes.launch(home.command("true", scope=""))
    fish = ShellSnapshotShell(name="fish", path="/bin/bash")
    request = ShellSnapshotParams(scope_id="s", shell=fish)
    with pytest.raises(InvalidParams, match="unsupported for shell `fish`"):
        processes.launch(home.command("true", shell_snapshot=request))


@pytest.mark.requirement("snapshot.fallback")
async def test_a_capture_that_fails_falls_back_to_the_plain_command(
    processes: ProcessRegistry, home: Home
) -> None:
    home.profile('export FROM_PROFILE=yes\n[ -n "$ONCE" ] || exit 1')
    env = {"HOME": str(home.folder), "PATH": PATH}
    params = home.command("echo never", process_id="1", env=env)
    process = await start(processes, params)
    assert (await closed(process)).exit_code == 1  # what its own profile says
    # It is not tried again: the profile is sourced by the command itself.
    again = home.command("echo $FROM_PROFILE", process_id="2", env={**env, "ONCE": "1"})
    assert await run(processes, again) == b"yes\n"
    assert home.sourced == 3


@pytest.mark.requirement("snapshot.fallback")
async def test_a_profile_that_takes_too_long_is_given_up(
    processes: ProcessRegistry, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CAPTURE_TIMEOUT", 0.05)
    home.profile('[ -n "$QUICK" ] || sleep 60')
    env = {"HOME": str(home.folder), "PATH": PATH}
    waiting = processes.launch(home.command("echo never", env=env))
    assert isinstance(waiting, Awaitable)
    process = await waiting
    await process.terminate()  # it sources the profile itself now
    await closed(process)


@pytest.mark.requirement("snapshot.fallback")
async def test_a_shell_that_cannot_be_started_is_refused_as_without_a_snapshot(
    processes: ProcessRegistry, home: Home
) -> None:
    shell = ShellSnapshotShell(name="bash", path="/no/such/bash")
    request = ShellSnapshotParams(scope_id="s", shell=shell)
    params = program("/no/such/bash", "-lc", "true", shell_snapshot=request)
    with pytest.raises(SpawnFailed, match="No such file or directory"):
        await start(processes, params)
    assert processes.find("p") is None
    assert not processes.is_starting("p")


async def test_what_a_profile_starts_in_the_background_ends_with_the_capture(
    processes: ProcessRegistry, home: Home
) -> None:
    home.profile("sleep 60 &")
    assert await run(processes, home.command("echo done")) == b"done\n"


# While a start waits.


@pytest.mark.requirement("read.starting", "start.duplicate")
async def test_a_start_that_waits_has_taken_its_id(processes: ProcessRegistry, home: Home) -> None:
    waiting = processes.launch(home.command("echo one"))
    assert isinstance(waiting, Awaitable)
    assert processes.is_starting("p")
    with pytest.raises(InvalidRequest, match=r"^process id p is starting$"):
        processes.get("p")
    with pytest.raises(DuplicateProcess):
        processes.launch(home.command("echo two"))
    with pytest.raises(DuplicateProcess):
        processes.launch(program("/bin/true"))
    async with asyncio.timeout(LIMIT):
        process = await waiting
    assert not processes.is_starting("p")
    await closed(process)
    assert output(process) == b"one\n"


@pytest.mark.requirement("terminate.starting")
async def test_a_start_that_waits_can_be_called_off(processes: ProcessRegistry, home: Home) -> None:
    waiting = processes.launch(home.command("echo never"))
    assert isinstance(waiting, Awaitable)
    assert await processes.terminate("p")
    assert await processes.terminate("p")
    with pytest.raises(InvalidRequest, match=r"^process p start was cancelled$"):
        async with asyncio.timeout(LIMIT):
            await waiting
    assert not await processes.terminate("p")
    assert len(processes) == 0


async def test_a_start_that_was_dropped_before_it_ran_frees_its_id(
    processes: ProcessRegistry, home: Home
) -> None:
    waiting = processes.launch(home.command("echo never"))
    assert processes.is_starting("p")
    del waiting
    assert not processes.is_starting("p")
    assert await run(processes, home.command("echo now")) == b"now\n"


async def test_a_start_that_was_cancelled_frees_its_id(
    processes: ProcessRegistry, home: Home
) -> None:
    starting = asyncio.ensure_future(start(processes, home.command("echo never")))
    await asyncio.sleep(0)
    assert processes.is_starting("p")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not processes.is_starting("p")
    assert await run(processes, home.command("echo now")) == b"now\n"


async def test_a_start_that_waits_does_not_survive_its_owner(
    processes: ProcessRegistry, home: Home
) -> None:
    waiting = processes.launch(home.command("echo never"))
    assert isinstance(waiting, Awaitable)
    processes.end(Reason.SESSION_EXPIRED)
    with pytest.raises(InvalidRequest):
        async with asyncio.timeout(LIMIT):
            await waiting
    assert len(processes) == 0


async def test_a_start_that_is_cancelled_does_not_take_the_others_with_it(
    processes: ProcessRegistry, home: Home
) -> None:
    home.profile("export FROM_PROFILE=yes")
    capturing = asyncio.ensure_future(start(processes, home.command("true", process_id="1")))
    waiting = asyncio.ensure_future(
        run(processes, home.command("echo $FROM_PROFILE", process_id="2"))
    )
    also = asyncio.ensure_future(start(processes, home.command("true", process_id="3")))
    await asyncio.sleep(0)
    capturing.cancel()
    also.cancel()
    async with asyncio.timeout(LIMIT):
        assert await waiting == b"yes\n"
    assert len(processes) == 1

"""Real sandboxes: what is inside, what reaches it, and what is left of it."""

import asyncio
import fcntl
import os
import platform
import shlex
import signal
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal
from unittest import mock

import msgspec
import pytest

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.child import owned_pids
from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.sandbox.bubblewrap import bwrap_launch as module
from holdfast.engine.sandbox.bubblewrap.bwrap_launch import EMPTY_FD, SandboxSpec, start_sandboxed
from holdfast.engine.sandbox.bubblewrap.filter import filter_program
from holdfast.engine.sandbox.bubblewrap.init_channel import InitChannel
from holdfast.engine.sandbox.bubblewrap.mount_check import Planned
from holdfast.engine.sandbox.bubblewrap.sandboxed_child import SandboxedChild
from holdfast.wire.protocol.process import ProcessLimits
from tests.unit.engine.process.starting import LIMIT, eventually

MISSING = "/no-such-place"
PATH = "/usr/bin:/bin"
OPTIONS = [
    *("--new-session", "--unshare-user", "--unshare-pid", "--unshare-net"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--cap-drop", "ALL"),
]


def spec(*more: str, empty_fds: int = 0) -> SandboxSpec:
    return SandboxSpec(
        launcher="/usr/bin/bwrap",
        options=[*OPTIONS, *more],
        empty_fds=empty_fds,
        tells_end=True,
        filter=filter_program("restricted", platform.machine()),
    )


@asynccontextmanager
async def started(
    *argv: str,
    env: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    empty_fds: int = 0,
    terminal: bool = False,
    limits: ProcessLimits | None = None,
    to_verify: tuple[Planned, ...] = (),
) -> AsyncIterator[SandboxedChild]:
    async with asyncio.timeout(LIMIT):
        child = await start_sandboxed(
            spec(*options, empty_fds=empty_fds),
            Launch(argv[0], list(argv), "/"),
            {"PATH": PATH} if env is None else env,
            terminal=(24, 80) if terminal else None,
            limits=limits,
            to_verify=to_verify,
        )
    try:
        yield child
    finally:
        child.discard()


async def code(child: SandboxedChild) -> int:
    """Wait for the end of the launcher."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(child.pidfd, ended.set)
    try:
        async with asyncio.timeout(LIMIT):
            await ended.wait()
    finally:
        loop.remove_reader(child.pidfd)
    status = child.exit_status()
    assert status is not None
    return status.si_status + (0 if status.si_code == os.CLD_EXITED else 128)


def output(child: SandboxedChild) -> str:
    """Return what can be read at once."""
    said = b""
    for _, fd in child.outputs:
        with suppress(OSError):
            while data := os.read(fd, 65536):
                said += data
    return said.decode()


async def until(child: SandboxedChild, text: str) -> None:
    """Wait until it has written this, which is used up."""
    fd = child.outputs[0][1]
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    said = ""
    try:
        async with asyncio.timeout(LIMIT):
            while text not in said:
                await ready.wait()
                ready.clear()
                with suppress(BlockingIOError):
                    said += os.read(fd, 4096).decode()
    finally:
        loop.remove_reader(fd)


async def run(*argv: str, **more: object) -> tuple[int, str]:
    async with started(*argv, **more) as child:  # type: ignore[arg-type]  # passed on
        return await code(child), output(child)


async def test_a_command_runs_inside() -> None:
    assert await run("/bin/sh", "-c", "echo $$; exit 7") == (7, "2\n")


@pytest.mark.requirement("sandbox.environment")
async def test_a_command_finds_its_environment_and_no_descriptor_more() -> None:
    env = {"PATH": PATH, "LD_LIBRARY_PATH": "/x", "PWD": "/lie", "A": "b c"}

    _, said = await run("/usr/bin/env", env=env)
    _, fds = await run("/bin/ls", "/proc/self/fd")

    assert sorted(said.split("\n")[:-1]) == [
        "A=b c",
        "LD_LIBRARY_PATH=/x",
        f"PATH={PATH}",
        "PWD=/",
    ]
    assert fds.split() == ["0", "1", "2", "3"]  # the last one it reads the folder with


@pytest.mark.requirement("security.launcher.data")
async def test_libraries_of_the_command_do_not_get_into_the_launcher() -> None:
    # With this in its own environment the launcher would complain, or worse.
    status, said = await run("/bin/sh", "-c", "exit 0", env={"LD_PRELOAD": "/nonexistent.so"})

    assert status == 0
    assert "bwrap" not in said


async def test_variables_with_strange_names_are_what_they_are_without_a_sandbox() -> None:
    env = {"A=B": "c", "LD_X=Y": "z", "": "nameless", "=X": "y", "--bind": "/", "L": "1\n2"}

    _, said = await run("/usr/bin/env", "-0", env=env)

    assert sorted(said.split("\0")[:-1]) == sorted(
        ["A=B=c", "LD_X=Y=z", "=nameless", "=X=y", "--bind=/", "L=1\n2", "PWD=/"]
    )


@pytest.mark.requirement("security.launcher.data")
async def test_a_variable_cannot_become_an_option_of_the_launcher() -> None:
    before = owned_pids()

    with pytest.raises(SpawnFailed, match="data provided contains a nul byte"):
        await run("/bin/true", env={"LD_X": "x\0--bind\0/\0/"})

    assert owned_pids() == before


async def test_what_the_launcher_was_told_is_not_to_be_read_inside() -> None:
    _, said = await run("/bin/sh", "-c", "tr '\\0' ' ' </proc/1/cmdline; cat /proc/1/environ")

    assert said.startswith("/dev/.holdfast ")
    assert "PATH=" not in said


async def test_a_sandbox_that_cannot_be_built_is_an_error_of_the_start() -> None:
    before = owned_pids()
    fds = len(os.listdir("/proc/self/fd"))

    with pytest.raises(SpawnFailed) as caught:
        await run("/bin/true", options=("--bind", MISSING, "/x"))

    assert str(caught.value) == (
        "bwrap: Can't find source path /no-such-place: No such file or directory"
    )
    assert owned_pids() == before
    assert len(os.listdir("/proc/self/fd")) == fds


async def test_on_a_terminal_it_is_one_too() -> None:
    with pytest.raises(SpawnFailed, match="Can't find source path /no-such-place"):
        await run("/bin/true", options=("--bind", MISSING, "/x"), terminal=True)


async def test_options_that_the_launcher_does_not_know_are_one_too() -> None:
    with pytest.raises(SpawnFailed, match="Unknown option --nonsense"):
        await run("/bin/true", options=("--nonsense",))


async def test_a_missing_launcher_is_one_too() -> None:
    missing = SandboxSpec(launcher="/nonexistent/bwrap", options=[], filter=b"")

    with pytest.raises(SpawnFailed, match=r"No such file or directory \(os error 2\)"):
        await start_sandboxed(missing, Launch("/bin/true", ["/bin/true"], "/"), {})


async def test_a_sandbox_that_is_never_built_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUILD_LIMIT", 0.05)
    before = owned_pids()

    with pytest.raises(SpawnFailed, match="was not built within"):
        # It waits for somebody to type the content of a file.
        await run("/bin/true", options=("--ro-bind-data", "0", "/dev/shm/x"), terminal=True)

    assert owned_pids() == before


async def test_a_start_that_is_called_off_leaves_nothing() -> None:
    before = owned_pids()
    task = asyncio.create_task(run("/bin/sleep", "60"))
    await eventually(lambda: owned_pids() != before)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert owned_pids() == before


async def test_a_start_that_is_called_off_when_all_is_ready_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filter has handed its descriptor over by then, and nobody has it yet."""
    loop = asyncio.get_running_loop()
    starts: list[asyncio.Task[SandboxedChild]] = []

    def call_off(*_: object) -> None:
        loop.call_soon_threadsafe(starts[0].cancel)

    monkeypatch.setattr(module, "remove_strays", call_off)
    before, folder = owned_pids(), str(tmp_path)
    told = filter_program("restricted", platform.machine(), notifies=True)
    listening = msgspec.structs.replace(spec("--bind", folder, folder), filter=told, listen=True)
    task = asyncio.create_task(
        start_sandboxed(
            listening,
            Launch("/bin/true", ["true"], "/"),
            {},
            to_verify=(planned("write", tmp_path),),
        )
    )
    starts.append(task)
    with pytest.raises(asyncio.CancelledError):
        await task

    assert owned_pids() == before


async def test_strays_of_a_start_that_is_called_off_are_removed_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Otherwise the launcher creates more of them.

    The process that builds the sandbox has its end of the channel open until it exits. A launcher
    that only waits for it has closed that end, and may exit later: it creates nothing.
    """
    channels: list[int] = []
    builders: list[list[str]] = []

    class Noted(InitChannel):
        def __init__(self) -> None:
            super().__init__()
            channels.append(os.fstat(self.theirs.fileno()).st_ino)

    def look(*_: object) -> None:
        builders.append(holders(f"socket:[{channels[0]}]"))

    monkeypatch.setattr(module, "InitChannel", Noted)
    monkeypatch.setattr(module, "remove_strays", look)
    waits = ("--ro-bind-data", "0", "/dev/shm/x")
    to_verify = (planned("write", tmp_path),)
    before = owned_pids()
    task = asyncio.create_task(run("/bin/true", options=waits, terminal=True, to_verify=to_verify))
    # One that is just being forked may be missed.
    await eventually(lambda: owned_pids() != before and holders(f"socket:[{channels[0]}]") != [])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert builders == [[]]


def holders(file: str) -> list[str]:
    """Return the processes that have a file open, this one included."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has exited, or is another user's
            descriptors = os.listdir(f"/proc/{pid}/fd")
            if any(_leads_to(f"/proc/{pid}/fd/{fd}", file) for fd in descriptors):
                found.append(pid)
    return found


def _leads_to(descriptor: str, file: str) -> bool:
    with suppress(OSError):  # closed since
        return os.readlink(descriptor) == file
    return False


async def test_descriptors_that_are_empty_to_read_are_there() -> None:
    status, said = await run(
        *("/bin/sh", "-c", "test -f /dev/shm/x && ! test -s /dev/shm/x"),
        options=("--ro-bind-data", str(EMPTY_FD), "/dev/shm/x"),
        empty_fds=1,
    )

    assert (status, said) == (0, "")


TRAP = "trap 'echo caught; exit 3' INT; echo up; while :; do sleep 0.01; done"


async def test_a_signal_reaches_the_handler_of_the_command() -> None:
    async with started("/bin/sh", "-c", TRAP) as child:
        await until(child, "up")
        child.signal(signal.SIGINT)

        assert await code(child) == 3


async def test_a_signal_right_after_the_start_is_not_lost() -> None:
    async with started("/bin/sleep", "60") as child:
        child.signal(signal.SIGTERM)

        assert await code(child) == 128 + signal.SIGTERM


async def test_a_signal_reaches_what_the_command_started() -> None:
    async with started(
        "/bin/sh", "-c", f"trap : INT; (sh -c {shlex.quote(TRAP)}); exit $?"
    ) as child:
        await until(child, "up")
        child.signal(signal.SIGINT)

        assert await code(child) == 3


async def test_a_terminal_is_the_controlling_one_inside() -> None:
    async with started("/bin/sh", "-c", "echo x >/dev/tty; stty size", terminal=True) as child:
        assert await code(child) == 0
        assert output(child) == "x\r\n24 80\r\n"


async def test_ctrl_c_on_the_terminal_reaches_the_handler() -> None:
    async with started("/bin/sh", "-c", TRAP, terminal=True) as child:
        await until(child, "up")
        assert child.stdin is not None
        os.write(child.stdin, b"\x03")

        assert await code(child) == 3


async def test_a_signal_reaches_the_handler_on_a_terminal() -> None:
    async with started("/bin/sh", "-c", TRAP, terminal=True) as child:
        await until(child, "up")
        child.signal(signal.SIGINT)

        assert await code(child) == 3


async def test_to_kill_it_ends_everything_inside() -> None:
    async with started(
        "/bin/sh", "-c", "setsid sh -c 'trap \"\" TERM; echo up; sleep 60' & wait"
    ) as child:
        await until(child, "up")
        child.signal(signal.SIGKILL)

        assert await code(child) == 137
        await all_gone(child)


async def all_gone(child: SandboxedChild) -> None:
    """Wait until nothing runs inside any more."""
    gone = asyncio.Event()
    if child.call_when_empty(gone.set):
        assert child.call_when_empty(gone.set)  # it can be asked again meanwhile
        async with asyncio.timeout(LIMIT):
            await gone.wait()
    assert not child.call_when_empty(gone.set)


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """Yield another process; a killed one is not reaped, so that its pid stays its own."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.mark.requirement("sandbox.ends-with-its-owner")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP, None])
async def test_it_ends_with_its_owner_even_if_the_command_is_stopped(
    owner: subprocess.Popen[bytes], number: int | None
) -> None:
    """This process still has the channel: a forked copy of an owner would have it, too."""
    with mock.patch("os.getpid", return_value=owner.pid):
        running = started("/bin/sh", "-c", "echo running; sleep 1000")
        child = await running.__aenter__()
    try:
        await until(child, "running")
        if number is not None:
            child.signal(number)
        owner.kill()
        await code(child)
    finally:
        await running.__aexit__(None, None, None)


@pytest.mark.requirement("sandbox.ends-with-its-owner")
async def test_a_command_whose_owner_has_ended_does_not_run(
    owner: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    owner.kill()
    bind = ("--bind", str(tmp_path), str(tmp_path))
    with mock.patch("os.getpid", return_value=owner.pid), pytest.raises(SpawnFailed):
        await run("/bin/sh", "-c", f"touch {tmp_path}/ran", options=bind)
    assert os.listdir(tmp_path) == []


async def test_a_command_lingers_until_all_it_started_is_gone(tmp_path: Path) -> None:
    # Each of these holds the file open; the last of them to go lets go of the lock.
    (tmp_path / "lock").touch()
    lock = os.open(tmp_path / "lock", os.O_RDWR)
    script = f"exec 9<{tmp_path}/lock; flock -s 9; (sleep 60 & sleep 60) >/dev/null 2>&1 & exit 0"
    try:
        async with started("/bin/sh", "-c", script) as child:
            assert await code(child) == 0
            await all_gone(child)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)


async def test_a_child_that_lingers_can_be_discarded() -> None:
    async with started("/bin/sh", "-c", "sleep 60 & exit 0") as child:
        await code(child)
        child.call_when_empty(lambda: None)


async def test_a_command_that_is_not_there_fails_inside() -> None:
    assert await run(MISSING) == (127, "holdfast: /no-such-place: No such file or directory\n")


async def test_limits_are_set_before_the_command_runs() -> None:
    limits = ProcessLimits(open_files=77, processes=5, cpu_seconds=9)

    _, said = await run("/bin/cat", "/proc/self/limits", limits=limits)

    rows = {row[:26].strip(): row[26:].split()[:2] for row in said.splitlines()}
    assert rows["Max open files"] == ["77", "77"]
    assert rows["Max cpu time"] == ["9", "10"]
    # The first process inside is none of the command's.
    assert rows["Max processes"] == ["6", "6"]


async def test_a_sandbox_with_limits_that_cannot_be_built_is_an_error_of_the_start() -> None:
    with pytest.raises(SpawnFailed, match="Can't find source path"):
        await run(
            "/bin/true",
            options=("--bind", MISSING, "/x"),
            limits=ProcessLimits(open_files=77),
        )


def planned(what: Literal["write", "read", "mask"], path: Path) -> Planned:
    return Planned(str(path), what)


async def test_a_sandbox_that_is_built_as_planned_runs(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    folder = str(tmp_path)
    masked = ("--tmpfs", str(hidden), "--remount-ro", str(hidden))

    status, said = await run(
        *("/bin/sh", "-c", f"echo x > {folder}/file"),
        options=("--bind", folder, folder, *masked),
        to_verify=(planned("write", tmp_path), planned("mask", hidden)),
    )

    assert (status, said) == (0, "")
    assert (tmp_path / "file").read_text() == "x\n"


@pytest.mark.requirement("sandbox.verified")
async def test_a_sandbox_that_is_built_otherwise_than_planned_is_given_up(tmp_path: Path) -> None:
    before = owned_pids()
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to("real")

    with pytest.raises(SpawnFailed, match=f"{link} was changed while the sandbox was built"):
        await run(
            *("/bin/sh", "-c", f"echo x > {real}/file"),
            options=("--bind", str(link), str(link)),
            to_verify=(planned("write", link),),
        )

    assert os.listdir(real) == []
    assert owned_pids() == before


async def test_a_sandbox_to_verify_that_cannot_be_built_is_an_error_of_the_start(
    tmp_path: Path,
) -> None:
    with pytest.raises(SpawnFailed, match="Can't find source path"):
        await run(
            "/bin/true",
            options=("--bind", MISSING, "/x"),
            to_verify=(planned("write", tmp_path),),
        )


@pytest.mark.parametrize("verified", [False, True])
async def test_a_sandbox_that_cannot_be_completed_is_one_too(
    tmp_path: Path, verified: bool
) -> None:
    before = owned_pids()
    folder = str(tmp_path)
    wrong = msgspec.structs.replace(
        spec("--bind", folder, folder), filter=struct.pack("<HBBI", 0xFFFF, 0, 0, 0)
    )

    with pytest.raises(SpawnFailed, match="could not be completed: Invalid argument"):
        await start_sandboxed(
            wrong,
            Launch("/bin/true", ["true"], "/"),
            {},
            to_verify=(planned("write", tmp_path),) if verified else (),
        )

    assert owned_pids() == before


async def test_a_child_that_has_ended_takes_any_signal() -> None:
    async with started("/bin/true") as child:
        await code(child)
        with suppress(ProcessLookupError):
            child.signal(signal.SIGINT)
        child.kill_group()

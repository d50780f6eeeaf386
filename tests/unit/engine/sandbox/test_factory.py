"""From a profile to a child: real sandboxes on a real disk."""

import asyncio
import errno
import fcntl
import os
import platform
import resource
import signal
import socket
import tempfile
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.base.errors import CannotEnforce, InvalidParams, SpawnFailed
from holdfast.base.local_servers import Reachable, hide
from holdfast.engine.linux.mount_namespace import MountNamespace
from holdfast.engine.linux.syscall_numbers import MACHINES
from holdfast.engine.process.child import owned_pids
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.engine.sandbox.bubblewrap import binary as launcher_module
from holdfast.engine.sandbox.bubblewrap.bubblewrap_enforcer import (
    BubblewrapEnforcer,
    BubblewrapSandbox,
)
from holdfast.engine.sandbox.bubblewrap.sandboxed_child import first_child
from holdfast.engine.sandbox.bubblewrap.support import BubblewrapSupport
from holdfast.engine.sandbox.enforcer import IsolationLevel
from holdfast.engine.sandbox.factory import Sandboxes, shared_sandboxes
from holdfast.events import DenialKind, Reason
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import Enforcement, ProcessLimits, StartParams
from holdfast.wire.protocol.sandbox import (
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
from tests.unit.descriptors import no_descriptors
from tests.unit.engine.process.starting import (
    LIMIT,
    closed,
    eventually,
    output,
    program,
    shell,
    written,
)

ROOT = FileEntry(path=SpecialPath(value=SpecialValue(kind="root")), access="read")


@pytest.fixture
async def sandboxes() -> AsyncIterator[Sandboxes]:
    enforcer = BubblewrapEnforcer(os.environ)
    yield Sandboxes(enforcer)
    assert len(enforcer.mount_points) == 0


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


async def start(processes: ProcessRegistry, params: StartParams) -> LocalProcess:
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


@pytest.mark.requirement("security.sandbox.probed", "security.launcher.found")
async def test_what_can_be_enforced_is_tried_out_once(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await asyncio.gather(sandboxes.support(), sandboxes.support())
    assert first is second

    monkeypatch.setenv("PATH", "/nonexistent")
    assert await sandboxes.support() is first
    assert first.isolation is IsolationLevel.FULL


@pytest.mark.requirement("security.sandbox.probed", "security.sandbox.whole")
async def test_without_a_launcher_a_profile_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ws: Path
) -> None:
    monkeypatch.setattr(launcher_module, "_FIXED_PATHS", ())
    sandboxes = Sandboxes(environ={"PATH": ""})

    with pytest.raises(InvalidParams, match="cannot enforce a sandbox: bubblewrap is not install"):
        await sandboxes.get(managed(writable(ws)), cwd="/", env={})

    assert os.listdir(ws) == []
    assert "no sandbox can be enforced here: bubblewrap is not install" in caplog.text


async def test_a_rule_that_cannot_be_kept_is_told(sandboxes: Sandboxes, ws: Path) -> None:
    (ws / "real").mkdir()
    (ws / "link").symlink_to("real")
    path = PlainPath(path=PathUri.from_path(f"{ws}/link/key"))
    denied = FileEntry(path=path, access="deny")

    with pytest.raises(CannotEnforce):
        await sandboxes.get(managed(writable(ws), denied), cwd="/", env={})

    assert os.listdir(ws / "real") == []


async def test_a_folder_of_half_a_million_parts_holds_up_nobody(processes: ProcessRegistry) -> None:
    folder = "/x" * 500_000
    with pytest.raises(SpawnFailed, match="Filename too long") as caught:
        await start(processes, shell("true", cwd=folder, sandbox=managed()))
    assert caught.value.path == folder


@pytest.mark.parametrize("root", ["/tmp", "/a\0b"])
async def test_a_folder_with_a_nul_is_refused_in_a_sandbox_too(
    processes: ProcessRegistry, root: str
) -> None:
    """Also if it is a root of the workspace, in which protected names would have to be made."""
    sandbox = managed(writable(Path(root)))
    with pytest.raises(SpawnFailed, match="nul byte found in provided data"):
        await start(processes, shell("true", cwd="/a\0b", sandbox=sandbox))


@pytest.mark.parametrize(
    ("program", "path", "text"),
    [("a\0b", "/bin", "nul byte found"), ("true", "/a\0b", "provided contains a nul byte")],
)
async def test_a_program_is_not_looked_for_by_a_name_with_a_nul(
    processes: ProcessRegistry, program: str, path: str, text: str
) -> None:
    params = shell("", cwd="/", sandbox=managed())
    params = msgspec.structs.replace(params, argv=[program], env={"PATH": path})
    with pytest.raises(SpawnFailed, match=text):
        await start(processes, params)


async def test_places_are_there_until_the_sandbox_is_closed(sandboxes: Sandboxes, ws: Path) -> None:
    sandbox = await sandboxes.get(managed(writable(ws)), cwd="/", env={})
    assert isinstance(sandbox, BubblewrapSandbox)
    assert sorted(os.listdir(ws)) == [".agents", ".aws", ".codex", ".git"]

    sandbox.close()

    assert os.listdir(ws) == []


async def test_patterns_are_looked_for_without_holding_up_others(
    sandboxes: Sandboxes, ws: Path
) -> None:
    (ws / "a.env").write_text("secret")
    pattern = FileEntry(path=GlobPath(pattern=f"{ws}/*.env"), access="deny")

    sandbox = await sandboxes.get(managed(pattern), cwd="/", env={})

    assert isinstance(sandbox, BubblewrapSandbox)
    sandbox.close()


async def test_a_denial_is_in_the_verdict(processes: ProcessRegistry, ws: Path) -> None:
    params = shell(f"echo x > {ws}/file", sandbox=managed())

    verdict = await closed(await start(processes, params))

    assert verdict.reason is Reason.EXITED
    assert verdict.denial is not None
    assert verdict.denial.kind is DenialKind.READ_ONLY_FILE_SYSTEM
    assert verdict.denial.path == f"{ws}/file"


async def test_nothing_is_left_of_a_command_in_a_sandbox(processes: ProcessRegistry) -> None:
    script = "sleep 60 >/dev/null 2>&1 & read go"
    process = await start(processes, shell(script, sandbox=managed(), pipe_stdin=True))
    first = first_child(process.pid)
    assert first is not None
    pidfd = os.pidfd_open(first)
    await process.close_stdin()
    assert (await closed(process)).exit_code == 1
    assert not await process.terminate(left=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, ended.set)  # the kernel has killed all others before
    async with asyncio.timeout(LIMIT):
        await ended.wait()
    loop.remove_reader(pidfd)
    os.close(pidfd)


async def test_a_termination_in_a_sandbox_reads_what_is_in_the_pipe_first(
    processes: ProcessRegistry,
) -> None:
    process = await start(processes, shell("echo out; exec sleep 60", sandbox=managed()))
    process.log.hold(processes)
    fd = process._outputs[0]._fd
    await eventually(lambda: fcntl.ioctl(fd, termios.FIONREAD, bytes(4)) != bytes(4))
    assert await process.terminate(left=True, streams="keep")
    assert (await closed(process)).reason is Reason.TERMINATED
    assert output(process) == b"out\n"


async def test_names_to_unset_are_not_there_in_a_sandbox(processes: ProcessRegistry) -> None:
    env = {"A": "1", "B": "2", "LD_LIBRARY_PATH": "/nowhere"}
    params = program("/usr/bin/env", env=env, unset=["A", "LD_LIBRARY_PATH"], sandbox=managed())
    process = await start(processes, params)
    await closed(process)
    assert sorted(output(process).split()) == [b"B=2", b"PWD=/"]  # which a sandbox always has


async def test_a_summary_names_the_sandbox_and_what_it_enforces(processes: ProcessRegistry) -> None:
    process = await start(processes, program("/bin/true", sandbox=managed()))
    summary = process.summary()
    assert summary.sandbox_type == "linuxSeccomp"
    assert summary.enforcement == process.enforcement
    assert isinstance(summary.enforcement, Enforcement)
    await closed(process)


@pytest.mark.requirement("security.sandbox.network-reported")
async def test_a_network_attempt_is_in_the_verdict(processes: ProcessRegistry) -> None:
    script = "import socket; socket.socket()"
    params = program("/usr/bin/env", "python3", "-c", script, sandbox=managed())

    verdict = await closed(await start(processes, params))

    assert verdict.denial is not None
    assert verdict.denial.kind is DenialKind.OPERATION_NOT_PERMITTED
    assert verdict.denial.network
    (attempt,) = verdict.network_attempts
    assert (attempt.family, attempt.kind) == ("IPv4", "stream")
    assert attempt.program.startswith("python")


async def test_one_that_the_command_keeps_to_itself_is_there_too(
    processes: ProcessRegistry,
) -> None:
    script = """
import socket
for family in (socket.AF_INET6, socket.AF_INET):
    for _ in range(200):
        try: socket.socket(family, socket.SOCK_DGRAM)
        except PermissionError: pass
        else: raise SystemExit("it got one")
raise SystemExit("cannot resolve host")
"""
    params = program("/usr/bin/env", "python3", "-c", script, sandbox=managed())

    process = await start(processes, params)
    verdict = await closed(process)

    assert output(process) == b"cannot resolve host\n"
    assert verdict.denial is None
    assert [(one.family, one.kind) for one in verdict.network_attempts] == [
        ("IPv6", "datagram"),
        ("IPv4", "datagram"),
    ]


async def test_of_many_attempts_some_are_kept(processes: ProcessRegistry) -> None:
    script = """
import ctypes, socket
for number in range(40):
    ctypes.CDLL(None).prctl(15, b"name-%d\\x1b\\xff" % number, 0, 0, 0)
    try: socket.socket()
    except PermissionError: pass
"""
    params = program("/usr/bin/env", "python3", "-c", script, sandbox=managed())

    verdict = await closed(await start(processes, params))

    assert verdict.exit_code == 0
    assert [one.program for one in verdict.network_attempts] == [
        f"name-{n}\ufffd\ufffd" for n in range(16)
    ]


async def test_a_command_that_is_killed_in_the_middle_of_attempts_leaves_nothing(
    processes: ProcessRegistry,
) -> None:
    script = """
import socket, sys
print("up", flush=True)
while True:
    try: socket.socket()
    except PermissionError: pass
"""
    fds = set(os.listdir("/proc/self/fd"))
    params = program("/usr/bin/env", "python3", "-c", script, sandbox=managed())
    process = await start(processes, params)
    await written(process, b"up")

    await process.terminate()
    verdict = await closed(process)

    assert verdict.reason is Reason.TERMINATED
    # Descriptors of earlier tests may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= fds


def command_of(launcher: int) -> int | None:
    first = first_child(launcher)
    return None if first is None else first_child(first)


def sleeps(pid: int | None) -> bool:
    """Return True if a process is in the middle of the call that waits for a time."""
    number = MACHINES[platform.machine()].numbers["nanosleep"]
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[0] == str(number)
    except OSError:
        return False


async def test_a_user_with_many_descriptors_on_their_way_is_waited_for(
    processes: ProcessRegistry,
) -> None:
    """The kernel counts those of all processes of a user, and lets no more than this be sent."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    ours, theirs = socket.socketpair()
    support = await shared_sandboxes().support()
    assert isinstance(support, BubblewrapSupport)
    assert support.listens
    with ours, theirs:
        for _ in range(20):
            socket.send_fds(ours, [b"x"], [0] * 10)
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
        try:
            starting = asyncio.ensure_future(start(processes, program("true", sandbox=managed())))
            known = owned_pids()
            await eventually(lambda: owned_pids() != known)
            (launcher,) = owned_pids() - known
            await eventually(lambda: sleeps(command_of(launcher)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (await closed(await starting)).ok


async def test_with_the_network_there_are_none(processes: ProcessRegistry) -> None:
    script = "import socket; socket.socket(); raise SystemExit(1)"
    sandbox = managed(network="enabled")
    params = program("/usr/bin/env", "python3", "-c", script, sandbox=sandbox)

    verdict = await closed(await start(processes, params))

    assert (verdict.exit_code, verdict.network_attempts) == (1, ())


async def test_terminate_ends_a_command_and_a_start(processes: ProcessRegistry) -> None:
    process = await start(processes, program("/bin/sleep", "60", sandbox=managed()))
    assert await processes.terminate("p")

    verdict = await closed(process)

    assert (verdict.reason, verdict.exit_code, verdict.signal) == (Reason.TERMINATED, 137, 9)


async def test_a_start_can_be_called_off(processes: ProcessRegistry, ws: Path) -> None:
    params = program("/bin/sleep", "60", sandbox=managed(writable(ws)))
    waiting = asyncio.ensure_future(processes.launch(params))  # type: ignore[arg-type]
    await eventually(lambda: bool(os.listdir(ws)))

    assert await processes.terminate("p")
    with pytest.raises(Exception, match="process p start was cancelled"):
        await waiting

    assert os.listdir(ws) == []
    assert len(processes) == 0


@pytest.mark.parametrize("tty", [False, True])
async def test_a_signal_that_ends_a_command_is_named(processes: ProcessRegistry, tty: bool) -> None:
    process = await start(processes, shell("kill -TERM $$", sandbox=managed(), tty=tty))

    verdict = await closed(process)

    assert (verdict.reason, verdict.exit_code, verdict.signal) == (Reason.SIGNALED, 143, 15)


async def test_orphans_are_reaped_and_end_with_the_command(processes: ProcessRegistry) -> None:
    script = """
for _ in 1 2 3 4 5 6 7 8; do (true & exec true); done
(sleep 60 &)
while ps -o stat= --ppid 1 | grep -q Z; do :; done
exit 9
"""
    process = await start(processes, shell(script, sandbox=managed()))

    assert (await closed(process)).exit_code == 9


async def test_a_limit_ends_a_command_in_a_sandbox(processes: ProcessRegistry) -> None:
    limits = ProcessLimits(wall_time_ms=30)
    params = program("/bin/sleep", "60", sandbox=managed(), limits=limits)

    verdict = await closed(await start(processes, params))

    assert verdict.reason is Reason.LIMIT
    assert verdict.detail == "ran for more than 0.03 seconds"


async def test_a_terminal_is_the_controlling_one(processes: ProcessRegistry) -> None:
    params = shell("echo x >/dev/tty; ps -o tpgid= -p $$ >/dev/stdout", sandbox=managed(), tty=True)

    process = await start(processes, params)
    verdict = await closed(process)

    assert verdict.exit_code == 0
    said = output(process).split()
    assert said[0] == b"x"
    assert int(said[1]) > 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root may write there")
@pytest.mark.parametrize("base", ["/dev", "/dev/shm"])
async def test_a_directory_in_dev_can_be_a_workspace(processes: ProcessRegistry, base: str) -> None:
    """Also where root's sandboxes have device nodes of their own."""
    with tempfile.TemporaryDirectory(dir=base) as folder:
        params = shell(
            "echo y >/dev/null && stat -c %u /dev/null >file; ls -d $PWD",
            sandbox=managed(writable(Path(folder))),
            cwd=folder,
        )
        process = await start(processes, params)
        verdict = await closed(process)
        assert (verdict.exit_code, output(process)) == (0, f"{folder}\n".encode())
        assert os.stat(f"{folder}/file").st_size == len("65534\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may write there")
async def test_a_directory_of_dev_that_the_sandbox_has_not_is_named(
    processes: ProcessRegistry,
) -> None:
    folder = tempfile.mkdtemp(dir="/dev")
    try:
        with pytest.raises(SpawnFailed, match=rf"Can't chdir to {folder}"):
            await start(processes, shell("true", sandbox=managed(), cwd=folder))
    finally:
        os.rmdir(folder)


@pytest.mark.parametrize("tty", [False, True])
async def test_a_command_has_the_name_that_it_is_given(
    processes: ProcessRegistry, tty: bool
) -> None:
    params = shell('tr "\\0" " " </proc/$$/cmdline', sandbox=managed(), tty=tty, arg0="another")

    process = await start(processes, params)
    await closed(process)

    assert output(process).startswith(b"another -c ")


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("/no-such-place/sandbox", 127, "No such file or directory"),
        ("no-such-program", 127, "No such file or directory"),
        ("/etc/passwd", 126, "Permission denied"),
        ("/etc", 126, "Permission denied"),
        ("/etc/passwd/x", 126, "it cannot be executed"),
    ],
)
async def test_a_program_that_cannot_be_executed_is_told_as_a_shell_does(
    processes: ProcessRegistry, name: str, code: int, reason: str
) -> None:
    process = await start(processes, program(name, sandbox=managed()))
    verdict = await closed(process)

    assert (verdict.reason, verdict.exit_code) == (Reason.EXITED, code)
    assert output(process).decode() == f"holdfast: {name}: {reason}\n"
    assert (verdict.denial is not None) == (reason == "Permission denied")


async def test_arguments_that_are_too_long_are_told(processes: ProcessRegistry) -> None:
    process = await start(processes, program("/bin/echo", "x" * 200_000, sandbox=managed()))
    verdict = await closed(process)

    assert verdict.exit_code == 126
    assert output(process) == b"holdfast: /bin/echo: Argument list too long\n"


async def test_a_script_without_a_first_line_cannot_be_executed(
    processes: ProcessRegistry, ws: Path
) -> None:
    script = ws / "script"
    script.write_text("echo x\n")
    script.chmod(0o755)

    process = await start(processes, program(str(script), sandbox=managed()))
    verdict = await closed(process)

    assert verdict.exit_code == 126
    assert output(process) == f"holdfast: {script}: Exec format error\n".encode()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
async def test_what_the_server_ignores_is_not_ignored_inside(
    processes: ProcessRegistry, number: signal.Signals
) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        params = shell(f"kill -{number.name.removeprefix('SIG')} $$", sandbox=managed())
        verdict = await closed(await start(processes, params))
    finally:
        signal.signal(number, before)

    assert (verdict.reason, verdict.signal) == (Reason.SIGNALED, number)


async def test_a_name_is_looked_for_where_it_can_be_seen(
    processes: ProcessRegistry, ws: Path
) -> None:
    for name, mode in (("hidden", 0o755), ("plain", 0o644), ("seen", 0o755)):
        (ws / name).mkdir()
        file = ws / name / "tool"
        file.write_text(f"#!/bin/sh\necho {name}\n")
        file.chmod(mode)
    denied = FileEntry(path=PlainPath(path=PathUri.from_path(f"{ws}/hidden")), access="deny")
    folders = ":".join(f"{ws}/{name}" for name in ("missing", "hidden", "plain", "seen"))
    params = program("tool", sandbox=managed(denied), env={"PATH": folders})

    process = await start(processes, params)
    await closed(process)
    assert output(process) == b"seen\n"

    (ws / "seen/tool").unlink()
    process = await start(processes, msgspec.structs.replace(params, process_id="again"))
    verdict = await closed(process)
    assert verdict.exit_code == 126
    assert output(process) == f"holdfast: {ws}/plain/tool: Permission denied\n".encode()


# -- a moment without descriptors


@pytest.mark.requirement("process.no-descriptors", "security.others.descriptors")
async def test_a_start_without_descriptors_says_so_and_the_next_one_works(ws: Path) -> None:
    profile = managed(ROOT, FileEntry(path=GlobPath(pattern=f"{ws}/*.key"), access="deny"))
    params = StartParams(
        process_id="p",
        argv=["/bin/true"],
        cwd=PathUri.from_path(str(ws)),
        env={},
        tty=False,
        sandbox=profile,
    )
    processes = ProcessRegistry()
    await shared_sandboxes().support()
    with no_descriptors(), pytest.raises(SpawnFailed, match="Too many open files") as raised:
        await start(processes, params)
    assert raised.value.errno == errno.EMFILE
    process = await start(processes, params)
    assert (await process.exited()).exit_code == 0
    await process.wait()


async def test_devices_that_are_gone_are_not_taken_for_the_command(
    processes: ProcessRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MountNamespace, work: object, *, devices: bool) -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    support = await shared_sandboxes().support()
    assert isinstance(support, BubblewrapSupport)
    if not support.own_devices or not support.own_mounts:
        pytest.skip("only root needs devices of its own, and cannot make them everywhere")
    monkeypatch.setattr(MountNamespace, "call", refuse)
    with pytest.raises(SpawnFailed, match="the sandbox's devices cannot be mounted: No such file"):
        await start(processes, shell("true", sandbox=managed()))


@pytest.mark.requirement("process.no-descriptors")
async def test_what_can_be_enforced_is_not_judged_without_descriptors() -> None:
    sandboxes = Sandboxes()
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        sandboxes.probe_support()
    assert sandboxes.probe_support().isolation is not IsolationLevel.NONE


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
async def test_a_folder_that_is_denied_is_not_replaced_by_another(
    processes: ProcessRegistry, ws: Path, tty: bool
) -> None:
    (ws / "closed").mkdir()
    path = PlainPath(path=PathUri.from_path(f"{ws}/closed"))
    sandbox = managed(FileEntry(path=path, access="deny"))
    env = {"PATH": "/usr/bin:/bin", "HOME": str(ws)}

    for cwd in (ws / "closed", ws / "closed/inner"):
        cwd.mkdir(exist_ok=True)
        with pytest.raises(SpawnFailed, match="Permission denied") as caught:
            await start(processes, shell("pwd", cwd=str(cwd), env=env, sandbox=sandbox, tty=tty))
        assert (caught.value.errno, caught.value.path) == (errno.EACCES, str(cwd))


async def test_a_sandbox_is_planned_anew_if_a_hidden_file_is_gone(
    processes: ProcessRegistry, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token files of other servers of the user come and go."""
    tokens = ws.parent / "tokens"
    starts: list[str] = []
    begin = BubblewrapSandbox.start

    async def begin_later(self: BubblewrapSandbox, *args: Any, **options: Any) -> Any:
        starts.append("start")
        tokens.unlink(missing_ok=True)
        return await begin(self, *args, **options)

    monkeypatch.setattr(BubblewrapSandbox, "start", begin_later)
    tokens.write_text("secret")
    with hide(Reachable(secrets=(str(tokens),))):
        process = await start(processes, shell("echo here", sandbox=managed()))
        assert (await closed(process)).exit_code == 0
    assert output(process) == b"here\n"
    assert starts == ["start", "start"]


async def test_a_folder_that_is_not_there_inside_is_not_replaced_by_another(
    processes: ProcessRegistry, ws: Path
) -> None:
    files = RestrictedFiles(
        entries=(FileEntry(path=SpecialPath(value=SpecialValue(kind="minimal")), access="read"),)
    )
    sandbox = context(ManagedProfile(file_system=files, network="restricted"))
    with pytest.raises(SpawnFailed, match=f"Can't chdir to {ws}: No such file or directory"):
        await start(processes, shell("pwd", cwd=str(ws), sandbox=sandbox))


@pytest.mark.requirement("security.sandbox.first-process")
async def test_nobody_inside_gets_at_the_first_process(processes: ProcessRegistry) -> None:
    script = (
        "for name in mem environ maps; do (exec 3</proc/1/$name) && echo opened; done;"
        "(exec 3<>/proc/1/mem) && echo opened; readlink /proc/1/fd/3 && echo opened;"
        "ls /proc/1/root/ && echo opened"
    )
    process = await start(processes, shell(script, sandbox=managed()))
    await closed(process)
    assert b"opened" not in output(process)

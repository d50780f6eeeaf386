"""Breaking out with more than one command: what stays behind, what is started, what runs beside."""

import asyncio
import os
import uuid

import msgspec
import pytest

from holdfast.base.errors import Refused
from holdfast.engine.linux.device_nodes import DEVICES
from holdfast.engine.process.registry import LocalBackend
from holdfast.wire.protocol.process import (
    OutputChunk,
    ShellSnapshotParams,
    ShellSnapshotShell,
    StartParams,
)
from holdfast.wire.protocol.sandbox import SandboxContext
from tests.breakout.ground import PROFILES, PYTHON, Prepared
from tests.breakout.harness import LIMIT, params

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAYS = pytest.mark.parametrize("sandboxed", [False, True], ids=["freely", "sandboxed"])
"""Each of these gets through without a sandbox, and must not in one."""


def profile(ground: Prepared, name: str, sandboxed: bool) -> SandboxContext | None:
    return PROFILES[name](ground) if sandboxed else None


def python(
    ground: Prepared, program: str, *words: str, sandbox: SandboxContext | None
) -> StartParams:
    return params(ground, PYTHON, "-I", "-S", "-c", program, *words, sandbox=sandbox)


async def printed(backend: LocalBackend, start: StartParams) -> str:
    """All that a command prints up to its end, or how its start was refused."""
    async with asyncio.timeout(LIMIT):
        try:
            process = await backend.start(start)
        except Refused as error:
            return f"refused: {error}"
        chunks = [e.chunk async for e in process.events() if isinstance(e, OutputChunk)]
    return b"".join(chunks).decode(errors="replace")


# -- what outlives the command

STAYS_BEHIND = """
import os, select, sys
pulse = os.open(sys.argv[1], os.O_WRONLY)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        # Until nobody listens any more.
        poll = select.poll()
        poll.register(pulse, 0)
        poll.poll()
    os._exit(0)
os.wait()
"""


@pytest.mark.requirement("security.sandbox.daemons")
@WAYS
async def test_a_daemon_does_not_outlive_its_command(
    backend: LocalBackend, ground: Prepared, sandboxed: bool
) -> None:
    pulse = ground.path("work") / "pulse"
    os.mkfifo(pulse)
    listening = os.open(pulse, os.O_RDONLY | os.O_NONBLOCK)
    try:
        sandbox = profile(ground, "workspace", sandboxed)
        assert (
            await printed(backend, python(ground, STAYS_BEHIND, str(pulse), sandbox=sandbox)) == ""
        )
        try:
            alive = bool(os.read(listening, 1))  # at the end, nobody has it open for writing
        except BlockingIOError:
            alive = True
        assert alive is not sandboxed
    finally:
        os.close(listening)


# -- words that the launcher could take for its own


@pytest.mark.requirement("security.launcher.data")
@WAYS
async def test_the_words_of_a_command_are_no_options_of_the_launcher(
    backend: LocalBackend, ground: Prepared, sandboxed: bool
) -> None:
    words = [
        "--bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "/bin/sh",
        "-c",
        f"echo x > '{ground.path('outside')}/mine'",
    ]
    argv = words if sandboxed else ["bwrap", *words]
    said = await printed(
        backend, params(ground, *argv, sandbox=profile(ground, "workspace", sandboxed))
    )
    assert (ground.path("outside") / "mine").exists() is not sandboxed, said


@WAYS
async def test_the_first_word_of_a_command_is_no_option_of_a_shell(
    backend: LocalBackend, ground: Prepared, sandboxed: bool
) -> None:
    """On a terminal, other programs stand between the launcher and the command."""
    start = params(
        ground,
        *([] if sandboxed else ["/bin/sh"]),
        *("-c", f"echo x > '{ground.path('outside')}/mine'"),
        sandbox=profile(ground, "workspace", sandboxed),
        tty=True,
    )
    said = await printed(backend, start)
    assert (ground.path("outside") / "mine").exists() is not sandboxed, said


# -- other programs that a start runs

TRACE = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": "{outside}/trace"}
"""Has the loader of every program write a file, unless that is kept from it."""


@WAYS
async def test_a_start_that_fails_runs_nothing_with_the_variables_of_its_request(
    backend: LocalBackend, ground: Prepared, sandboxed: bool
) -> None:
    """A profile that cannot be kept: something that it denies lies behind a writable link."""
    sandbox = profile(ground, "crossing", sandboxed)
    said = await printed(backend, params(ground, "/bin/true", sandbox=sandbox, env=TRACE))
    assert ("cannot enforce" in said) is sandboxed
    assert any(ground.path("outside").glob("trace*")) is not sandboxed


@WAYS
async def test_a_profile_of_the_shell_is_read_in_the_sandbox(
    backend: LocalBackend, ground: Prepared, sandboxed: bool
) -> None:
    """A snapshot sources it before the command runs; an earlier command may have written it."""
    work, mine = ground.path("work"), ground.path("outside") / "mine"
    (work / ".bashrc").write_text(f"echo x > '{mine}'\n")
    start = msgspec.structs.replace(
        params(ground, "/bin/bash", "-lc", "true", sandbox=profile(ground, "workspace", sandboxed)),
        shell_snapshot=ShellSnapshotParams(
            scope_id=str(uuid.uuid4()), shell=ShellSnapshotShell(name="bash", path="/bin/bash")
        ),
    )
    said = await printed(backend, start)
    assert mine.exists() is not sandboxed, said


# -- what the machine tells of its devices

CHANGE = """
import os
for path in ["/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty")]:
    for change in (
        lambda: os.chmod(path, 0o666),
        lambda: os.utime(path),
        lambda: os.utime(path, (1, 1)),
        lambda: os.chown(path, os.getuid(), -1),
    ):
        try:
            change()
        except OSError:
            pass
for change in (lambda: os.fchmod(0, 0o666), lambda: os.utime(0)):
    try:
        change()
    except OSError:
        pass
print("done")
"""


@pytest.mark.requirement("security.sandbox.device-metadata")
@pytest.mark.skipif(os.getuid() != 0, reason="they belong to root")
async def test_the_devices_of_the_machine_stay_as_they_are(
    backend: LocalBackend, ground: Prepared
) -> None:
    """Every change would leave its time, whatever it was."""

    def changed() -> dict[str, int]:
        # A terminal notes when it is used.
        return {n: os.stat(f"/dev/{n}").st_ctime_ns for n in DEVICES if n != "tty"}

    before = changed()
    for name in ("read-only", "offline", "root-but"):
        sandbox = profile(ground, name, sandboxed=True)
        start = params(ground, PYTHON, "-I", "-S", "-c", CHANGE, sandbox=sandbox)
        assert "done" in await printed(backend, start)
    assert changed() == before


# -- what an earlier command has prepared


@WAYS
async def test_a_workspace_that_a_command_has_closed_is_protected_all_the_same(
    backend: LocalBackend, ground: Prepared, sandboxed: bool
) -> None:
    """Where its owner may not write, nobody can keep a name from being made by making it."""
    work = ground.path("work")
    sandbox = profile(ground, "workspace", sandboxed)
    await printed(backend, params(ground, "chmod", "555", ".", sandbox=sandbox))
    try:
        said = await printed(
            backend,
            params(ground, "sh", "-c", "chmod 755 . && mkdir .codex && echo x", sandbox=sandbox),
        )
        assert ("x" in said.splitlines()) is not sandboxed, said
        assert (work / ".codex").exists() is not sandboxed
    finally:
        work.chmod(0o755)


# -- what was there before

OLDER = pytest.mark.parametrize(
    "sandboxed",
    [
        pytest.param(False, id="freely"),
        pytest.param(
            True,
            id="sandboxed",
            marks=pytest.mark.xfail(reason="an older hard link is another name for the same file"),
        ),
    ],
)


@OLDER
async def test_a_denied_file_is_not_read_by_an_older_hard_link(
    backend: LocalBackend, ground: Prepared, sandboxed: bool
) -> None:
    os.link(ground.path("secret"), ground.path("work") / "older")
    start = params(ground, "cat", "older", sandbox=profile(ground, "guarded", sandboxed))
    assert ("the secret" in await printed(backend, start)) is not sandboxed

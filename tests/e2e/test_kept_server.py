"""`serve --listen stdio --keep`: a server that outlives its connection, and who may come back."""

import asyncio
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire.transports import handover
from holdfast.wire.transports.handover import HandoverFailed, hand_over
from tests.e2e.wire import (
    HOLDFAST,
    LIMIT,
    children,
    gone,
    is_alive,
    start_params,
    stopped,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

MARK = "@holdfast "

NOBODY = 65534

SHORT = ("--idle-exit", "1")


class Bridge:
    """The process that ssh would start on a host, with pipes as its streams."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = process.stderr
        self.folder = Path()
        self.token = ""

    async def line(self) -> str:
        """The next line that is not empty; nothing at the end."""
        async with asyncio.timeout(3 * LIMIT):
            while (line := await self._stdout.readline()) == b"\n":
                pass
        return line.decode().removesuffix("\n")

    async def say(self, line: str) -> None:
        self._stdin.write(f"{line}\n".encode())
        await self._stdin.drain()

    async def kept(self) -> None:
        """Hear which server it is."""
        line = await self.line()
        assert line.startswith(f"{MARK}kept\t"), (line, await self.errors())
        _, path, self.token = line.split("\t")
        self.folder = Path(path)

    async def call(self, method: str, params: Any = None) -> Any:
        await self.say(json.dumps({"id": 1, "method": method, "params": params}))
        while "id" not in (message := json.loads(await self.line())):
            pass
        return message.get("result") or message["error"]["message"]

    async def initialize(self, session: str | None = None) -> Any:
        params = {"clientName": "bridge", "resumeSessionId": session}
        answer = await self.call("initialize", params)
        await self.say('{"method":"initialized"}')
        return answer["sessionId"] if isinstance(answer, dict) else answer

    async def start(self, script: str) -> int:
        """Start a process that tells its pid first, and return that."""
        script = f"echo $$; {script}"
        await self.call("process/start", start_params("p", ["/bin/sh", "-c", script]))
        read = {"processId": "p", "afterSeq": 0, "maxBytes": 64, "waitMs": 5000}
        (chunk,) = (await self.call("process/read", read))["chunks"]
        return int(base64.b64decode(chunk["chunk"]))

    async def errors(self) -> str:
        async with asyncio.timeout(LIMIT):
            return (await self._stderr.read()).decode()

    async def ended(self) -> int:
        """Wait until the bridge itself has ended."""
        async with asyncio.timeout(3 * LIMIT):
            return await self.process.wait()

    def cut(self) -> None:
        """End its streams, as sshd does when a connection is lost."""
        self._stdin.close()

    def kill(self) -> None:
        """Kill it and its server, if they run."""
        with suppress(ProcessLookupError):
            self.process.kill()
        if self.token:
            with suppress(AssertionError):
                for pid in self.server():
                    os.kill(pid, signal.SIGKILL)

    def server(self) -> tuple[int, int]:
        """The guardian and the server: who holds the folder open."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                held = {os.readlink(it) for it in (entry / "fd").iterdir()}
                if str(self.folder) in held and (below := children(int(entry.name))):
                    return int(entry.name), below[0]
        raise AssertionError("there is no server")


Start = Callable[..., Any]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A runtime directory; the folders of servers are in it."""
    # Not below the directory of pytest: another run may close that to other users at any time.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
async def bridge(runtime: Path) -> AsyncIterator[Start]:
    """Starts `holdfast serve --listen stdio` with more options; whatever is left is killed."""
    made: list[Bridge] = []

    async def start(*options: str) -> Bridge:
        process = await asyncio.create_subprocess_exec(
            *HOLDFAST,
            *("serve", "--listen", "stdio"),
            *options,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        )
        made.append(Bridge(process))
        return made[-1]

    yield start
    for it in made:
        it.kill()
    async with asyncio.timeout(3 * LIMIT):
        for it in made:
            await it.process.communicate()


async def attached(bridge: Start, to: Bridge) -> Bridge:
    again: Bridge = await bridge("--attach", str(to.folder))
    await again.say(to.token)
    await again.kept()
    return again


async def all_gone(*pids: int) -> None:
    for pid in pids:
        await gone(pid, limit=3 * LIMIT)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# -- coming back


@pytest.mark.requirement("security.kept.server")
async def test_a_session_is_resumed_by_the_next_connection(bridge: Start) -> None:
    first = await bridge("--keep")
    await first.kept()
    session = await first.initialize()
    pid = await first.start("exec sleep 600")
    first.cut()
    assert await first.ended() == 0
    second = await attached(bridge, first)
    assert (second.folder, second.token) == (first.folder, first.token)
    assert await second.initialize(session) == session
    assert [it["processId"] for it in (await second.call("process/list"))["processes"]] == ["p"]
    assert is_alive(pid)


async def test_streams_that_come_later_replace_those_before(bridge: Start) -> None:
    """A server cannot see that a connection is dead; its client can."""
    first = await bridge("--keep")
    await first.kept()
    session = await first.initialize()
    second = await attached(bridge, first)
    assert await first.ended() == 0
    assert await second.initialize(session) == session


async def test_a_bridge_that_is_killed_ends_its_connection_only(bridge: Start) -> None:
    first = await bridge("--keep")
    await first.kept()
    session = await first.initialize()
    first.process.kill()
    await first.ended()
    assert await first.line() == ""  # the server has let go of the stream
    second = await attached(bridge, first)
    assert await second.initialize(session) == session


async def test_what_the_server_logs_goes_to_whoever_is_connected(
    bridge: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LOG", "info")
    first = await bridge("--keep")
    await first.kept()
    second = await attached(bridge, first)
    await second.say('{"method":"what/is/this"}')
    assert await second.line() == ""
    assert "sent an unexpected notification" in await second.errors()
    assert "unexpected" not in await first.errors()


# -- the end


async def test_the_client_can_end_the_server_at_once(bridge: Start, runtime: Path) -> None:
    first = await bridge("--keep")
    await first.kept()
    await first.initialize()
    pid = await first.start("trap '' HUP INT TERM; while :; do sleep 600; done")
    server = first.server()
    await first.say(f"{MARK}end")
    first.cut()
    assert await first.ended() == 0
    await all_gone(pid, *server)
    assert names(runtime) == []


async def test_a_server_that_nobody_uses_ends(bridge: Start, runtime: Path) -> None:
    first = await bridge("--keep", *SHORT)
    await first.kept()
    server = first.server()
    first.cut()  # before there is a session
    await all_gone(*server)
    assert names(runtime) == []


@pytest.mark.parametrize("which", [0, 1])
async def test_a_server_that_is_killed_leaves_nothing(
    bridge: Start, runtime: Path, which: int
) -> None:
    first = await bridge("--keep")
    await first.kept()
    await first.initialize()
    pid = await first.start("trap '' HUP INT TERM; while :; do sleep 600; done")
    guardian_and_server = first.server()
    os.kill(guardian_and_server[which], signal.SIGKILL)
    await first.ended()
    await all_gone(pid, *guardian_and_server)
    assert names(runtime) == []


async def test_a_folder_that_was_left_is_removed_by_the_next_server(
    bridge: Start, runtime: Path
) -> None:
    first = await bridge("--keep")
    await first.kept()
    guardian, server = first.server()
    # It would tidy up after its server. Not the other way round: a stopped server whose
    # guardian dies is continued by the kernel, as a member of an orphaned group.
    os.kill(guardian, signal.SIGSTOP)
    await stopped(guardian)
    for pid in (server, guardian):
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
    not_ours = runtime / f"holdfast-{os.geteuid()}-mine"
    not_ours.write_text("not a folder")
    assert names(runtime) == sorted([first.folder.name, not_ours.name])
    second = await bridge("--keep")
    await second.kept()
    third = await bridge("--keep")
    await third.kept()
    pids = second.server()
    await second.say(f"{MARK}end")
    assert await second.ended() == 0
    await all_gone(*pids)
    assert names(runtime) == sorted([third.folder.name, not_ours.name])


# -- who may come


@pytest.mark.requirement("security.kept.token")
async def test_one_who_does_not_know_the_token_is_refused(bridge: Start) -> None:
    first = await bridge("--keep")
    await first.kept()
    await first.initialize()
    for token in ("0" * 32, "", first.token[:-1]):
        other = await bridge("--attach", str(first.folder))
        await other.say(token)
        assert (await other.line()).startswith(f"{MARK}gone\tthe server in {first.folder} refused")
        assert await other.ended() == 1
    for token in (first.token + "00", "x" * 1000):
        other = await bridge("--attach", str(first.folder))
        await other.say(token)
        assert await other.ended() == 1
        assert "no token was received on stdin" in await other.errors()
    assert (await first.call("environment/status"))["status"] == "ready"


async def test_peers_that_say_nothing_do_not_keep_others_out(bridge: Start) -> None:
    first = await bridge("--keep")
    await first.kept()
    session = await first.initialize()
    with ExitStack() as stack:
        for _ in range(30):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            # Its path may be too long for an address.
            folder = os.open(first.folder, os.O_RDONLY)
            silent.connect(f"/proc/self/fd/{folder}/socket")
            os.close(folder)
        second = await attached(bridge, first)
        assert await second.initialize(session) == session


async def test_a_server_that_does_not_answer_is_not_called_gone(
    bridge: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await bridge("--keep")
    await first.kept()
    _, server = first.server()
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(handover, "_ANSWER_LIMIT", 0.05)
    with pytest.raises(HandoverFailed, match=r"cannot reach the server in .*: timed out") as caught:
        hand_over(str(first.folder), first.token)
    assert not caught.value.final
    os.kill(server, signal.SIGCONT)


async def test_one_that_ends_before_its_token_is_told_so(bridge: Start) -> None:
    first = await bridge("--keep")
    await first.kept()
    other = await bridge("--attach", str(first.folder))
    other.cut()
    assert await other.ended() == 1
    assert await other.errors() == "Error: no token was received on stdin\n"


async def test_a_server_that_has_ended_is_told_at_once(bridge: Start) -> None:
    first = await bridge("--keep", *SHORT)
    await first.kept()
    server = first.server()
    first.cut()
    await all_gone(*server)
    other = await bridge("--attach", str(first.folder))
    await other.say(first.token)
    line = await other.line()
    assert line == f"{MARK}gone\tcannot open {first.folder}: No such file or directory"


def let_pass(folder: Path) -> None:
    """Let everybody get to a folder that a test made."""
    for it in (folder, *folder.parents):
        if it.stat().st_mode & 0o011 != 0o011:
            it.chmod(it.stat().st_mode | 0o011)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.requirement("security.kept.users")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_another_user_cannot_connect(bridge: Start) -> None:
    first = await bridge("--keep")
    await first.kept()
    let_pass(first.folder.parent)
    script = (
        "import os, socket, sys\n"
        f"os.setgroups([]); os.setresgid({NOBODY}, {NOBODY}, {NOBODY});"
        f" os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "try:\n"
        "    os.chdir(sys.argv[1])\n"
        "    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('socket')\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    other = await asyncio.create_subprocess_exec(
        *("python3", "-I", "-c", script, str(first.folder)), stdout=subprocess.PIPE
    )
    out, _ = await other.communicate()
    assert out == b"refused\n"
    assert mode(first.folder) == 0o700
    assert mode(first.folder / "socket") == 0o600


@pytest.mark.requirement("security.kept.users")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_another_user_who_reaches_the_socket_is_refused(bridge: Start) -> None:
    """The mode of the directory is not all that keeps others out."""
    first = await bridge("--keep")
    await first.kept()
    let_pass(first.folder)
    (first.folder / "socket").chmod(0o666)
    script = (
        "import os, socket, sys\n"
        f"os.setgroups([]); os.setresgid({NOBODY}, {NOBODY}, {NOBODY});"
        f" os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "line.connect(sys.argv[1] + '/socket')\n"
        "try:\n"
        "    socket.send_fds(line, [sys.argv[2].encode()], [0, 1, 2])\n"
        "    print(line.recv(100))\n"
        "except OSError as error:\n"
        "    print(b'')\n"
    )
    other = await asyncio.create_subprocess_exec(
        *("python3", "-I", "-c", script, str(first.folder), first.token), stdout=subprocess.PIPE
    )
    out, _ = await other.communicate()
    assert out == b"b''\n"


@pytest.mark.requirement("security.kept.token")
async def test_the_token_is_on_no_disk_and_on_no_command_line(bridge: Start) -> None:
    first = await bridge("--keep")
    await first.kept()
    second = await bridge("--keep")
    await second.kept()
    assert first.token != second.token
    processes = [Path(f"/proc/{pid}") for pid in (first.process.pid, *first.server())]
    files = [path / name for path in processes for name in ("cmdline", "environ")]
    files += [path for path in first.folder.iterdir() if not path.is_socket()]
    assert not any(first.token.encode() in path.read_bytes() for path in files)


# -- what was planted


async def refusal(bridge: Start, path: Path) -> str:
    other = await bridge("--attach", str(path))
    await other.say("0" * 32)
    line: str = await other.line()
    assert await other.ended() == 1
    return line.removeprefix(f"{MARK}gone\t")


@pytest.mark.requirement("security.kept.users")
async def test_a_symbolic_link_is_refused(bridge: Start, tmp_path: Path) -> None:
    first = await bridge("--keep")
    await first.kept()
    link = tmp_path / "link"
    link.symlink_to(first.folder)
    assert await refusal(bridge, link) == f"{link} is not a directory, or is a symbolic link"


@pytest.mark.requirement("security.kept.users")
async def test_a_folder_that_others_may_enter_is_refused(bridge: Start, tmp_path: Path) -> None:
    (open_to_all := tmp_path / "planted").mkdir()
    os.chmod(open_to_all, 0o755)
    assert await refusal(bridge, open_to_all) == (
        f"{open_to_all} is open to other users (mode 0755)"
    )


@pytest.mark.requirement("security.kept.users")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
async def test_a_folder_of_another_user_is_refused(bridge: Start, tmp_path: Path) -> None:
    (planted := tmp_path / "planted").mkdir(mode=0o700)
    shutil.chown(planted, NOBODY)
    assert await refusal(bridge, planted) == (f"{planted} belongs to another user (uid {NOBODY})")


async def test_a_folder_without_a_server_is_refused(bridge: Start, tmp_path: Path) -> None:
    (planted := tmp_path / "planted").mkdir(mode=0o700)
    assert await refusal(bridge, planted) == f"the server in {planted} has ended"


@pytest.mark.requirement("security.kept.users")
@pytest.mark.parametrize("bits", [0o777, 0o770])
async def test_a_runtime_directory_that_others_may_write_to_is_not_used(
    bridge: Start, runtime: Path, bits: int
) -> None:
    os.chmod(runtime, bits)
    first = await bridge("--keep")
    await first.kept()
    assert str(first.folder.parent) == "/tmp"
    assert names(runtime) == []
    server = first.server()
    await first.say(f"{MARK}end")
    assert await first.ended() == 0
    await all_gone(*server)
    assert first.folder.name not in names(first.folder.parent)


# -- mistakes


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (("--keep", "--attach", "/x"), 1, "--keep and --attach are mutually exclusive"),
        (("--keep", "--listen", "ws://127.0.0.1:0"), 1, "require `--listen stdio`"),
        (("--idle-exit", "5"), 1, "--idle-exit is for a listener"),
        (("--idle-exit", "0"), 2, "must be more than 0"),
        (("--idle-exit", "nan"), 2, "must be at least 0"),
    ],
)
def test_options_that_do_not_go_together_are_told(
    options: tuple[str, ...], status: int, text: str
) -> None:
    command = [*HOLDFAST, "serve", "--listen", "stdio", *options]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3 * LIMIT
    )
    assert done.returncode == status
    assert text in done.stderr


async def test_a_start_that_fails_is_told_and_leaves_nothing(
    bridge: Start, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LOG", "loud")
    first = await bridge("--keep")
    assert await first.line() == ""
    assert await first.ended() == 1
    assert await first.errors() == "Error: HOLDFAST_LOG must be error, warning, info or debug\n"
    assert names(runtime) == []


async def test_a_listener_ends_when_nobody_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = await asyncio.create_subprocess_exec(
        *(*HOLDFAST, "serve", "--listen", f"unix://{path}", *SHORT), stdout=subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(server.communicate(), 4 * LIMIT)
    assert out == f"unix://{path}\n".encode()
    assert server.returncode == 0

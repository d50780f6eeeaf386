"""Thousands of processes, slow clients and floods: nothing is lost, and nothing is left behind."""

import asyncio
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.e2e.measured import Measured, measured
from tests.e2e.wire import (
    INITIALIZE,
    INITIALIZED,
    LIMIT,
    Client,
    Fifo,
    Run,
    ServerProcess,
    connect,
    connect_slowly,
    file_uri,
    frame,
    frames,
    from_base64,
    serving,
    start_params,
)

pytestmark = pytest.mark.soak

MIB = 1 << 20


SHORT_PROCESSES = int(os.environ.get("HOLDFAST_SOAK_PROCESSES", "4800"))
SANDBOXED_PROCESSES = int(os.environ.get("HOLDFAST_SOAK_SANDBOXES", "800"))
"""Number of starts; more by the variables."""


# -- many, one after the other


@pytest.mark.timeout(120)
async def test_thousands_of_processes_leave_nothing_behind() -> None:
    with measured(0.1) as server:
        async with connect(server.url, max_queue=None) as client:
            # What is made once, such as caches, is made by these.
            await _short_processes(client, 1_000)
            before = await server.settled()
            # One start of six is refused.
            await _short_processes(client, SHORT_PROCESSES)
            after = await server.settled()
            assert after["children"] == 0
            assert after["descriptors"] == before["descriptors"]
            assert after["tasks"] == before["tasks"]
            # Each of them would be more: a process takes kilobytes while it is kept.
            assert after["kilobytes"] - before["kilobytes"] < 8 * 1024


async def _short_processes(client: Client, count: int, *, at_once: int = 50) -> None:
    """Run short processes of all kinds, so many at a time, to their ends."""
    kinds: list[dict[str, object]] = [
        {"argv": ["/bin/true"]},
        {"argv": ["/bin/echo", "hi"]},
        {"argv": ["/bin/cat"], "tty": True},
        {"argv": ["/bin/cat"], "pipeStdin": True},
        {"argv": ["/bin/false"]},
        {"argv": ["/no/such/program"]},
    ]

    async def run(number: int) -> None:
        params = {**start_params("", []), **kinds[number % len(kinds)], "processId": str(number)}
        await client.request("process/start", params, request_id=number)
        if params["argv"] == ["/bin/cat"]:
            await client.request("process/terminate", {"processId": str(number)}, request_id="t")

    finished = started = 0
    while finished < count:
        while started < count and started - finished < at_once:
            await run(started)
            started += 1
        message = await client.receive()
        if message.get("method") == "process/closed" or "error" in message:
            finished += 1


# -- in sandboxes


@pytest.mark.timeout(120)
@pytest.mark.requirement("sandbox.end")
async def test_many_sandboxed_processes_leave_nothing_behind(tmp_path: Path) -> None:
    commands = _Sandboxed(tmp_path)
    files = commands.files()
    with measured(0.1, TMPDIR=commands.temporary) as server:
        async with connect(server.url, max_queue=None) as client:
            await commands.run(client, 100)
            before, traces = await server.settled(), commands.traces(server)
            commands.seen.clear()
            await commands.run(client, SANDBOXED_PROCESSES)
            after = await server.settled()
            async with asyncio.timeout(LIMIT):
                while after["descriptors"] != before["descriptors"]:
                    after = await server.measure()  # the last are closed in a thread
            # All kinds of ends have been among them.
            assert set(commands.seen) == {"0", "1", "3", "101", "127", "137", "denied", "refused"}
            assert after["children"] == 0
            assert after["tasks"] == before["tasks"]
            assert after["kilobytes"] - before["kilobytes"] < 8 * 1024
            assert commands.traces(server) == traces
            assert traces["processes"] == []
            assert traces["namespaces"] == []
            assert commands.files() == files


class _Sandboxed:
    """Short commands in sandboxes, of all kinds, and what they may leave behind."""

    def __init__(self, folder: Path) -> None:
        self._here = here = folder.resolve()
        self._workspace = here / "ws"
        self.temporary = str(here / "tmp")
        for name in ("tmp", "ws/.git", "ws/real", "ws/secret"):
            (here / name).mkdir(parents=True)
        (self._workspace / "link").symlink_to("real")
        # In the environment of whatever runs inside, so that it is found wherever it is.
        self._mark = f"{here}/soak"
        self.seen: Counter[str] = Counter()
        """Count of each exit code, of denials and of refusals."""
        self._kinds = self._all_kinds()

    def _all_kinds(self) -> list[dict[str, object]]:
        root, project = _special("root", "read"), _special("project_roots", "write")
        reading = self._context(root)
        writing = self._context(root, project, _special("tmpdir", "write"))
        denying = self._context(root, project, self._entry("secret", "deny"))
        narrow = self._context(_special("minimal", "read"), project)
        impossible = self._context(root, project, self._entry("link/key", "deny"))

        def shell(script: str, sandbox: object, **more: object) -> dict[str, object]:
            return {"argv": ["/bin/sh", "-c", script], "sandbox": sandbox, **more}

        return [
            {"argv": ["/bin/true"], "sandbox": reading},
            {"argv": ["/bin/true"], "sandbox": writing, "tty": True},
            shell("echo made >made-$$ && rm made-$$", writing),
            shell("exit 3", narrow),
            shell("echo no >.git/config", writing),
            shell("cat secret/key", denying),
            {"argv": ["/no/such/program"], "sandbox": reading},
            # What is still running is ended with the sandbox.
            shell("sleep 600 & setsid sleep 600 & exit 0", writing),
            shell("trap '' HUP; sleep 600 & exit 0", denying, tty=True),
            {"argv": ["/bin/cat"], "sandbox": writing, "pipeStdin": True},
            {"argv": ["/bin/cat"], "sandbox": denying, "tty": True},
            shell("kill -9 $$", writing),
            # Refused before anything is started, and by a rule that cannot be kept.
            {"argv": ["/bin/true"], "sandbox": writing, "cwd": "file:///no/such/folder"},
            {"argv": ["/bin/true"], "sandbox": writing, "managedNetwork": {}},
            {"argv": ["/bin/true"], "sandbox": writing, "enforceManagedNetwork": True},
            {"argv": ["/bin/true"], "sandbox": impossible},
        ]

    def _context(self, *entries: object) -> dict[str, object]:
        files = {"type": "restricted", "entries": entries}
        return {
            "permissions": {"type": "managed", "file_system": files, "network": "restricted"},
            "cwd": file_uri(self._workspace),
            "workspaceRoots": [file_uri(self._workspace)],
            "windowsSandboxLevel": "disabled",
        }

    def _entry(self, name: str, access: str) -> object:
        path = {"type": "path", "path": file_uri(self._workspace / name)}
        return {"path": path, "access": access}

    async def run(self, client: Client, count: int, *, at_once: int = 12) -> None:
        """Start so many, some at a time, and wait for their ends."""
        ended = started = 0
        while ended < count:
            while started < count and started - ended < at_once:
                await self._start(client, started)
                started += 1
            message = await client.receive()
            if message.get("method") == "process/closed":
                ended += 1
            elif message.get("method") == "process/exited":
                params = message["params"]
                self.seen["denied" if params["sandboxDenied"] else str(params["exitCode"])] += 1
            elif "error" in message and message["id"] != "t":
                ended += 1
                self.seen["refused"] += 1

    async def _start(self, client: Client, number: int) -> None:
        kind = self._kinds[number % len(self._kinds)]
        env = {"PATH": "/usr/bin:/bin", "TMPDIR": self.temporary, "MARK": self._mark}
        params = start_params(str(number), [], cwd=file_uri(self._workspace), env=env)
        await client.request("process/start", {**params, **kind}, request_id=number)
        if kind["argv"] == ["/bin/cat"]:
            await client.request("process/terminate", {"processId": str(number)}, request_id="t")

    def traces(self, server: Measured) -> dict[str, object]:
        """Return what is left of sandboxes that have ended."""
        process = Path(f"/proc/{server.pid}")
        own = {os.readlink(entry) for entry in (process / "ns").iterdir()}
        held = [_link(entry) for entry in (process / "fd").iterdir()]
        running = self._processes()
        inside = {link for pid in running for link in _namespaces(pid)}
        return {
            "mounts": (process / "mountinfo").read_text(),
            "processes": running,
            "namespaces": sorted((inside - own) | set(filter(_NAMESPACE.match, held))),
        }

    def files(self) -> list[str]:
        """Everything in the workspace and beside it."""
        return sorted(str(path) for path in self._here.rglob("*"))

    def _processes(self) -> list[int]:
        """All that carry the mark, whoever their parent is by now."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and self._mark.encode() in _environment(entry)
        ]


_NAMESPACE = re.compile(r"(cgroup|ipc|mnt|net|pid|uts|user):\[")


def _special(kind: str, access: str) -> object:
    return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""  # gone, or not ours


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # gone: the descriptor that listed it


def _namespaces(pid: int) -> Iterator[str]:
    try:
        yield from map(_link, Path(f"/proc/{pid}/ns").iterdir())
    except OSError:
        return


# -- connections


@pytest.mark.timeout(60)
async def test_hundreds_of_connections_leave_nothing_behind() -> None:
    with measured(0.05) as server:
        await _short_sessions(server, 50)
        before = await _without_sessions(server)
        await _short_sessions(server, 500)
        after = await _without_sessions(server)
        assert after["children"] == 0
        assert after["descriptors"] == before["descriptors"]
        assert after["tasks"] == before["tasks"]
        assert after["kilobytes"] - before["kilobytes"] < 8 * 1024


async def _short_sessions(server: Measured, count: int) -> None:
    """Connections that start something, wait for something, and vanish."""
    read = {"processId": "p", "afterSeq": 9, "waitMs": 60_000}
    start = start_params("p", ["/bin/cat"], tty=True)
    said = (
        INITIALIZE
        + INITIALIZED
        + frame({"id": 1, "method": "process/start", "params": start})
        + frame({"id": 2, "method": "process/read", "params": read}) * 3
        + frame({"id": 3, "method": "environment/status"})
    )
    for _ in range(count):
        async with frames(server.url) as connection:
            await connection.send(said)
            await connection.receive()


async def _without_sessions(server: Measured) -> dict[str, int]:
    async with asyncio.timeout(2 * LIMIT):
        while (found := await server.measure())["sessions"] or found["children"]:
            pass
    return found


# -- many at once


def _descriptors(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.serving_pid}/fd"))


@pytest.mark.timeout(60)
@pytest.mark.requirement("limits.processes")
async def test_a_thousand_processes_at_once_all_answer() -> None:
    names = [f"p{number}" for number in range(1_000)]
    with serving() as server:
        async with connect(server.url, max_queue=None) as client:
            # When this one is answered, the server has finished looking at what it can enforce.
            external = {"type": "external", "network": "restricted"}
            sandbox = {"permissions": external, "windowsSandboxLevel": "disabled"}
            assert (await client.run(["/bin/true"], sandbox=sandbox)).exit_code == 0
            before = _descriptors(server)
            for name in names:
                await client.request(
                    "process/start", start_params(name, ["/bin/cat"], pipeStdin=True)
                )
            for name in names:
                await client.request("process/write", client.write_params(name, name.encode()))
            for name in names:
                assert await client.output(name, name.encode()) == name.encode()
            listed = (await client.call("process/list"))["processes"]
            assert sum(process["running"] for process in listed) == 1_000
            for name in names:
                await client.request("process/closeStdin", {"processId": name})
            for name in names:
                assert await client.finish(name) == Run(0, stdout=name.encode())
            assert _descriptors(server) == before
        assert server.stop() == 0
        assert server.errors == ""


@pytest.mark.timeout(60)
async def test_a_flood_of_requests_is_answered_completely() -> None:
    count = 20_000
    with serving() as server:
        async with connect(server.url) as client:
            await client.start("p", ["/bin/cat"], pipeStdin=True)
            requests: tuple[tuple[str, object], ...] = (
                ("environment/status", None),
                ("process/read", {"processId": "p"}),
                ("nope", {}),
                ("process/list", {}),
            )

            async def ask() -> None:
                for number in range(count):
                    method, params = requests[number % len(requests)]
                    await client.request(method, params, request_id=number)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ask())
                answered = [(await client.receive())["id"] for _ in range(count)]
            assert answered == list(range(count))
        assert server.stop() == 0
        assert server.errors == ""


# -- clients that do not read


def _peak(server: ServerProcess) -> int:
    """Kilobytes the server has ever held."""
    status = Path(f"/proc/{server.serving_pid}/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peak)


def _numbers(count: int) -> bytes:
    """Return the output of `seq`."""
    return b"".join(b"%d\n" % number for number in range(1, count + 1))


@pytest.mark.timeout(60)
@pytest.mark.requirement("output.slow-client")
async def test_clients_that_stop_reading_lose_nothing_and_cost_little(tmp_path: Path) -> None:
    slow, count = 4, 3_000_000
    expected = _numbers(count)
    with serving() as server, Fifo(tmp_path / "done") as done:
        async with AsyncExitStack() as stack:
            idle = _peak(server)
            stopped = [
                await stack.enter_async_context(connect_slowly(server.url)) for _ in range(slow)
            ]
            for client in stopped:
                await client.shell("p", f"seq 1 {count}; echo >{done.path}")
            # They do not read. Another one does, and gets all of its stream meanwhile.
            async with connect(server.url) as quick:
                run = await quick.run_shell(f"seq 1 {count}")
                assert hashlib.sha256(run.stdout).digest() == hashlib.sha256(expected).digest()
                assert not done.has_something(), "a process was not held up"
            # Each of them wrote 23 MB, or would have.
            assert _peak(server) - idle < 40 * 1024
            for client in stopped:
                run = await client.finish("p")
                assert hashlib.sha256(run.stdout).digest() == hashlib.sha256(expected).digest()
            for _ in stopped:
                await done.line()
            assert _peak(server) - idle < 40 * 1024
        assert server.stop() == 0
        assert server.errors == ""


@pytest.mark.timeout(60)
async def test_a_client_that_asks_and_never_reads_costs_little() -> None:
    read = frame({"id": 2, "method": "process/read", "params": {"processId": "p"}})
    script = f"head -c {MIB} /dev/zero; exec sleep 600"
    start = {"id": 1, "method": "process/start", "params": start_params("p", ["sh", "-c", script])}
    with serving() as server:
        async with frames(server.url) as connection, connect(server.url) as other:
            await connection.send(INITIALIZE + INITIALIZED + frame(start))
            received = 0
            while received < MIB:
                _, payload = await connection.receive()
                chunk = json.loads(payload).get("params", {}).get("chunk", "")
                received += len(from_base64(chunk))
            idle = _peak(server)
            # One packet that asks for a gibibyte.
            await connection.send(read * 700)
            for _ in range(100):
                assert await other.is_ready()
            assert _peak(server) - idle < 40 * 1024
            for _ in range(700):
                _, payload = await connection.receive()
                assert len(payload) > MIB
            assert _peak(server) - idle < 40 * 1024
        assert server.stop() == 0
        assert server.errors == ""

"""
The worst that one client does to a server, while another one is served.

    python -m tests.soak.worst_client [SECONDS [ATTACK …]]

Each attack runs in a process of its own against a server of its own, for some seconds. All the
time another client asks `environment/status` and starts commands. Printed are the latencies of
that client and the memory and threads of the server.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests import dead_mount
from tests.e2e.test_sandbox import context, entry, special
from tests.e2e.wire import (
    HOLDFAST,
    ServerProcess,
    connect,
    file_uri,
    serving,
    start_params,
    to_base64,
)

SECONDS = 10.0
WARM_UP = 1.0
PAUSE = 0.002
"""Seconds between two questions of the client that is served."""

MEBIBYTE = bytes(1 << 20)

Attack = Callable[[str, Path], Awaitable[None]]


class Figures(msgspec.Struct):
    """Service that the other client got."""

    questions: int
    p50: float
    """Milliseconds, of `environment/status`."""
    p99: float
    worst: float
    starts: int
    slowest_start: float
    """Milliseconds from the request to the end of the command."""
    memory: int
    """MiB of the server at the end."""
    threads: int
    inotify: int
    """Instances."""


async def watches(url: str, folder: Path) -> None:
    """Watch for missing files on connections that end at once."""
    while True:
        async with connect(url) as client:
            for number in range(1, 20):
                params = {"watchId": number, "missing": [file_uri(folder / "x")], "present": None}
                await client.request("fs/watchMissing", params)
            await client.vanish()


async def unread_input(url: str, folder: Path) -> None:
    """Write to commands that do not read, as much as is taken."""
    while True:
        async with connect(url) as client:
            for process in "abcdefgh":
                await client.start(process, ["sleep", "600"], pipeStdin=True)
            for _ in range(40):
                for process in "abcdefgh":
                    await client.request("process/write", client.write_params(process, MEBIBYTE))
                await client.is_ready()


async def stuck_starts(url: str, folder: Path) -> None:
    """Start commands on a dead mount, in a sandbox and out of it."""
    on_it = context(folder, special("root", "read"), entry(folder / "in", "write"))
    number = 0
    while True:
        async with connect(url) as client:
            for _ in range(20):
                for more in ({}, {"tty": True}, {"sandbox": on_it}, {"limits": {"openFiles": 64}}):
                    number += 1
                    params = start_params(str(number), ["true"], cwd=file_uri(folder), **more)
                    await client.request("process/start", params)
                await client.is_ready()
            await asyncio.sleep(1)
            await client.vanish()


async def stuck_files(url: str, folder: Path) -> None:
    """Ask for files on a dead mount, and leave."""
    while True:
        async with connect(url) as client:
            for number in range(100):
                path = {"path": file_uri(folder / str(number))}
                await client.request("fs/writeFile", {**path, "dataBase64": to_base64(b"x")})
                await client.request("fs/readDirectory", path)
            await client.is_ready()
            await asyncio.sleep(0.5)
            await client.vanish()


async def impossible_folders(url: str, folder: Path) -> None:
    """Make folders where nobody can, and walk where it takes long."""
    options = {"maxDepth": 64, "maxDirectories": 5000, "maxEntries": 20000}
    walk = {"path": "file:///proc", "options": {**options, "followDirectorySymlinks": False}}
    async with connect(url) as client:
        while True:
            asked = [
                await client.request("fs/createDirectory", {"path": "file:///proc/x/y"})
                for _ in range(50)
            ]
            asked += [await client.request("fs/walk", walk) for _ in range(4)]
            for request in asked:
                await client.reply(request)


async def open_handles(url: str, folder: Path) -> None:
    """Have as many files and connections open as there may be, and commands that end."""
    handle = {"path": "file:///etc/passwd", "mode": "read"}
    while True:
        async with AsyncExitStack() as stack:
            for _ in range(20):
                client = await stack.enter_async_context(connect(url))
                for number in range(128):
                    await client.request("fs/open", {**handle, "handleId": str(number)})
                await client.is_ready()
                await client.run(["/bin/true"])


async def huge_profiles(url: str, folder: Path) -> None:
    """Ask for sandboxes with thousands of entries, and with patterns that are hard to match."""
    (folder / ("a" * 200)).touch()
    paths = [entry(folder / str(number), "deny") for number in range(20_000)]
    glob = {"type": "glob_pattern", "pattern": f"{folder}/**/{'*a' * 30}*b"}
    hard = {"path": glob, "access": "deny"}
    profiles = [context(folder, special("root", "read"), *entries) for entries in (paths, [hard])]
    number = 0
    async with connect(url) as client:
        while True:
            for profile in profiles:
                number += 1
                params = start_params(str(number), ["true"], cwd=file_uri(folder), sandbox=profile)
                request = await client.request("process/start", params)
                await client.reply(request)


async def thousand_starts(url: str, folder: Path) -> None:
    """Start as many commands at once as requests may wait."""
    number = 0
    while True:
        async with connect(url) as client:
            for _ in range(300):
                number += 1
                await client.request("process/start", start_params(str(number), ["/bin/true"]))
            await client.is_ready()
            await asyncio.sleep(0.5)


async def endless_output(url: str, folder: Path) -> None:
    """Leave programs behind that write for ever, under limits that end them."""
    number = 0
    while True:
        async with connect(url) as client:
            for _ in range(20):
                number += 1
                script = "(yes) & setsid yes & exit 0"
                limits = {"outputBytes": 10_000}
                params = start_params(str(number), ["sh", "-c", script], limits=limits)
                await client.request("process/start", params)
            await client.is_ready()
            await asyncio.sleep(0.5)
            await client.vanish()


async def strangers(url: str, folder: Path) -> None:
    """Connect as often as possible, with requests that are refused and with none."""
    address = urlsplit(url)
    held: deque[asyncio.StreamWriter] = deque()
    while True:
        lines = [await asyncio.open_connection(address.hostname, address.port) for _ in range(32)]
        for _, writer in lines[:30]:
            writer.write(b"GET / HTTP/1.1\r\nOrigin: http://example.com\r\n\r\n")
        for reader, writer in lines[:30]:
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
        held += [writer for _, writer in lines[30:]]
        while len(held) > 1_500:
            held.popleft().close()


async def nothing(url: str, folder: Path) -> None:
    """Do no harm, for comparison."""
    await asyncio.sleep(3600)


ATTACKS: dict[str, Attack] = {
    "nothing": nothing,
    "watches": watches,
    "unread input": unread_input,
    "stuck starts": stuck_starts,
    "stuck files": stuck_files,
    "impossible folders": impossible_folders,
    "open handles": open_handles,
    "huge profiles": huge_profiles,
    "thousand starts": thousand_starts,
    "endless output": endless_output,
    "strangers": strangers,
}

NEEDS_DEAD_MOUNT = frozenset({"stuck starts", "stuck files"})


async def serve_beside(name: str, seconds: float, folder: Path) -> Figures:
    """Serve one client while an attack goes on."""
    dead = folder / "dead"
    dead.mkdir()
    command = [*HOLDFAST, "exec-server"]
    if name in NEEDS_DEAD_MOUNT:
        command = [*dead_mount.OWN_MOUNTS, *command]
    with serving(command=command) as server:
        async with connect(server.url) as holder:
            if name in NEEDS_DEAD_MOUNT:
                program = [sys.executable, str(Path(dead_mount.__file__)), str(dead)]
                await holder.start("mount", program, pipeStdin=True)
                await holder.output("mount", dead_mount.MOUNTED)
            attacker = _attacker(name, server.url, dead)
            try:
                await asyncio.sleep(WARM_UP)
                figures = await _measure(server, seconds)
                assert attacker.poll() is None, "the attack ended"
            finally:
                attacker.kill()
                attacker.wait()
                if name in NEEDS_DEAD_MOUNT:
                    await holder.terminate("mount")
    return figures


def _attacker(name: str, url: str, folder: Path) -> "subprocess.Popen[bytes]":
    program = [sys.executable, "-m", "tests.soak.worst_client"]
    return subprocess.Popen([*program, "--attack", name, url, folder])


async def _measure(server: ServerProcess, seconds: float) -> Figures:
    latencies: list[float] = []
    starts: list[float] = []
    async with connect(server.url) as asking, connect(server.url) as starting:
        end = time.monotonic() + seconds

        async def ask() -> None:
            while time.monotonic() < end:
                began = time.perf_counter()
                assert await asking.is_ready()
                latencies.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE)

        async def start() -> None:
            while time.monotonic() < end:
                began = time.perf_counter()
                assert (await starting.run(["/bin/true"])).exit_code == 0
                starts.append(time.perf_counter() - began)
                await asyncio.sleep(0.1)

        await asyncio.gather(ask(), start())
    return _figures(server.serving_pid, sorted(latencies), starts)


def _figures(pid: int, latencies: list[float], starts: list[float]) -> Figures:
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return Figures(
        questions=len(latencies),
        p50=1e3 * latencies[len(latencies) // 2],
        p99=1e3 * latencies[int(len(latencies) * 0.99)],
        worst=1e3 * latencies[-1],
        starts=len(starts),
        slowest_start=1e3 * max(starts),
        memory=int(fields["VmRSS"].split()[0]) >> 10,
        threads=int(fields["Threads"]),
        inotify=inotify_instances(pid),
    )


def inotify_instances(pid: int) -> int:
    found = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found += "inotify" in os.readlink(f"/proc/{pid}/fd/{name}")
    return found


async def run(name: str, seconds: float = SECONDS) -> Figures:
    """Run one attack."""
    with tempfile.TemporaryDirectory() as folder:
        return await serve_beside(name, seconds, Path(folder))


def main(arguments: list[str]) -> None:
    """Attack, or run all attacks and print the figures."""
    if arguments[:1] == ["--attack"]:
        os.nice(10)  # as a rule its own work is done on another machine
        _, name, url, folder = arguments
        asyncio.run(ATTACKS[name](url, Path(folder)))  # type: ignore[arg-type]  # a coroutine
        return
    seconds = float(arguments[0]) if arguments else SECONDS
    for name in arguments[1:] or ATTACKS:
        if name in NEEDS_DEAD_MOUNT and not dead_mount.can_mount():
            continue
        figures: dict[str, Any] = msgspec.to_builtins(asyncio.run(run(name, seconds)))
        rounded = {
            key: round(value, 2) if isinstance(value, float) else value
            for key, value in figures.items()
        }
        print(name, json.dumps(rounded), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

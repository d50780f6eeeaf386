"""However a server ends, nothing that it started is left [serve.end.*]."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.wire import LIMIT, connect, gone, is_alive, readable, serving

pytestmark = pytest.mark.soak

IGNORE = "trap '' HUP INT TERM QUIT"


@dataclass(frozen=True)
class Kind:
    """A process that is hard to get rid of. Each script prints the pid of what must be gone."""

    script: str
    tty: bool = False


KINDS = {
    "plain": Kind("echo pid=$$; exec sleep 600"),
    "ignores SIGTERM": Kind(f"{IGNORE}; echo pid=$$; exec sleep 600"),
    "on a terminal": Kind("echo pid=$$; exec sleep 600", tty=True),
    "ignores SIGHUP on a terminal": Kind(f"{IGNORE}; echo pid=$$; exec sleep 600", tty=True),
    "child": Kind("sleep 600 & echo pid=$!; wait"),
    "orphan": Kind("(sleep 600 & echo pid=$!); exec sleep 600"),
    "grandchild in its own session": Kind(
        f"setsid sh -c '{IGNORE}; echo pid=$$; exec sleep 600' & wait"
    ),
    "daemon": Kind(
        f"(setsid sh -c '{IGNORE}; (echo pid=$(exec sh -c \"echo \\$PPID\"); exec sleep 600) &' &)"
    ),
    "daemon without streams": Kind(
        f"(setsid sh -c '{IGNORE}; exec sleep 600 >/dev/null 2>&1 </dev/null' & echo pid=$!)"
    ),
    "daemon of a terminal": Kind(
        f"{IGNORE}; (setsid sh -c 'exec sleep 600 >/dev/null 2>&1 </dev/null' & echo pid=$!)",
        tty=True,
    ),
    "stopped": Kind("echo pid=$$; kill -STOP $$; sleep 600"),
    "busy": Kind("echo pid=$$; exec yes >/dev/null"),
    "writing": Kind("echo pid=$$; exec yes"),
}

ENDS = {
    "SIGTERM": ("guardian", signal.SIGTERM),
    "SIGINT": ("guardian", signal.SIGINT),
    "SIGHUP": ("guardian", signal.SIGHUP),
    "SIGKILL of the guardian": ("guardian", signal.SIGKILL),
    "SIGKILL of the server": ("server", signal.SIGKILL),
    "SIGTERM of the server": ("server", signal.SIGTERM),
    "SIGSEGV of the server": ("server", signal.SIGSEGV),
}


@pytest.mark.timeout(30)
@pytest.mark.requirement("serve.end.signals", "serve.end.sigkill")
@pytest.mark.parametrize("end", ENDS)
async def test_nothing_is_left_when_a_server_ends_by(end: str) -> None:
    who, number = ENDS[end]
    with serving() as server:
        async with connect(server.url) as client, AsyncExitStack() as stack:
            pids = {}
            for name, kind in KINDS.items():
                await client.shell(name, kind.script, tty=kind.tty)
                text = await client.output(name, b"\n")
                pids[name] = int(text.partition(b"pid=")[2].split()[0])
            assert {name for name, pid in pids.items() if not is_alive(pid)} == set()
            # Held while they live, so that no number can be given to another process.
            watched = {name: os.pidfd_open(pid) for name, pid in pids.items()}
            for descriptor in watched.values():
                stack.callback(os.close, descriptor)
            os.kill(server.pid if who == "guardian" else server.serving_pid, number)
            async with asyncio.timeout(3 * LIMIT):
                for name, descriptor in watched.items():
                    await _ended(name, descriptor)
            await gone(server.serving_pid, limit=2 * LIMIT)
            await gone(server.pid, limit=2 * LIMIT)
        assert server.process.wait(LIMIT) == _status(who, number)
        if number != signal.SIGSEGV:
            assert server.errors == ""


async def _ended(name: str, descriptor: int) -> None:
    try:
        await readable(descriptor)
    except asyncio.CancelledError:
        raise AssertionError(f"{name} was left behind") from None


def _status(who: str, number: int) -> int:
    """Return the exit status that the parent of the guardian sees."""
    if who == "guardian":
        return -number if number == signal.SIGKILL else 0
    return 0 if number == signal.SIGTERM else 128 + number


@pytest.mark.requirement("serve.end.sigkill")
async def test_when_the_guardian_is_killed_processes_may_put_things_in_order(
    tmp_path: Path,
) -> None:
    note = tmp_path / "note"
    with serving() as server:
        async with connect(server.url) as client:
            script = f"trap 'touch {note}; exit' TERM; echo $$; while :; do sleep 0.01; done"
            await client.shell("p", script)
            pid = int(await client.output("p", b"\n"))
            server.process.kill()
            await gone(pid)
            await gone(server.serving_pid, limit=2 * LIMIT)
    assert note.exists()


@pytest.mark.requirement("serve.end.signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_asked_to_end_runs_no_trap(
    tmp_path: Path, number: signal.Signals
) -> None:
    note = tmp_path / "note"
    with serving() as server:
        async with connect(server.url) as client:
            script = f"trap 'touch {note}' TERM INT HUP; echo $$; while :; do sleep 0.01; done"
            for tty in (False, True):
                await client.shell(f"p{tty}", script, tty=tty)
                await client.output(f"p{tty}", b"\n")
            assert server.stop(number) == 0
    assert not note.exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("who", ["guardian", "server"])
async def test_what_goes_on_forking_is_killed_too(who: str) -> None:
    # A number that no other process on this machine sleeps for.
    nap = f"600.{os.getpid():08}"
    script = f"echo ready; while :; do sh -c 'setsid sleep {nap} & setsid sleep {nap} &'; done"
    with serving() as server:
        async with connect(server.url) as client:
            for number in range(2):
                await client.shell(f"p{number}", script)
                await client.output(f"p{number}", b"ready\n")
            async with asyncio.timeout(LIMIT):
                while len(_sleepers(nap)) < 50:
                    assert await client.is_ready()
            os.kill(server.pid if who == "guardian" else server.serving_pid, signal.SIGKILL)
            await gone(server.serving_pid, limit=4 * LIMIT)
            await gone(server.pid, limit=4 * LIMIT)
    assert _sleepers(nap) == []


def _sleepers(nap: str) -> list[int]:
    """Every process on this machine that sleeps for so long."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                command = (folder / "cmdline").read_text().split("\0")
                if command[:2] == ["sleep", nap]:
                    found.append(int(folder.name))
    return found

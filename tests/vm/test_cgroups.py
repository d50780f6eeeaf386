"""Limits on whole commands, kept by the kernel, and nothing left of what they need."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import (
    HOLDFAST,
    LIMIT,
    Client,
    ServerProcess,
    connect,
    gone,
    serving,
    start_params,
)
from tests.vm.tree import Cgroup

pytestmark = pytest.mark.vm

MIB = 1 << 20

HOLD = "$x = 'x' x (24 << 20); $| = 1; print qq(holds\\n); sleep 600"
"""Takes memory and keeps it: 24 MiB at least, and twice as much at most."""

FORK = """
while (defined(my $child = fork)) { if ($child) { push @all, $child } else { sleep 600 } }
my $count = @all; print qq($count were started\\n); kill 9, @all; exit 3
"""
"""Starts processes until it cannot, and ends them."""

BOMB = "bomb() { bomb | bomb & bomb; }; bomb"

terminals = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])


def limit_of(client: Client, process_id: str) -> str | None:
    """Return the limit that the exit names, or None."""
    (event,) = (event for event in client.seen(process_id) if event.kind == "exited")
    found = event.params.get("limit")
    return None if found is None else str(found)


def holding(times: int) -> str:
    """A script whose processes, so many, each take memory; the first few do not notice."""
    return f"for i in $(seq {times}); do perl -e '{HOLD}' & done; wait"


@pytest.mark.requirement("security.limits.cgroup")
@pytest.mark.usefixtures("nothing_stays")
@terminals
async def test_a_command_is_killed_when_its_processes_together_use_too_much_memory(
    client: Client, sandbox: dict[str, Any] | None, tty: bool
) -> None:
    limits = {"memoryBytes": 100 * MIB}

    await client.shell("p", holding(8), sandbox=sandbox, tty=tty, limits=limits)
    run = await client.finish("p")

    assert limit_of(client, "p") == f"used more than {100 * MIB} bytes of memory"
    # On a terminal a signal is 1, as with a real server; a launcher tells it as a shell does.
    assert run.exit_code == (1 if tty and sandbox is None else 128 + signal.SIGKILL)


@pytest.mark.usefixtures("nothing_stays")
async def test_one_of_its_processes_alone_stays_below_that(client: Client) -> None:
    await client.start("p", ["/usr/bin/perl", "-e", HOLD], limits={"memoryBytes": 100 * MIB})
    await client.output("p", b"holds\n")
    assert await client.terminate("p")
    await client.finish("p")

    assert limit_of(client, "p") is None


@pytest.mark.usefixtures("nothing_stays")
@terminals
async def test_as_many_processes_can_be_started_as_the_limit_says(
    client: Client, sandbox: dict[str, Any] | None, tty: bool
) -> None:
    argv = ["/usr/bin/perl", "-e", FORK]

    await client.start("p", argv, sandbox=sandbox, tty=tty, limits={"processes": 20})
    run = await client.finish("p")

    assert (run.pty or run.stdout).split()[0] == b"19"  # and itself
    assert run.exit_code == 3
    assert limit_of(client, "p") == "ran into its limit of 20 processes"


@pytest.mark.usefixtures("nothing_stays")
async def test_a_command_that_goes_on_forking_is_held_and_can_be_ended(
    client: Client, server: ServerProcess, server_cgroup: Cgroup, sandbox: dict[str, Any] | None
) -> None:
    await client.start("p", ["/bin/bash", "-c", BOMB], sandbox=sandbox, limits={"processes": 30})
    (name,) = server_cgroup.below() - {f"holdfast-{server.serving_pid}-self"}
    folder = server_cgroup.path / name
    async with asyncio.timeout(LIMIT):
        while "max 0" in (folder / "pids.events").read_text():
            assert await client.is_ready()

    assert int((folder / "pids.current").read_text()) <= 31
    await client.call("process/terminate", {"processId": "p", "tree": True})
    await client.finish("p")
    assert limit_of(client, "p") is None  # it was asked to end


@pytest.mark.usefixtures("nothing_stays")
async def test_the_least_memory_is_enough_for_a_command(
    client: Client, sandbox: dict[str, Any] | None
) -> None:
    run = await client.run(["/bin/true"], sandbox=sandbox, limits={"memoryBytes": 4 * MIB})

    assert run.exit_code == 0


@pytest.mark.usefixtures("nothing_stays")
async def test_a_failure_that_has_another_cause_is_laid_to_no_limit(client: Client) -> None:
    limits = {"memoryBytes": 100 * MIB, "processes": 20}

    await client.shell("p", "echo cannot fork: out of memory >&2; exit 1", limits=limits)
    await client.finish("p")

    assert limit_of(client, "p") is None


async def test_what_a_command_leaves_in_the_background_stays_limited(
    client: Client, server: ServerProcess, server_cgroup: Cgroup
) -> None:
    script = "sleep 600 >/dev/null 2>&1 & echo $!"
    run = await client.run_shell(script, limits={"processes": 20, "memoryBytes": 50 * MIB})
    pid = int(run.stdout)
    rest = f"holdfast-{server.serving_pid}-self"
    (name,) = server_cgroup.below() - {rest}

    assert Cgroup(server_cgroup.path / name).processes() == [pid]
    assert (server_cgroup.path / name / "memory.max").read_text().strip() == str(50 * MIB)
    os.kill(pid, signal.SIGKILL)
    await server_cgroup.has_only(rest)


LIFT = """
own=$(find "$1" -name memory.max -exec grep -l "$2" {} +)
echo "found ${own##*/}"
echo max 2>/dev/null >"$own" && echo lifted
echo 0 2>/dev/null >"$1/tests/cgroup.procs" && echo left
true
"""
"""Looks for its own limit, and tries to lift it and to leave the cgroup."""


@pytest.mark.usefixtures("nothing_stays")
async def test_a_command_in_a_sandbox_cannot_lift_its_limits(
    client: Client, delegated: Cgroup, sandbox: dict[str, Any] | None
) -> None:
    limit = 77 * MIB
    argv = ["/bin/sh", "-c", LIFT, "sh", str(delegated.path), str(limit)]

    run = await client.run(argv, sandbox=sandbox, limits={"memoryBytes": limit})

    found, *rest = run.stdout.decode().splitlines()
    assert found == "found memory.max"
    assert rest == (["lifted", "left"] if sandbox is None else [])


DAEMON = "(setsid sleep 600 >/dev/null 2>&1 &); sleep 600 & echo up; wait"

ENDS = {
    "SIGTERM": ("guardian", signal.SIGTERM),
    "SIGKILL of the server": ("server", signal.SIGKILL),
    "SIGKILL of the guardian": ("guardian", signal.SIGKILL),
}


@pytest.mark.parametrize("end", ENDS)
async def test_no_cgroup_is_left_when_a_server_ends_by(
    cgroup: Cgroup, read_only: dict[str, Any], end: str
) -> None:
    who, number = ENDS[end]
    with serving(command=cgroup.serve()) as server:
        async with connect(server.url) as client:
            for name, sandbox in (("free", None), ("sandboxed", read_only)):
                limits = {"processes": 20, "memoryBytes": 50 * MIB}
                await client.shell(name, DAEMON, sandbox=sandbox, limits=limits)
                await client.output(name, b"up\n")
            own = f"holdfast-{server.serving_pid}"
            assert cgroup.below() == {f"{own}-self", f"{own}-1", f"{own}-2"}
            os.kill(server.pid if who == "guardian" else server.serving_pid, number)
            await gone(server.serving_pid, limit=2 * LIMIT)
            await gone(server.pid, limit=2 * LIMIT)
    # The fixture looks whether all is as it was.


async def test_a_server_in_a_part_of_what_was_delegated_uses_the_rest(cgroup: Cgroup) -> None:
    with cgroup.divided("main") as part, serving(command=part.serve()) as server:
        async with connect(server.url) as client:
            await client.shell("p", holding(8), limits={"memoryBytes": 100 * MIB})
            await client.finish("p")
            assert limit_of(client, "p") == f"used more than {100 * MIB} bytes of memory"
            assert part.below() == set()
            await cgroup.has_only("main")
    cgroup.disable_all()  # systemd, which made both, would remove both


def _sleeper(cgroup: Cgroup) -> subprocess.Popen[bytes]:
    return subprocess.Popen(cgroup.entering("sleep", "600"))


async def test_without_a_delegated_cgroup_memory_is_refused_and_processes_are_not(
    cgroup: Cgroup,
) -> None:
    with cgroup.divided("inner") as inner:
        # A process of somebody else in each, which must not be moved.
        others = [_sleeper(one) for one in (cgroup, inner)]
        try:
            async with asyncio.timeout(LIMIT):
                while not (cgroup.processes() and inner.processes()):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            with serving(command=inner.serve()) as server:
                async with connect(server.url) as client:
                    params = start_params("p", ["/bin/true"], limits={"memoryBytes": 50 * MIB})
                    code, text = await client.refusal("process/start", params)
                    run = await client.run(["/bin/true"], limits={"processes": 5000})
            assert [inner.processes(), cgroup.processes()] == [[o.pid] for o in reversed(others)]
        finally:
            for other in others:
                other.kill()
                other.wait(LIMIT)
    name = f"/{inner.path.relative_to('/sys/fs/cgroup')}"
    assert code == -32602
    assert text == (
        "a limit on the memory of all processes together (memoryBytes, --limit-memory) needs a"
        " separate cgroup for a command: the cgroup"
        f" {name} also holds process {others[1].pid} (sleep), which is not its own;"
        " start it alone in a cgroup that its user may write to"
    )
    assert run.exit_code == 0


def test_a_command_in_the_foreground_is_limited_too(cgroup: Cgroup) -> None:
    options = ["run", "--limit-memory", "100M", "--", "sh", "-c", holding(8)]

    done = subprocess.run(cgroup.entering(*HOLDFAST, *options), capture_output=True, check=False)

    assert done.returncode == 128 + signal.SIGKILL
    told = f"holdfast: ended by --limit-memory: it used more than {100 * MIB} bytes of memory\n"
    assert done.stderr.decode() == told


PROGRAM = """
from holdfast.front import sync
from holdfast import Limits
with sync.connect() as env:
    done = env.run(["perl", "-e", "$x = 'x' x (200 << 20)"], limits=Limits(memory=100 << 20))
    print(done.reason, env.run("cat /proc/self/cgroup", limits=Limits(processes=9)).stdout)
"""


def test_a_program_of_somebody_moves_out_of_the_way_and_back(cgroup: Cgroup) -> None:
    done = subprocess.run(
        cgroup.entering(sys.executable, "-c", PROGRAM), capture_output=True, text=True, check=True
    )

    reason, path = done.stdout.split()
    assert reason == "limit"
    assert Path(path).parent.name == cgroup.path.name


def test_a_doctor_looks_and_changes_nothing(cgroup: Cgroup) -> None:
    done = subprocess.run(
        cgroup.entering(*HOLDFAST, "doctor"), capture_output=True, text=True, check=False
    )

    (line,) = [line for line in done.stdout.splitlines() if line.startswith("cgroup")]
    assert " ok " in line
    assert f"memory and processes can be limited for a whole command, in {cgroup.path}" in line

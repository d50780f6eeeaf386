"""Limits: what the kernel keeps and what is watched, on real processes."""

import asyncio
import os
import platform
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidParams, SpawnFailed
from holdfast.engine.process.child import owned_pids
from holdfast.engine.process.limits import rlimits as bounds_module
from holdfast.engine.process.limits.cgroup import Cgroups
from holdfast.engine.process.limits.cgroup_discovery import CgroupLocation
from holdfast.engine.process.limits.rlimits import check_limits
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import LimitKind, Reason, Verdict
from holdfast.wire.protocol.process import ProcessLimits, StartParams
from tests.unit.engine.process.fake_cgroups import FakeTree
from tests.unit.engine.process.starting import closed, program, read, shell, started

SPIN = ("/bin/sh", "-c", "while :; do :; done")


@pytest.fixture(autouse=True)
def no_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has none to divide, whatever there is on this one."""
    cgroups = Cgroups(CgroupLocation(problem="there are no cgroups", advice="get some"))
    monkeypatch.setattr(bounds_module, "shared_cgroups", lambda: cgroups)


@pytest.fixture
def tree(tmp_path: Path, no_cgroups: None, monkeypatch: pytest.MonkeyPatch) -> FakeTree:
    """A machine that has one for commands."""
    tree = FakeTree(tmp_path, monkeypatch)
    location = CgroupLocation(folder=str(tree.add("ours")), controllers=("memory", "pids"))
    cgroups = Cgroups(location, proc=str(tree.proc))
    monkeypatch.setattr(bounds_module, "shared_cgroups", lambda: cgroups)
    return tree


async def output(processes: ProcessRegistry, params: StartParams) -> str:
    process = await started(processes, params)
    await closed(process)
    return b"".join([chunk.chunk for chunk in process.log.retained()]).decode()


both = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])


@both
async def test_the_kernel_is_told_before_the_command_runs(
    processes: ProcessRegistry, tty: bool
) -> None:
    limits = ProcessLimits(
        address_space_bytes=1 << 30, open_files=99, cpu_seconds=7, processes=4321
    )

    found = await output(
        processes, program("/bin/cat", "/proc/self/limits", tty=tty, limits=limits)
    )

    rows = {row[:26].strip(): row[26:].split()[:2] for row in found.splitlines()}
    assert rows["Max address space"] == [str(1 << 30)] * 2
    assert rows["Max open files"] == ["99", "99"]
    assert rows["Max cpu time"] == ["7", "8"]
    assert rows["Max processes"] == ["4321", "4321"]


async def test_nothing_is_left_of_how_it_was_held_back(processes: ProcessRegistry) -> None:
    held = program(
        "/bin/ls", "/proc/self/fd", process_id="held", limits=ProcessLimits(open_files=16)
    )
    free = program("/bin/ls", "/proc/self/fd", process_id="free")

    assert await output(processes, held) == await output(processes, free)


async def test_a_command_finds_its_own_arguments(processes: ProcessRegistry) -> None:
    params = program(
        "/bin/sh", "-c", 'echo "$0" "$@"', "zero", "a b", "", limits=ProcessLimits(cpu_seconds=60)
    )
    process = await started(processes, params)
    await closed(process)

    assert (await read(process)).chunks[0].chunk == b"zero a b \n"


@pytest.mark.parametrize("limits", [ProcessLimits(cpu_seconds=60), None])
async def test_a_command_with_limits_has_the_name_that_it_is_given(
    processes: ProcessRegistry, limits: ProcessLimits | None
) -> None:
    params = shell("tr '\\0' ' ' </proc/$$/cmdline", arg0="another", limits=limits)

    assert (await output(processes, params)).startswith("another -c ")


@both
@pytest.mark.parametrize("name", ["/no-such-place", "/etc/passwd", "/etc/passwd/x", "no-such"])
async def test_a_program_that_cannot_be_executed_is_the_same_error_with_limits(
    processes: ProcessRegistry, tty: bool, name: str
) -> None:
    texts = []
    for limits in (None, ProcessLimits(cpu_seconds=60)):
        with pytest.raises(SpawnFailed) as caught:
            await started(processes, program(name, tty=tty, limits=limits))
        texts.append((str(caught.value), caught.value.errno))

    assert texts[0] == texts[1]
    assert len(processes) == 0


async def test_a_start_with_limits_that_fails_leaves_nothing(processes: ProcessRegistry) -> None:
    fds, pids = set(os.listdir("/proc/self/fd")), owned_pids()

    with pytest.raises(SpawnFailed):
        await started(processes, program("/no-such-place", limits=ProcessLimits(cpu_seconds=60)))

    # Descriptors of earlier tests may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= fds
    assert owned_pids() == pids


def test_limits_of_the_kernel_need_a_processor_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")

    check_limits(ProcessLimits(wall_time_ms=1))
    with pytest.raises(InvalidParams, match="limits of the kernel cannot be set on vax"):
        check_limits(ProcessLimits(open_files=99))


@pytest.mark.slow
async def test_a_process_that_uses_its_processor_time_up_is_ended_by_the_limit(
    processes: ProcessRegistry,
) -> None:
    verdict = await closed(
        await started(processes, program(*SPIN, limits=ProcessLimits(cpu_seconds=1)))
    )

    assert (verdict.reason, verdict.limit) == (Reason.LIMIT, LimitKind.CPU_TIME)
    assert verdict.detail == "used more than 1 seconds of processor time"
    assert str(verdict) == verdict.detail


async def test_a_process_that_takes_too_long_is_ended(processes: ProcessRegistry) -> None:
    params = program("/bin/sleep", "60", limits=ProcessLimits(wall_time_ms=20))

    verdict = await closed(await started(processes, params))

    assert verdict == Verdict(
        reason=Reason.LIMIT,
        exit_code=137,
        signal=9,
        limit=LimitKind.WALL_TIME,
        detail="ran for more than 0.02 seconds",
    )


async def test_a_process_that_writes_too_much_is_ended(processes: ProcessRegistry) -> None:
    params = program("/usr/bin/yes", limits=ProcessLimits(output_bytes=1000))

    verdict = await closed(await started(processes, params))

    assert (verdict.reason, verdict.limit) == (Reason.LIMIT, LimitKind.OUTPUT)
    assert verdict.detail == "wrote more than 1000 bytes"


async def test_what_stays_below_its_limits_ends_as_ever(processes: ProcessRegistry) -> None:
    limits = ProcessLimits(output_bytes=1000, wall_time_ms=60_000, cpu_seconds=60)

    verdict = await closed(await started(processes, shell("echo fine; exit 3", limits=limits)))

    assert verdict == Verdict(reason=Reason.EXITED, exit_code=3)


async def test_a_process_that_was_terminated_did_not_go_over_a_limit(
    processes: ProcessRegistry,
) -> None:
    process = await started(
        processes, program("/bin/sleep", "60", limits=ProcessLimits(cpu_seconds=1))
    )
    await process.terminate()

    assert (await closed(process)).reason is Reason.TERMINATED


async def test_a_limit_above_what_this_process_has_is_cut_to_that(
    processes: ProcessRegistry,
) -> None:
    limits = ProcessLimits(open_files=1 << 40)

    assert int(await output(processes, shell("ulimit -n", limits=limits))) < 1 << 40


@pytest.mark.parametrize("value", [0, 1 << 63])
def test_a_limit_is_a_number_that_the_kernel_knows(value: int) -> None:
    with pytest.raises(ValueError, match="processes must be between 1 and"):
        ProcessLimits(processes=value)


def test_a_command_cannot_be_started_with_hardly_any_files() -> None:
    with pytest.raises(ValueError, match="openFiles must be at least 16"):
        ProcessLimits(open_files=15)


async def test_the_timer_of_a_process_that_ended_is_gone(processes: ProcessRegistry) -> None:
    process = await started(processes, program("/bin/true", limits=ProcessLimits(wall_time_ms=10)))
    verdict = await closed(process)
    await asyncio.sleep(0.02)  # as long as the limit: it must not strike any more

    assert verdict.reason is Reason.EXITED
    assert process.log.verdict == verdict


OPEN_MANY = "import os\nwhile True: os.open('/dev/null', os.O_RDONLY)"
TAKE_MUCH = "x = bytearray(1 << 30)"


@pytest.mark.parametrize(
    ("script", "limits", "kind", "text"),
    [
        (
            OPEN_MANY,
            ProcessLimits(open_files=20),
            LimitKind.OPEN_FILES,
            "ran into its limit of 20 open files",
        ),
        (
            "import sys; sys.exit('cannot fork')",
            ProcessLimits(processes=100_000),
            LimitKind.PROCESSES,
            "ran into its limit of 100000 processes",
        ),
        (
            TAKE_MUCH,
            ProcessLimits(address_space_bytes=500_000_000),
            LimitKind.ADDRESS_SPACE,
            "ran into its limit of 500000000 bytes of address space",
        ),
    ],
    ids=["open files", "processes", "address space"],
)
async def test_a_limit_that_made_a_call_fail_is_named(
    processes: ProcessRegistry, script: str, limits: ProcessLimits, kind: LimitKind, text: str
) -> None:
    params = program("/usr/bin/python3", "-I", "-S", "-c", script, limits=limits)
    process = await started(processes, params)
    await closed(process)

    verdict = process.log.verdict
    assert verdict is not None
    assert (verdict.reason, verdict.exit_code, str(verdict)) == (Reason.LIMIT, 1, text)
    assert verdict.limit is kind


@pytest.mark.parametrize(
    ("script", "limits"),
    [
        ("echo Too many open files >&2; exit 1", None),
        ("echo Too many open files >&2; exit 1", ProcessLimits(processes=1000)),
        ("echo Too many open files >&2", ProcessLimits(open_files=20)),
        ("echo something else >&2; exit 1", ProcessLimits(open_files=20)),
    ],
    ids=["no limit", "another limit", "success", "another failure"],
)
async def test_only_a_failure_that_tells_of_a_limit_that_is_set_is_laid_to_it(
    processes: ProcessRegistry, script: str, limits: ProcessLimits | None
) -> None:
    process = await started(processes, shell(script, limits=limits))
    await closed(process)

    verdict = process.log.verdict
    assert verdict is not None
    assert verdict.reason is Reason.EXITED


# -- cgroups


@pytest.mark.requirement("security.limits.cgroup")
async def test_memory_is_refused_where_no_cgroup_can_be_had(processes: ProcessRegistry) -> None:
    params = program("/bin/true", limits=ProcessLimits(memory_bytes=1 << 30))

    with pytest.raises(InvalidParams) as error:
        await started(processes, params)

    assert str(error.value) == (
        "a limit on the memory of all processes together (memoryBytes, --limit-memory) needs"
        " a separate cgroup for a command: there are no cgroups; get some"
    )
    assert not list(processes)


def test_a_command_needs_some_memory() -> None:
    with pytest.raises(ValueError, match="memoryBytes must be at least 4194304"):
        ProcessLimits(memory_bytes=4 << 10)


@pytest.mark.requirement("security.limits.cgroup")
@both
async def test_where_a_cgroup_can_be_had_that_counts_the_processes(
    processes: ProcessRegistry, tree: FakeTree, tty: bool
) -> None:
    limits = ProcessLimits(processes=4321)
    process = await started(processes, shell("sleep 600", tty=tty, limits=limits))
    (name,) = tree.below("ours")
    folder = tree.top / "ours" / name
    told = {name: (folder / name).read_text() for name in ("pids.max", "memory.max")}

    await process.terminate()
    await closed(process)

    assert told == {"pids.max": "4321", "memory.max": "max"}
    assert tree.admitted == [process.pid]
    assert tree.below("ours") == set()


async def test_a_limit_of_one_process_alone_needs_no_cgroup(
    processes: ProcessRegistry, tree: FakeTree
) -> None:
    await closed(
        await started(processes, program("/bin/true", limits=ProcessLimits(open_files=99)))
    )

    assert tree.admitted == []


@pytest.mark.parametrize(
    ("events", "code", "kind", "text"),
    [
        ("max 1 > pids", 1, LimitKind.PROCESSES, "ran into its limit of 9 processes"),
        ("oom 1 > memory", 1, LimitKind.MEMORY, f"used more than {1 << 30} bytes of memory"),
        ("max 1 > pids", 0, None, None),
        ("max 0 > pids", 1, None, None),
    ],
    ids=["processes", "memory", "success", "another failure"],
)
async def test_the_kernel_tells_which_limit_a_command_met(
    processes: ProcessRegistry,
    tree: FakeTree,
    events: str,
    code: int,
    kind: LimitKind | None,
    text: str | None,
) -> None:
    folder = tree.top / "ours" / f"holdfast-{os.getpid()}-1"
    # What it says itself counts for nothing then.
    script = f"echo cannot fork; cd {folder}; echo {events}.events; exit {code}"
    limits = ProcessLimits(processes=9, memory_bytes=1 << 30)

    verdict = await closed(await started(processes, shell(script, limits=limits)))

    assert (verdict.detail, verdict.limit) == (text, kind)
    assert verdict.reason is (Reason.EXITED if text is None else Reason.LIMIT)


@both
@pytest.mark.parametrize("file", ["cgroup.procs", "pids.max"])
async def test_a_command_that_cannot_be_limited_is_not_run(
    processes: ProcessRegistry, tree: FakeTree, tmp_path: Path, tty: bool, file: str
) -> None:
    tree.refused = {file}
    mark = tmp_path / "mark"
    params = program("/bin/touch", str(mark), tty=tty, limits=ProcessLimits(processes=9))

    with pytest.raises(SpawnFailed, match="Permission denied"):
        await started(processes, params)

    assert not mark.exists()
    assert tree.below("ours") == set()


async def test_what_a_cgroup_lacks_is_counted_as_without_one(
    processes: ProcessRegistry, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = CgroupLocation(folder=str(tree.top / "ours"), controllers=("memory",))
    cgroups = Cgroups(location, proc=str(tree.proc))
    monkeypatch.setattr(bounds_module, "shared_cgroups", lambda: cgroups)
    limits = ProcessLimits(processes=4321, memory_bytes=1 << 30)
    params = program("/bin/cat", "/proc/self/limits", limits=limits)

    found = await output(processes, params)

    assert "4321" in found
    assert len(tree.admitted) == 1

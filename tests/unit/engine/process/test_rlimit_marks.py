"""Limits hold for all that a command started, wherever it went and however long it stays."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import Awaitable

import pytest

from holdfast.engine.process.limits.rlimit_marks import (
    has_live_process,
    kill_by_rlimit,
    mark_limit,
    new_mark,
)
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import LimitKind, Reason
from holdfast.wire.protocol.process import ProcessLimits, StartParams
from tests.unit.engine.process.starting import LIMIT, closed, output, program, shell

both = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])


def daemon(script: str) -> str:
    """A shell's words that leave something behind in a session of its own."""
    return f"setsid sh -c '{script}' & echo started; exit 0"


async def begin(processes: ProcessRegistry, params: StartParams) -> LocalProcess:
    started = processes.launch(params)
    return await started if isinstance(started, Awaitable) else started


async def gone(mark: int) -> None:
    """Wait until nothing with the mark is left."""
    async with asyncio.timeout(LIMIT):
        while has_live_process(mark):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)


@pytest.mark.requirement("security.limits.daemons")
@both
@pytest.mark.parametrize("script", ["(yes) & exit 0", daemon("exec yes")], ids=["job", "daemon"])
async def test_what_a_command_left_writes_no_more_than_the_command_may(
    processes: ProcessRegistry, script: str, tty: bool
) -> None:
    process = await begin(
        processes, shell(script, tty=tty, limits=ProcessLimits(output_bytes=10_000))
    )
    mark = process._child.mark
    assert mark is not None

    await closed(process)

    assert len(output(process)) <= 10_000
    await gone(mark)


async def test_no_more_than_the_limit_is_passed_on(processes: ProcessRegistry) -> None:
    limits = ProcessLimits(output_bytes=10_000)
    process = await begin(processes, shell("head -c 10000 /dev/zero; yes", limits=limits))

    verdict = await closed(process)

    assert (verdict.reason, verdict.limit) == (Reason.LIMIT, LimitKind.OUTPUT)
    assert len(output(process)) == 10_000


async def test_exactly_the_limit_is_not_too_much(processes: ProcessRegistry) -> None:
    limits = ProcessLimits(output_bytes=10_000)
    process = await begin(processes, shell("head -c 10000 /dev/zero", limits=limits))

    assert (await closed(process)).reason is Reason.EXITED
    assert len(output(process)) == 10_000


@pytest.mark.requirement("security.limits.daemons")
async def test_a_daemon_has_the_time_of_its_command(processes: ProcessRegistry) -> None:
    """It has let go of the streams, so nothing more can come of the command."""
    script = daemon("exec sleep 60 >/dev/null 2>&1 </dev/null")
    process = await begin(processes, shell(script, limits=ProcessLimits(wall_time_ms=1000)))
    mark = process._child.mark
    assert mark is not None

    verdict = await closed(process)

    assert verdict.reason is Reason.EXITED
    assert has_live_process(mark)
    await gone(mark)


async def test_a_command_that_takes_too_long_ends_with_its_daemons(
    processes: ProcessRegistry,
) -> None:
    script = "setsid sh -c 'sleep 61 & exit' >/dev/null 2>&1; echo started; sleep 62"
    process = await begin(processes, shell(script, limits=ProcessLimits(wall_time_ms=1000)))
    mark = process._child.mark
    assert mark is not None

    assert (await closed(process)).limit is LimitKind.WALL_TIME

    await gone(mark)


async def test_a_command_without_limits_has_no_mark(processes: ProcessRegistry) -> None:
    process = await begin(processes, program("/bin/bash", "-c", "ulimit -x"))
    await closed(process)

    assert process._child.mark is None
    (now,) = output(process).split()
    own = resource.getrlimit(10)[0]
    assert now == (b"unlimited" if own == resource.RLIM_INFINITY else str(own).encode())


@pytest.mark.requirement("security.limits.daemons")
def test_only_what_has_the_mark_is_killed() -> None:
    mark, other = new_mark(), new_mark()
    assert mark is not None
    assert other is not None
    assert mark != other
    sleeper = (
        "import resource, sys, time\n"
        "resource.setrlimit(10, (int(sys.argv[1]),) * 2)\n"
        "print(flush=True)\n"
        "time.sleep(60)\n"
    )
    marked, spared = (
        subprocess.Popen([sys.executable, "-c", sleeper, str(number)], stdout=subprocess.PIPE)
        for number in (mark, other)
    )
    with marked, spared:
        for child in (marked, spared):
            assert child.stdout is not None
            child.stdout.readline()
        try:
            assert kill_by_rlimit(mark)
            assert marked.wait(LIMIT) == -9
            assert not has_live_process(mark)
            assert spared.poll() is None
        finally:
            spared.kill()


def test_there_are_no_marks_where_somebody_has_set_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, 100))
    assert new_mark() is None


def test_a_nested_command_has_a_mark_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = new_mark()
    assert mark is not None
    monkeypatch.setattr(resource, "getrlimit", lambda kind: mark_limit(mark)[1:])
    nested = new_mark()
    assert nested is not None
    assert nested < mark

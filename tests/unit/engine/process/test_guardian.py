"""The guardian, in processes of its own: what each of the two does when the other ends."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT = 5.0


@contextmanager
def guarded(work: str, *, forward: str = "()", before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A guardian whose worker runs that code, with `lifeline` and a function to `say` lines."""
    program = textwrap.dedent(
        """
        import os, signal, sys, time
        from holdfast.engine.supervision.guardian import *
        def say(*words): print(*words, flush=True)
        def work(lifeline):
        {work}
        {before}
        sys.exit(run_guarded(work, forward={forward}))
        """
    ).format(work=textwrap.indent(textwrap.dedent(work), " " * 4), before=before, forward=forward)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        # As a shell does: nobody is stopped whose group has no parent outside of it.
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], LIMIT)[0], "nothing comes"
    return process.stdout.readline().removesuffix("\n")


def assert_gone(pid: int) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([watched], [], [], LIMIT)[0], f"{pid} is left behind"
    finally:
        os.close(watched)


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + LIMIT
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < deadline, f"{pid} goes on"
        time.sleep(0.001)


SPAWN = "subprocess = __import__('subprocess'); pid = subprocess.Popen(['sleep', '1000']).pid"


def test_the_status_of_the_worker_is_the_guardians() -> None:
    with guarded("return 7") as process:
        assert process.wait(LIMIT) == 7


def test_a_parent_that_ignores_its_children_does_not_hide_the_status() -> None:
    """What is ignored is inherited, and the kernel would tell nobody how the worker ended."""
    ignoring = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    with guarded("return 7", before=ignoring) as process:
        assert process.wait(LIMIT) == 7


def test_a_worker_that_a_signal_kills_shows_in_the_status() -> None:
    with guarded("os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait(LIMIT) == 137


def test_what_a_worker_leaves_is_killed() -> None:
    with guarded(f"{SPAWN}; say(pid); return 0") as process:
        left = int(line(process))
        assert process.wait(LIMIT) == 0
        assert_gone(left)


def test_a_worker_learns_that_its_guardian_is_gone() -> None:
    work = f"""
        {SPAWN}
        say(pid, os.getpid())
        os.read(lifeline, 1)
        kill_all_children()
        return 0
    """
    with guarded(work) as process:
        left, worker = map(int, line(process).split())
        process.kill()
        assert_gone(worker)
        assert_gone(left)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_signal_asks_the_worker_to_stop(name: str) -> None:
    work = """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        say("ready")
        while True:
            time.sleep(0.01)
    """
    with guarded(work) as process:
        assert line(process) == "ready"
        process.send_signal(signal.Signals[name])
        assert process.wait(LIMIT) == 5


def test_a_stopped_worker_is_continued_to_stop_for_good() -> None:
    work = """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        say(os.getpid())
        while True:
            time.sleep(0.01)
    """
    with guarded(work) as process:
        worker = int(line(process))
        os.kill(worker, signal.SIGSTOP)
        wait_until_stopped(worker)
        process.terminate()
        assert process.wait(LIMIT) == 5


def test_signals_can_be_handed_to_the_worker_instead() -> None:
    work = """
        say("ready")
        while data := os.read(lifeline, 100):
            say(*data)
    """
    with guarded(work, forward="(signal.SIGTERM, signal.SIGUSR1)") as process:
        assert line(process) == "ready"
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            process.send_signal(number)
            assert line(process) == str(number.value)


@pytest.mark.slow
def test_no_signal_of_many_is_lost() -> None:
    """Each comes when the guardian has just handed on the one before, and waits again."""
    work = """
        say("ready")
        while data := os.read(lifeline, 100):
            os.write(1, b"%d\\n" % data[0])
    """
    with guarded(work, forward="(signal.SIGUSR1,)") as process:
        assert line(process) == "ready"
        for _ in range(3000):
            process.send_signal(signal.SIGUSR1)
            assert line(process) == str(signal.SIGUSR1.value)


def test_a_signal_that_is_handed_on_does_not_count_when_it_comes_directly() -> None:
    work = """
        for number in (signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            say(signal.getsignal(number) == signal.SIG_IGN)  # a child would inherit that
        return 3
    """
    with guarded(work, forward="(signal.SIGTERM, signal.SIGUSR1)") as process:
        assert [line(process), line(process)] == ["False", "False"]
        assert process.wait(LIMIT) == 3


def test_a_worker_that_hangs_before_it_reads_a_signal_is_killed() -> None:
    work = "say('hangs'); time.sleep(1000)"
    with guarded(work, forward="[signal.SIGTERM], stop_limit=0.3") as process:
        assert line(process) == "hangs"
        process.terminate()
        assert process.wait(LIMIT) == 128 + signal.SIGKILL


def test_a_worker_that_reads_its_signals_may_go_on() -> None:
    work = """
    say('begun')
    say(*os.read(lifeline, 1))
    time.sleep(1)
    say(*os.read(lifeline, 1))
    return 5
    """
    with guarded(work, forward="[signal.SIGTERM, signal.SIGUSR1], stop_limit=0.3") as process:
        assert line(process) == "begun"
        process.terminate()
        assert line(process) == str(int(signal.SIGTERM))
        # Not read in time, but it does not ask anybody to stop.
        process.send_signal(signal.SIGUSR1)
        assert line(process) == str(int(signal.SIGUSR1))
        assert process.wait(LIMIT) == 5


def test_what_was_ignored_is_not_handed_on() -> None:
    work = """
        say(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
        say(*os.read(lifeline, 100))
        return 0
    """
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    forward = "(signal.SIGHUP, signal.SIGUSR1)"
    with guarded(work, forward=forward, before=before) as process:
        assert line(process) == "True"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        assert line(process) == str(signal.SIGUSR1.value)
        assert process.wait(LIMIT) == 0


def test_a_worker_that_stops_takes_the_guardian_along() -> None:
    work = """
        say("ready")
        os.read(lifeline, 1)
        stop_this_process()
        say("continued")
        return 0
    """
    with guarded(work, forward="(signal.SIGTSTP,)") as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGTSTP)
        stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert stopped is not None
        assert stopped.si_code == os.CLD_STOPPED
        process.send_signal(signal.SIGCONT)
        assert line(process) == "continued"
        assert process.wait(LIMIT) == 0


def test_streams_that_are_missing_do_not_become_others() -> None:
    work = """
        say(os.readlink("/proc/self/fd/0"), lifeline > 2)
        os.read(lifeline, 1)
        return 0
    """
    with guarded(work, forward="(signal.SIGUSR1,)", before="os.close(0)") as process:
        assert line(process) == "/dev/null True"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(LIMIT) == 0


def test_orphans_are_reaped_and_others_spared() -> None:
    program = textwrap.dedent(
        """
        import os
        from holdfast.engine.supervision.guardian import *
        pids = [os.spawnlp(os.P_NOWAIT, "true", "true") for _ in range(2)]
        for pid in pids:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        reap_children(spare=pids[:1])
        assert children_of_this_process() == pids[:1]
        reap_children(spare=())
        assert children_of_this_process() == []
        """
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT)

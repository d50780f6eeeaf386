"""Fixtures for every test: the event loop, the real Codex, and a check for leftovers."""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from holdfast.engine.linux import kernel_cache
from holdfast.engine.linux.kernel_cache import WHAT_IT_LEADS_TO, recall
from holdfast.engine.process.io.output_reader import _by_loop
from holdfast.testing.virtual_time import VirtualTimeLoop
from tests.real.versions import VERSIONS, choose
from tests.time_limit import TimeLimit
from tests.turns import is_left_out
from tests.warm import is_warm_server, start_warm_server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-combinations",
        action="store_true",
        help="run tests on every subject and on every event loop, not on a choice of them",
    )
    parser.addoption(
        "--attempts-alone",
        action="store_true",
        help="make each attempt to break out in a sandbox of its own",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TimeLimit())


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """
    Run on the event loop that servers run on.

    A marked test runs on asyncio's too, or on one whose clock jumps.
    """
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualTimeLoop}
    if item.get_closest_marker("both_loops") is not None:
        return {"uvloop": new_uvloop, "asyncio": asyncio.new_event_loop}
    return {"uvloop": new_uvloop}


def new_uvloop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # where it is missing, servers do without it too
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


# A job in the background of a shell is started with interrupts ignored, one of `nohup` with
# hang-ups ignored, and both hand that on to what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Nothing of what is collected is garbage: to look for some takes seconds.
gc.disable()

# The first loop of a process opens descriptors that stay, for the signals of all loops; the
# first look-up in the kernel's caches opens the list of mounts.
new_uvloop().close()
recall(b"/", WHAT_IT_LEADS_TO)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out combinations that others stand for (`tests/turns.py`)."""
    if config.getoption("--all-combinations"):
        return
    left_out = {item for item in items if is_left_out(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """
    Keep what was collected out of the collector's sight, and start what tests start with.

    Twelve thousand tests are millions of objects, and each collection would go through all.
    """
    if "tests.e2e.wire" in sys.modules:  # some of the tests start commands
        start_warm_server()
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that play the real Codex need one; where it is required, its absence is a failure."""
    if item.get_closest_marker("real") is None:
        return
    if VERSIONS:
        choose(item)
        return
    if os.environ.get("HOLDFAST_REQUIRE_REAL") == "1":
        pytest.fail("CODEX_BIN is not set, and HOLDFAST_REQUIRE_REAL=1 wants it", pytrace=False)
    pytest.skip("CODEX_BIN is not set: there is no real Codex to play with")


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves a child, a zombie too, or an open descriptor."""
    children_before, descriptors_before = _children(), _descriptors()
    yield
    children = _children() - children_before
    assert not children, f"left running, or not waited for: {_what_they_are(children)}"
    if not _what_they_lead_to(_descriptors() - descriptors_before):
        return
    gc.collect()  # closes what nobody holds any more
    deadline = time.monotonic() + 10.0
    while left := _what_they_lead_to(_descriptors() - descriptors_before):
        # A thread closes what a sandbox has removed, see `bubblewrap/mount_points.py`.
        assert time.monotonic() < deadline, f"left open: {left}"
        time.sleep(0.001)


def _children() -> set[int]:
    """The pids of the children of this process."""
    children: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            file = os.open(f"/proc/self/task/{thread}/children", os.O_RDONLY)
        except FileNotFoundError:
            continue  # the thread has ended
        try:
            while pids := os.read(file, 65536):
                children.update(map(int, pids.split()))
        finally:
            os.close(file)
    return {pid for pid in children if not is_warm_server(pid)}


def _what_they_are(pids: set[int]) -> dict[int, str]:
    """The command lines of processes."""
    commands: dict[int, str] = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                commands[pid] = file.read().replace(b"\0", b" ").decode(errors="replace")
        except FileNotFoundError:
            continue  # reaped by another thread since
    return commands


def _descriptors() -> set[tuple[int, int, int]]:
    """The open descriptors of this process, each with device and inode: cheaper than names."""
    descriptors: set[tuple[int, int, int]] = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(fd)
        except OSError:
            continue  # the one that listed the folder
        descriptors.add((fd, status.st_dev, status.st_ino))
    return descriptors


def _what_they_lead_to(descriptors: set[tuple[int, int, int]]) -> set[tuple[int, str]]:
    """Return the descriptors that must be closed after a test, each with its name."""
    # An event loop keeps one until its end, which comes after the test; the process keeps another
    # to notice changes of its mounts.
    kept = {*(readers.fileno() for readers in _by_loop.values()), kernel_cache._changes._descriptor}
    names: set[tuple[int, str]] = set()
    for fd, _, _ in descriptors:
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # closed since
        # The devices of sandboxes are kept as long as this process.
        if fd not in kept and not name.startswith("/dev/.holdfast-"):
            names.add((fd, name))
    return names

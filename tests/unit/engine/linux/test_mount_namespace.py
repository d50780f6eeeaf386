"""Calls in a mount namespace whose `/dev` is another directory."""

import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.engine.linux import mount_namespace as module
from holdfast.engine.linux.daemon_threads import DaemonThreads
from holdfast.engine.linux.device_nodes import DEVICES, OwnDevices, may_make_devices
from holdfast.engine.linux.mount_namespace import MountNamespace, mounts_are_private
from tests.unit.descriptors import no_descriptors


def _works() -> bool:
    devices = None
    try:
        devices = OwnDevices()
        MountNamespace(devices.folder, devices.kept)
    except OSError:
        return False
    finally:
        if devices is not None:
            devices.close()
    return True


pytestmark = pytest.mark.skipif(
    not (may_make_devices() and _works()), reason="only root makes namespaces, and not everywhere"
)


@pytest.fixture
def devices() -> Iterator[OwnDevices]:
    made = OwnDevices()
    yield made
    made.close()


@pytest.fixture
def namespace(devices: OwnDevices) -> MountNamespace:
    return MountNamespace(devices.folder, devices.kept)


def _mounted(path: str = "self") -> list[str]:
    return [line.split()[4] for line in Path(f"/proc/{path}/mountinfo").read_text().splitlines()]


@pytest.mark.requirement("security.sandbox.nodes")
def test_dev_has_our_nodes_and_the_machine_keeps_its_own(
    devices: OwnDevices, namespace: MountNamespace
) -> None:
    owner, before = os.stat("/dev/null").st_uid, _mounted()
    inside = namespace.call(lambda: {name: os.stat(f"/dev/{name}").st_uid for name in DEVICES})
    assert set(inside.values()) == {65534}
    assert os.stat("/dev/null").st_uid == owner
    assert _mounted() == before


def test_dev_is_the_machines_if_that_is_wanted(namespace: MountNamespace) -> None:
    owner = os.stat("/dev/null").st_uid
    assert namespace.call(lambda: os.stat("/dev/null").st_uid, devices=False) == owner


@pytest.mark.parametrize(
    ("lines", "private"),
    [
        (["1 0 8:1 / / rw - ext4 /dev/sda rw"], True),
        (["1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw"], False),
        (["1 0 8:1 / / rw master:1 - ext4 /dev/sda rw"], False),
        (["1 0 8:1 / / rw unbindable - ext4 /dev/sda rw"], True),
        # In the source, where it means nothing.
        (["1 0 8:1 / / rw - ext4 shared:1 rw"], True),
        (["1 0 8:1 / / rw - ext4 a rw", "2 1 0:9 / /srv rw shared:1 - ext4 b rw"], False),
        (["1 0 8:1 / / rw - ext4 a rw", "2 1 0:9 / /proc/x rw shared:1 - ext4 b rw"], True),
        (["1 0 8:1 / / rw - ext4 a rw", "2 1 0:9 / /dev rw shared:1 - ext4 b rw"], True),
        (["1 0 8:1 / / rw - ext4 a rw", "2 1 0:9 / /devices rw shared:1 - ext4 b rw"], False),
    ],
)
def test_mounts_are_private_if_none_that_a_sandbox_has_is_shared_or_a_slave(
    tmp_path: Path, lines: list[str], private: bool
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("".join(f"{line}\n" for line in lines))
    assert mounts_are_private(str(table)) is private


def test_terminals_and_shared_memory_are_those_of_the_machine(namespace: MountNamespace) -> None:
    master, slave = os.openpty()
    try:
        name = os.ttyname(slave)
        inside = namespace.call(lambda: (os.stat(name), os.stat("/dev/shm")))
        assert os.path.samestat(inside[0], os.stat(name))
        assert os.path.samestat(inside[1], os.stat("/dev/shm"))
    finally:
        os.close(master)
        os.close(slave)


def test_each_call_sees_the_mounts_of_that_moment(
    namespace: MountNamespace, tmp_path: Path
) -> None:
    namespace.call(lambda: None)
    subprocess.run(["mount", "-t", "tmpfs", "late", str(tmp_path)], check=True)
    try:
        (tmp_path / "file").touch()
        assert namespace.call(lambda: os.listdir(tmp_path)) == ["file"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert namespace.call(lambda: os.listdir(tmp_path)) == []


def test_after_a_call_nothing_is_left_of_its_namespace(
    namespace: MountNamespace, devices: OwnDevices
) -> None:
    tids = os.listdir("/proc/self/task")
    with pytest.raises(FileNotFoundError):
        namespace.call(lambda: os.stat("/nonexistent"))
    namespace.call(lambda: None)
    spaces = {os.readlink(f"/proc/self/task/{tid}/ns/mnt") for tid in tids}
    assert spaces == {os.readlink("/proc/self/ns/mnt")}
    # Also if the namespace could not be made.
    os.rmdir(f"{devices.folder}/pts")
    with pytest.raises(FileNotFoundError):
        namespace.call(lambda: None)
    os.mkdir(f"{devices.folder}/pts")
    assert namespace.call(lambda: os.stat("/dev/null").st_uid) == 65534
    assert spaces == {os.readlink(f"/proc/self/task/{tid}/ns/mnt") for tid in tids}


def test_an_error_is_raised_where_it_was_called_and_the_thread_goes_on(
    namespace: MountNamespace,
) -> None:
    with pytest.raises(FileNotFoundError):
        namespace.call(lambda: os.stat("/nonexistent"))
    assert namespace.call(threading.get_ident) != threading.get_ident()


def test_several_threads_call_at_the_same_time(namespace: MountNamespace) -> None:
    got: list[tuple[int, int]] = []

    def ask(number: int) -> None:
        got.append((number, namespace.call(lambda: number * 2)))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [(number, number * 2) for number in range(20)]


def test_a_call_that_never_returns_does_not_stop_the_calls_of_other_threads(
    namespace: MountNamespace,
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        may_end.wait(20)

    stuck = threading.Thread(target=namespace.call, args=(hang,))
    stuck.start()
    try:
        assert begun.wait(20)
        assert namespace.call(lambda: 7) == 7
        assert stuck.is_alive()
    finally:
        may_end.set()
        stuck.join()


def test_one_caller_needs_few_threads(namespace: MountNamespace) -> None:
    # Two as a rule: the first may not wait again yet when its caller has its answer.
    assert len({namespace.call(threading.get_native_id) for _ in range(100)}) < 10


def test_a_call_has_the_umask_of_that_moment(namespace: MountNamespace, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        namespace.call(lambda: (tmp_path / "file").touch(0o777))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o750


def test_mounts_in_shared_memory_are_there(namespace: MountNamespace) -> None:
    folder = tempfile.mkdtemp(dir="/dev/shm")
    try:
        subprocess.run(["mount", "-t", "tmpfs", "inner", folder], check=True)
        try:
            (Path(folder) / "file").touch()
            assert namespace.call(lambda: os.listdir(folder)) == ["file"]
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        os.rmdir(folder)


def test_without_a_descriptor_nothing_is_called(namespace: MountNamespace) -> None:
    called: list[int] = []
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        namespace.call(lambda: called.append(1))
    assert called == []
    assert namespace.call(lambda: 7) == 7


def test_a_result_is_not_lost_if_a_call_takes_the_last_descriptor(
    namespace: MountNamespace,
) -> None:
    """It may be the pid of a child."""

    def take_all() -> int:
        taken.enter_context(no_descriptors())
        return 7

    with ExitStack() as taken:
        assert namespace.call(take_all) == 7
    assert namespace.call(lambda: 7) == 7


def test_where_no_thread_can_be_started_the_error_is_one_of_the_system(
    devices: OwnDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_threads", DaemonThreads("holdfast-mounts", 8))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(BlockingIOError):
        MountNamespace(devices.folder, devices.kept)


_NO_RETURN = """
import os, sys
from holdfast.engine.linux.mount_namespace import MountNamespace
try:
    MountNamespace(sys.argv[1], ())
except PermissionError:
    found = {os.readlink(f"/proc/self/task/{tid}/ns/mnt") for tid in os.listdir("/proc/self/task")}
    sys.exit(0 if found == {os.readlink("/proc/self/ns/mnt")} else 2)
sys.exit(1)
"""


def test_a_thread_that_could_not_return_does_not_leave(devices: OwnDevices) -> None:
    """`setns` needs a capability more than `unshare`."""
    drop = ["setpriv", "--bounding-set", "-sys_chroot"]
    done = subprocess.run(
        [*drop, sys.executable, "-c", _NO_RETURN, devices.folder], timeout=60, check=False
    )
    assert done.returncode == 0


def test_a_missing_directory_is_an_error_of_the_kernel() -> None:
    with pytest.raises(FileNotFoundError):
        MountNamespace("/nonexistent", ())


_FORKED = """
import os, sys
from holdfast.engine.linux.mount_namespace import MountNamespace
from holdfast.engine.linux.device_nodes import OwnDevices
devices = OwnDevices()
namespace = MountNamespace(devices.folder, devices.kept)
pid = os.fork()
if not pid:
    os._exit(namespace.call(lambda: 7))
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
devices.close()
sys.exit(code)
"""


def test_the_child_of_a_fork_has_a_thread_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], timeout=60, check=False)
    assert done.returncode == 7

"""Real children, and what they find themselves in."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.base.errors import SpawnFailed
from holdfast.base.system_text import system_text
from holdfast.engine.process import spawn as module
from holdfast.engine.process.pty import open_terminal
from holdfast.engine.process.spawn import Caller, raise_descriptor_limit, spawn

DEV_NULL = -1


def finish(pid: int) -> int:
    """Wait for a child: its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(
    *argv: str,
    cwd: str = "/",
    env: Mapping[str, str] | None = None,
    stdin: int = DEV_NULL,
    call: Caller | None = None,
) -> str:
    """Run to its end on pipes; what it wrote."""
    reader, writer = os.pipe()
    stdio = stdin, writer, writer
    try:
        pid = spawn(argv[0], argv, cwd=cwd, env=env or {}, stdio=stdio, call=call)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    with open(reader, "rb") as file:
        output = file.read().decode()
    assert finish(pid) == 0
    return output


def run_on_terminal(*argv: str, cwd: str = "/") -> str:
    """Run to its end on a terminal; what it wrote."""
    master, slave = open_terminal(24, 80)
    os.set_blocking(master, True)
    try:
        pid = spawn(argv[0], argv, cwd=cwd, env={}, stdio=os.ttyname(slave))
    finally:
        os.close(slave)
    output = b""
    try:
        while data := os.read(master, 4096):
            output += data
    except OSError:
        pass  # EIO: its end
    finally:
        os.close(master)
    assert finish(pid) == 0
    return output.decode().replace("\r\n", "\n")


def refusal(*argv: str, cwd: str = "/", env: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SpawnFailed) as caught:
        run(*argv, cwd=cwd, env=env)
    return str(caught.value)


def signal_set(status: str, field: str) -> set[signal.Signals]:
    """A set of signals out of `/proc/self/status`, those with names."""
    line = next(line for line in status.splitlines() if line.startswith(field + ":"))
    mask = int(line.split()[1], 16)
    return {number for number in signal.Signals if mask & 1 << number - 1}


@pytest.fixture
def ignored() -> Iterator[None]:
    """A server that ignores everything it can."""
    numbers = (
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGTSTP,
        signal.SIGALRM,
    )
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_child_has_exactly_its_arguments_its_variables_and_its_folder(tmp_path: Path) -> None:
    env = {"A": "1", "B": "x y", "": "empty", "U": "ü"}
    assert run("/usr/bin/env", env=env).splitlines() == ["A=1", "B=x y", "=empty", "U=ü"]
    assert run("/bin/echo", "", "a b", "ü") == " a b ü\n"
    assert run("/bin/pwd", cwd=str(tmp_path)) == f"{tmp_path}\n"


@pytest.mark.requirement("start.arg0.pipes")
def test_a_child_sees_the_name_it_is_given() -> None:
    reader, writer = os.pipe()
    pid = spawn("/bin/cat", ["other", "/proc/self/cmdline"], cwd="/", env={}, stdio=(-1, writer, 2))
    os.close(writer)
    with open(reader, "rb") as file:
        assert file.read() == b"other\0/proc/self/cmdline\0"
    assert finish(pid) == 0


def test_a_relative_program_is_found_from_the_childs_folder(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "tool").chmod(0o755)
    assert run("./tool", cwd=str(tmp_path)) == "found\n"


@pytest.mark.requirement("start.state.session")
def test_a_child_leads_a_session_and_a_group_of_its_own() -> None:
    fields = run("/bin/cat", "/proc/self/stat").split()
    pid, group, session, terminal = fields[0], fields[4], fields[5], fields[6]
    assert pid == group == session
    assert terminal == "0"


@pytest.mark.requirement("pty.controlling", "start.state.session")
def test_a_terminal_is_the_controlling_one_of_its_child() -> None:
    fields = run_on_terminal("/bin/cat", "/proc/self/stat").split()
    pid, group, session, terminal, foreground = fields[0], *fields[4:8]
    assert pid == group == session == foreground
    assert terminal != "0"
    assert run_on_terminal("/bin/sh", "-c", "echo hi > /dev/tty") == "hi\n"


@pytest.mark.requirement("start.state.descriptors")
def test_a_child_has_three_descriptors_whatever_the_server_has_open(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        os.set_inheritable(file.fileno(), True)
        listing = "/bin/ls", "/proc/self/fd"
        # The fourth is the folder that is listed.
        assert run(*listing).split() == ["0", "1", "2", "3"]
        assert run_on_terminal(*listing).split() == ["0", "1", "2", "3"]


@pytest.mark.requirement("start.state.descriptors")
def test_an_older_libc_closes_what_the_server_has_open_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_add_close_from", None)
    with open(tmp_path / "file", "w") as file:
        os.set_inheritable(file.fileno(), True)
        assert run("/bin/ls", "/proc/self/fd").split() == ["0", "1", "2", "3"]
        assert run_on_terminal("/bin/ls", "/proc/self/fd").split() == ["0", "1", "2", "3"]


@pytest.mark.requirement("start.state.stdin")
def test_a_stream_that_is_not_wanted_is_the_null_device() -> None:
    assert run("/usr/bin/readlink", "/proc/self/fd/0") == "/dev/null\n"


def test_a_stream_may_be_a_pipe() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"typed")
    os.close(writer)
    assert run("/bin/cat", stdin=reader) == "typed"
    os.close(reader)


@pytest.mark.requirement("start.state.signals", "start.state.signals-stay-ignored")
def test_on_pipes_few_signals_are_put_back_to_their_defaults(ignored: None) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        status = run("/bin/cat", "/proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    assert signal_set(status, "SigBlk") == set()
    found = signal_set(status, "SigIgn")
    assert {signal.SIGHUP, signal.SIGQUIT} <= found
    assert not found & {signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ}


@pytest.mark.requirement("start.state.signals")
def test_on_a_terminal_no_signal_is_ignored_or_blocked(ignored: None) -> None:
    status = run_on_terminal("/bin/cat", "/proc/self/status")
    assert signal_set(status, "SigBlk") == signal_set(status, "SigIgn") == set()


# What the system refuses.


@pytest.mark.requirement("start.cwd.missing-folder-on-pipes", "start.cwd.file-on-pipes")
def test_a_folder_that_is_none_is_refused() -> None:
    assert refusal("/bin/pwd", cwd="/no/such") == "No such file or directory (os error 2)"
    assert refusal("/bin/pwd", cwd="/bin/sh") == "Not a directory (os error 20)"


@pytest.mark.requirement("start.program.nul")
def test_a_nul_is_refused_wherever_it_is() -> None:
    assert refusal("/bin/echo", "a\0b") == "nul byte found in provided data"
    assert refusal("/bin/ec\0ho") == "nul byte found in provided data"
    assert refusal("/bin/echo", cwd="/\0") == "nul byte found in provided data"
    assert refusal("/bin/echo", env={"A\0": "1"}) == "data provided contains a nul byte"
    assert refusal("/bin/echo", env={"A": "\0"}) == "data provided contains a nul byte"


def test_a_refusal_carries_the_number_of_the_error() -> None:
    with pytest.raises(SpawnFailed) as caught:
        run("/no/such/program")
    assert caught.value.errno == 2


def test_the_systems_texts_have_their_number() -> None:
    assert system_text(2) == "No such file or directory (os error 2)"


# The limit on descriptors.


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A low limit on descriptors that can be raised, as a shell gives it; what it was before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(module, "_own_limit", None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield 256, before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_server_takes_all_descriptors_there_are_and_children_do_not(
    limits: tuple[int, int],
) -> None:
    soft, hard = limits
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert run("/bin/sh", "-c", "ulimit -n") == f"{soft}\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_whatever_calls_the_start_has_the_raised_limit(limits: tuple[int, int]) -> None:
    """It may need descriptors itself, and the server may have more than children may."""
    raise_descriptor_limit()
    seen: list[int] = []

    def call(start: Callable[[], int]) -> int:
        seen.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        try:
            return start()
        finally:
            seen.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    assert run("/bin/sh", "-c", "ulimit -n", call=call) == f"{limits[0]}\n"
    assert seen == [limits[1]] * 2


def test_a_limit_that_is_as_high_as_it_can_be_is_left_alone(limits: tuple[int, int]) -> None:
    raise_descriptor_limit()
    raise_descriptor_limit()
    assert run("/bin/sh", "-c", "ulimit -n") == f"{limits[0]}\n"


def test_the_limit_is_put_back_when_a_start_fails(limits: tuple[int, int]) -> None:
    raise_descriptor_limit()
    with pytest.raises(SpawnFailed):
        run("/no/such/program")
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits[1]


def passed_on(fds: list[int], *argv: str) -> str:
    """Run with descriptors beside the standard ones; what it wrote."""
    reader, writer = os.pipe()
    try:
        pid = spawn(argv[0], argv, cwd="/", env={}, stdio=(-1, writer, writer), pass_fds=fds)
    finally:
        os.close(writer)
    with open(reader, "rb") as file:
        output = file.read().decode()
    assert finish(pid) == 0
    return output


def reads_as(text: str) -> int:
    fd = os.memfd_create("text")
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def test_descriptors_are_passed_on_in_their_order_and_no_others() -> None:
    first, second = reads_as("first"), reads_as("second")
    try:
        # The lowest numbers that are free may be those that they are to have, crossed over.
        output = passed_on(
            [second, DEV_NULL, first], "/bin/sh", "-c", "cat <&3; cat <&4; cat <&5; ls /proc/$$/fd"
        )
    finally:
        os.close(first)
        os.close(second)
    assert output.replace("\n", " ").startswith("secondfirst0 1 2 3 4 5")
    assert " 6 " not in output.replace("\n", " ")


def test_descriptors_that_have_the_numbers_of_others_are_not_mixed_up() -> None:
    # In a process of its own, where 3 and 4 are free to be taken.
    script = (
        "import os, sys\n"
        "os.closerange(3, 64)\n"
        "from holdfast.engine.process.spawn import spawn\n"
        "os.closerange(3, 64)\n"
        "for text in (b'three', b'four'):\n"
        "    reader, writer = os.pipe()\n"
        "    os.write(writer, text)\n"
        "    os.dup2(reader, 60 + len(text))\n"
        "    os.closerange(3, 60)\n"
        "os.dup2(65, 3); os.dup2(64, 4)\n"
        "argv = ['/bin/sh', '-c', 'head -c 4 <&3; echo; head -c 5 <&4']\n"
        "pid = spawn(argv[0], argv, cwd='/', env={}, stdio=(0, 1, 2), pass_fds=[4, 3])\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("four\nthree", "")


def test_standard_streams_that_have_the_numbers_of_others_are_not_mixed_up() -> None:
    # More are passed on than this process has open, so the pipe is among their numbers.
    fds = [DEV_NULL] * 200
    output = passed_on(fds, "/bin/sh", "-c", "echo out; echo error >&2")

    assert output == "out\nerror\n"


def test_a_terminal_need_not_be_the_controlling_one() -> None:
    master, slave = open_terminal(24, 80)
    os.set_blocking(master, True)
    text = reads_as("passed")
    argv = ["/bin/sh", "-c", "cat <&3; test -t 0 && (: </dev/tty) 2>/dev/null || echo none"]
    try:
        pid = spawn(
            argv[0],
            argv,
            cwd="/",
            env={},
            stdio=os.ttyname(slave),
            pass_fds=[text],
            controlling=False,
        )
    finally:
        os.close(slave)
        os.close(text)
    output = b""
    try:
        while data := os.read(master, 4096):
            output += data
    except OSError:
        pass  # EIO: its end
    finally:
        os.close(master)
    assert finish(pid) == 0
    assert output == b"passednone\r\n"

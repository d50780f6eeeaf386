"""`holdfast run` with pipes: here, on a server that listens, and on one that is a command."""

import fcntl
import os
import select
import shlex
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any

import pytest

from tests.e2e.wire import HOLDFAST, LIMIT, ServerProcess, children, serving

pytestmark = pytest.mark.in_turn("target", "url", "command")

EVERYTHING = bytes(range(256)) * 4096
"""A mebibyte with every byte there is."""

WAIT = "sleep 1000 >/dev/null 2>&1 & wait"
"""
A shell that can be interrupted in its waiting.

What it waits for ignores interrupts, as background jobs do, and must not keep the streams open.
"""


@pytest.fixture(params=["here", "url", "command"])
def target(request: pytest.FixtureRequest, server: ServerProcess) -> list[str]:
    """The options that say where a command runs."""
    if request.param == "url":
        return ["--url", server.url]
    if request.param == "command":
        return ["--cmd", shlex.join([*HOLDFAST, "serve", "--listen", "stdio"])]
    return []


def run(
    *arguments: str, typed: bytes | None = None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run to the end."""
    if typed is None:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [*HOLDFAST, "run", *arguments],
        input=typed,
        capture_output=True,
        timeout=2 * LIMIT,
        check=False,
        **options,
    )


@contextmanager
def running(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run beside the test; what is left at its end is killed."""
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **options,
    }
    with subprocess.Popen([*HOLDFAST, "run", *arguments], **options) as process:
        try:
            yield process
        finally:
            process.kill()


def line(stream: IO[bytes] | None) -> str:
    """The next line, without its end."""
    assert stream is not None
    assert select.select([stream], [], [], LIMIT)[0], "nothing comes"
    return stream.readline().decode().removesuffix("\n")


def assert_gone(*pids: int) -> None:
    """Wait until processes have ended."""
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([watched], [], [], LIMIT)[0], f"{pid} is left behind"
        finally:
            os.close(watched)


def worker_of(process: subprocess.Popen[bytes]) -> int:
    """The process beside the guardian, once it is there."""
    until(lambda: bool(children(process.pid)))
    (worker,) = children(process.pid)
    return worker


def until(condition: Callable[[], bool]) -> None:
    """Wait for what cannot be waited for otherwise."""
    deadline = monotonic() + LIMIT
    while not condition():
        assert monotonic() < deadline
        select.select([], [], [], 0.01)


# -- output and status


def test_stdout_and_stderr_stay_apart_byte_for_byte(target: list[str]) -> None:
    done = run(*target, "--", "sh", "-c", r"printf 'a\000\377\n'; printf 'b\200' >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"a\0\xff\n", b"b\x80", 7)


def test_nothing_of_much_output_is_lost(target: list[str]) -> None:
    done = run(*target, "seq", "1000000")
    assert done.stdout == b"".join(b"%d\n" % number for number in range(1, 1000001))
    assert done.returncode == 0


@pytest.mark.parametrize("status", [0, 1, 125, 255])
def test_the_status_of_the_command_is_returned(status: int) -> None:
    assert run("sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_that_ends_the_command_shows_in_the_status(
    target: list[str], number: signal.Signals
) -> None:
    assert run(*target, "--", "sh", "-c", f"kill -{number:d} $$").returncode == 128 + number


def test_on_a_terminal_of_this_machine_it_shows_too() -> None:
    assert run("--tty", "--", "sh", "-c", "kill -TERM $$").returncode == 143


def test_output_can_go_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        subprocess.run([*HOLDFAST, "run", "echo", "hi"], stdout=file, check=True, timeout=LIMIT)
    assert (tmp_path / "out").read_bytes() == b"hi\n"


def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*HOLDFAST, "run", "echo", "hi"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=LIMIT,
            check=False,
        )
    assert done.stderr == b"holdfast: cannot write to stdout: No space left on device\n"
    assert done.returncode == 125


def test_a_reader_that_leaves_ends_the_command_quietly(target: list[str]) -> None:
    with running(*target, "--", "yes") as process:
        assert process.stdout is not None
        assert line(process.stdout) == "y"
        process.stdout.close()
        assert process.wait(LIMIT) == 128 + signal.SIGPIPE
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_reader_that_is_slow_makes_the_command_wait_and_loses_nothing(target: list[str]) -> None:
    with running(*target, "--", "yes") as process:
        assert process.stdout is not None
        # The pipe is full: from here on it is we who have to be patient.
        pipe = process.stdout.fileno()
        until(lambda: _is_full(pipe))
        process.terminate()
        seen = process.stdout.read()
        assert process.wait(LIMIT) == 143
        assert seen == b"y\n" * (len(seen) // 2)
        assert len(seen) < 32 << 20


def _is_full(fd: int) -> bool:
    (size,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return bool(size == fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ))


# -- input


def test_input_is_forwarded_and_so_is_its_end(target: list[str]) -> None:
    done = run(*target, "cat", typed=EVERYTHING)
    assert done.stdout == EVERYTHING
    assert done.returncode == 0


def test_input_can_be_a_file(target: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(EVERYTHING)
    with (tmp_path / "in").open("rb") as file:
        done = run(*target, "cat", stdin=file)
    assert done.stdout == EVERYTHING


def test_input_arrives_before_its_end(target: list[str]) -> None:
    with running(*target, "cat", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert line(process.stdout) == "one"
        process.stdin.close()
        assert process.wait(LIMIT) == 0


def test_a_command_that_reads_nothing_does_not_wait_for_input(target: list[str]) -> None:
    with running(*target, "true", stdin=subprocess.PIPE) as process:
        assert process.wait(LIMIT) == 0


@pytest.mark.parametrize("redirection", ["</dev/null", "<&-"])
def test_no_input_is_no_input(redirection: str) -> None:
    command = f"{shlex.join([*HOLDFAST, 'run', 'readlink', '/proc/self/fd/0'])} {redirection}"
    done = subprocess.run(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout == b"/dev/null\n"


def test_without_any_streams_it_still_runs(tmp_path: Path) -> None:
    command = shlex.join([*HOLDFAST, "run", "--cwd", str(tmp_path), "touch", "done"])
    subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], check=True, timeout=LIMIT)
    assert (tmp_path / "done").exists()


# -- where and how


def test_it_runs_here_with_our_environment_and_more(tmp_path: Path) -> None:
    done = run(
        "-e",
        "ONE=1",
        "--env",
        "TWO=a=b",
        "sh",
        "-c",
        'pwd; echo "$ONE $TWO $MINE"',
        cwd=tmp_path,
        env={**os.environ, "MINE": "mine"},
    )
    assert done.stdout.decode() == f"{tmp_path.resolve()}\n1 a=b mine\n"


def test_on_a_server_it_has_the_folder_and_environment_of_the_server(tmp_path: Path) -> None:
    environment = {**os.environ, "SERVERS_TOKEN": "its own"}
    with serving(cwd=tmp_path, env=environment) as server:
        done = run("--url", server.url, "-e", "A=1", "sh", "-c", 'pwd; echo "$A $SERVERS_TOKEN"')
    assert done.stdout.decode() == f"{tmp_path.resolve()}\n1 its own\n"


def test_a_folder_can_be_chosen(target: list[str], tmp_path: Path) -> None:
    done = run(*target, "--cwd", str(tmp_path), "pwd")
    assert done.stdout.decode() == f"{tmp_path.resolve()}\n"


def test_a_relative_folder_is_taken_from_here(tmp_path: Path) -> None:
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real/deep")
    done = run("--cwd", "link/..", "pwd", cwd=tmp_path)
    assert done.stdout.decode() == f"{tmp_path.resolve()}/real\n"


def test_a_relative_folder_is_taken_from_the_servers(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with serving(cwd=tmp_path) as server:
        done = run("--url", server.url, "--cwd", "sub", "pwd")
    assert done.stdout.decode() == f"{tmp_path.resolve()}/sub\n"


# -- failures


def test_a_command_that_is_not_there(target: list[str]) -> None:
    done = run(*target, "no-such-command")
    assert done.stderr == b"holdfast: no-such-command: command not found\n"
    assert done.returncode == 127


def test_a_command_that_is_not_there_on_a_terminal(target: list[str]) -> None:
    done = run(*target, "--tty", "no-such-command")
    assert done.stderr == b"holdfast: no-such-command: command not found\n"
    assert done.returncode == 127


@pytest.mark.parametrize("tty", [[], ["--tty"]])
def test_a_command_that_cannot_be_executed(
    target: list[str], tty: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = run(*target, *tty, str(tmp_path / "file"))
    assert done.stderr.decode() == f"holdfast: {tmp_path}/file: Permission denied\n"
    assert done.returncode == 126


def test_a_folder_that_is_not_there() -> None:
    done = run("--cwd", "/no/such/folder", "true")
    assert done.stderr == b"holdfast: cannot run in /no/such/folder: No such file or directory\n"
    assert done.returncode == 125


def test_a_folder_that_is_not_there_on_a_server(server: ServerProcess) -> None:
    done = run("--url", server.url, "--cwd", "/no/such", "true")
    assert done.stderr == b"holdfast: cannot run in /no/such: No such file or directory\n"
    assert done.returncode == 125


@pytest.mark.parametrize(
    "target",
    [
        ["--url", "ws://127.0.0.1:1"],
        ["--url", "unix:///no/such/socket"],
        ["--url", "http://127.0.0.1:1"],
        ["--cmd", "no-such-command"],
        ["--cmd", "false"],
        ["--cmd", "'"],
        ["--cmd", ""],
    ],
    ids=" ".join,
)
def test_a_server_that_is_not_there_is_one_clear_line(target: list[str]) -> None:
    done = run(*target, "true")
    (text,) = done.stderr.decode().splitlines()
    assert text.startswith("holdfast: ")
    assert done.returncode == 125


def test_the_last_words_of_a_command_that_does_not_serve_are_told() -> None:
    done = run("--cmd", "sh -c 'echo no route to it >&2; exit 255'", "true")
    assert done.stderr.decode().endswith("no route to it\n")
    assert done.returncode == 125


def test_a_token_comes_from_a_file_or_a_variable(tmp_path: Path) -> None:
    token, wrong, empty = tmp_path / "token", tmp_path / "wrong", tmp_path / "empty"
    for file in (token, wrong, empty):
        file.touch(0o600)
    token.write_text("the-token\n")
    wrong.write_text("another-token\n")
    empty.write_text("\n")
    nothing = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TOKEN"}
    with serving("--ws-auth", "capability-token", "--ws-token-file", str(token)) as server:
        url = ["--url", server.url]

        def status(*options: str, **variables: str) -> int:
            done = run(*url, *options, "true", env={**nothing, **variables})
            assert len(done.stderr.splitlines()) == (done.returncode != 0)
            return done.returncode

        assert status() == 125
        assert status("--token-file", str(token)) == 0
        assert status(HOLDFAST_TOKEN="the-token") == 0
        assert status("--token-file", str(wrong), HOLDFAST_TOKEN="the-token") == 125
        assert status("--token-file", str(empty)) == 125
        assert status("--token-file", str(tmp_path / "none")) == 125


def test_nobody_has_to_wait_for_a_server_that_went_away() -> None:
    with (
        serving() as server,
        running("--url", server.url, "--", "sh", "-c", f"echo ready; {WAIT}") as process,
    ):
        assert line(process.stdout) == "ready"
        os.kill(server.serving_pid, signal.SIGKILL)

        # Two in a row, and a pause: a third must not fall into the end of the interpreter.
        for _ in range(5):
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT / 5)
                break
        assert process.returncode == 130


# -- signals


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_reach_the_command(target: list[str], name: str) -> None:
    script = f"trap 'echo {name}; exit 3' {name}; echo ready; {WAIT}"
    with running(*target, "--", "sh", "-c", script) as process:
        assert line(process.stdout) == "ready"
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert line(process.stdout) == name
        assert process.wait(LIMIT) == 3


def test_a_signal_is_the_end_of_a_command_that_does_not_mind_it(target: list[str]) -> None:
    with running(*target, "--", "sh", "-c", f"echo ready; {WAIT}") as process:
        assert line(process.stdout) == "ready"
        process.terminate()
        assert process.wait(LIMIT) == 143


def test_two_interrupts_in_a_row_end_a_command_that_catches_them(target: list[str]) -> None:
    script = f"trap 'echo caught' INT; echo ready; while :; do {WAIT}; done"
    with running(*target, "--", "sh", "-c", script) as process:
        assert line(process.stdout) == "ready"
        process.send_signal(signal.SIGINT)
        # On a busy machine the second may come too late to mean anything.
        while line(process.stdout):
            process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 137


def test_what_was_ignored_stays_ignored() -> None:
    command = shlex.join([*HOLDFAST, "run", "sh", "-c", "kill -HUP $$; echo still here"])
    done = subprocess.run(
        ["sh", "-c", f"trap '' HUP; exec {command}"], capture_output=True, timeout=LIMIT, check=True
    )
    assert done.stdout == b"still here\n"


def test_a_signal_ends_the_wait_for_what_the_command_left_running() -> None:
    with running("--", "sh", "-c", "sleep 1000 & echo $!") as process:
        left = int(line(process.stdout))
        process.terminate()
        # If its exit was not seen yet, the signal was still for the whole group.
        assert process.wait(LIMIT) in {0, 143}
    assert_gone(left)


def test_a_signal_before_there_is_a_command_ends_it() -> None:
    with running("--cmd", "sh -c 'echo $PPID >&2; sleep 1000'", "true") as process:
        worker = worker_of(process)
        until(lambda: bool(children(worker)))
        process.terminate()
        assert process.wait(LIMIT) == 143


# -- nothing is left behind


LEAVE_MUCH = "setsid sleep 1000 & sleep 1000 & echo $$ $!; wait"
"""A shell with a child, and one that has left its session."""


def test_killed_it_leaves_nothing_behind(target: list[str]) -> None:
    with running(*target, "--", "sh", "-c", LEAVE_MUCH) as process:
        pids = [int(pid) for pid in line(process.stdout).split()]
        worker = worker_of(process)
        pids += [] if target[:1] == ["--url"] else _tree(worker)
        process.kill()
        assert_gone(worker, *pids)


def test_a_worker_that_is_killed_leaves_nothing_behind() -> None:
    with running("--", "sh", "-c", LEAVE_MUCH) as process:
        line(process.stdout)
        worker = worker_of(process)
        pids = _tree(worker)
        assert len(pids) == 3
        os.kill(worker, signal.SIGKILL)
        assert process.wait(LIMIT) == 137
        assert_gone(*pids)


def test_what_left_the_session_ends_with_the_command() -> None:
    with running("--", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!") as process:
        left = int(line(process.stdout))
        assert process.wait(LIMIT) == 0
    assert_gone(left)


def _tree(pid: int) -> list[int]:
    """All descendants of a process."""
    found = children(pid)
    return found + [below for child in found for below in _tree(child)]


# -- sandboxes and limits


@pytest.mark.slow
def test_what_a_sandbox_denies_is_told_after_the_command_s_own_words(
    target: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "file"
    profile = tmp_path / "ci.toml"
    profile.write_text(
        "[file_system]\nentries = [\n"
        '  { path = ":root", access = "read" },\n'
        '  { path = ":project_roots", access = "write" },\n]\n'
    )
    options = [*target, "--cwd", str(tmp_path), "--sandbox", str(profile)]
    done = run(*options, "--", "sh", "-c", f"touch inside && touch {outside} || exit 7")
    assert done.returncode == 7
    *said, told = done.stderr.decode().splitlines()
    assert len(said) == 1
    assert told == f"holdfast: denied by the sandbox: write to {outside}"
    assert (tmp_path / "inside").exists()
    assert not outside.exists()


@pytest.mark.slow
def test_a_sandbox_that_denied_nothing_says_nothing(target: list[str], tmp_path: Path) -> None:
    options = [*target, "--cwd", str(tmp_path), "--sandbox", "workspace-write"]
    done = run(*options, "--", "sh", "-c", "echo x > file; cat file; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"x\n", b"")


@pytest.mark.slow
def test_the_limit_that_ended_a_command_is_told(target: list[str]) -> None:
    done = run(*target, "--limit-time", "0.2", "--", "sleep", "600")
    assert done.returncode == 128 + signal.SIGKILL
    told = b"holdfast: ended by --limit-time: it ran for more than 0.2 seconds\n"
    assert done.stderr == told


def test_a_sandbox_that_is_none_runs_nothing(tmp_path: Path) -> None:
    done = run("--sandbox", "none", "--", "touch", str(tmp_path / "file"))
    assert done.returncode == 125
    assert done.stderr.startswith(b"holdfast: unknown sandbox profile `none`")
    assert not (tmp_path / "file").exists()

"""`holdfast run` in front of a real terminal: programs for people, job control, raw mode."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.terminals import CTRL_C, CTRL_D, CTRL_Z, terminal
from tests.e2e.test_run import assert_gone, until, worker_of
from tests.e2e.wire import HOLDFAST, LIMIT, ServerProcess

pytestmark = pytest.mark.in_turn("target", "url", "command")

RUN = [*HOLDFAST, "run"]
BASH = ["env", "PS1=$ ", "bash", "--norc", "--noprofile", "-i"]


@pytest.fixture(params=["here", "url", "command"])
def target(request: pytest.FixtureRequest, server: ServerProcess) -> list[str]:
    """The options that say where a command runs."""
    if request.param == "url":
        return ["--url", server.url]
    if request.param == "command":
        return ["--cmd", shlex.join([*HOLDFAST, "serve", "--listen", "stdio"])]
    return []


# -- with a terminal for the command


def test_the_command_has_a_terminal_of_the_same_size(target: list[str]) -> None:
    program = """if True:
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
        print(os.ttyname(0))
        print("size", *os.get_terminal_size(), flush=True)
        signal.sigwait([signal.SIGWINCH])
        print("size", *os.get_terminal_size(), flush=True)
        print("got", input())
        sys.exit(3)"""
    with terminal(*RUN, *target, "--tty", "--", sys.executable, "-c", program) as screen:
        assert "/dev/pts/" in screen.expect("\n")
        screen.expect("size 111 37\r\n")
        screen.resize(50, 120)
        screen.expect("size 120 50\r\n")
        screen.type("keys\r")
        screen.expect("got keys\r\n")
        assert screen.wait() == 3


def test_keys_go_to_the_command_as_they_are_and_the_terminal_is_restored(
    target: list[str],
) -> None:
    script = "stty raw -echo; echo ready; head -c 3 | od -An -tx1; stty sane"
    with terminal(*RUN, *target, "--tty", "--", "sh", "-c", script) as screen:
        before = screen.modes
        screen.expect("ready")
        assert screen.is_raw
        screen.type(CTRL_C + CTRL_Z + CTRL_D)
        screen.expect("03 1a 04")
        assert screen.wait() == 0
        assert screen.modes == before
        assert screen.is_blocking


def test_ctrl_c_interrupts_the_command(target: list[str]) -> None:
    with terminal(*RUN, *target, "--tty", "--", "sh", "-c", "echo ready; exec cat") as screen:
        screen.expect("ready")
        screen.type(CTRL_C)
        # A Holdfast server tells the signal, though the exit code on a terminal is 1.
        assert screen.wait() == 130


def test_a_signal_from_outside_restores_the_terminal(target: list[str]) -> None:
    with terminal(*RUN, *target, "--tty", "--", "sh", "-c", "echo ready; exec cat") as screen:
        before = screen.modes
        screen.expect("ready")
        assert screen.is_raw
        screen.process.terminate()
        assert screen.wait() == 143
        assert screen.modes == before


def test_a_worker_that_is_killed_restores_the_terminal(target: list[str]) -> None:
    with terminal(*RUN, *target, "--tty", "--", "sh", "-c", "echo ready; exec cat") as screen:
        before = screen.modes
        screen.expect("ready")
        assert screen.is_raw
        os.kill(worker_of(screen.process), signal.SIGKILL)
        assert screen.wait() == 137
        assert screen.modes == before


def test_a_guardian_that_is_killed_restores_the_terminal_too() -> None:
    # Behind a shell, or the death of the session's leader would hang the terminal up.
    run = shlex.join([*RUN, "--tty", "--", "sh", "-c", "echo ready; exec cat"])
    with terminal("sh", "-c", f"{run}; echo status $?; read x") as screen:
        before = screen.modes
        screen.expect("ready")
        assert screen.is_raw
        guardian = worker_of(screen.process)
        os.kill(guardian, signal.SIGKILL)
        screen.expect("status 137")
        until(lambda: screen.modes == before)


def test_the_terminal_is_restored_when_the_command_cannot_start(target: list[str]) -> None:
    with terminal(*RUN, *target, "--tty", "--", "no-such-command") as screen:
        before = screen.modes
        screen.expect("holdfast: no-such-command: command not found\r\n")
        assert screen.wait() == 127
        assert screen.modes == before


def test_a_shell_inside_has_job_control(target: list[str]) -> None:
    with terminal(*RUN, *target, "--tty", "--", *BASH) as screen:
        screen.expect("$ ")
        screen.type("sh -c 'echo pid $$; exec cat'\r")
        screen.expect("\r\n")
        screen.expect("pid ")
        pid = int(screen.expect("\r\n"))
        screen.type(CTRL_Z)
        screen.expect("Stopped")
        screen.expect("$ ")
        screen.type("fg\r")
        screen.expect("fg\r\n")
        screen.expect("exec cat'\r\n")
        screen.type("back\n")
        screen.expect("back\r\n")
        screen.expect("back\r\n")  # its echo, then the answer of one that is in the foreground
        screen.type(CTRL_C)
        screen.expect("$ ")
        screen.type("echo status $?\r")
        screen.expect("status 130\r\n")
        screen.type("exit 5\r")
        assert screen.wait() == 5
        assert_gone(pid)


def test_a_python_prompt_can_be_used(target: list[str]) -> None:
    with terminal(*RUN, *target, "--tty", "-e", "TERM=dumb", "--", sys.executable) as screen:
        screen.expect(">>> ")
        screen.type("6 * 7\r")
        screen.expect("42\r\n")
        screen.expect(">>> ")
        # Not at the prompt, where Python may keep a Ctrl-C to itself until the next key.
        screen.type("import time; print('as' + 'leep', flush=True); time.sleep(60)\r")
        screen.expect("asleep")
        screen.type(CTRL_C)
        screen.expect("KeyboardInterrupt")
        screen.expect(">>> ")
        screen.type("exit(0)\r")
        assert screen.wait() == 0


@pytest.mark.skipif(shutil.which("vim") is None, reason="vim is not installed")
def test_an_editor_can_be_used(target: list[str], tmp_path: Path) -> None:
    file = tmp_path / "notes"
    env = {**os.environ, "TERM": "xterm"}
    options = [*target, "--tty", "--cwd", str(tmp_path)]
    with terminal(*RUN, *options, "--", "vim", "-u", "NONE", "notes", env=env) as screen:
        screen.expect("~")
        screen.type("ihold fast")
        screen.expect("fast")
        screen.resize(20, 60)
        screen.expect("\x1b[19;1H")  # the last line of text, anew
        screen.type("\x1b:echo 'size' &lines &columns\r")
        screen.expect("size 20 60")
        screen.type(":wq\r")
        assert screen.wait() == 0
    assert file.read_text() == "hold fast\n"


def test_keys_are_ours_again_while_only_children_of_the_command_go_on() -> None:
    script = "trap '' HUP; sleep 1000 & echo left $!"
    with terminal(*RUN, "--tty", "--", "sh", "-c", script) as screen:
        before = screen.modes
        screen.expect("left ")
        left = int(screen.expect("\r\n"))
        until(lambda: screen.modes == before)
        screen.type(CTRL_C)
        assert screen.wait() == 130
        assert_gone(left)


# -- stopped and continued


def test_ctrl_z_stops_the_command_and_fg_continues_it() -> None:
    script = "echo pid $$; read x; echo got $x; exit 4"
    with terminal(*BASH) as screen:
        screen.expect("$ ")
        screen.type(shlex.join([*RUN, "--", "sh", "-c", script]) + "\r")
        screen.expect("exit 4'\r\n")
        screen.expect("pid ")
        pid = int(screen.expect("\r\n"))
        screen.type(CTRL_Z)
        screen.expect("Stopped")
        until(lambda: _state(pid) == "T")
        screen.type("fg\r")
        screen.expect("fg\r\n")
        screen.expect("exit 4'\r\n")
        screen.type("on\n")
        screen.expect("got on")
        screen.expect("$ ")
        screen.type("echo status $?\r")
        screen.expect("status 4\r\n")
        screen.type("exit\r")
        assert screen.wait() == 0


def test_a_run_that_is_stopped_from_outside_lends_the_terminal_and_takes_it_back() -> None:
    with terminal(*BASH) as screen:
        screen.expect("$ ")
        screen.type(
            shlex.join([*RUN, "--tty", "--", "sh", "-c", "echo $((1+1))ready; exec cat"]) + "\r"
        )
        screen.expect("2ready")
        assert screen.is_raw
        os.kill(worker_of(screen.process), signal.SIGTSTP)
        screen.expect("Stopped")
        screen.expect("$ ")
        screen.type("stty -a | tr ' ' '\\n' | grep -x isig; fg\r")
        screen.expect("fg\r\n")
        screen.expect("isig\r\n")
        screen.expect("cat'\r\n")
        screen.type("to the command\r")
        screen.expect("to the command\r\n")
        screen.expect("to the command\r\n")  # its echo, then its answer
        assert screen.is_raw
        screen.type(CTRL_C)
        screen.expect("$ ")
        screen.type("exit\r")
        assert screen.wait() == 130


def test_in_the_background_it_leaves_the_keys_to_the_shell() -> None:
    with terminal(*BASH) as screen:
        screen.expect("$ ")
        screen.type(shlex.join([*RUN, "--", "sh", "-c", "echo $((1+1))ready; read x; exit $x"]))
        screen.type(" &\r")
        screen.expect("2ready")
        screen.type("echo $((20+1))mine\r")
        screen.expect("21mine")
        screen.type("jobs\r")
        screen.expect("Running")
        screen.type("fg\r")
        screen.expect("fg\r\n")
        screen.expect("exit $x'\r\n")
        screen.type("6\n")
        screen.expect("$ ")
        screen.type("exit\r")
        assert screen.wait() == 6


# -- a terminal for us, but none for the command


def test_lines_that_are_typed_reach_the_command_and_so_does_their_end() -> None:
    with terminal(*RUN, "--", "sh", "-c", "cat; echo ended") as screen:
        screen.type("a line\n")
        screen.expect("a line\r\n")
        screen.expect("a line\r\n")  # typed, then written by the command
        screen.type(CTRL_D)
        screen.expect("ended")
        assert screen.wait() == 0


def test_ctrl_c_counts_once() -> None:
    script = "trap 'echo caught' INT; echo ready; read x; read x; echo got $x; exit 4"
    with terminal(*RUN, "--", "bash", "-c", script) as screen:
        screen.expect("ready")
        screen.type(CTRL_C)
        screen.expect("caught")
        screen.type("one\n")
        screen.type("two\n")
        screen.expect("got")
        assert screen.wait() == 4


def test_the_end_of_the_terminal_is_the_end_of_the_command() -> None:
    with terminal(*RUN, "--", "sh", "-c", "echo pid $$; exec sleep 1000") as screen:
        screen.expect("pid ")
        pid = int(screen.expect("\r\n"))
        screen.process.send_signal(signal.SIGHUP)
        assert screen.wait() == 129
        assert_gone(pid)


# -- a terminal for the command, but none for us


def test_a_script_can_use_a_terminal(target: list[str]) -> None:
    done = subprocess.run(
        [*RUN, *target, "--tty", "--", "sh", "-c", "tty; cat"],
        input=b"no new line",
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert b"/dev/pts/" in done.stdout
    assert done.stdout.count(b"no new line") == 2  # its echo, then what the command wrote
    assert (done.stderr, done.returncode) == (b"", 0)


def test_every_reader_of_the_terminal_sees_the_end_of_the_script() -> None:
    done = subprocess.run(
        [*RUN, "--tty", "--", *BASH],
        input=b"cat\necho lost\n",
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert b"exit" in done.stdout
    assert done.returncode == 0


def test_without_input_the_terminal_is_at_its_end() -> None:
    done = subprocess.run(
        [*RUN, "--tty", "cat"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0


def test_the_size_comes_from_any_stream_that_is_a_terminal() -> None:
    with terminal(*RUN, "--tty", "stty", "size", stdin=subprocess.DEVNULL) as screen:
        screen.expect("37 111")
        assert screen.wait() == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]

"""The synchronous twin does what the asynchronous one does, in a thread of its own."""

import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.base.errors import CommandFailed, ConnectFailed, EnvironmentClosed, NotFound
from holdfast.environments.commands.running import Running as AsyncRunning
from holdfast.environments.environment import Environment as AsyncEnvironment
from holdfast.environments.files import Files as AsyncFiles
from holdfast.events import Reason
from holdfast.front import sync


@pytest.fixture
def env(tmp_path: Path) -> Iterator[sync.Environment]:
    with sync.connect(cwd=tmp_path) as environment:
        yield environment


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "holdfast"]


def test_a_command_is_run(env: sync.Environment) -> None:
    done = env.run("cat; exit 3", input="hello")
    assert (done.stdout, done.exit_code) == ("hello", 3)
    assert env.run("sleep 600", timeout=0.05).reason is Reason.TIMED_OUT
    with pytest.raises(CommandFailed):
        env.run("false", check=True)
    assert (env.id, env.status().state) == ("local", "ready")


def test_a_process_is_written_to_and_read(env: sync.Environment) -> None:
    with env.start("while read line; do echo got $line; done") as process:
        process.write("one\n")
        assert next(process.output()).text == "got one\n"
        process.write("two\n")
        process.close_stdin()
        assert [chunk.text for chunk in process.output()] == ["got two\n"]
        assert process.wait().ok


def test_the_end_of_a_block_ends_the_process(env: sync.Environment) -> None:
    with env.start(["sleep", "600"]) as process:
        assert not process.verdict
        assert process.pid is not None
        assert [one.pid for one in env.processes()] == [process.pid]
    assert process.wait().reason is Reason.TERMINATED
    assert process.exit_code == process.wait().exit_code
    assert env.processes() == []
    process = env.start(["sleep", "600"])
    process.close()
    assert process.wait().reason is Reason.TERMINATED
    assert process.process_id in repr(process)


def test_a_detached_process_is_found_by_its_name(env: sync.Environment) -> None:
    with env.start("cat", detach="job"):
        pass
    found = env.attach("job")
    found.write("hello")
    assert next(found.output()).data == b"hello"
    assert found.terminate()


def test_files_are_written_and_read(env: sync.Environment, tmp_path: Path) -> None:
    env.files.write("a/b.txt", "hello", parents=True)
    assert env.files.read_text("a/b.txt") == "hello"
    assert [entry.file_name for entry in env.files.list("a")] == ["b.txt"]
    env.files.remove("a", recursive=True)
    with pytest.raises(NotFound):
        env.files.stat("a")
    assert env.uri("x").native == f"{tmp_path}/x"


def test_closing_ends_the_thread_and_says_so_afterwards() -> None:
    env = sync.connect()
    assert env.run("true").ok
    assert threads()
    env.close()
    env.close()
    assert not threads()
    with pytest.raises(EnvironmentClosed):
        env.run("true")
    with pytest.raises(EnvironmentClosed):
        env.files.exists("x")


def test_a_block_that_cannot_connect_leaves_nothing() -> None:
    with pytest.raises(ConnectFailed), sync.connect("ws://127.0.0.1:1"):
        raise AssertionError("it has connected")
    assert not threads()


def test_several_threads_may_use_one_environment(env: sync.Environment) -> None:
    outputs: list[str] = []
    workers = [
        threading.Thread(target=lambda n=n: outputs.append(env.run(["echo", str(n)]).stdout))
        for n in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(5)
    assert sorted(outputs) == [f"{n}\n" for n in range(8)]


@pytest.mark.parametrize(
    ("twin", "other"),
    [
        (sync.Environment, AsyncEnvironment),
        (sync.Running, AsyncRunning),
        (sync.Files, AsyncFiles),
    ],
)
def test_every_method_has_its_twin(twin: type, other: type) -> None:
    """But for those that have no meaning without an event loop."""
    asynchronous = {
        name
        for name, value in vars(other).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(value)
    }
    assert asynchronous - set(vars(twin)) <= {"aclose", "launch", "next_chunk"}


def script(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


@pytest.mark.slow
def test_an_interrupt_ends_the_command_and_is_raised(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "life")
    code = """
from holdfast.front import sync
with sync.connect() as env:
    try:
        env.run("exec 9>life; echo >&9; sleep 600 & sleep 600")
    except KeyboardInterrupt:
        print("interrupted")
    print(env.run("echo still here").stdout)
"""
    with script(code, tmp_path) as program:
        with open(tmp_path / "life") as life:
            assert life.readline() == "\n"
            program.send_signal(signal.SIGINT)
            assert life.read() == ""  # whoever held it is gone
        out, errors = program.communicate(timeout=10)
    assert (out, errors, program.returncode) == ("interrupted\nstill here\n\n", "", 0)


@pytest.mark.slow
def test_an_interrupt_just_before_the_wait_is_heard(tmp_path: Path) -> None:
    """It is noted and ends no wait: as in the moment before a wait for a lock begins."""
    os.mkfifo(tmp_path / "life")
    code = """
import _thread, threading
from holdfast.front import sync
def interrupt():
    with open("life") as life:
        life.readline()
        _thread.interrupt_main()
        life.read()
with sync.connect() as env:
    watcher = threading.Thread(target=interrupt)
    watcher.start()
    try:
        env.run("exec 9>life; echo >&9; sleep 600")
    except KeyboardInterrupt:
        print("interrupted")
    watcher.join()
"""
    with script(code, tmp_path) as program:
        out, errors = program.communicate(timeout=10)
    assert (out, errors, program.returncode) == ("interrupted\n", "", 0)


@pytest.mark.slow
def test_a_script_that_forgets_to_close_leaves_nothing_running(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "life")
    code = """
from holdfast.front import sync
env = sync.connect()
env.start("exec 9>life; echo >&9; sleep 600")
with open("life") as life:
    life.readline()
print("over")
"""
    with script(code, tmp_path) as program:
        out, errors = program.communicate(timeout=10)
        with open(os.open(tmp_path / "life", os.O_RDONLY | os.O_NONBLOCK)) as life:
            assert life.read() == ""
    assert (out, errors, program.returncode) == ("over\n", "", 0)


def test_a_callback_that_uses_its_own_environment_is_refused(env: sync.Environment) -> None:
    with pytest.raises(RuntimeError, match="cannot be used in its own callbacks"):
        env.run("echo hello; sleep 600", on_output=lambda chunk: env.run("true"))
    assert env.run("echo on", on_output=print).ok  # it goes on


def test_what_was_asked_for_while_the_loop_ended_is_refused() -> None:
    env = sync.connect()
    thread = env._thread
    loop = thread._loop
    assert loop is not None
    called: list[BaseException] = []

    def call() -> None:
        try:
            env.run("true")
        except EnvironmentClosed as error:
            called.append(error)

    caller = threading.Thread(target=call, daemon=True)
    taken = loop.call_soon_threadsafe

    def take_no_more(*args: object) -> None:
        """Stop before what is asked for has begun."""
        loop.call_soon_threadsafe = taken  # type: ignore[method-assign]
        thread.stop()

    loop.call_soon_threadsafe = take_no_more  # type: ignore[method-assign, assignment]
    caller.start()
    caller.join(5)
    assert not caller.is_alive()
    assert len(called) == 1
    with suppress(EnvironmentClosed):  # its loop has gone
        env.close()

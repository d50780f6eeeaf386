"""The synchronous tools do what the asynchronous ones do, in the thread of an environment."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.approvals import Approvals, Question
from holdfast.agent.unified_exec import (
    CommandBegan,
    CommandEnded,
    CreateProcess,
    ExecResult,
    Hooks,
    Options,
    OutputDelta,
    ReadResult,
    StartRequest,
    ToolError,
    UnifiedExec,
    WaitingFor,
    rejected_text,
)
from holdfast.base.errors import EnvironmentClosed
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.front import sync
from tests.e2e.wire import HOLDFAST, LIMIT

SERVER = [*HOLDFAST, "serve", "--listen", "stdio"]

LONG = 30_000

PLAIN = Options(allow_login_shell=False)
"""Without the start files of a user, which may do anything and take any time."""


@pytest.fixture(scope="module", params=["local", "server"])
def env(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sync.Environment]:
    where = SERVER if request.param == "server" else None
    with sync.connect(where, cwd=tmp_path_factory.mktemp("work")) as environment:
        yield environment


@pytest.fixture
def tools(env: sync.Environment) -> Iterator[sync.UnifiedExec]:
    with sync.UnifiedExec(env, options=Options(extras=True, allow_login_shell=False)) as tools:
        yield tools


def run(tools: sync.UnifiedExec, cmd: str, **arguments: object) -> ExecResult:
    given = {"cmd": cmd, "yield_time_ms": LONG, **arguments}
    result = tools.call("exec_command", given)
    assert isinstance(result, ExecResult), result.text()
    return result


def write(
    tools: sync.UnifiedExec, session_id: int | None, chars: str, **more: object
) -> ExecResult:
    given = {"session_id": session_id, "chars": chars, "yield_time_ms": LONG, **more}
    result = tools.call("write_stdin", given)
    assert isinstance(result, ExecResult), result.text()
    return result


@pytest.mark.requirement("tools.sync.twin")
def test_a_session_is_started_talked_to_and_ended(tools: sync.UnifiedExec) -> None:
    first = run(tools, "read -p 'name? ' x; echo hi $x", tty=True, wait_for={"input": True})
    assert first.waiting_for is WaitingFor.LINE
    assert [info.session_id for info in tools.sessions()] == [first.session_id]
    last = write(tools, first.session_id, "ada\n")
    assert (last.exit_code, last.output.splitlines()[-1]) == (0, "hi ada")
    assert tools.sessions() == []
    page = tools.read_output(first.call_id, pattern="^hi")
    assert "hi ada" in page.text
    read = tools.call("read_output", {"call_id": last.call_id})
    assert isinstance(read, ReadResult)


def test_what_is_wrong_is_a_text(tools: sync.UnifiedExec) -> None:
    for name, arguments in (
        ("exec_command", "{}"),
        ("write_stdin", {"session_id": 1}),
        ("no_such_tool", {}),
    ):
        assert isinstance(tools.call(name, arguments), ToolError)


def test_the_tools_are_described(tools: sync.UnifiedExec) -> None:
    names = [tool["name"] for tool in tools.schemas("anthropic")]
    assert names == ["exec_command", "write_stdin", "read_output"]
    assert tools.options.extras


def test_sessions_are_terminated_by_one_and_by_all(tools: sync.UnifiedExec) -> None:
    ids = [
        run(tools, "echo up; sleep 600", wait_for={"pattern": "up"}).session_id for _ in range(3)
    ]
    assert ids[0] is not None
    assert tools.terminate(ids[0])
    assert not tools.terminate(ids[0])
    assert len(tools.sessions()) == 2
    tools.clean()
    assert tools.sessions() == []


def test_events_are_a_plain_loop(tools: sync.UnifiedExec) -> None:
    with tools.listen(timeout=10) as listener:
        assert listener.next(0) is None
        started = run(tools, "read x; echo $x; exit 3", tty=True, wait_for={"input": True})
        write(tools, started.session_id, "live\n")
        seen = []
        for event in listener:
            seen.append(event)
            if isinstance(event, CommandEnded):
                break
    assert isinstance(seen[0], CommandBegan)
    assert "live" in "".join(event.text for event in seen if isinstance(event, OutputDelta))
    assert isinstance(seen[-1], CommandEnded)
    assert (seen[-1].exit_code, seen[-1].call_id) == (3, started.call_id)
    assert (listener.dropped, listener.overflowed) == (0, False)
    assert list(listener) == []  # it is closed


def test_a_loop_over_events_ends_without_events_and_goes_on_later(
    tools: sync.UnifiedExec,
) -> None:
    listener = tools.listen(deltas=False, timeout=0)
    assert list(listener) == []
    run(tools, "true")
    assert [type(event) for event in listener] == [CommandBegan, CommandEnded]
    run(tools, "true")
    assert [type(event) for event in listener] == [CommandBegan, CommandEnded]


def test_closing_the_tools_ends_a_loop_over_events(tools: sync.UnifiedExec) -> None:
    listener = tools.listen()
    with ThreadPoolExecutor() as others:
        reading = others.submit(lambda: [type(event) for event in listener])
        run(tools, "true")
        tools.close()
        assert reading.result(10) == [CommandBegan, CommandEnded]


@pytest.mark.requirement("tools.sync.threads")
def test_several_threads_use_the_tools_at_once(tools: sync.UnifiedExec) -> None:
    count = 8
    everyone = threading.Barrier(count)

    def work(number: int) -> str:
        everyone.wait(10)
        first = run(tools, "read x; echo got $x", tty=True, wait_for={"input": True})
        everyone.wait(20)  # all of them are open now
        assert len(tools.sessions()) == count
        everyone.wait(10)
        last = write(tools, first.session_id, f"{number}\n")
        assert last.exit_code == 0
        return last.output.splitlines()[-1]

    with ThreadPoolExecutor(count) as workers:
        assert list(workers.map(work, range(count))) == [f"got {n}" for n in range(count)]
    assert tools.sessions() == []


def test_calls_of_two_threads_on_one_session_take_turns(tools: sync.UnifiedExec) -> None:
    cmd = "while read x; do echo got $x; done"
    first = run(tools, cmd, tty=True, wait_for={"input": True})

    def say(word: str) -> str:
        pattern = {"pattern": f"got {word}"}
        return write(tools, first.session_id, f"{word}\n", wait_for=pattern).output

    with ThreadPoolExecutor() as others:
        outputs = list(others.map(say, ("one", "two")))
    assert [output.split() for output in outputs] == [["one", "got", "one"], ["two", "got", "two"]]


def test_a_pause_in_one_thread_holds_a_call_of_another(tools: sync.UnifiedExec) -> None:
    with ThreadPoolExecutor() as others:
        with tools.paused():
            call = others.submit(run, tools, "true", yield_time_ms=250)
            listener = tools.listen()
            assert listener.next(0.5) is None  # its end is not reported
            assert not call.done()
        assert call.result(10).exit_code == 0


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.requirement("tools.sync.close")
def test_closing_kills_all_commands_and_can_be_done_twice(env: sync.Environment) -> None:
    tools = sync.UnifiedExec(env, options=PLAIN)
    tools.call("exec_command", {"cmd": "sleep 600", "yield_time_ms": 250})
    [info] = tools.sessions()
    assert info.pid is not None
    os.kill(info.pid, 0)
    tools.close()
    tools.close()
    end = time.monotonic() + LIMIT
    while runs(info.pid):  # a server may not have reaped it yet
        assert time.monotonic() < end
        time.sleep(0.01)
    assert isinstance(tools.call("exec_command", {"cmd": "true"}), ToolError)
    assert env.run("echo still here").stdout == "still here\n"


def test_tools_of_a_closed_environment_say_so(tmp_path: Path) -> None:
    env = sync.connect(cwd=tmp_path)
    tools = sync.UnifiedExec(env, options=PLAIN)
    listener = tools.listen()
    tools.call("exec_command", {"cmd": "sleep 600", "yield_time_ms": 250})
    env.close()
    with pytest.raises(EnvironmentClosed):
        tools.call("exec_command", {"cmd": "true"})
    tools.close()
    with listener:
        pass
    with pytest.raises(EnvironmentClosed):
        sync.UnifiedExec(env)


def test_an_environment_of_the_other_kind_is_refused(env: sync.Environment) -> None:
    with pytest.raises(TypeError, match=r"needs an environment of holdfast\.sync\.connect, not"):
        sync.UnifiedExec(LocalEnvironment())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"needs an Environment or .*, not .* of holdfast\.front\.sync"
    ):
        UnifiedExec(env)  # type: ignore[arg-type]


def test_hooks_decide_in_the_thread_of_the_environment(env: sync.Environment) -> None:
    class Careful(Hooks):
        async def before_start(self, request: StartRequest) -> StartRequest:
            if "rm" in request.script:
                raise CreateProcess(rejected_text("not here"))
            return request

    class Confused(Hooks):
        async def before_start(self, request: StartRequest) -> StartRequest:
            env.run("true")
            return request

    with sync.UnifiedExec(env, options=PLAIN, hooks=Careful()) as tools:
        assert "not here" in tools.call("exec_command", {"cmd": "rm x"}).text()
        assert "exited with code 0" in tools.call("exec_command", {"cmd": "true"}).text()
    with (
        sync.UnifiedExec(env, options=PLAIN, hooks=Confused()) as tools,
        pytest.raises(RuntimeError, match="its own callbacks"),
    ):
        tools.call("exec_command", {"cmd": "true"})


@pytest.mark.requirement("approvals.ask.callback")
def test_a_plain_function_is_asked_in_a_thread_of_its_own(env: sync.Environment) -> None:
    asked: list[str] = []

    def person(question: Question) -> str:
        # It may wait, and use what is in this module, as nothing on the event loop may.
        asked.append(env.run("echo asked").stdout.strip())
        return "decline" if "x" in question.command_line else "accept"

    options = replace(PLAIN, approvals=Approvals(approver=person))
    with sync.UnifiedExec(env, options=options) as tools:
        declined = tools.call("exec_command", {"cmd": "rm -f x"})
        assert "rejected by user" in declined.text()
        assert "exited with code 0" in tools.call("exec_command", {"cmd": "rm -f y"}).text()
        tools.end_turn()
    assert asked == ["asked", "asked"]


def test_every_method_has_its_twin() -> None:
    """But for those that hand out objects of the event loop."""
    public = {
        name
        for base in UnifiedExec.__mro__[:-1]
        for name, value in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }
    internal = {"aclose", "environment", "session", "find_session", "stop", "environment_ids"}
    assert public - set(vars(sync.UnifiedExec)) == internal


@pytest.mark.slow
@pytest.mark.requirement("tools.sync.interrupt")
def test_an_interrupt_ends_the_call_and_leaves_the_session(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "up")
    code = """
from holdfast.front import sync
from holdfast.agent.unified_exec import Options

with sync.connect() as env, sync.UnifiedExec(env, options=Options(counted_ids=True)) as tools:
    try:
        tools.call("exec_command", {
            "cmd": "echo before; sleep 0.5; echo >up; read x; echo got $x",
            "tty": True, "login": False, "yield_time_ms": 30000,
        })
    except KeyboardInterrupt:
        print("interrupted")
    print([info.session_id for info in tools.sessions()])
    given = {"session_id": 1000, "chars": "it\\n", "yield_time_ms": 30000}
    again = tools.call("write_stdin", given)
    print(again.exit_code, again.output.split())
"""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as program:
        with open(tmp_path / "up") as up:
            assert up.readline() == "\n"
        program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=20)
    assert errors == ""
    # What the interrupted call had collected came with the next one.
    assert out == "interrupted\n[1000]\n0 ['before', 'it', 'got', 'it']\n"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_no_environment(env: sync.Environment, tools: sync.UnifiedExec) -> None:
    session = run(tools, "read -r x", tty=True, yield_time_ms=250).session_id
    child = os.fork()
    if child == 0:
        status = 1
        try:
            tools.sessions()
        except EnvironmentClosed:
            tools.close()
            env.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    # The fork has closed what is not its own: nothing happens here.
    assert write(tools, session, "\n").exit_code == 0


def test_a_pause_outlives_its_environment() -> None:
    with sync.connect() as env, sync.UnifiedExec(env, options=PLAIN) as tools, tools.paused():
        env.close()

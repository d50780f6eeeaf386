"""The tools `exec_command` and `write_stdin`, here, on a Holdfast server and on a Codex one."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast.agent.unified_exec import ExecResult, Options, UnifiedExec
from holdfast.agent.unified_exec.sessions.session_events import (
    CommandBegan,
    CommandEnded,
    OutputDelta,
)
from holdfast.environments.config.snapshot import (
    ConfiguredEnvironments,
    Entry,
    EnvironmentProvider,
    ServerUrl,
)
from holdfast.environments.environment import Environment
from holdfast.environments.environment_manager import EnvironmentManager
from tests.contract.caller import LONG, Caller
from tests.e2e.wire import Fifo, gone, is_alive

HALF = 1 << 19
"""Bytes that are kept of the beginning, and of the end."""


# -- sessions


@pytest.mark.requirement("tools.suite.state")
async def test_a_shell_keeps_its_state_over_calls(caller: Caller) -> None:
    session_id, _ = await caller.begin("echo ready; exec sh", tty=True, until="ready")
    await caller.write(session_id, "WORD=kept; cd /\n", until="cd /")
    answer = await caller.write(session_id, "echo $WORD in $PWD.\n", until="kept in /\\.")
    assert "kept in /." in answer.output
    ended = await caller.write(session_id, "exit 3\n")
    assert (ended.exit_code, ended.session_id) == (3, None)


@pytest.mark.requirement("tools.suite.apart")
async def test_sessions_do_not_see_each_other_and_a_short_command_has_no_id(
    caller: Caller,
) -> None:
    one, _ = await caller.begin("echo ready; exec sh", tty=True, until="ready")
    two, _ = await caller.begin("echo ready; exec sh", tty=True, until="ready")
    assert one != two
    await caller.write(one, "WORD=first\n", until="WORD=first")
    short = await caller.run("echo ${WORD:-none}")
    assert (short.output, short.exit_code, short.session_id) == ("none\n", 0, None)
    other = await caller.write(two, "echo ${WORD:-none}.\n", until="none\\.|first\\.")
    assert "none." in other.output
    own = await caller.write(one, "echo ${WORD:-none}!\n", until="none!|first!")
    assert "first!" in own.output
    assert sorted(info.session_id for info in caller.tools.sessions()) == sorted([one, two])


@pytest.mark.requirement("tools.suite.shortest-yield")
async def test_a_short_yield_is_raised_and_the_rest_comes_later(
    caller: Caller, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        first = await caller.call(
            "exec_command",
            cmd=f"echo first; read x < {go.path}; echo second",
            login=False,
            yield_time_ms=10,
        )
        assert first.session_id is not None
        assert first.wall_time > 0.2
        go.write()
        rest = await caller.end(first.session_id)
    assert first.output + rest.output == "first\nsecond\n"
    assert rest.exit_code == 0


@pytest.mark.requirement("tools.suite.ended")
async def test_an_ended_session_is_unknown(caller: Caller) -> None:
    session_id, _ = await caller.begin("echo ready; read x; exit 4", tty=True, until="ready")
    ended = await caller.write(session_id, "\n")
    assert (ended.exit_code, ended.session_id) == (4, None)
    text = await caller.refused("write_stdin", {"session_id": session_id, "chars": "x"})
    assert text == f"write_stdin failed: Unknown process id {session_id}"
    assert caller.nothing_is_open()


async def test_a_command_that_ended_unseen_is_reported_by_the_next_call(
    caller: Caller, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        session_id, _ = await caller.begin(
            f"echo ready; read x < {go.path}; echo bye; exit 5", until="ready"
        )
        async with caller.tools.listen() as news:
            go.write()
            async for event in news:
                if isinstance(event, CommandEnded):
                    break
        if caller.remote:  # its server says that it is gone, and the end is reported
            result = await caller.write(session_id, "x")
        else:
            text = await caller.refused("write_stdin", {"session_id": session_id, "chars": "x"})
            assert text.startswith("write_stdin failed: stdin is closed for this session")
            result = (await caller.end(session_id)).last
    assert (result.exit_code, result.output) == (5, "bye\n")


async def test_a_cancelled_call_leaves_its_command_and_its_output(
    caller: Caller, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        news = caller.tools.listen()
        call = asyncio.ensure_future(
            caller.call(
                "exec_command",
                cmd=f"sleep 0.3; echo early; read x < {go.path}; echo late",
                login=False,
                yield_time_ms=LONG,
            )
        )
        async for event in news:
            if isinstance(event, OutputDelta):
                break
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        news.close()
        (info,) = caller.tools.sessions()
        go.write()
        assert (await caller.end(info.session_id)).output == "early\nlate\n"


async def test_sessions_are_listed_and_terminated(caller: Caller, tmp_path: Path) -> None:
    session_id, output = await caller.begin("echo $$.; exec sleep 1000", until="\\d+\\.")
    pid = int(output.strip(".\n"))
    (info,) = caller.tools.sessions()
    assert (info.session_id, info.script) == (session_id, "echo $$.; exec sleep 1000")
    assert (info.cwd, info.tty) == (str(tmp_path), False)
    assert info.environment_id == caller.environment.id
    assert info.pid in (pid, None)
    assert caller.tools.terminate(session_id) is True
    assert caller.tools.terminate(session_id) is False
    assert caller.nothing_is_open()
    await gone(pid)


@pytest.mark.requirement("unified.16.end")
async def test_the_end_of_the_tools_is_the_end_of_their_commands(
    machine: Environment, tmp_path: Path
) -> None:
    async with UnifiedExec(machine, options=Options(extras=True)) as tools:
        caller = Caller(tools, machine, codex=machine.id == "codex")
        pids = []
        for tty in (False, True):
            _, output = await caller.begin("echo $$.; exec sleep 1000", until="\\d+\\.", tty=tty)
            pids.append(int(output.strip(".\r\n")))
        assert all(map(is_alive, pids))
    for pid in pids:
        await gone(pid)
    assert await caller.refused("exec_command", {"cmd": "true"}) == "the tools are closed"


# -- ends and signals


@pytest.mark.parametrize("tty", [False, True])
async def test_exit_codes(caller: Caller, tty: bool) -> None:
    for code in (0, 7, 255):
        assert (await caller.run(f"exit {code}", tty=tty)).exit_code == code


async def test_death_by_a_signal(caller: Caller) -> None:
    assert (await caller.run("kill -9 $$")).exit_code == 128 + 9
    assert (await caller.run("kill -9 $$", tty=True)).exit_code == 1


@pytest.mark.parametrize("tty", [False, True])
async def test_an_interrupt(caller: Caller, tty: bool) -> None:
    session_id, _ = await caller.begin("echo ready; exec sleep 1000", until="ready", tty=tty)
    ended = await caller.write(session_id, "\x03")
    assert ended.exit_code == (1 if tty else 130)
    assert caller.nothing_is_open()


@pytest.mark.parametrize("tty", [False, True])
async def test_an_interrupt_that_is_caught(caller: Caller, tty: bool) -> None:
    script = "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done"
    session_id, _ = await caller.begin(script, until="ready", tty=tty)
    ended = await caller.write(session_id, "\x03")
    assert ended.exit_code == 6
    assert "caught" in ended.output


# -- terminals and input


async def test_a_terminal_and_pipes(caller: Caller) -> None:
    pipes = await caller.run("test -t 0 || echo in; test -t 1 || echo out; cat")
    assert pipes.output == "in\nout\n"
    terminal = await caller.run("test -t 0 && test -t 1 && test -t 2 && stty size", tty=True)
    assert terminal.output == "24 80\r\n"


async def test_both_streams_are_one_output(caller: Caller) -> None:
    result = await caller.run("echo out; echo err >&2")
    assert sorted(result.output.splitlines()) == ["err", "out"]


async def test_input_of_a_terminal(caller: Caller) -> None:
    script = 'stty -echo; echo ready; read line; echo "got <$line>"; cat > /dev/null; echo over'
    session_id, _ = await caller.begin(script, until="ready", tty=True)
    answer = await caller.write(session_id, "größer ✓\n", until="got .*>")
    assert "got <größer ✓>" in answer.output
    ended = await caller.write(session_id, "\x04")
    assert (ended.exit_code, ended.output.strip()) == (0, "over")


async def test_input_for_a_command_on_pipes(caller: Caller, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        session_id, _ = await caller.begin(
            f"echo ready; read x < {go.path}; echo over", until="ready"
        )
        text = await caller.refused("write_stdin", {"session_id": session_id, "chars": "x\n"})
        assert text == (
            "write_stdin failed: stdin is closed for this session;"
            " rerun exec_command with tty=true to keep stdin open"
        )
        go.write()
        assert (await caller.end(session_id)).output == "over\n"


# -- what a command leaves behind


@pytest.mark.parametrize("holds_output", [False, True])
async def test_a_background_child_ends_with_the_report(caller: Caller, holds_output: bool) -> None:
    where = "" if holds_output else "> /dev/null 2>&1"
    result = await caller.run(f"sleep 1000 {where} & echo $!")
    assert result.exit_code == 0
    pid = int(result.output)
    if caller.codex:  # it has no way to end what is left
        assert result.left_behind is False
        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)
    else:
        assert result.left_behind is True
    await gone(pid)


async def test_a_background_child_can_live_on(machine: Environment) -> None:
    options = Options(extras=True, background="keep")
    async with UnifiedExec(machine, options=options) as tools:
        caller = Caller(tools, machine, codex=machine.id == "codex")
        result = await caller.run("sleep 1000 > /dev/null 2>&1 & echo $!")
        pid = int(result.output)
        assert result.left_behind is False
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)
    await gone(pid)


async def test_nothing_is_left_behind_by_a_plain_command(caller: Caller) -> None:
    assert (await caller.run("sleep 0.01; echo x")).left_behind is False


# -- output


@pytest.mark.requirement("tools.suite.buffer")
async def test_the_buffer_keeps_prefix_and_suffix(caller: Caller) -> None:
    exact = await caller.run("head -c 1048576 /dev/zero | tr '\\0' x")
    assert (len(exact.raw_output), exact.omitted_bytes) == (2 * HALF, 0)
    everything = "".join(f"{number}\n" for number in range(1, 250_001)).encode()
    result = await caller.run("seq 1 250000")
    omitted = len(everything) - 2 * HALF
    assert result.omitted_bytes == omitted
    marker = f"\n... {omitted} bytes omitted ...\n".encode()
    assert result.raw_output == everything[:HALF] + marker + everything[-HALF:]
    assert result.original_token_count == -(-len(everything) // 4)


async def test_output_is_shortened_for_the_model(caller: Caller) -> None:
    result = await caller.run("seq 1 12000", max_output_tokens=1)
    assert result.text().endswith(
        "Output:\nWarning: truncated output (original token count: 15224)\n"
        "Total output lines: 12000\n\n1\n…15223 tokens truncated…0\n"
    )
    assert (
        (await caller.run("printf hi", max_output_tokens=0))
        .text()
        .endswith(
            "Output:\nWarning: truncated output (original token count: 1)\n"
            "Total output lines: 1\n\n…1 tokens truncated…"
        )
    )


async def test_events_are_told_once(caller: Caller) -> None:
    async with caller.tools.listen() as news:
        await caller.run("echo one")
        session_id, _ = await caller.begin("echo two; read x; exit 3", tty=True, until="two")
        await caller.write(session_id, "\n")
        session_id, _ = await caller.begin("echo three; sleep 1000", until="three")
        caller.tools.clean()
    events = [event async for event in news]
    began = [event.script for event in events if isinstance(event, CommandBegan)]
    ended = [event for event in events if isinstance(event, CommandEnded)]
    assert began == ["echo one", "echo two; read x; exit 3", "echo three; sleep 1000"]
    assert [event.exit_code for event in ended] == [0, 3, -1]
    assert [event.output.text.split()[0] for event in ended] == ["one", "two", "three"]


# -- subjects


async def test_folders(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert (await caller.run("pwd")).output == f"{tmp_path}\n"
    assert (await caller.run("pwd", workdir="sub")).output == f"{tmp_path}/sub\n"
    assert (await caller.run("pwd", workdir="sub/..")).output == f"{tmp_path}\n"
    assert (await caller.run("pwd", workdir="/")).output == "/\n"
    assert (await caller.run("pwd", workdir="")).output == f"{tmp_path}\n"


async def test_variables_of_a_command(caller: Caller) -> None:
    result = await caller.run('echo "$TERM $NO_COLOR $PAGER $LANG $CODEX_CI"')
    assert result.output == "dumb 1 cat C.UTF-8 1\n"


async def test_calls_on_several_sessions_run_side_by_side(caller: Caller, tmp_path: Path) -> None:
    """Each waits until the other one runs, too: one after the other they would never end."""
    with Fifo(tmp_path / "one") as one, Fifo(tmp_path / "two") as two:
        results = await asyncio.gather(
            caller.run(f"echo > {one.path}; read x < {two.path}; echo a"),
            caller.run(f"echo > {two.path}; read x < {one.path}; echo b"),
        )
    assert [result.output for result in results] == ["a\n", "b\n"]


class Places(EnvironmentProvider):
    """This machine and a server."""

    def __init__(self, url: str, *, default: str | None) -> None:
        self._snapshot = ConfiguredEnvironments(
            entries=(Entry(id="server", transport=ServerUrl(url=url)),),
            default=default,
            include_local=True,
        )

    def snapshot(self) -> ConfiguredEnvironments:
        return self._snapshot


SERVERS = pytest.mark.parametrize(
    "server", ["holdfast", pytest.param("codex", marks=pytest.mark.real)]
)


@pytest.fixture
def server_url(server: str, websocket_url: str, codex_url: str | None) -> str:
    url = websocket_url if server == "holdfast" else codex_url
    assert url is not None  # the mark sees to it
    return url


@SERVERS
async def test_several_environments(server_url: str) -> None:
    async with (
        EnvironmentManager(Places(server_url, default="server")) as manager,
        UnifiedExec(manager) as tools,
    ):
        assert tools.environment_ids == ["server", "local"]
        (exec_command, _) = tools.schemas("openai")
        assert "environment_id" in str(exec_command["parameters"])
        for environment_id in (None, "server", "local"):
            given = {"cmd": "echo $PPID", "login": False, "yield_time_ms": LONG}
            if environment_id is not None:
                given["environment_id"] = environment_id
            result = await tools.call("exec_command", given)
            assert isinstance(result, ExecResult)
            assert (int(result.output) == os.getpid()) is (environment_id == "local")
        unknown = await tools.call("exec_command", {"cmd": "true", "environment_id": "zz"})
        assert unknown.text() == "unknown turn environment id `zz`"


@SERVERS
async def test_no_default_environment(server_url: str) -> None:
    async with (
        EnvironmentManager(Places(server_url, default=None)) as manager,
        UnifiedExec(manager) as tools,
    ):
        assert tools.schemas("openai") == []
        for name, given in (("exec_command", {"cmd": "true"}), ("write_stdin", {"session_id": 1})):
            result = await tools.call(name, given)
            assert result.text() == (
                "No usable execution environment is available. Wait for an environment to become"
                " available before using this tool."
            )


# -- shell snapshots


@pytest.mark.requirement("unified.4.snapshot")
async def test_start_files_are_read_once_with_a_snapshot(
    machine: Environment, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".profile").write_text(
        "echo noise; echo read >> times; export FROM_PROFILE=kept PATH=/usr/bin:/bin\n"
    )
    options = Options(shell_snapshot=True, env={"HOME": str(home)})
    async with UnifiedExec(machine, options=options) as tools:
        for _ in range(3):
            given = {"cmd": "echo $FROM_PROFILE; shopt -q login_shell || echo plain"}
            result = await tools.call("exec_command", given | {"yield_time_ms": LONG})
            assert isinstance(result, ExecResult), result.text()
            assert (result.output, result.exit_code) == ("kept\nplain\n", 0)
    assert (tmp_path / "times").read_text() == "read\n"

"""The tools with more sessions than they hold, and with a server that dies."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.agent.unified_exec import ExecResult, NoteKind, Options, ToolError, UnifiedExec
from holdfast.environments.environment_manager import EnvironmentManager
from tests.contract.caller import LONG, Caller
from tests.contract.test_unified_exec import Places
from tests.e2e.wire import LIMIT, Fifo, first_line, gone, serving
from tests.real.codex import codex, codex_env

pytestmark = pytest.mark.requirement("tools.bad-input")


@contextmanager
def killable(server: str, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a server; yields its URL and what kills it without a chance to say goodbye."""
    if server == "holdfast":
        with serving() as ours:
            yield ours.url, lambda: os.kill(ours.serving_pid, signal.SIGKILL)
        return
    with subprocess.Popen(
        [codex(), "exec-server", "--listen", "ws://127.0.0.1:0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=codex_env(folder / "codex"),
    ) as theirs:
        try:
            yield first_line(theirs), theirs.kill
        finally:
            theirs.kill()


@pytest.mark.slow
async def test_sixty_five_sessions_at_once(caller: Caller) -> None:
    script = "echo $$; exec sleep 1000"
    starts = [
        caller.call("exec_command", cmd=script, login=False, yield_time_ms=LONG // 30)
        for _ in range(65)
    ]
    results = await asyncio.gather(*starts)
    sessions = {result.session_id for result in results}
    assert len(sessions) == 65
    assert None not in sessions
    pids = [info.pid for info in caller.tools.sessions()]
    assert len(pids) == 64
    one_more = await caller.call("exec_command", cmd=script, login=False, yield_time_ms=250)
    assert len(caller.tools.sessions()) == 64
    # While all calls wait at once none can go; how many go early depends on the machine.
    pruned = [gone_id for result in (*results, one_more) for gone_id in result.pruned_sessions]
    assert len(pruned) == 2
    assert "64 of at most 64 sessions are open" in one_more.text(notes=True)
    assert "64 of at most" not in one_more.text()
    for info in caller.tools.sessions():
        caller.tools.terminate(info.session_id)
    for pid in pids:
        if pid is not None:
            await gone(pid)


# -- a server that dies


@pytest.mark.parametrize("server", ["holdfast", pytest.param("codex", marks=pytest.mark.real)])
async def test_a_server_that_dies_in_the_middle_of_calls(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.recovery.RECOVERY_LIMIT", 0.5)
    with killable(server, tmp_path) as (url, kill):
        async with (
            EnvironmentManager(Places(url, default="server")) as manager,
            UnifiedExec(manager, options=Options(extras=True)) as tools,
        ):
            caller = Caller(tools, manager.require("server"), codex=server == "codex")
            idle, _ = await caller.begin("echo ready; sleep 1000", until="ready")
            local, _ = await caller.begin(
                "echo ready; read x; echo still here",
                tty=True,
                until="ready",
                environment_id="local",
            )
            waiting = asyncio.ensure_future(
                tools.call("exec_command", {"cmd": "sleep 1000", "yield_time_ms": LONG})
            )
            while len(tools.sessions()) < 3:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
            kill()
            lost = await asyncio.wait_for(waiting, 4 * LIMIT)
            assert isinstance(lost, ToolError)
            assert lost.text().startswith("exec_command failed: ProcessFailed { message: ")
            assert "exec-server transport disconnected" in lost.text()
            assert "failed to resume exec-server session" in lost.text()
            assert [note.kind for note in lost.notes] == [NoteKind.CONNECTION_LOST]
            assert str(lost.notes[0]) in lost.text(notes=True)
            text = await caller.refused("write_stdin", {"session_id": idle})
            assert text.startswith("write_stdin failed: Unified exec process failed: ")
            text = await caller.refused("write_stdin", {"session_id": idle})
            assert text == f"write_stdin failed: Unknown process id {idle}"
            text = await caller.refused("exec_command", {"cmd": "true"})
            assert text.startswith("exec_command failed: CreateProcess { message: ")
            assert [info.session_id for info in tools.sessions()] == [local]
            answer = await caller.write(local, "\n")
            assert "still here" in answer.output
            assert answer.exit_code == 0
            assert caller.nothing_is_open()


@pytest.mark.slow
@pytest.mark.requirement("tools.notes")
async def test_a_server_that_stops_is_named(tmp_path: Path) -> None:
    with serving() as server, Fifo(tmp_path / "go") as go:
        async with (
            EnvironmentManager(Places(server.url, default="server")) as manager,
            UnifiedExec(manager, options=Options(notes=True)) as tools,
        ):
            script = f"echo > {go.path}; exec sleep 1000"
            arguments = {"cmd": script, "login": False, "yield_time_ms": LONG}
            waiting = asyncio.ensure_future(tools.call("exec_command", arguments))
            await go.line()
            os.kill(server.serving_pid, signal.SIGTERM)
            ended = await asyncio.wait_for(waiting, 4 * LIMIT)
            assert isinstance(ended, ExecResult), ended.text()
            assert [note.kind for note in ended.notes] == [NoteKind.SERVER_STOPPED]
            assert ended.text().startswith("The server stopped and ended the command; ")

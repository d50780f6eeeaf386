"""Signals, and how processes are ended [signal.*]."""

import asyncio
import errno
import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.in_process import serving_here
from tests.e2e.wire import (
    INITIALIZE,
    INITIALIZED,
    LIMIT,
    Client,
    Fifo,
    Run,
    ServerProcess,
    connect,
    frame,
    frames,
    gone,
    is_alive,
    start_params,
)

both = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])


async def _signal(client: Client, process_id: str, name: str = "interrupt") -> None:
    params = {"processId": process_id, "signal": name}
    assert await client.call("process/signal", params) == {}


# -- signals


@pytest.mark.requirement("signal.interrupt")
@both
async def test_an_interrupt_ends_what_does_not_expect_it(client: Client, tty: bool) -> None:
    await client.shell("p", "echo ready; exec sleep 600", tty=tty)
    await client.output("p", b"ready")
    await _signal(client, "p")
    assert (await client.finish("p")).exit_code == (1 if tty else 130)


@pytest.mark.requirement("signal.interrupt")
@both
async def test_an_interrupt_may_be_handled(client: Client, tty: bool) -> None:
    script = "trap 'echo got it; exit 9' INT; echo ready; while :; do sleep 0.01; done"
    await client.shell("p", script, tty=tty)
    await client.output("p", b"ready")
    await _signal(client, "p")
    await client.output("p", b"got it")
    assert (await client.finish("p")).exit_code == 9


@pytest.mark.requirement("signal.interrupt")
@both
async def test_an_interrupt_reaches_the_whole_group(client: Client, tty: bool) -> None:
    # The inner shell is in the foreground: one in the background would ignore the signal.
    inner = 'trap "echo child; exit 0" INT; echo ready; while :; do sleep 0.01; done'
    await client.shell("p", f"trap 'echo parent; exit 3' INT; sh -c '{inner}'", tty=tty)
    await client.output("p", b"ready")
    await _signal(client, "p")
    run = await client.finish("p")
    assert run.exit_code == 3
    assert sorted((run.stdout + run.pty).split()) == [b"child", b"parent", b"ready"]


@pytest.mark.requirement("signal.group-only")
async def test_on_a_terminal_the_foreground_job_of_a_shell_is_not_hit(client: Client) -> None:
    await client.start("p", ["/bin/bash", "--norc", "-i"], tty=True)
    await client.write("p", b"sh -c 'echo in the job; read x; echo job got $x'\n")
    await client.output("p", b"in the job\r\n")
    await _signal(client, "p")
    await client.write("p", b"a line\n")
    await client.output("p", b"job got a line\r\n")


@pytest.mark.requirement("signal.gone")
async def test_a_signal_to_nobody_is_no_error(client: Client) -> None:
    await _signal(client, "nope")
    await client.start("p", ["true"])
    await client.finish("p")
    await _signal(client, "p")
    await _signal(client, "p", "SIGKILL")


@pytest.mark.requirement("signal.gone")
async def test_a_signal_after_the_exit_spares_background_children(
    client: Client, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        await client.shell("p", f"(read x <{go.path}; echo late) & exit 0")
        await client.exited("p")
        await _signal(client, "p")
        await _signal(client, "p", "SIGKILL")
        go.write()
        assert await client.finish("p") == Run(0, stdout=b"late\n")


@pytest.mark.requirement("signal.unknown-name")
async def test_an_unknown_signal_is_refused(client: Client) -> None:
    assert await client.refusal("process/signal", {"processId": "p", "signal": "kill"}) == (
        -32602,
        "unknown variant `kill`, expected `interrupt`",
    )


@pytest.mark.requirement("envelope.params.missing")
async def test_signals_and_terminate_have_required_members(client: Client) -> None:
    for method, params, name in (
        ("process/signal", {"processId": "p"}, "signal"),
        ("process/signal", {"signal": "interrupt"}, "processId"),
        ("process/terminate", {}, "processId"),
    ):
        assert await client.refusal(method, params) == (-32602, f"missing field `{name}`")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGKILL", "SIGQUIT"])
async def test_any_signal_may_be_sent_by_its_name(client: Client, name: str) -> None:
    await client.start("p", ["sleep", "600"])
    await _signal(client, "p", name)
    assert (await client.finish("p")).exit_code == 128 + signal.Signals[name]


async def test_a_process_may_be_stopped_and_continued(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    await client.write("p", b"before\n")
    await client.output("p", b"before\n")
    await _signal(client, "p", "SIGSTOP")
    await client.write("p", b"while stopped\n")
    # It has not ended, and it does not answer.
    read = await client.read("p", afterSeq=1, waitMs=20)
    assert (read["chunks"], read["exited"]) == ([], False)
    await _signal(client, "p", "SIGCONT")
    await client.output("p", b"while stopped\n")


# -- terminate


@pytest.mark.requirement("terminate.kills")
@both
async def test_terminate_kills_at_once(client: Client, tmp_path: Path, tty: bool) -> None:
    trapped = tmp_path / "trapped"
    script = f"trap 'touch {trapped}' TERM INT HUP; echo ready; while :; do sleep 0.01; done"
    await client.shell("p", script, tty=tty)
    await client.output("p", b"ready")
    assert await client.terminate("p") is True
    assert (await client.finish("p")).exit_code == (1 if tty else 137)
    assert not trapped.exists()
    assert await client.terminate("p") is False


@pytest.mark.requirement("terminate.kills")
@both
async def test_terminate_kills_the_whole_group(client: Client, tty: bool) -> None:
    script = "trap '' TERM HUP INT; for n in 1 2 3; do sleep 600 & echo $!; done; echo ready; wait"
    await client.shell("p", script, tty=tty)
    text = await client.output("p", b"ready")
    pids = [int(word) for word in text.split()[:-1]]
    assert len(pids) == 3
    assert all(map(is_alive, pids))
    await client.terminate("p")
    await client.finish("p")
    for pid in pids:
        await gone(pid)


@pytest.mark.requirement("terminate.closes-pipes")
async def test_after_terminate_a_detached_child_does_not_hold_up_the_close(client: Client) -> None:
    await client.shell("p", "setsid sh -c 'echo $$; exec sleep 600' & wait")
    pid = int(await client.output("p", b"\n"))
    try:
        assert await client.terminate("p") is True
        assert (await client.finish("p")).exit_code == 137
        # It left the group, and is nobody's business any more.
        assert is_alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.requirement("terminate.exited")
async def test_terminate_of_an_exited_process_spares_its_children(
    client: Client, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        await client.shell("p", f"(read x <{go.path}; echo late) & exit 0")
        await client.exited("p")
        assert await client.terminate("p") is False
        go.write()
        assert await client.finish("p") == Run(0, stdout=b"late\n")


@pytest.mark.requirement("terminate.unknown")
async def test_terminate_of_an_unknown_process_is_no_error(client: Client) -> None:
    assert await client.terminate("nope") is False


@pytest.mark.requirement("terminate.twice")
async def test_a_second_terminate_before_the_exit_was_noticed_is_true_again(
    server: ServerProcess,
) -> None:
    start = {"id": 1, "method": "process/start", "params": start_params("p", ["sleep", "600"])}
    terminate = {"id": 2, "method": "process/terminate", "params": {"processId": "p"}}
    async with frames(server.url) as connection:
        # All at once, so that nothing can be noticed between them.
        await connection.send(
            INITIALIZE + INITIALIZED + frame(start) + frame(terminate) + frame(terminate)
        )
        messages = [json.loads((await connection.receive())[1]) for _ in range(6)]
    assert [m["result"] for m in messages if m.get("id") == 2] == [{"running": True}] * 2
    exited, closed = [m for m in messages if "id" not in m]
    assert (exited["method"], exited["params"]["exitCode"]) == ("process/exited", 137)
    assert closed["method"] == "process/closed"


async def test_terminate_kills_a_stopped_process(client: Client) -> None:
    await client.start("p", ["sleep", "600"])
    await _signal(client, "p", "SIGSTOP")
    assert await client.terminate("p") is True
    assert (await client.finish("p")).exit_code == 137


async def test_terminate_kills_a_process_that_does_nothing_but_write(client: Client) -> None:
    await client.start("p", ["yes"])
    await client.output("p", b"y\n")
    assert await client.terminate("p") is True
    assert (await client.finish("p")).exit_code == 137


async def test_terminate_is_the_last_thing_a_process_notices(client: Client) -> None:
    # It would act on the end of its input if that came before.
    for turn in range(30):
        await client.shell(f"p{turn}", "echo ready; read x; echo never", pipeStdin=True)
        await client.output(f"p{turn}", b"ready\n")
        await client.terminate(f"p{turn}")
        assert await client.finish(f"p{turn}") == Run(137, stdout=b"ready\n")


async def test_who_changed_its_user_cannot_be_ended_and_spares_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with `sudo`: to signal it is not permitted. A test cannot make such a process itself."""
    killpg, other_user = os.killpg, []

    def refuse(pid: int, number: int) -> None:
        if pid in other_user:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        killpg(pid, number)

    monkeypatch.setattr(os, "killpg", refuse)
    async with serving_here(session_expiry=0.01) as url:
        async with connect(url) as client:
            pids = []
            for name in ("a", "b"):
                await client.shell(name, "echo $$; exec sleep 600")
                pids.append(int(await client.output(name, b"\n")))
            other_user.append(pids[0])
            refused = (-32603, "failed to signal process: Operation not permitted (os error 1)")
            assert await client.refusal("process/terminate", {"processId": "a"}) == refused
            signal_it = {"processId": "a", "signal": "interrupt"}
            assert await client.refusal("process/signal", signal_it) == refused
        # The session expires: one of its processes is gone, the other one is beyond reach.
        await gone(pids[1])
        assert is_alive(pids[0])
        os.kill(pids[0], signal.SIGKILL)
        async with connect(url) as client, asyncio.timeout(LIMIT):
            while Path(f"/proc/{pids[0]}").exists():  # noqa: ASYNC240 - no file, no waiting
                assert await client.is_ready()


@pytest.mark.requirement("snapshot.reuse", "terminate.starting", "write.starting", "read.starting")
async def test_a_start_that_waits_for_a_profile_can_be_called_off(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / ".bash_profile").write_text("read x <$HOME/go\n")
    with Fifo(tmp_path / "go") as go:
        params = {
            "processId": "p",
            "argv": ["/bin/bash", "-lc", "echo never"],
            "cwd": "file:///",
            "env": {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            "tty": False,
            "shellSnapshot": {"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}},
        }
        started = await client.request("process/start", params)
        assert await client.write("p", b"x") == "starting"
        starting = (-32600, "process id p is starting")
        assert await client.refusal("process/read", {"processId": "p"}) == starting
        duplicate = (-32600, "process p already exists")
        assert await client.refusal("process/start", params) == duplicate
        assert await client.terminate("p") is True
        go.write()
        assert (await client.reply(started))["error"] == {
            "code": -32600,
            "message": "process p start was cancelled",
        }
        assert await client.terminate("p") is False


# -- what was left (an extension)

LEFT = {
    "between exit and close": "sleep 600 & echo $!",
    "after the close": "sleep 600 >/dev/null 2>&1 & echo $!",
    "ignores signals": "trap '' HUP INT TERM; sleep 600 >/dev/null 2>&1 & echo $!",
    "orphan": "(sleep 600 & echo $!)",
}


@pytest.mark.parametrize("kind", LEFT)
async def test_what_an_exited_process_left_in_its_group_can_be_killed(
    client: Client, kind: str
) -> None:
    await client.shell("p", LEFT[kind])
    pid = int(await client.output("p", b"\n"))
    await client.exited("p")
    if kind == "after the close":
        await client.finish("p")
    assert not await client.terminate("p")
    assert is_alive(pid)
    left = {"processId": "p", "left": True}
    assert await client.call("process/terminate", left) == {"running": True}
    assert (await client.finish("p")).exit_code == 0
    await gone(pid)
    assert await client.call("process/terminate", left) == {"running": False}


async def test_what_has_a_session_of_its_own_is_not_left_in_a_group(client: Client) -> None:
    script = "setsid sh -c 'echo $$; exec sleep 600' & read x"
    await client.shell("p", script, pipeStdin=True)
    pid = int(await client.output("p", b"\n"))
    await client.write("p", b"\n")
    await client.exited("p")
    left = {"processId": "p", "left": True}
    assert await client.call("process/terminate", left) == {"running": False}
    await client.finish("p")  # its output was ended all the same
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


async def test_a_killed_process_may_be_read_to_the_end_of_its_output(
    client: Client, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        script = f"setsid sh -c 'echo ready; read x < {go.path}; echo late' & wait"
        await client.shell("p", script)
        await client.output("p", b"ready\n")
        params = {"processId": "p", "streams": "keep"}
        assert await client.call("process/terminate", params) == {"running": True}
        assert await client.exited("p") == 137
        go.write()
        run = await client.finish("p")
    assert run.stdout == b"ready\nlate\n"

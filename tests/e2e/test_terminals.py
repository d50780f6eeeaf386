"""Processes on a terminal of their own [pty.*]."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.in_process import serving_here
from tests.e2e.wire import (
    LIMIT,
    Client,
    Fifo,
    Run,
    ServerProcess,
    connect,
    gone,
    is_alive,
    resume,
    start_params,
)


async def _bash(client: Client, process_id: str = "p") -> None:
    """An interactive shell that has shown its prompt."""
    env = {"PATH": "/usr/bin:/bin", "PS1": "> ", "HISTFILE": ""}
    argv = ["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"]
    await client.start(process_id, argv, tty=True, env=env)
    await client.output(process_id, b"> ")


# -- the terminal itself


@pytest.mark.requirement("pty.controlling", "pty.size")
async def test_a_terminal_is_the_controlling_one(client: Client) -> None:
    run = await client.run_shell(
        "stty size; test -t 0 && test -t 1 && test -t 2 && echo tty; (: </dev/tty) && echo ctty",
        tty=True,
    )
    assert run == Run(0, pty=b"24 80\r\ntty\r\nctty\r\n")


async def test_on_pipes_there_is_no_terminal(client: Client) -> None:
    run = await client.run_shell("(: </dev/tty) 2>/dev/null || echo none; test -t 0 || echo no")
    assert run.stdout == b"none\nno\n"


@pytest.mark.requirement("pty.one-stream")
async def test_both_outputs_of_a_terminal_are_one_stream(client: Client) -> None:
    run = await client.run_shell("echo out; echo err >&2; echo tty >/dev/tty", tty=True)
    assert run == Run(0, pty=b"out\r\nerr\r\ntty\r\n")


@pytest.mark.requirement("pty.pipe-stdin")
@pytest.mark.parametrize("pipe_stdin", [False, True])
async def test_a_terminal_always_has_an_input(client: Client, pipe_stdin: bool) -> None:
    await client.shell("p", "read x; echo got $x", tty=True, pipeStdin=pipe_stdin)
    assert await client.write("p", b"hello\n") == "accepted"
    assert await client.finish("p") == Run(0, pty=b"hello\r\ngot hello\r\n")


async def test_what_a_terminal_writes_arrives_whole(client: Client) -> None:
    run = await client.run_shell("stty -opost; seq 1 200000", tty=True)
    assert run.pty == b"".join(b"%d\n" % n for n in range(1, 200_001))


async def test_what_is_typed_arrives_whole(client: Client) -> None:
    # In lines, since a terminal takes no more than 4095 characters of one.
    lines = b"".join(b"line %d\n" % n for n in range(20_000))
    await client.shell("p", "stty -echo; echo ready; wc -c; echo done", tty=True)
    await client.output("p", b"ready\r\n")
    assert await client.write("p", lines) == "accepted"
    assert await client.write("p", b"\x04") == "accepted"
    assert b"%d\r\ndone\r\n" % len(lines) in await client.output("p", b"done\r\n")


# -- keys


@pytest.mark.requirement("pty.interrupt")
async def test_ctrl_c_interrupts(client: Client) -> None:
    await client.shell("p", "trap 'echo INT; exit 9' INT; echo ready; read x", tty=True)
    await client.output("p", b"ready")
    await client.write("p", b"\x03")
    run = await client.finish("p")
    assert (run.exit_code, run.pty) == (9, b"ready\r\n^CINT\r\n")


@pytest.mark.requirement("pty.interrupt")
async def test_ctrl_c_interrupts_the_foreground_job_of_a_shell(client: Client) -> None:
    await _bash(client)
    await client.write("p", b"sh -c 'echo jo''b; exec sleep 600'\n")
    await client.output("p", b"job\r\n")
    await client.write("p", b"\x03")
    await client.write("p", b"echo status=$?\n")
    await client.output("p", b"status=130")


@pytest.mark.requirement("pty.eof")
async def test_ctrl_d_ends_the_input(client: Client) -> None:
    await client.start("p", ["cat"], tty=True)
    await client.write("p", b"line\n")
    await client.output("p", b"line\r\nline\r\n")
    await client.write("p", b"\x04")
    assert await client.finish("p") == Run(0, pty=b"line\r\nline\r\n")


async def test_ctrl_backslash_quits(client: Client) -> None:
    await client.shell("p", "echo ready; exec sleep 600", tty=True)
    await client.output("p", b"ready")
    await client.write("p", b"\x1c")
    assert (await client.finish("p")).exit_code == 1


async def test_a_shell_has_job_control(client: Client) -> None:
    await _bash(client)
    await client.write("p", b"sh -c 'echo jo''b; read x; echo got $x'\n")
    await client.output("p", b"job\r\n")
    await client.write("p", b"\x1a")
    await client.output("p", b"Stopped")
    await client.write("p", b"echo sh''ell\n")
    await client.output("p", b"shell\r\n")
    await client.write("p", b"fg\n")
    # Echoed by the terminal, then read by the job.
    await client.write("p", b"it\n")
    await client.output("p", b"got it\r\n")
    await client.write("p", b"exit 5\n")
    assert (await client.finish("p")).exit_code == 5


# -- the end


@pytest.mark.requirement("pty.end")
async def test_the_end_of_the_leader_hangs_up(client: Client) -> None:
    await client.shell("p", "sleep 600 & echo $!; exit 3", tty=True)
    pid = int(await client.output("p", b"\n"))
    assert (await client.finish("p")).exit_code == 3
    await gone(pid)


@pytest.mark.requirement("pty.end")
async def test_who_ignores_the_hang_up_keeps_the_terminal_open(
    client: Client, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        script = f"trap '' HUP; (read x <{go.path}; echo late) & echo early; exit 3"
        await client.shell("p", script, tty=True)
        assert await client.exited("p") == 3
        read = await client.read("p")
        assert (read["exited"], read["closed"]) == (True, False)
        go.write()
        assert await client.finish("p") == Run(3, pty=b"early\r\nlate\r\n")


async def test_a_hang_up_ends_an_interactive_shell_and_its_jobs(client: Client) -> None:
    await _bash(client)
    await client.write("p", b"sleep 600 &\n")
    # Written so that what the terminal echoes is not yet the answer.
    await client.write("p", b"echo pid $! en''d\n")
    text = await client.output("p", b" end\r\n")
    pid = int(text.split()[-2 if text.endswith(b"\n") else -3])
    assert is_alive(pid)
    await client.call("process/signal", {"processId": "p", "signal": "SIGHUP"})
    await client.finish("p")
    await gone(pid)


async def test_a_terminal_that_its_leader_lets_go_of_can_be_closed(client: Client) -> None:
    await client.shell("p", "exec setsid sh -c 'exec >/dev/null 2>&1 </dev/null; exit 0'", tty=True)
    assert (await client.finish("p")).exit_code == 0


async def test_the_end_of_a_server_does_not_wait_for_who_holds_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.server.app._END_GRACE", 3600.0)
    async with asyncio.timeout(LIMIT):
        async with serving_here() as url, connect(url) as client:
            script = "setsid sh -c 'trap \"\" HUP; echo $$; exec sleep 600' & exec sleep 600"
            await client.shell("p", script, tty=True)
            pid = int(await client.output("p", b"\n"))
    os.kill(pid, signal.SIGKILL)


# -- the size: an extension


async def _resize(client: Client, rows: int, cols: int, process_id: str = "p") -> None:
    params = {"processId": process_id, "rows": rows, "cols": cols}
    assert await client.call("process/resize", params) == {}


@pytest.mark.parametrize(
    ("size", "seen"),
    [
        ({"rows": 50, "cols": 132}, b"50 132\r\n"),
        ({"rows": 1, "cols": 65535}, b"1 65535\r\n"),
        ({"rows": 50}, b"50 80\r\n"),
        ({}, b"24 80\r\n"),
        (None, b"24 80\r\n"),
    ],
)
async def test_a_terminal_may_start_with_a_size(client: Client, size: object, seen: bytes) -> None:
    assert await client.run(["stty", "size"], tty=True, terminalSize=size) == Run(0, pty=seen)


async def test_a_size_means_nothing_on_pipes(client: Client) -> None:
    assert await client.run(["true"], terminalSize={"rows": 5, "cols": 5}) == Run(0)


async def test_a_new_size_is_told_to_the_foreground(client: Client) -> None:
    code = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "print('ready', flush=True)\n"
        "while signal.sigwait([signal.SIGWINCH]):\n"
        "    print(*reversed(os.get_terminal_size()), flush=True)\n"
    )
    await client.start("p", [sys.executable, "-I", "-c", code], tty=True)
    await client.output("p", b"ready\r\n")
    await _resize(client, 30, 100)
    await client.output("p", b"30 100\r\n")
    await _resize(client, 10, 20)
    await client.output("p", b"10 20\r\n")
    await client.terminate("p")
    await client.finish("p")
    # There is no terminal left to resize, and no harm in asking.
    await _resize(client, 10, 20)


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (65536, 80), (24, 65536), (-1, 80)])
async def test_a_size_has_its_limits(client: Client, size: tuple[int, int]) -> None:
    rows, cols = size
    params = {"processId": "p", "rows": rows, "cols": cols}
    assert (await client.refusal("process/resize", params))[0] == -32602
    start = start_params("p", ["true"], tty=True, terminalSize={"rows": rows, "cols": cols})
    assert (await client.refusal("process/start", start))[0] == -32602


async def test_only_a_terminal_has_a_size(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    size = {"rows": 10, "cols": 10}
    code, text = await client.refusal("process/resize", {"processId": "p", **size})
    assert (code, text) == (-32600, "process p has no terminal to resize")
    unknown = (-32600, "unknown process id nope")
    assert await client.refusal("process/resize", {"processId": "nope", **size}) == unknown


async def test_a_terminal_survives_its_connection(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        await _bash(client)
        await client.write("p", b"x=remembered\n")
    async with resume(server.url, client.session_id) as again:
        await again.write("p", b'echo "[$x]"\n')
        await again.output("p", b"[remembered]")
        await again.write("p", b"exit\n")
        assert await again.exited("p") == 0

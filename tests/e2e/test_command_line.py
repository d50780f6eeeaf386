"""Start of a server, its refusals, and its output [serve.*]."""

import asyncio
import os
import shlex
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.base.local_servers import find_token
from tests.e2e.terminals import terminal
from tests.e2e.wire import HOLDFAST, LIMIT, connect, http, serving

DIGEST = "0" * 64


def _start(*options: str, cwd: Path | None = None, command: str = "serve") -> tuple[int, str, str]:
    """Run a start that has to fail: its status, stdout and stderr."""
    done = subprocess.run(
        [*HOLDFAST, command, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT,
        check=False,
        cwd=cwd,
    )
    return done.returncode, done.stdout, done.stderr


def _error(*options: str, cwd: Path | None = None, command: str = "serve") -> str:
    status, out, err = _start(*options, cwd=cwd, command=command)
    assert (status, out) == (1, "")
    return err


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("token\n")
    return str(file)


# -- the URL


@pytest.mark.requirement("serve.url-line")
@pytest.mark.parametrize("command", ["serve", "exec-server"])
async def test_one_line_on_stdout_is_the_url_and_stderr_is_silent(command: str) -> None:
    with serving(command=(*HOLDFAST, command)) as server:
        assert server.url.startswith("ws://127.0.0.1:")
        assert int(server.url.rpartition(":")[2]) > 0
        token = find_token(server.url, os.environ)
        assert (token is not None) == (command == "serve")
        headers = None if token is None else {"Authorization": f"Bearer {token}"}
        async with connect(server.url, headers=headers) as client:
            assert await client.is_ready()
        assert server.stop() == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == b""
        assert server.errors == ""


def test_a_server_tells_more_when_it_is_asked_to() -> None:
    with serving(env={**os.environ, "HOLDFAST_LOG": "info"}) as server:
        assert server.stop() == 0
        assert f"listening on {server.url}" in server.errors


def test_what_can_be_enforced_is_found_out_when_a_server_starts_that_logs_it() -> None:
    with serving(env={**os.environ, "HOLDFAST_LOG": "info"}) as server:
        assert server.stop() == 0
        assert "sandboxes are built by bubblewrap" in server.errors
        assert "sandbox: " in server.errors  # what they do not stop


def test_a_log_level_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG", "loud")
    assert _error() == "Error: HOLDFAST_LOG must be error, warning, info or debug\n"


@pytest.mark.requirement("serve.listen.ipv6")
async def test_an_ipv6_address_stands_in_brackets() -> None:
    with serving("--listen", "ws://[::1]:0") as server:
        assert server.url.startswith("ws://[::1]:")
        async with connect(server.url) as client:
            assert await client.is_ready()


async def test_the_url_can_be_read_by_a_parent_that_closes_the_pipe() -> None:
    with serving() as server:
        assert server.process.stdout is not None
        server.process.stdout.close()
        async with connect(server.url) as client:
            assert await client.is_ready()
        assert server.stop() == 0
        assert server.errors == ""


@pytest.mark.requirement("serve.connections")
async def test_any_number_of_connections_each_with_its_own_session() -> None:
    with serving() as server:
        async with asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(_session_of(server.url)) for _ in range(50)]
        assert len({task.result() for task in found}) == 50


async def _session_of(url: str) -> str:
    async with connect(url) as client:
        assert await client.is_ready()
        return client.session_id


@pytest.mark.parametrize("command", [["serve", "--listen", "stdio"], ["app-server"]])
def test_a_person_at_a_terminal_is_told_who_should_be_there(command: list[str]) -> None:
    with terminal(*HOLDFAST, *command) as screen:
        screen.expect("waiting for a client on the standard streams", limit=6 * LIMIT)


# -- refusals


@pytest.mark.requirement("serve.listen.scheme", "serve.start-errors")
def test_another_scheme_is_refused() -> None:
    assert _error("--listen", "tcp", command="exec-server") == (
        "Error: unsupported --listen URL `tcp`; expected `ws://IP:PORT` or `stdio`\n"
    )


def test_serve_says_what_may_have_been_meant() -> None:
    assert _error("--listen", "ws://localhost:0") == (
        "Error: invalid websocket --listen URL `ws://localhost:0`; expected `ws://IP:PORT`"
        " (did you mean `ws://127.0.0.1:0`?)\n"
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_keep_nothing_from_working(tmp_path: Path, closed: str) -> None:
    """A service manager or a cron job may start a program without them."""
    program = shlex.join(HOLDFAST)
    listed = subprocess.run(
        ["sh", "-c", f"{program} fs ls / {closed}"],
        stdout=subprocess.DEVNULL,
        timeout=LIMIT,
        check=False,
    )
    assert listed.returncode == 0
    path = tmp_path / "socket"
    serve = f"exec {program} serve --config /dev/null --listen unix://{path} {closed}"
    with subprocess.Popen(["sh", "-c", serve], stdout=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + LIMIT
        while not path.exists() and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        server.terminate()
        assert server.wait(LIMIT) == 0


@pytest.mark.requirement("serve.listen.port-in-use")
def test_an_address_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = f"ws://127.0.0.1:{port}"
        assert _error("--listen", where) == (
            f"Error: cannot listen on {where}: Address already in use (os error 98)\n"
        )
        # Under its other name it has the words of the real server.
        assert _error("--listen", where, command="exec-server") == (
            "Error: Address already in use (os error 98)\n"
        )


@pytest.mark.requirement("serve.concurrent-requests.zero", "serve.start-errors")
@pytest.mark.parametrize(
    "options",
    [
        ("--concurrent-requests", "0"),
        ("--concurrent-requests", "-1"),
        ("--concurrent-requests", "many"),
        ("--ws-auth", "none"),
        ("--ws-max-clock-skew-seconds", "-1"),
        ("--no-such-option",),
        ("positional",),
    ],
)
def test_a_bad_argument_exits_with_2(options: tuple[str, ...]) -> None:
    status, out, err = _start(*options)
    assert (status, out) == (2, "")
    assert err.startswith("usage: holdfast")
    assert "Traceback" not in err


def test_options_that_make_no_sense_are_refused_with_the_reason() -> None:
    assert _error("--ws-max-clock-skew-seconds", "1") == (
        "Error: websocket auth flags require `--ws-auth capability-token`"
        " or `--ws-auth signed-bearer-token`\n"
    )


@pytest.mark.requirement("serve.auth-options.stdio")
def test_auth_needs_a_websocket() -> None:
    options = ("--ws-auth", "capability-token", "--ws-token-sha256", DIGEST)
    assert _error("--listen", "stdio", *options) == (
        "Error: WebSocket auth requires a WebSocket listener, not stdio\n"
    )


# -- beyond loopback: an extension


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_beyond_loopback_a_server_without_auth_is_refused(host: str) -> None:
    refusal = _error("--listen", f"ws://{host}:0", command="exec-server")
    assert refusal.startswith("Error: listening on ")
    assert "--insecure-no-auth" in refusal
    assert refusal.count("\n") == 1


async def test_beyond_loopback_is_possible_if_it_is_really_wanted() -> None:
    with serving("--listen", "ws://0.0.0.0:0", "--insecure-no-auth") as server:
        assert server.url.startswith("ws://0.0.0.0:")
        assert (await http(server.url, "/readyz")).status == 200
        assert server.errors == ""


async def test_beyond_loopback_is_possible_with_auth(token: str) -> None:
    options = ("--ws-auth", "capability-token", "--ws-token-file", token)
    with serving("--listen", "ws://0.0.0.0:0", *options) as server:
        assert (await http(server.url, "/readyz")).status == 200
        assert server.errors == ""


# -- unix sockets: an extension


async def _ask(path: Path) -> bytes:
    """One request on a unix socket: the line that answers it."""
    async with asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"id":1,"method":"initialize","params":{"clientName":"x"}}\n')
        line = await reader.readline()
        writer.close()
    return line


async def test_a_unix_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving("--listen", f"unix://{path}") as server:
        assert server.url == f"unix://{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"sessionId" in await _ask(path)
        assert b"sessionId" in await _ask(path)
        assert server.errors == ""


@pytest.mark.slow
async def test_a_socket_file_left_by_a_server_that_is_gone_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving("--listen", f"unix://{path}") as server:
        os.kill(server.serving_pid, signal.SIGKILL)
        server.process.wait(LIMIT)
        assert path.is_socket()
    with serving("--listen", f"unix://{path}") as server:
        assert b"sessionId" in await _ask(path)


@pytest.mark.slow
async def test_a_socket_file_of_a_living_server_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving("--listen", f"unix://{path}"):
        assert _error("--listen", f"unix://{path}") == (
            f"Error: cannot listen on unix://{path}: Address already in use (os error 98)\n"
        )
        assert b"sessionId" in await _ask(path)


def test_a_file_that_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    assert _error("--listen", f"unix://{path}") == (
        f"Error: cannot listen on unix://{path}: Address already in use (os error 98)\n"
    )
    assert path.read_text() == "precious"


@pytest.mark.parametrize("url", ["unix://relative/path", "unix://host"])
def test_a_unix_socket_has_an_absolute_path(url: str) -> None:
    assert _error("--listen", url) == (
        f"Error: invalid unix --listen URL `{url}`; expected `unix:///absolute/path`\n"
    )


def test_a_unix_socket_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "socket"
    assert _error("--listen", f"unix://{path}") == (
        f"Error: cannot listen on unix://{path}: No such file or directory (os error 2)\n"
    )


# -- the end


@pytest.mark.requirement("serve.end.signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_server_with_status_0(number: signal.Signals) -> None:
    with serving() as server:
        async with connect(server.url) as client:
            assert await client.is_ready()
            assert server.stop(number) == 0
            assert await client.ended()
        assert server.errors == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_whose_start_is_cut_short_is_not_left_behind(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*HOLDFAST, "exec-server"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    process.send_signal(number)
    # Whatever was started by then holds the pipe, which ends only when all of it has.
    process.communicate(timeout=2 * LIMIT)

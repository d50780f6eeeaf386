"""`holdfast serve` is never open by default: its token, who finds it, and what reloads it."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

import holdfast
from holdfast.base.errors import ConnectFailed
from holdfast.base.local_servers import find_token, runtime_directory
from tests.e2e.wire import HOLDFAST, LIMIT, UPGRADE, Ended, ServerProcess, connect, http, serving

SERVE = (*HOLDFAST, "serve")

PROFILE = """
network = "enabled"
[file_system]
entries = [{ path = ":root", access = "read" }, { path = ":project_roots", access = "write" }]
"""


@pytest.fixture(scope="module", autouse=True)
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the servers and the clients of these tests a runtime directory of their own."""
    folder = tmp_path_factory.mktemp("runtime")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.delenv("HOLDFAST_TOKEN", raising=False)
        yield dict(os.environ)


@pytest.fixture(scope="module")
def served(environ: dict[str, str]) -> Iterator[ServerProcess]:
    """A server that was told nothing."""
    with serving(command=SERVE) as server:
        yield server
        assert server.stop() == 0
        assert server.errors == ""
    assert find_token(server.url, environ) is None
    assert list(Path(runtime_directory(environ)).iterdir()) == []


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def may_connect(url: str, token: str | None) -> bool:
    headers = {**UPGRADE, **({} if token is None else bearer(token))}
    answer = await http(url, headers=headers)
    assert answer.status in (101, 401), answer
    return answer.status == 101


@pytest.mark.requirement("security.token.needed")
async def test_nobody_comes_in_without_the_token(
    served: ServerProcess, environ: dict[str, str]
) -> None:
    token = find_token(served.url, environ)
    assert token is not None
    assert await may_connect(served.url, token)
    for wrong in (None, "x", token[:-1], token + "0", token.upper(), "\x00" + token):
        assert not await may_connect(served.url, wrong)
    with pytest.raises(InvalidStatus):
        async with connect(served.url):
            pass


@pytest.mark.requirement("security.token.found")
async def test_clients_of_the_same_user_find_the_token(served: ServerProcess) -> None:
    port = served.url.rpartition(":")[2]
    for url in (served.url, f"ws://localhost:{port}"):
        async with holdfast.connect(url) as env:
            assert (await env.run("echo hello")).stdout == "hello\n"
    run = [*HOLDFAST, "run", "--url", served.url, "--", "echo", "hello"]
    done = await asyncio.to_thread(subprocess.run, run, capture_output=True, timeout=2 * LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\n", b"")


@pytest.mark.requirement("security.token.needed")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
async def test_another_user_neither_finds_nor_reads_the_token(
    served: ServerProcess, environ: dict[str, str]
) -> None:
    folder = runtime_directory(environ)
    Path(folder).parent.chmod(0o711)  # all that a careless administrator could do
    script = (
        "import os, sys\n"
        "for way in (lambda: os.listdir(sys.argv[1]), lambda: open(sys.argv[2])):\n"
        "    try: print(way())\n"
        "    except PermissionError: print('no')\n"
    )
    (name,) = os.listdir(folder)
    done = await asyncio.to_thread(
        subprocess.run,
        ["/usr/bin/python3", "-c", script, folder, f"{folder}/{name}"],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        timeout=LIMIT,
    )
    assert done.stdout == b"no\nno\n", done


@pytest.mark.requirement("security.token.private")
def test_the_token_is_on_no_command_line_and_in_no_variable(
    served: ServerProcess, environ: dict[str, str]
) -> None:
    token = find_token(served.url, environ)
    assert token is not None
    for pid in (served.pid, served.serving_pid):
        for file in ("cmdline", "environ"):
            assert token.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()


@pytest.mark.requirement("security.pages")
async def test_pages_for_operators(served: ServerProcess, environ: dict[str, str]) -> None:
    for path in ("/readyz", "/healthz"):
        assert (await http(served.url, path)).status == 200
        assert (await http(served.url, path, method="POST")).status == 405
    assert (await http(served.url, "/metrics")).status == 401
    assert (await http(served.url, "/metrics", headers=bearer("wrong"))).status == 401
    token = bearer(find_token(served.url, environ) or "")
    assert (await http(served.url, "/metrics", headers={**token, "Origin": "x"})).status == 403
    async with connect(served.url, headers=token):
        answer = await http(served.url, "/metrics", headers=token)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'holdfast_connections{principal="default"} 1\n' in answer.body
    assert 'holdfast_sessions{principal="default"} ' in answer.body
    lines = [line for line in answer.body.splitlines() if not line.startswith("#")]
    assert all(float(line.rpartition(" ")[2]) >= 0 for line in lines)
    assert await_total(lines, "holdfast_refusals_total") >= 2


def await_total(lines: list[str], name: str) -> float:
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_a_hang_up_ends_nothing(served: ServerProcess, environ: dict[str, str]) -> None:
    token = bearer(find_token(served.url, environ) or "")
    async with connect(served.url, headers=token) as client:
        for pid in (served.pid, served.serving_pid, served.pid):
            os.kill(pid, signal.SIGHUP)
            assert await client.is_ready()
        assert await may_connect(served.url, find_token(served.url, environ))
        assert served.process.poll() is None


# -- a file with tokens


@pytest.mark.requirement("auth.revoked")
async def test_tokens_are_replaced_and_revoked_ones_end(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    log = {**os.environ, "HOLDFAST_LOG": "info"}
    with serving("--token-file", str(file), command=SERVE, env=log) as server:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        first = file.read_text().strip()
        second = "second-token-of-the-test"
        async with connect(server.url, headers=bearer(first)) as client:
            file.write_text(f"ops {second}\n{first}\n")  # both, for a while
            await reload(server)
            assert await client.is_ready()
            file.write_text(f"ops {second}\n")
            await reload(server)
            with pytest.raises(Ended):
                await client.is_ready()
        assert "token revoked principal=default connections=1" in server.errors
        async with connect(server.url, headers=bearer(second)) as client:
            for text, works in (
                ("short\n", (False, True)),  # cannot be used: those before still count
                (f"{first}\nops {second}\n", (True, True)),
            ):
                file.write_text(text)
                await reload(server)
                assert (
                    await may_connect(server.url, first),
                    await may_connect(server.url, second),
                ) == works
                assert await client.is_ready()
            file.chmod(0o644)
            await reload(server)
            assert await may_connect(server.url, first)
        assert "others can read it (mode 0644)" in server.errors
        assert "has fewer than 16 characters" in server.errors
        for secret in (first, second):
            assert secret not in server.errors
        # What our own clients find by the URL is refused by the same rule.
        with pytest.raises(ConnectFailed, match="others can read it"):
            async with holdfast.connect(server.url):
                pass


async def reload(server: ServerProcess) -> None:
    """Send SIGHUP, and wait until it is logged that all was read again or could not be."""
    seen = server.errors.count("SIGHUP")
    os.kill(server.pid, signal.SIGHUP)
    async with asyncio.timeout(LIMIT):
        while server.errors.count("SIGHUP") == seen:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.002)


def refusal(*options: str, command: str = "serve") -> str:
    done = subprocess.run(
        [*HOLDFAST, command, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT,
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.removeprefix("Error: ").removesuffix("\n")


@pytest.mark.requirement("security.token-file.refused")
def test_a_server_whose_token_others_can_read_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-that-is-long-enough")
    file.chmod(0o644)
    assert f"cannot use the token file {file}: others can read it" in refusal(
        "--token-file", str(file)
    )


# -- a client on the network


@pytest.mark.requirement("security.token.clear")
def test_no_token_goes_over_the_network_in_the_clear(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("a-token")
    # An address that nobody has: whoever tried it would wait.
    url = ["--url", "ws://192.0.2.1:4500", "--token-file", str(file)]
    done = subprocess.run(
        [*HOLDFAST, "run", *url, "--", "true"], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 125
    assert "headers require wss:// or a loopback destination" in done.stderr


# -- open servers, and sandboxes


@pytest.mark.requirement("security.servers.open")
async def test_an_open_server_says_so_at_its_start_and_in_every_sandbox_with_a_network(
    tmp_path: Path,
) -> None:
    (tmp_path / "open.toml").write_text(PROFILE)
    with serving("--no-auth", command=SERVE) as server:
        assert server.errors.startswith("Warning: this server requires no token: every user")
        async with holdfast.connect(server.url, cwd=tmp_path) as env:
            for sandbox, told in ((str(tmp_path / "open.toml"), True), ("workspace-write", False)):
                done = await env.run("true", sandbox=sandbox)
                assert done.enforcement is not None
                gaps = [gap for gap in done.enforcement.gaps if server.url in gap]
                assert bool(gaps) is told
    async with holdfast.connect(cwd=tmp_path) as env:  # it is gone
        done = await env.run("true", sandbox=str(tmp_path / "open.toml"))
        assert done.enforcement is not None
        assert not any(server.url in gap for gap in done.enforcement.gaps)


WAYS_OUT = """
import json, os, socket, sys

url, folder, path, token_file = sys.argv[1:]
host, _, port = url.removeprefix("ws://").rpartition(":")


def port_of_the_server():
    line = socket.create_connection((host, int(port)))
    head = "GET / HTTP/1.1\\r\\nConnection: upgrade\\r\\nUpgrade: websocket\\r\\n"
    head += "Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\\r\\n\\r\\n"
    line.sendall(head.encode())
    answer = line.recv(1000).decode()
    assert answer.startswith("HTTP/1.1 101"), answer.partition("\\r\\n")[0]


def socket_of_the_other_server():
    socket.socket(socket.AF_UNIX).connect(path)


def token():
    for name in os.listdir(folder):
        open(os.path.join(folder, name)).read()


def tokens():
    assert open(token_file).read()


def variable():
    os.environ["HOLDFAST_TOKEN"]


for way in (port_of_the_server, socket_of_the_other_server, token, tokens, variable):
    try:
        way()
        print(way.__name__, "OPEN")
    except Exception as error:
        print(way.__name__, "closed", type(error).__name__, error, file=sys.stderr)
"""


@pytest.mark.requirement("security.servers.every", "security.servers.options")
@pytest.mark.slow
async def test_the_server_is_no_way_out_of_a_sandbox(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = ("port_of_the_server", "socket_of_the_other_server", "token", "tokens", "variable")
    (tmp_path / "open.toml").write_text(PROFILE)
    (tmp_path / "ways.py").write_text(WAYS_OUT)
    path, tokens = tmp_path / "s", tmp_path / "tokens"
    monkeypatch.setenv("HOLDFAST_TOKEN", "")  # not for our own clients
    # A variable of the server is one that commands would inherit.
    variables = {**os.environ, "HOLDFAST_TOKEN": "a-token-of-another-server"}
    with (
        serving("--listen", f"unix://{path}", command=SERVE),
        serving("--token-file", str(tokens), command=SERVE, env=variables) as server,
    ):
        folder = runtime_directory(environ)
        secrets = [f"{folder}/{name}" for name in os.listdir(folder)]
        command = ["/usr/bin/python3", "ways.py", server.url, folder, str(path), str(tokens)]
        async with holdfast.connect(server.url, cwd=tmp_path) as env:
            free = await env.run(command)
            # The one that inherits nothing is closed to all; the port asks everybody.
            assert free.stdout.split() == [word for way in ways[1:4] for word in (way, "OPEN")], (
                free.stderr
            )
            for variables in ({}, {"HOLDFAST_TOKEN": "of-the-client"}):
                inside = await env.run(command, sandbox=str(tmp_path / "open.toml"), env=variables)
                assert inside.stdout == "", inside.stdout
                assert inside.stderr.count("closed") == len(ways), inside.stderr
            # Nor by file operations that keep to a profile.
            for file in (tokens, *secrets):
                for sandbox in ("read-only", str(tmp_path / "open.toml")):
                    with pytest.raises(holdfast.HoldfastError, match="Permission denied"):
                        async with holdfast.connect(
                            server.url, cwd=tmp_path, sandbox=sandbox
                        ) as environment:
                            await environment.files.read_text(str(file))


def test_a_terminal_that_closes_ends_a_server() -> None:
    controller, terminal = os.openpty()
    script = "import os, sys; os.setsid(); import fcntl, termios; "
    script += "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *SERVE],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(terminal)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ws://")
    process.send_signal(signal.SIGHUP)  # the terminal is there: nothing ends
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    os.close(controller)
    process.communicate(timeout=2 * LIMIT)
    assert process.returncode in (0, 128 + signal.SIGHUP, -signal.SIGHUP)

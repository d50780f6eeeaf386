"""A server as whoever operates it sees it: config file, log, audit log, systemd."""

import asyncio
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base.errors import RemoteError
from holdfast.wire.protocol.paths import PathUri
from tests.e2e.wire import (
    HOLDFAST,
    LIMIT,
    UPGRADE,
    Client,
    ServerProcess,
    connect,
    first_line,
    http,
    serving,
    to_base64,
)

SECRET = "xyzzy-3141"
"""Stands for what no log may have: variables, input, output, contents, tokens."""

HOSTILE = "p\n2026 INFO forged: yes\x1b[2J\x9b"
"""The id of a process, which a client may choose freely."""


def objects(text: str) -> list[dict[str, Any]]:
    """Return the lines of a JSON log; each of them has to be one."""
    return [json.loads(line) for line in text.splitlines()]


def of(found: list[dict[str, Any]], **wanted: object) -> list[dict[str, Any]]:
    return [line for line in found if all(line.get(k) == v for k, v in wanted.items())]


def read_only() -> dict[str, Any]:
    root = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
    return {
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": [root]},
            "network": "restricted",
        },
        "windowsSandboxLevel": "disabled",
    }


async def use(client: Client, folder: Path) -> None:
    """Do one of everything that there is to tell about."""
    script = f"read x; echo {SECRET[:5]}$x$VARIABLE"
    variables = {"PATH": os.environ["PATH"], "VARIABLE": SECRET}
    await client.start(HOSTILE, ["/bin/sh", "-c", script], env=variables, pipeStdin=True)
    await client.write(HOSTILE, f"{SECRET}\n".encode())
    assert SECRET.encode() in (await client.finish(HOSTILE)).stdout
    await client.start("odd", ["/bin/true", "-\u202e"], cwd=path("/tmp"))
    await client.finish("odd")
    await client.refusal("process/start", {**_start("none"), "argv": ["/no/such\nprogram"]})
    tries = "import socket\ntry: socket.create_connection(('127.0.0.1', 9))\nexcept OSError: pass"
    await client.start("net", [sys.executable, "-c", tries], sandbox=read_only())
    await client.finish("net")
    file = path(folder / "new\nfile")
    await client.call("fs/writeFile", {"path": file, "dataBase64": to_base64(SECRET.encode())})
    await client.call("fs/copy", _copy(file, folder / "copy"))
    await client.call("fs/createDirectory", {"path": path(folder / "made")})
    await client.call("fs/remove", {"path": path(folder / "copy")})
    await client.refusal("fs/writeFile", {"path": path("/proc/x"), "dataBase64": ""})
    opened = {"handleId": "h", "path": path(folder / "blocks"), "mode": "replace"}
    await client.call("fs/open", opened)
    await client.call("fs/readFile", {"path": file})
    url = f"http://user:{SECRET}@127.0.0.1:1/{SECRET}?q={SECRET}"
    await client.refusal("http/request", {"method": "GET", "url": url, "requestId": "r"})


def _start(process_id: str) -> dict[str, Any]:
    return {"processId": process_id, "cwd": "file:///", "env": {}, "tty": False}


def _copy(source: str, target: Path) -> dict[str, Any]:
    return {"sourcePath": source, "destinationPath": path(target), "recursive": False}


def path(name: Path | str) -> str:
    return str(PathUri.from_path(str(name)))


@pytest.mark.requirement("security.session.id", "security.log.contents")
async def test_a_server_tells_what_happens_and_keeps_what_is_none_of_anybodys_business(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    config = tmp_path / "server.toml"
    config.write_text(
        'ws-auth = "capability-token"\nws-token-file = "token"\n'
        'log-level = "info"\nlog-format = "json"\naudit-log = "audit"\n'
    )
    with serving("--config", str(config)) as server:
        refused = await http(server.url, headers={**UPGRADE, "Authorization": f"Bearer x{SECRET}"})
        assert refused.status == 401
        token = {"Authorization": f"Bearer {SECRET}"}
        async with connect(server.url, headers=token) as client:
            session = client.session_id
            await use(client, tmp_path)
            await client.start("long", ["sleep", "100"])
        assert server.stop() == 0
        log, text = objects(server.errors), server.errors
    audit = objects((tmp_path / "audit").read_text())
    everything = text + (tmp_path / "audit").read_text()
    assert SECRET not in everything
    assert session not in everything  # who has all of it could resume the session
    assert everything.isascii()
    _check_log(log, session[:8])
    _check_audit(audit, session[:8], tmp_path)


def _check_log(log: list[dict[str, Any]], session: str) -> None:
    assert all(line["time"].endswith("Z") and line["level"] == "info" for line in log)
    (refused,) = of(log, message="connection refused")
    assert (refused["status"], refused["reason"]) == (401, "invalid websocket bearer token")
    assert refused["address"].startswith("127.0.0.1:")
    (opened,) = of(log, message="connection opened")
    assert opened["peer"].startswith("websocket 127.0.0.1:")
    (begun,) = of(log, message="session opened")
    assert (begun["session"], begun["client"], begun["principal"]) == (session, "test", "default")
    (started,) = of(log, message="process started", process=HOSTILE)
    assert (started["program"], started["cwd"], started["sandbox"]) == ("/bin/sh", "/", "none")
    (ended,) = of(log, message="process ended", process=HOSTILE)
    assert (ended["verdict"], ended["exit_code"], ended["pid"]) == ("exited", 0, started["pid"])
    assert ended["output_bytes"] == len(SECRET) * 2 + 6
    assert ended["seconds"] >= 0
    (inside,) = of(log, message="process started", process="net")
    assert inside["sandbox"] in ("full", "withoutProc")
    (failed,) = of(log, message="process not started")
    assert (failed["process"], failed["program"]) == ("none", "/no/such\nprogram")
    (closed,) = of(log, message="connection closed")
    assert closed["seconds"] >= 0
    (over,) = of(log, message="session ended")
    assert (over["reason"], over["killed"]) == ("serverStopping", 1)
    (killed,) = of(log, message="process ended", process="long")
    assert (killed["verdict"], killed["signal"]) == ("serverStopping", 9)


def _check_audit(audit: list[dict[str, Any]], session: str, folder: Path) -> None:
    refused = audit.pop(0)
    assert (refused["event"], refused["status"]) == ("refused", 401)
    assert refused["address"].startswith("127.0.0.1:")
    assert refused["reason"] == "invalid websocket bearer token"
    assert all(line["principal"] == "default" for line in audit)
    assert all(line["session"] == session for line in audit)
    opened, over = of(audit, event="session")
    assert (opened["state"], opened["client"]) == ("opened", "test")
    assert opened["peer"].startswith("websocket 127.0.0.1:")
    assert (over["state"], over["reason"], over["killed"]) == ("ended", "serverStopping", 1)
    commands = {line["process"]: line for line in of(audit, event="command")}
    assert commands.keys() == {HOSTILE, "odd", "none", "net", "long"}
    assert commands[HOSTILE]["argv"][:2] == ["/bin/sh", "-c"]
    assert (commands["odd"]["argv"], commands["odd"]["cwd"]) == (["/bin/true", "-\u202e"], "/tmp")
    assert (commands["net"]["network"], commands["odd"]["network"]) == (
        "restricted",
        "unrestricted",
    )
    assert "No such file" in commands["none"]["error"]
    ends = {line["process"]: line for line in of(audit, event="exit")}
    assert ends.keys() == commands.keys() - {"none"}
    assert (ends["odd"]["verdict"], ends["odd"]["exitCode"]) == ("exited", 0)
    denied, asked = of(audit, event="network")
    assert (denied["decision"], denied["process"], denied["kind"]) == ("denied", "net", "stream")
    assert (asked["decision"], asked["target"]) == ("allowed", "http://127.0.0.1:1")
    assert asked["error"]
    files = [(line["operation"], line["path"]) for line in of(audit, event="file")]
    assert files == [
        ("writeFile", str(folder / "new\nfile")),
        ("copy", str(folder / "copy")),
        ("createDirectory", str(folder / "made")),
        ("remove", str(folder / "copy")),
        ("writeFile", "/proc/x"),
        ("open:replace", str(folder / "blocks")),
    ]
    assert [bool(line.get("error")) for line in of(audit, event="file")] == [
        *[False] * 4,
        True,
        False,
    ]


@pytest.mark.requirement("security.own.settings")
async def test_a_sandboxed_command_cannot_change_the_files_of_its_server(tmp_path: Path) -> None:
    """Not even if all of them are in its workspace, and the audit log was made by this server."""
    config, log, audit = (tmp_path / name for name in ("serve.toml", "log", "audit"))
    config.write_text('audit-log = "audit"\nlog-level = "info"\n')
    script = "for it in serve.toml log audit; do echo x >> $it; rm -f $it; mv $it other; done; ls"
    command = [*HOLDFAST, "exec-server", "--config", str(config)]
    with log.open("w") as stderr:
        process = subprocess.Popen(  # noqa: ASYNC220 - as `serving` does
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
    try:
        async with holdfast.connect(first_line(process), cwd=tmp_path) as env:
            done = await env.run(script, sandbox="workspace-write")
        assert done.stdout.split() == ["audit", "log", "serve.toml"], done
        process.terminate()
        assert process.wait(2 * LIMIT) == 0
    finally:
        process.kill()
        process.communicate()
    found = objects(audit.read_text())
    assert len(of(found, event="command")) == len(of(found, event="exit")) == 1
    for file in (config, log):
        assert not file.read_text().endswith("x\n")


async def test_each_level_tells_more_than_the_one_before(tmp_path: Path) -> None:
    told: list[set[str]] = []
    for level in ("warning", "info", "debug"):
        # Something to warn of: the device takes nothing.
        with serving("--log-level", level, "--audit-log", "/dev/full") as server:
            async with connect(server.url) as client:
                await client.run(["true"])
            assert server.stop() == 0
            lines = server.errors.splitlines()
        assert all(line.split()[0].endswith("Z") for line in lines)
        told.append({line.split()[1] for line in lines})
        assert any("audit lines could not be written" in line for line in lines)
    assert told == [{"WARNING"}, {"WARNING", "INFO"}, {"WARNING", "INFO", "DEBUG"}]


async def test_a_reader_that_is_stuck_holds_up_nobody_and_no_line_of_the_audit_is_missing(
    tmp_path: Path,
) -> None:
    """`HOLDFAST_AUDIT_STARTS=2000` makes it a burst."""
    starts = int(os.environ.get("HOLDFAST_AUDIT_STARTS", "300"))
    unread, stderr = os.pipe()
    fcntl.fcntl(stderr, fcntl.F_SETPIPE_SZ, 4096)  # soon full
    audit = tmp_path / "audit"
    command = [*HOLDFAST, "exec-server", "--log-level", "info", "--audit-log", str(audit)]
    process = subprocess.Popen(  # noqa: ASYNC220 - as `serving` does
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
    )
    os.close(stderr)
    try:
        async with connect(first_line(process)) as client:
            for number in range(starts):
                params = {**_start(f"p{number}"), "argv": ["/bin/true", "x" * 60]}
                await client.request("process/start", params, request_id=number + 1000)
            for number in range(starts):
                await client.finish(f"p{number}")
            assert await client.is_ready()
        os.close(unread)
        process.terminate()
        assert process.wait(2 * LIMIT) == 0
    finally:
        process.kill()
        process.wait(LIMIT)
        assert process.stdout is not None
        process.stdout.close()
    found = objects(audit.read_text())
    assert len(of(found, event="command")) == len(of(found, event="exit")) == starts
    assert not of(found, event="lost")


def test_a_server_with_a_mistake_in_its_config_says_so(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('lisen = "x"\n')
    done = subprocess.run(
        [*HOLDFAST, "serve", "--config", str(config)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (f"Error: {config}: unknown option `lisen`; did you mean `listen`?\n")


# -- systemd

ACTIVATE = """
import os, sys
for number, fd in enumerate(map(int, sys.argv[1].split(",")) if sys.argv[1] else (), 3):
    os.dup2(fd, number)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "holdfast.front.cli", "serve", *sys.argv[2:]])
"""
"""Stands for systemd: hands sockets over under the numbers that it uses."""


class Notices:
    """
    The other end of NOTIFY_SOCKET.

    It is read all the time: the kernel keeps ten notices, and a server does not wait for room.
    """

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name)
        self._received: asyncio.Queue[str] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)

    def _receive(self) -> None:
        self._received.put_nowait(self._socket.recv(1000).decode())

    async def next(self) -> str:
        async with asyncio.timeout(LIMIT):
            return await self._received.get()

    async def other_than(self, text: str) -> str:
        while (told := await self.next()) == text:
            pass
        return told

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()


@contextmanager
def activated(
    sockets: list[socket.socket], *options: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """Start a server as systemd does; yields it and the URLs that it printed."""
    numbers = ",".join(str(sock.fileno()) for sock in sockets)
    process = subprocess.Popen(
        [sys.executable, "-c", ACTIVATE, numbers, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[sock.fileno() for sock in sockets],
        env={**os.environ, "LISTEN_FDS": str(len(sockets)), **variables},
    )
    try:
        assert process.stdout is not None
        urls = [process.stdout.readline().decode().strip() for _ in sockets]
        yield process, urls
    finally:
        process.terminate()
        process.wait(2 * LIMIT)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


async def test_a_service_gets_its_sockets_and_tells_how_it_is(tmp_path: Path) -> None:
    notices = Notices(str(tmp_path / "notify"))
    port, file = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    file.bind(str(tmp_path / "sock"))
    os.chmod(tmp_path / "sock", 0o600)
    file.listen()
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    try:
        with activated([port, file], "--no-auth", **variables) as (process, urls):
            number = port.getsockname()[1]
            assert urls == [f"ws://127.0.0.1:{number}", f"unix://{tmp_path / 'sock'}"]
            assert await notices.next() == "READY=1"
            assert await notices.next() == "WATCHDOG=1"
            assert await notices.next() == "WATCHDOG=1"  # again and again
            async with connect(urls[0]) as client:
                seen = await client.run(["sh", "-c", "env; ls -l /proc/self/fd"], envPolicy=INHERIT)
            for name in (b"LISTEN_FDS", b"LISTEN_PID", b"NOTIFY_SOCKET", b"WATCHDOG"):
                assert name not in seen.stdout
            assert b"socket:" not in seen.stdout  # nothing that it started has one of them
            process.send_signal(signal.SIGHUP)
            assert (await notices.other_than("WATCHDOG=1")).startswith("RELOADING=1")
            assert await notices.other_than("WATCHDOG=1") == "READY=1"
            process.terminate()
            assert await notices.other_than("WATCHDOG=1") == "STOPPING=1"
            assert process.wait(2 * LIMIT) == 0
        assert (tmp_path / "sock").exists()  # it is systemd's
    finally:
        notices.close()
        port.close()
        file.close()


INHERIT = {
    "inherit": "all",
    "ignoreDefaultExcludes": True,
    "exclude": [],
    "set": {},
    "includeOnly": [],
}


def test_a_socket_that_everybody_can_use_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as file:
        file.bind(str(tmp_path / "sock"))
        os.chmod(tmp_path / "sock", 0o666)
        file.listen()
        # A manager that is gone is no concern of the server.
        with activated([file], NOTIFY_SOCKET=str(tmp_path / "none")) as (process, _):
            assert process.wait(2 * LIMIT) == 1
            assert process.stderr is not None
            assert b"every user of this machine can connect" in process.stderr.read()


async def test_the_config_of_a_port_serves_a_socket_file_from_systemd(tmp_path: Path) -> None:
    """The units in `packaging` name one config, whatever their sockets are."""
    config = tmp_path / "server.toml"
    text = (Path(__file__).parents[2] / "packaging/server.toml").read_text()
    config.write_text(text.replace("/var/log/holdfast", str(tmp_path)))
    with socket.socket(socket.AF_UNIX) as file:
        file.bind(str(tmp_path / "sock"))
        os.chmod(tmp_path / "sock", 0o600)
        file.listen()
        with activated([file], "--config", str(config)) as (process, urls):
            assert urls == [f"unix://{tmp_path / 'sock'}"]
            async with holdfast.connect(urls[0]) as env:
                assert (await env.run("true")).ok
            assert process.stderr is not None
            process.terminate()
            assert process.wait(2 * LIMIT) == 0
            assert b"Warning: --token-file is ignored: the mode of" in process.stderr.read()
    assert not (tmp_path / "token").exists()


async def test_a_stuck_event_loop_is_no_sign_of_life() -> None:
    """The signs come from the loop of the server: a server that is stopped sends none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sink:
        sink.bind("\0holdfast-test-" + str(os.getpid()))
        sink.setblocking(False)
        name = "@holdfast-test-" + str(os.getpid())
        variables = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "100000"}
        with serving(env={**os.environ, **variables}) as server:
            async with asyncio.timeout(LIMIT):
                while await asyncio.get_running_loop().sock_recv(sink, 100) != b"WATCHDOG=1":
                    pass
            os.kill(server.serving_pid, signal.SIGSTOP)
            while select.select([sink], [], [], 0.3)[0]:
                sink.recv(100)
            assert not select.select([sink], [], [], 0.3)[0]
            os.kill(server.serving_pid, signal.SIGCONT)
            assert select.select([sink], [], [], LIMIT)[0]


async def reloaded(server: ServerProcess, text: str) -> str:
    """Send SIGHUP, wait for a text that is new in the log, and return what is new there."""
    seen = len(server.errors)
    server.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(LIMIT):
        while text not in server.errors[seen:]:  # noqa: ASYNC110 - only the log says so
            await asyncio.sleep(0.01)
    return server.errors[seen:]


async def test_settings_change_while_a_server_runs(tmp_path: Path) -> None:
    config, audit = tmp_path / "server.toml", tmp_path / "audit"
    first = f'log-level = "info"\naudit-log = "{audit}"\nmax-processes = 1\n'
    config.write_text(first)
    command = (*HOLDFAST, "serve", "--max-requests", "5")
    with serving("--config", str(config), command=command) as server:
        async with holdfast.connect(server.url) as env, env.start(["sleep", "600"]):
            with pytest.raises(RemoteError, match="1 processes already"):
                await env.run("true")
            config.write_text(
                first.replace("= 1", "= 2") + "drain = 3\nidle-exit = 60\nmax-requests = 9\n"
            )
            said = await reloaded(server, "idle-exit")
            assert "max-processes changed from 1 to 2\n" in said
            assert "drain changed, which needs a restart\n" in said
            assert "idle-exit changed, which needs a restart\n" in said
            # The command line wins, now as at the start.
            assert "max-requests" not in said
            assert (await env.run("true")).ok
            # A file with a mistake changes nothing.
            config.write_text('max-proceses = 3\nlog-level = "error"\n')
            said = await reloaded(server, "the previous values stay in use")
            assert "unknown option `max-proceses`; did you mean `max-processes`?" in said
            assert (await env.run("true")).ok
            # A FIFO would hang, and each attempt would leave a thread.
            config.unlink()
            os.mkfifo(config)
            for _ in range(9):
                said = await reloaded(server, "the previous values stay in use")
                assert f"cannot read {config}: it is not a regular file" in said
            config.unlink()
            # Without the file all is as if it had never been there.
            config.write_text("")
            said = await reloaded(server, "log-level changed from info to error")
            assert "max-processes changed from 2 to unlimited\n" in said
            async with env.start(["sleep", "600"]):
                assert (await env.run("true")).ok
            # What has no effect is logged at the usual level, too.
            config.write_text(f'audit-log = "{audit}.new"\n')
            await reloaded(server, "audit-log changed, which needs a restart\n")
            config.write_text('log-level = "debug"\n')
            await reloaded(server, "log-level changed from error to debug")
        assert server.stop() == 0
    lines = of(objects(audit.read_text()), event="reload")
    assert [line["changed"] for line in lines] == [
        ["max-processes changed from 1 to 2"],
        *[[]] * 10,
        ["log-level changed from info to error", "max-processes changed from 2 to unlimited"],
        [],
        ["log-level changed from error to debug"],
    ]
    assert [line["restart"] for line in lines[:2]] == [["drain", "idle-exit"], []]
    assert [len(line["problems"]) for line in lines] == [0, *[1] * 10, 0, 0, 0]

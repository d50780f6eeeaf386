"""The app-server from outside: real sockets, real commands, clients that misbehave."""

import asyncio
import base64
import ctypes
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus

from holdfast.base.local_servers import find_token
from tests.depth import times
from tests.e2e.app_wire import (
    APP_SERVER,
    APP_UPGRADE,
    FULL,
    HELLO,
    TOKEN,
    AppClient,
    app_connect,
    app_serving,
    blocked_in_write,
    resident,
    sh,
)
from tests.e2e.wire import LIMIT, Fifo, ServerProcess, children, frame, gone, is_alive

EXITED = "process/exited"
DELTA = "command/exec/outputDelta"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """Serve all tests of the module, and check at the end that nothing is left."""
    with app_serving() as server:
        yield server
        assert server.process.poll() is None
        assert server.stop() == 0
        assert server.errors == ""


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[AppClient]:
    async with app_connect(server.url) as client:
        yield client


# -- handshake and envelope


@pytest.mark.requirement("app-server.handshake")
async def test_nothing_is_served_before_initialize(server: ServerProcess) -> None:
    async with app_connect(server.url, hello=None) as client:
        refused = await client.call("command/exec", command=["/bin/true"])
        assert refused == (-32600, "Not initialized")
        code, text = await client.call("thread/start")
        assert code == -32600
        assert text.startswith("Invalid request: unknown variant `thread/start`, expected one of")
        assert "`command/exec/resize`" in text
        await client.send({**HELLO, "id": "hello"})
        told = await client.answer("hello")
        assert sorted(told) == ["codexHome", "platformFamily", "platformOs", "userAgent"]
        assert await client.call("initialize", **HELLO["params"]) == (
            -32600,
            "Already initialized",
        )


@pytest.mark.requirement("app-server.handshake")
async def test_the_name_of_a_client_can_be_in_a_header(server: ServerProcess) -> None:
    async with app_connect(server.url, hello=None) as client:
        for name in ("a\nb", "\x7f"):
            refused = await client.call("initialize", clientInfo={"name": name, "version": "1"})
            text = f"Invalid clientInfo.name: '{name}'. Must be a valid HTTP header value."
            assert refused == (-32600, text)
        told = await client.call("initialize", clientInfo={"name": "é\t", "version": "1"})
        assert told["userAgent"].startswith("é\t/")


@pytest.mark.requirement("app-server.junk")
@pytest.mark.parametrize(
    "junk",
    [
        "",
        " ",
        "{",
        "nonsense",
        "[]",
        '"text"',
        "17",
        "{}",
        '{"id":1.5,"method":"command/exec","params":{"command":["/bin/true"]}}',
        '{"id":null,"method":"command/exec","params":{"command":["/bin/true"]}}',
        '{"id":9223372036854775808,"method":"command/exec","params":{}}',
        '{"id":5,"method":7}',
        '{"method":"no/such/notification","params":{}}',
        '{"id":5,"result":{}}',
        '{"id":"x","error":{"code":1,"message":"m"}}',
        '{"id":5,"method":"command/exec","params":{"command":["\\ud800"]}}',
        "[" * 5000,
        '{"id":5,"method":"x","params":' + "[" * 5000 + "]" * 5000 + "}",
    ],
    ids=lambda junk: junk[:30] or "empty",
)
async def test_junk_gets_no_answer_and_does_no_harm(client: AppClient, junk: str) -> None:
    await client.send_raw(junk)
    assert (await client.run("/bin/echo", "x"))["stdout"] == "x\n"
    assert [message["id"] for message in client.log] == [0, 1]


@pytest.mark.requirement("app-server.envelope")
async def test_ids_are_echoed_and_notifications_have_a_time(client: AppClient) -> None:
    params = {
        "command": ["/bin/echo", "x"],
        "processId": "p",
        "streamStdoutStderr": True,
        "sandboxPolicy": FULL,
    }
    await client.send({"jsonrpc": "2.0", "id": "abc", "method": "command/exec", "params": params})
    assert (await client.answer("abc"))["exitCode"] == 0
    note, answer = client.log[1:]
    assert list(note) == ["method", "params", "emittedAtMs"]
    assert isinstance(note["emittedAtMs"], int)
    assert note["params"] == {
        "processId": "p",
        "stream": "stdout",
        "deltaBase64": "eAo=",
        "capReached": False,
    }
    assert list(answer) == ["id", "result"]


@pytest.mark.requirement("app-server.opt-out")
async def test_a_client_need_not_get_what_it_does_not_want(server: ServerProcess) -> None:
    hello: dict[str, Any] = {
        **HELLO,
        "params": {
            "clientInfo": {"name": "test", "version": "1"},
            "capabilities": {"experimentalApi": True, "optOutNotificationMethods": [DELTA, EXITED]},
        },
    }
    async with app_connect(server.url, hello=hello) as client:
        done = await client.run(*sh("echo lost"), processId="p", streamStdoutStderr=True)
        assert done == {"exitCode": 0, "stdout": "", "stderr": ""}
        await client.call("process/spawn", command=["/bin/true"], processHandle="h", cwd="/")
        await client.run("/bin/true")
        assert not [message for message in client.log if "method" in message]


@pytest.mark.requirement("app-server.experimental")
async def test_experimental_methods_have_to_be_asked_for(server: ServerProcess) -> None:
    hello = {**HELLO, "params": {"clientInfo": {"name": "test", "version": "1"}}}
    async with app_connect(server.url, hello=hello) as client:
        for method, params in (
            ("process/spawn", {"command": ["/bin/true"], "cwd": "/"}),
            ("process/kill", {}),
            ("process/writeStdin", {"closeStdin": True}),
            ("process/resizePty", {"size": {"rows": 1, "cols": 1}}),
        ):
            refused = await client.call(method, processHandle="h", **params)
            assert refused == (-32600, f"{method} requires experimentalApi capability")
        refused = await client.call("command/exec", command=[], permissionProfile=":x")
        assert refused == (
            -32600,
            "command/exec.permissionProfile requires experimentalApi capability",
        )


# -- order, ids, connections


@pytest.mark.requirement("app-server.order")
async def test_requests_with_one_id_are_handled_in_order(client: AppClient) -> None:
    data = os.urandom(300_000)
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    await client.exec("/bin/cat", processId="p", streamStdin=True, streamStdoutStderr=True)
    for piece in pieces:
        await client.request(
            "command/exec/write",
            processId="p",
            deltaBase64=base64.b64encode(piece).decode(),
        )
    await client.request("command/exec/write", processId="p", closeStdin=True)
    assert (await client.answer(1))["exitCode"] == 0
    assert client.output("p") == data
    for number in range(2, len(pieces) + 3):
        assert await client.answer(number) == {}


@pytest.mark.requirement("app-server.order")
async def test_a_long_command_holds_up_no_other(client: AppClient, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        await client.exec(*sh(f"read x < {go.path}; echo late"))
        assert (await client.run("/bin/echo", "early"))["stdout"] == "early\n"
        go.write()
        assert (await client.answer(1))["stdout"] == "late\n"


@pytest.mark.requirement("app-server.ids")
async def test_ids_belong_to_their_connection(server: ServerProcess, client: AppClient) -> None:
    async with app_connect(server.url) as other:
        for one in (client, other):
            await one.exec("/bin/cat", processId="same", streamStdin=True, streamStdoutStderr=True)
        await other.exec("/bin/cat", processId="mine", streamStdin=True, streamStdoutStderr=True)
        assert await client.write("same", b"first") == {}
        assert await other.write("same", b"second") == {}
        for method, params in (
            ("command/exec/terminate", {}),
            ("command/exec/write", {"closeStdin": True}),
            ("command/exec/resize", {"size": {"rows": 2, "cols": 2}}),
        ):
            foreign = await client.call(method, processId="mine", **params)
            assert foreign == (-32600, 'no active command/exec for process id "mine"')
        for one in (client, other):
            assert await one.write("same", close=True) == {}
            assert (await one.answer(1))["exitCode"] == 0
        assert client.output("same") == b"first"
        assert other.output("same") == b"second"
        assert not client.output("mine")


@pytest.mark.requirement("app-server.ids")
async def test_an_id_can_be_used_again_right_after_its_answer(client: AppClient) -> None:
    for number in range(50):
        done = await client.run("/bin/echo", str(number), processId="again")
        assert done["stdout"] == f"{number}\n"
    finished = await client.call("command/exec/terminate", processId="again")
    assert finished == (-32600, 'no active command/exec for process id "again"')


@pytest.mark.requirement("app-server.ids")
async def test_a_handle_can_be_used_again_right_after_its_exit(client: AppClient) -> None:
    for _ in range(20):
        client.log.clear()
        spawned = await client.call(
            "process/spawn", command=["/bin/true"], processHandle="h", cwd="/"
        )
        assert spawned == {}
        assert (await client.until_note(EXITED))["exitCode"] == 0


@pytest.mark.requirement("app-server.close")
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_connection_that_ends_takes_its_commands_along(
    server: ServerProcess, client: AppClient, tmp_path: Path, how: str
) -> None:
    await client.exec("/bin/cat", processId="p", streamStdin=True, streamStdoutStderr=True)
    script = "echo $$ > {}; exec sleep 60"
    with Fifo(tmp_path / "pids") as pids:
        async with app_connect(server.url) as other:
            await other.exec(*sh(script.format(pids.path)), disableTimeout=True)
            await other.exec(*sh(script.format(pids.path)), processId="t", tty=True)
            await other.exec(*sh(f"setsid sh -c '{script.format(pids.path)}' & sleep 60"))
            await other.request(
                "process/spawn",
                command=sh(script.format(pids.path)),
                processHandle="h",
                cwd="/",
                timeoutMs=None,
            )
            found = [int(await pids.line()) for _ in range(4)]
            assert all(map(is_alive, found))
            if how == "reset":
                other.socket.transport.abort()
        for pid in found:
            await gone(pid)
    assert await client.write("p", b"still here", close=True) == {}
    assert (await client.answer(1))["exitCode"] == 0
    assert client.output("p") == b"still here"


@pytest.mark.slow
@pytest.mark.requirement("app-server.close")
async def test_a_client_may_leave_at_any_byte(server: ServerProcess, client: AppClient) -> None:
    lines = ["GET / HTTP/1.1", "Host: test", *(f"{name}: {v}" for name, v in APP_UPGRADE.items())]
    said = "\r\n".join([*lines, "", ""]).encode() + b"".join(
        frame(message)
        for message in (
            HELLO,
            {
                "id": 1,
                "method": "command/exec",
                "params": {
                    "command": ["/bin/sleep", "60"],
                    "processId": "p",
                    "streamStdin": True,
                    "sandboxPolicy": FULL,
                },
            },
            {
                "id": 2,
                "method": "command/exec/write",
                "params": {"processId": "p", "deltaBase64": "eA=="},
            },
        )
    )
    where = urlsplit(server.url)
    for end in range(len(said) + 1):
        with socket.create_connection((where.hostname, where.port)) as plug:
            plug.sendall(said[:end])
    assert (await client.run("/bin/echo", "x"))["stdout"] == "x\n"
    async with asyncio.timeout(LIMIT):
        while children(server.serving_pid):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)


@pytest.mark.requirement("app-server.slow-reader")
async def test_a_client_that_never_reads_stops_its_own_command_only(
    server: ServerProcess, client: AppClient, tmp_path: Path
) -> None:
    before = resident(server.serving_pid)
    where = urlsplit(server.url)
    with Fifo(tmp_path / "pid") as pids:
        reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=4096)
        lines = [
            "GET / HTTP/1.1",
            "Host: test",
            *(f"{name}: {v}" for name, v in APP_UPGRADE.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await reader.readuntil(b"\r\n\r\n")
        flood = {
            "command": sh(f"echo $$ > {pids.path}; exec yes"),
            "processId": "p",
            "streamStdoutStderr": True,
            "disableOutputCap": True,
            "disableTimeout": True,
            "sandboxPolicy": FULL,
        }
        writer.write(frame(HELLO) + frame({"id": 1, "method": "command/exec", "params": flood}))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        pid = int(await pids.line())
        await blocked_in_write(pid)
        assert (await client.run("/bin/echo", "x"))["stdout"] == "x\n"
        assert resident(server.serving_pid) - before < 32 << 20
        # It is still listened to.
        terminate = {"id": 2, "method": "command/exec/terminate", "params": {"processId": "p"}}
        writer.write(frame(terminate))
        await gone(pid)
        writer.transport.abort()


@pytest.mark.requirement("app-server.slow-reader")
async def test_answers_that_nobody_reads_are_not_made(
    server: ServerProcess, client: AppClient
) -> None:
    """As JSON a control character is six times as long."""
    before = resident(server.serving_pid)
    async with app_connect(server.url) as other:
        other.socket.transport.pause_reading()
        zeros = ["/usr/bin/head", "-c", "1000000", "/dev/zero"]
        requests = {await other.exec(*zeros) for _ in range(15)}
        async with asyncio.timeout(2 * LIMIT):
            while children(server.serving_pid):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
        assert (await client.run("/bin/echo", "x"))["stdout"] == "x\n"
        assert resident(server.serving_pid) - before < 50 << 20
        other.socket.transport.resume_reading()
        while requests:
            answer = await other.receive()
            assert len(answer["result"]["stdout"]) == 1_000_000
            requests.remove(answer["id"])


@pytest.mark.slow
@pytest.mark.requirement("app-server.close")
async def test_clients_that_come_and_go_leave_nothing(server: ServerProcess) -> None:
    """Each asks for some commands of different kinds, and leaves after some of the answers."""

    async def visit(number: int) -> None:
        async with app_connect(server.url) as client:
            # In a sandbox: it may be left while it is being started.
            await client.request("command/exec", command=["/bin/sleep", "60"])
            await client.exec("/bin/echo", "x")
            await client.exec("/bin/sleep", "60", processId="s", streamStdin=True)
            await client.exec(*sh("yes"), processId="y", streamStdoutStderr=True)
            await client.exec(*sh("stty size; sleep 60"), processId="t", tty=True)
            await client.request(
                "process/spawn", command=["/bin/sleep", "60"], processHandle="h", cwd="/"
            )
            for _ in range(number % 7):
                await client.receive()
            client.socket.transport.abort()

    async def settled() -> int:
        """Return the descriptors of the server once it has no children and no connections."""
        async with asyncio.timeout(2 * LIMIT):
            while children(server.serving_pid) or _sockets(folder) > idle:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return len(os.listdir(folder))

    folder = f"/proc/{server.serving_pid}/fd"
    idle = _sockets(folder)
    await visit(3)
    before = await settled()
    for start in range(0, times(30), 6):
        await asyncio.gather(*(visit(number) for number in range(start, start + 6)))
    assert await settled() == before


def _sockets(folder: str) -> int:
    """Return how many sockets are among the descriptors of a process."""
    found = 0
    for name in os.listdir(folder):
        try:
            found += os.readlink(f"{folder}/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return found


# -- process/*


@pytest.mark.requirement("app-server.process")
async def test_a_process_answers_at_its_start_and_reports_its_end(client: AppClient) -> None:
    spawned = await client.call(
        "process/spawn",
        command=sh("read x; echo got $x; echo err >&2; exit 4"),
        processHandle="h",
        cwd="/",
        streamStdin=True,
    )
    assert spawned == {}
    text = base64.b64encode(b"it\n").decode()
    assert await client.call("process/writeStdin", processHandle="h", deltaBase64=text) == {}
    assert await client.until_note(EXITED) == {
        "processHandle": "h",
        "exitCode": 4,
        "outputDrainTimedOut": False,
        "stdout": "got it\n",
        "stdoutCapReached": False,
        "stderr": "err\n",
        "stderrCapReached": False,
    }


@pytest.mark.requirement("app-server.process")
async def test_a_process_is_killed_and_its_handle_is_not_that_of_a_command(
    client: AppClient,
) -> None:
    await client.exec("/bin/cat", processId="h", streamStdin=True)
    await client.call("process/spawn", command=["/bin/cat"], processHandle="h", cwd="/", tty=True)
    resized = await client.call("process/resizePty", processHandle="h", size={"rows": 3, "cols": 4})
    assert resized == {}
    assert await client.call("process/kill", processHandle="h") == {}
    assert (await client.until_note(EXITED))["exitCode"] == 1
    gone_now = await client.call("process/kill", processHandle="h")
    assert gone_now == (-32600, 'no active process for process handle "h"')
    assert await client.write("h", b"alive", close=True) == {}
    assert (await client.answer(1))["stdout"] == "alive"


@pytest.mark.requirement("app-server.process")
async def test_the_params_of_a_process_are_checked_in_order(client: AppClient) -> None:
    wrong: dict[str, Any] = {"command": [], "processHandle": "", "cwd": "/", "timeoutMs": -1}
    wrong["size"] = {"rows": 0, "cols": 1}
    for right, text in (
        ({"command": ["/bin/true"]}, "command must not be empty"),
        ({"processHandle": "h"}, "processHandle must not be empty"),
        ({"tty": True}, "process/spawn size requires tty: true"),
        ({"timeoutMs": 0}, "process/spawn timeoutMs must be non-negative, got -1"),
        ({}, "process size rows and cols must be greater than 0"),
    ):
        assert (await client.call("process/spawn", **wrong))[1] == text
        wrong.update(right)


# -- controls


@pytest.mark.requirement("app-server.terminate")
async def test_terminate_overtakes_input_that_nobody_reads(
    client: AppClient, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "pid") as pids:
        await client.exec(
            *sh(f"echo $$ > {pids.path}; exec sleep 60"), processId="p", streamStdin=True
        )
        pid = int(await pids.line())
        text = base64.b64encode(bytes(1 << 20)).decode()
        writes = [
            await client.request("command/exec/write", processId="p", deltaBase64=text)
            for _ in range(12)
        ]
        assert await client.call("command/exec/terminate", processId="p") == {}
        await gone(pid)
        assert (await client.answer(1))["exitCode"] == 137
        # Each is answered: accepted before the end, or refused after it.
        refused = {
            (-32600, 'command/exec "p" is no longer running'),
            (-32600, 'no active command/exec for process id "p"'),
        }
        answers = [await client.answer(number) for number in writes]
        assert all(answer == {} or answer in refused for answer in answers)


@pytest.mark.slow
@pytest.mark.requirement("app-server.input-waits")
async def test_a_client_that_sends_too_much_input_has_to_wait(
    client: AppClient, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        await client.exec(*sh(f"read x < {go.path}; exec wc -c"), processId="p", streamStdin=True)
        text = base64.b64encode(bytes(1 << 20)).decode()

        async def flood() -> None:
            for _ in range(64):
                await client.request("command/exec/write", processId="p", deltaBase64=text)
            await client.request("command/exec/write", processId="p", closeStdin=True)

        flooding = asyncio.create_task(flood())
        # More than the server takes, and than the sockets hold: it cannot end by itself.
        done, _ = await asyncio.wait([flooding], timeout=0.5)
        assert not done
        go.write()
        await flooding
        assert (await client.answer(1))["stdout"].strip() == str(64 << 20)


@pytest.mark.requirement("app-server.overload")
async def test_a_full_server_refuses_commands_but_no_controls() -> None:
    with app_serving("--concurrent-requests", "2") as server:
        async with app_connect(server.url) as client:
            for name in ("a", "b"):
                await client.exec("/bin/cat", processId=name, streamStdin=True)
            refused = await client.run("/bin/true")
            assert refused == (-32001, "Server overloaded; retry later.")
            assert await client.write("a", b"fine", close=True) == {}
            assert (await client.answer(1))["stdout"] == "fine"
            for name, answer in (("a", {}), ("b", {}), ("c", refused)):
                spawned = await client.call(
                    "process/spawn", command=["/bin/sleep", "60"], processHandle=name, cwd="/"
                )
                assert spawned == answer
            assert (await client.run("/bin/true"))["exitCode"] == 0


@pytest.mark.requirement("app-server.drain")
async def test_controls_fail_at_once_after_the_exit(client: AppClient) -> None:
    """The chatty child keeps the drain going; the answer comes at its limit."""
    await client.exec(
        *sh("(while :; do echo more; sleep 0.01; done) & echo $!; exit 3"),
        processId="p",
        streamStdin=True,
        streamStdoutStderr=True,
    )
    await client.until_output("p", b"more")
    while (late := await client.write("p", b"x")) == {}:
        pass  # the shell has not exited yet
    refused = {(-32600, 'command/exec "p" is no longer running')}
    assert {
        late,
        await client.call("command/exec/terminate", processId="p"),
        await client.call("command/exec/resize", processId="p", size={"rows": 2, "cols": 2}),
    } == refused
    duplicate = await client.run("/bin/true", processId="p")
    assert duplicate == (-32600, 'duplicate active command/exec process id: "p"')
    assert not [message for message in client.log if message.get("id") == 1]
    assert (await client.answer(1))["exitCode"] == 3


@pytest.mark.requirement("app-server.drain.compat")
async def test_as_codex_controls_in_the_drain_are_answered_after_the_result() -> None:
    with app_serving("--compat", "codex-0.166.0") as server:
        async with app_connect(server.url) as client:
            await client.exec(
                *sh("sleep 60 & echo $!; exit 3"),
                processId="p",
                streamStdin=True,
                streamStdoutStderr=True,
            )
            await client.until_output("p", b"\n")
            pid = int(client.output("p"))
            while (late := await client.write("p", b"x")) == {}:
                pass  # the shell has not exited yet
            assert late == (-32600, 'command/exec "p" is no longer running')
            ids = [message["id"] for message in client.log if "method" not in message]
            assert ids[-2:] == [1, max(ids)]
            assert is_alive(pid)


@pytest.mark.requirement("app-server.drain.compat")
async def test_as_codex_the_second_control_in_the_drain_finds_the_id_free() -> None:
    with app_serving("--compat", "codex-0.166.0") as server:
        async with app_connect(server.url) as client:
            await client.exec(
                *sh("echo $$; (echo x; sleep 60) & exit 3"), processId="p", streamStdoutStderr=True
            )
            await client.until_output("p", b"x\n")
            await gone(int(client.output("p").split()[0]))
            await client.run("/bin/true")  # by its answer the server has seen the exit, too
            controls = [
                await client.request("command/exec/terminate", processId="p"),
                await client.request(
                    "command/exec/resize", processId="p", size={"rows": 1, "cols": 1}
                ),
                await client.request("command/exec/write", processId="p", closeStdin=True),
                await client.request("command/exec/write", processId="p", deltaBase64="%"),
            ]
            texts = [(await client.answer(control))[1] for control in controls]
            free = 'no active command/exec for process id "p"'
            bad = "invalid deltaBase64: Invalid symbol 37, offset 0."
            assert texts == ['command/exec "p" is no longer running', free, free, bad]
            ids = [message["id"] for message in client.log if "method" not in message]
            assert ids[-5:] == [1, *controls]


@pytest.mark.requirement("app-server.controls")
async def test_controls_that_make_no_sense(client: AppClient) -> None:
    await client.exec("/bin/cat", processId="p", streamStdin=True)
    size = {"rows": 2, "cols": 3}
    assert await client.call("command/exec/resize", processId="p", size=size) == (
        -32600,
        "failed to resize PTY: process is not attached to a PTY",
    )
    zero = {"rows": 0, "cols": 3}
    assert await client.call("command/exec/resize", processId="nobody", size=zero) == (
        -32602,
        "command/exec size rows and cols must be greater than 0",
    )
    await client.exec("/bin/sleep", "60", processId="deaf")
    deaf = (-32600, "stdin streaming is not enabled for this command/exec")
    assert await client.write("deaf", b"x") == deaf
    assert await client.write("deaf", close=True) == deaf
    assert await client.write("p", b"x") == {}
    with_child = sh("exec 0<&-; read x < /dev/null; sleep 60")
    await client.exec(*with_child, processId="closed", streamStdin=True)
    assert await client.write("closed", b"nobody reads", close=True) == {}
    assert await client.write("closed", b"more") == (-32600, "stdin is already closed")
    assert await client.write("closed", b"") == {}
    assert await client.write("closed", close=True) == {}
    for name, code in (("deaf", 137), ("closed", 137)):
        assert await client.call("command/exec/terminate", processId=name) == {}
        number = {"deaf": 4, "closed": 8}[name]
        assert (await client.answer(number))["exitCode"] == code
    assert await client.write("p", close=True) == {}
    assert (await client.answer(1))["stdout"] == "x"


# -- output


@pytest.mark.requirement("app-server.caps")
@pytest.mark.parametrize(
    ("limit", "text", "reached"),
    [
        ({"outputBytesCap": 0}, "", True),
        ({"outputBytesCap": 1}, "a", True),
        ({"outputBytesCap": 6}, "abcdef", True),
        ({"outputBytesCap": 7}, "abcdef", False),
        ({"outputBytesCap": (1 << 64) - 1}, "abcdef", False),
        ({"disableOutputCap": True}, "abcdef", False),
    ],
    ids=str,
)
async def test_caps(client: AppClient, limit: dict[str, Any], text: str, reached: bool) -> None:
    script = sh("printf abcdef; printf abcdef >&2")
    done = await client.run(*script, **limit)
    assert done == {"exitCode": 0, "stdout": text, "stderr": text}
    await client.run(*script, processId="p", streamStdoutStderr=True, **limit)
    for stream in ("stdout", "stderr"):
        notes = [note for note in client.notes(DELTA) if note["stream"] == stream]
        assert client.output("p", stream) == text.encode()
        assert [note["capReached"] for note in notes] == [False] * (len(notes) - 1) + [reached]


@pytest.mark.requirement("app-server.caps")
@pytest.mark.parametrize(
    "script",
    [
        "yes out & yes err >&2 & wait",
        "exec 2>&-; exec yes",
        "exec 1>&-; exec yes >&2",
        "trap '' TERM INT HUP; exec yes",
    ],
)
async def test_a_flood_ends_at_its_timeout(
    server: ServerProcess, client: AppClient, script: str
) -> None:
    before = resident(server.serving_pid)
    done = await client.run(*sh(script), timeoutMs=400)
    assert done["exitCode"] == 124
    assert max(len(done["stdout"]), len(done["stderr"])) == 1 << 20
    assert resident(server.serving_pid) - before < 32 << 20
    async with asyncio.timeout(LIMIT):
        while children(server.serving_pid):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)


# -- bad input


NUMBERS = [
    ({"timeoutMs": 1 << 63}, "invalid value: integer `9223372036854775808`, expected i64"),
    ({"timeoutMs": 1 << 64}, "integer `18446744073709551616` as u128, expected any value"),
    ({"timeoutMs": 1.0}, "invalid type: floating point `1.0`, expected i64"),
    ({"outputBytesCap": 1 << 64}, "integer `18446744073709551616` as u128, expected any value"),
    ({"outputBytesCap": -1}, "invalid value: integer `-1`, expected usize"),
    ({"outputBytesCap": "1"}, 'invalid type: string "1", expected usize'),
    ({"size": {"rows": 1 << 16, "cols": 1}}, "invalid value: integer `65536`, expected u16"),
    ({"size": 7}, "invalid type: integer `7`, expected struct CommandExecTerminalSize"),
    ({"size": [1]}, "invalid length 1, expected struct CommandExecTerminalSize with 2 elements"),
    ({"cwd": 5}, "invalid type: integer `5`, expected path string"),
    ({"env": []}, "invalid type: sequence, expected a map"),
    ({"env": {"A": 1}}, "invalid type: integer `1`, expected a string"),
    ({"tty": None}, "invalid type: null, expected a boolean"),
    ({"command": "é\u200b"}, 'invalid type: string "é\\u{200b}", expected a sequence'),
    ({"sandboxPolicy": {}}, "missing field `type`"),
    ({"sandboxPolicy": {"type": 5}}, "integer `5`, expected variant index 0 <= i < 4"),
]


@pytest.mark.requirement("app-server.decoding")
@pytest.mark.parametrize(("wrong", "text"), NUMBERS, ids=lambda value: str(value)[:40])
async def test_params_that_do_not_decode(
    client: AppClient, wrong: dict[str, Any], text: str
) -> None:
    code, told = await client.call("command/exec", **{"command": ["/bin/true"], **wrong})
    assert code == -32600
    assert told.startswith("Invalid request: ")
    assert told.endswith(text)


@pytest.mark.requirement("app-server.decoding")
async def test_params_as_a_list_need_all_their_members(client: AppClient) -> None:
    async def call(params: object) -> Any:
        await client.send({"id": "x", "method": "command/exec", "params": params})
        answer = await client.answer("x")
        client.log.clear()
        return answer

    short = "Invalid request: invalid length 1, expected struct CommandExecParams with 14 elements"
    assert await call([["/bin/true"]]) == (-32600, short)
    everything: list[Any] = [["/bin/echo", "x"], None, False, False, False, None, False, False]
    everything += [None, None, None, None, FULL, None]
    assert (await call(everything))["stdout"] == "x\n"
    assert await call(None) == (-32600, "Invalid request: missing field `params`")
    assert await call("x") == (
        -32600,
        'Invalid request: invalid type: string "x", expected struct CommandExecParams',
    )


@pytest.mark.requirement("app-server.cwd")
async def test_the_folder_of_the_server_may_go_away(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with app_serving(cwd=folder) as server:
        folder.rmdir()
        async with app_connect(server.url) as client:
            missing = "failed to spawn command: No such file or directory (os error 2)"
            assert await client.run("/bin/pwd") == (-32603, missing)
            assert await client.call("command/exec", command=["/bin/pwd"]) == (-32603, missing)
            assert (await client.run("/bin/pwd", cwd="/"))["stdout"] == "/\n"
            folder.mkdir()
            assert (await client.run("/bin/pwd"))["stdout"] == f"{folder}\n"


@pytest.mark.requirement("app-server.cwd")
async def test_where_a_command_runs(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    home = {"HOME": str(tmp_path / "sub")}
    with app_serving(cwd=tmp_path, env={**os.environ, **home}) as server:
        async with app_connect(server.url) as client:
            for cwd, found in (
                (None, tmp_path),
                ("", tmp_path),
                ("sub", tmp_path / "sub"),
                ("sub/..", tmp_path),
                ("~", tmp_path / "sub"),
                ("~/", tmp_path / "sub"),
                ("~/..", tmp_path),
                ("/", Path("/")),
            ):
                done = await client.run("/bin/pwd", "-P", cwd=cwd)
                assert done["stdout"] == f"{found}\n"
            for cwd in ("no such", "file:///tmp", "~x"):
                assert await client.run("/bin/pwd", cwd=cwd) == (
                    -32603,
                    "failed to spawn command: No such file or directory (os error 2)",
                )
            nul = await client.run("/bin/pwd", cwd="a\0b")
            assert nul == (-32603, "failed to spawn command: nul byte found in provided data")


@pytest.fixture
def dead_mount(tmp_path: Path) -> Iterator[Path]:
    """A folder whose files never answer: nobody serves its FUSE mount."""
    folder = tmp_path / "dead"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    try:
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"dead", os.fsencode(folder), b"fuse", 0, options) != 0:
            pytest.skip(f"cannot mount FUSE: {os.strerror(ctypes.get_errno())}")
        yield folder
    finally:
        os.close(fd)  # from now on its files fail
        libc.umount2(os.fsencode(folder), 2)


@pytest.mark.requirement("process.start.dead-mount")
async def test_a_dead_mount_holds_up_no_other_command(dead_mount: Path) -> None:
    inside = str(dead_mount / "sub")
    with app_serving() as server:
        async with app_connect(server.url) as client:
            roots = {"type": "workspaceWrite", "writableRoots": [inside]}
            await client.exec("/bin/pwd", cwd=inside)
            await client.exec("/bin/pwd", cwd=inside, tty=True, processId="t")
            await client.exec("prog", env={"PATH": inside})
            await client.exec("/bin/pwd", sandboxPolicy=roots)
            await client.request(
                "command/exec", command=["/bin/pwd"], cwd=inside, permissionProfile=":workspace"
            )
            assert (await client.run("/bin/echo", "x"))["stdout"] == "x\n"
        assert server.stop() == 0


@pytest.mark.requirement("app-server.profiles")
async def test_profiles_of_the_server_have_names(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text('[file_system]\nentries = [{ path = ":root", access = "read" }]\n')
    options = ("--sandbox", "disabled", "--profile", f"mine={profile}")
    with app_serving(*options, cwd=tmp_path) as server:
        async with app_connect(server.url) as client:
            try_to_write = sh("(: > file) 2>/dev/null && echo ok || echo no")
            allowed = await client.call("command/exec", command=try_to_write)
            assert allowed["stdout"] == "ok\n"
            refused = await client.call(
                "command/exec", command=try_to_write, permissionProfile="mine"
            )
            assert refused["stdout"] == "no\n"
            unknown = await client.call(
                "command/exec", command=try_to_write, permissionProfile="other"
            )
            assert unknown == (
                -32600,
                "invalid permission profile: default_permissions"
                " refers to undefined profile `other`",
            )


# -- where it listens


def start_on_stdio(*options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*APP_SERVER, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def start_and_fail(*options: str, **popen: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*APP_SERVER, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * LIMIT,
        **popen,
    )


@pytest.mark.requirement("app-server.listen")
async def test_it_listens_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "app.sock"
    with app_serving("--listen", f"unix://{path}") as server:
        assert server.url == f"unix://{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        async with app_connect(server.url) as client:
            done = await client.run(
                "/usr/bin/head",
                "-c",
                "10000000",
                "/dev/zero",
                processId="p",
                streamStdoutStderr=True,
                disableOutputCap=True,
            )
            assert done["exitCode"] == 0
            assert client.output("p") == bytes(10_000_000)
            await client.exec("/bin/cat", processId="c", streamStdin=True, disableTimeout=True)
            assert await client.write("c", bytes(1_000_000)) == {}
            (cat,) = children(server.serving_pid)
            client.socket.transport.abort()
            await gone(cat)


@pytest.mark.requirement("app-server.listen")
@pytest.mark.parametrize("end", ["close", "kill"])
async def test_on_stdio_it_ends_with_its_input(tmp_path: Path, end: str) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 60"
    run = {"command": sh(script), "disableTimeout": True, "sandboxPolicy": FULL}
    with (
        Fifo(tmp_path / "pid") as pids,
        start_on_stdio() as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for message in (HELLO, {"id": 1, "method": "command/exec", "params": run}):
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 0
        pid = int(await pids.line())
        if end == "close":
            process.stdin.close()
            assert process.wait(2 * LIMIT) == 0
            assert process.stdout.read() == b""
        else:
            (serving,) = children(process.pid)
            os.kill(serving, signal.SIGKILL)
            assert process.wait(2 * LIMIT) == 128 + signal.SIGKILL
        assert not is_alive(pid)


@pytest.mark.requirement("app-server.auth", "security.token.made")
async def test_it_lets_in_only_who_may(tmp_path: Path) -> None:
    refused = start_and_fail("--listen", "ws://0.0.0.0:0", "--no-auth")
    assert refused.returncode == 1
    assert "without auth would let anyone" in refused.stderr
    os.chmod(tmp_path, 0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    # Told nothing, it makes a token, and says where whoever started it finds it.
    with app_serving("--listen", "ws://127.0.0.1:0", env=env) as server:
        token = find_token(server.url, env)
        (file,) = (tmp_path / "holdfast").iterdir()
        assert f" is `token` in {file}. " in server.errors
        assert token is not None
        assert token in file.read_text()
        for wrong in (None, TOKEN, token[:-1]):
            async with AsyncExitStack() as stack:
                with pytest.raises(InvalidStatus) as caught:
                    await stack.enter_async_context(app_connect(server.url, token=wrong))
                assert caught.value.response.status_code == 401
        async with app_connect(server.url, token=token) as client:
            assert (await client.run("/bin/echo", "x"))["stdout"] == "x\n"
    with app_serving("--listen", "ws://127.0.0.1:0", "--no-auth", env=env) as server:
        assert server.errors.startswith("Warning: this server requires no token: every user")
        async with app_connect(server.url, token=None):
            pass


@pytest.mark.requirement("app-server.listen")
def test_a_place_that_cannot_be_listened_on_is_named(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/no-such-folder/socket"
    done = start_and_fail("--listen", url)
    text = f"Error: cannot listen on {url}: No such file or directory (os error 2)\n"
    assert (done.returncode, done.stderr) == (1, text)


@pytest.mark.requirement("app-server.environment")
@pytest.mark.parametrize(
    "options",
    [("--environment", "no-such-name"), ("--environment", "ws://127.0.0.1:1")],
    ids=["unknown", "unreachable"],
)
def test_an_environment_that_cannot_be_had(options: tuple[str, ...], tmp_path: Path) -> None:
    done = start_and_fail(*options, env={**os.environ, "HOLDFAST_HOME": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr

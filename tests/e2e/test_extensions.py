"""Extensions of the protocol by Holdfast: they are advertised, and work together."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.e2e.wire import (
    LIMIT,
    Client,
    Fifo,
    Refused,
    Run,
    ServerProcess,
    connect,
    resume,
    serving,
)

SUMMARY = {
    "processId",
    "pid",
    "argv",
    "tty",
    "running",
    "closed",
    "exitCode",
    "reason",
    "nextSeq",
    "sandboxType",
}


async def _listed(client: Client) -> dict[str, dict[str, object]]:
    processes = (await client.call("process/list"))["processes"]
    return {process["processId"]: process for process in processes}


async def test_extensions_are_advertised(client: Client) -> None:
    capabilities = (await client.call("environment/info"))["capabilities"]
    for name in (
        "processResize",
        "processCloseStdin",
        "processList",
        "processSignalNames",
        "processLimits",
    ):
        assert capabilities[name] is True


# -- limits


async def test_an_exit_tells_the_limit_that_caused_it_and_nothing_otherwise(
    client: Client,
) -> None:
    told = []
    for argv, limit in ((["sleep", "600"], 100), (["true"], 60_000)):
        await client.start(argv[0], argv, limits={"wallTimeMs": limit})
        events = await client.events(argv[0])
        told += [
            (event.params.get("limit"), event.params.get("detail"))
            for event in events
            if event.kind == "exited"
        ]
    assert told == [("wallTime", "ran for more than 0.1 seconds"), (None, None)]


# -- process/list


async def test_a_session_without_processes_has_an_empty_list(client: Client) -> None:
    assert await client.call("process/list") == {"processes": []}
    assert await client.call("process/list", {}) == {"processes": []}
    refusal = await client.refusal("process/list", {"all": True})
    assert refusal == (-32602, "invalid type: map, expected unit")


async def test_processes_are_listed_from_the_oldest_on(client: Client, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        await client.shell("first", "echo $$; exec cat", pipeStdin=True)
        pid = int(await client.output("first", b"\n"))
        await client.shell("left", f"(read x <{go.path}) & exit 3")
        await client.exited("left")
        await client.start("tty", ["sleep", "600"], tty=True)
        await client.start("ended", ["true"])
        await client.finish("ended")
        listed = await _listed(client)
        assert list(listed) == ["first", "left", "tty", "ended"]
        for summary in listed.values():
            assert set(summary) == SUMMARY
        assert listed["first"] == {
            "processId": "first",
            "pid": pid,
            "argv": ["/bin/sh", "-c", "echo $$; exec cat"],
            "tty": False,
            "running": True,
            "closed": False,
            "exitCode": None,
            "reason": None,
            "nextSeq": 2,
            "sandboxType": "none",
        }
        state = {
            name: (each["running"], each["closed"], each["exitCode"], each["reason"])
            for name, each in listed.items()
        }
        assert state["left"] == (False, False, 3, "exited")
        assert state["tty"] == (True, False, None, None)
        assert state["ended"] == (False, True, 0, "exited")
        assert listed["tty"]["tty"] is True
        go.write()
        await client.finish("left")


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
async def test_the_list_tells_apart_how_processes_ended(client: Client, tty: bool) -> None:
    await client.start("terminated", ["sleep", "600"], tty=tty)
    await client.terminate("terminated")
    await client.start("signaled", ["sleep", "600"], tty=tty)
    await client.call("process/signal", {"processId": "signaled", "signal": "SIGKILL"})
    await client.shell("exited", "exit 137", tty=tty)
    for name in ("terminated", "signaled", "exited"):
        await client.finish(name)
    listed = await _listed(client)
    assert {name: summary["reason"] for name, summary in listed.items()} == {
        "terminated": "terminated",
        "signaled": "signaled",
        "exited": "exited",
    }


async def test_the_list_belongs_to_the_session(server: ServerProcess) -> None:
    async with connect(server.url) as client, connect(server.url) as other:
        await client.start("p", ["cat"], pipeStdin=True)
        assert await _listed(other) == {}
    async with resume(server.url, client.session_id) as again:
        assert set(await _listed(again)) == {"p"}


# -- process/signal with names, process/closeStdin, process/resize


async def test_extensions_work_together_on_one_process(client: Client) -> None:
    script = "trap 'echo usr1' USR1; exec 3<&0; cat <&3 & echo ready; wait; wait; echo end"
    await client.shell("p", script, pipeStdin=True)
    await client.output("p", b"ready\n")
    # The shell tells of it at once, whether it waits already or is about to.
    await client.call("process/signal", {"processId": "p", "signal": "SIGUSR1"})
    await client.output("p", b"usr1\n")
    await client.call("process/closeStdin", {"processId": "p"})
    run = await client.finish("p")
    assert (run.exit_code, run.stdout) == (0, b"ready\nusr1\nend\n")


async def test_a_pipeline_can_be_fed_and_finished(client: Client) -> None:
    await client.shell("p", "sort | uniq -c | tr -s ' '", pipeStdin=True)
    for line in (b"b\n", b"a\n", b"b\n"):
        await client.write("p", line)
    await client.call("process/closeStdin", {"processId": "p"})
    assert await client.finish("p") == Run(0, stdout=b" 1 a\n 2 b\n")


# -- unix sockets


async def test_a_unix_socket_carries_the_whole_protocol(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving("--listen", f"unix://{path}") as server:
        async with asyncio.timeout(LIMIT):
            reader, writer = await asyncio.open_unix_connection(path)
            start = {
                "processId": "p",
                "argv": ["/bin/echo", "hi"],
                "cwd": "file:///",
                "env": {},
                "tty": False,
            }
            for message in (
                {"id": 1, "method": "initialize", "params": {"clientName": "unix"}},
                {"method": "initialized"},
                {"id": 2, "method": "process/start", "params": start},
            ):
                writer.write(json.dumps(message).encode() + b"\n")
            received = [json.loads(await reader.readline()) for _ in range(5)]
            writer.close()
        assert [m.get("method", m.get("id")) for m in received] == [
            1,
            2,
            "process/output",
            "process/exited",
            "process/closed",
        ]
        assert server.stop() == 0
        assert server.errors == ""


async def test_a_session_may_be_resumed_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving("--listen", f"unix://{path}"):
        session_id = ""
        async with asyncio.timeout(LIMIT):
            for _ in range(2):
                reader, writer = await asyncio.open_unix_connection(path)
                params = {"clientName": "unix", "resumeSessionId": session_id or None}
                request = {"id": 1, "method": "initialize", "params": params}
                while True:
                    writer.write(json.dumps(request).encode() + b"\n")
                    reply = json.loads(await reader.readline())
                    if "result" in reply:
                        break
                    assert reply["error"]["code"] == -32010
                assert session_id in ("", reply["result"]["sessionId"])
                session_id = reply["result"]["sessionId"]
                writer.close()


# -- process/waitingFor


async def _waits_for(client: Client, process_id: str) -> str:
    word: str = (await client.call("process/waitingFor", {"processId": process_id}))["waitingFor"]
    return word


@pytest.mark.requirement("extension.waiting-for")
async def test_the_wire_tells_what_a_process_waits_for(client: Client) -> None:
    assert (await client.call("environment/info"))["capabilities"]["processWaitingFor"] is True
    await client.start("p", ["sh", "-c", "stty -echo; read x; exec sleep 600"], tty=True)
    async with asyncio.timeout(LIMIT):
        while (found := await _waits_for(client, "p")) != "password":
            assert found in ("none", "line")
    await client.start("piped", ["cat"], pipeStdin=True)
    assert await _waits_for(client, "piped") == "unknown"
    with pytest.raises(Refused) as refused:
        await _waits_for(client, "nobody")
    assert refused.value.message == "unknown process id nobody"
    assert refused.value.code == -32600


@pytest.mark.requirement("extension.close-left")
async def test_a_close_says_whether_something_is_left_of_the_group(server: ServerProcess) -> None:
    scripts = {"true": False, "sleep 60 >/dev/null 2>&1 &": True}
    async with connect(server.url, initialize=False) as client:
        await client.call("initialize", {"clientName": "c", "acknowledges": True})
        await client.notify("initialized", {})
        for number, (script, left) in enumerate(scripts.items()):
            name = f"p{number}"
            await client.shell(name, script)
            while not (closed := [e for e in client.seen(name) if e.kind == "closed"]):
                await client._pull()
            assert closed[0].params["left"] is left
            ended = await client.call("process/terminate", {"processId": name, "left": True})
            assert ended["running"] is left
    async with connect(server.url) as codex:
        await codex.start("p", ["true"])
        assert "left" not in (await codex.events("p"))[-1].params

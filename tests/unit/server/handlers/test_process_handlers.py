"""`process/*` as a client sees it; the engine has its own tests."""

import asyncio
import base64
import binascii
import gc
import os
import select
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.base.errors import InvalidParams
from holdfast.engine.process import admission
from holdfast.engine.process.io.log import OutputLog, Retention
from holdfast.engine.process.logged import LoggedProcess
from holdfast.engine.process.observers import ProcessObserver, ProcessStart
from holdfast.server.app import Server
from holdfast.wire.protocol.process import StartParams
from holdfast.wire.rpc.base64 import decode_base64
from tests.unit.engine.process.starting import eventually
from tests.unit.fakes import LIMIT
from tests.unit.server.serving import PATH, Client

SNAPSHOT: dict[str, Any] = {
    "shellSnapshot": {"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}}
}


# Starting.


@pytest.mark.requirement("start.duplicate", "envelope.codes")
async def test_a_start_that_fails_is_an_answer(client: Client) -> None:
    assert await client.start("/no/such") == (-32603, "No such file or directory (os error 2)")
    assert await client.start() == (-32602, "argv must not be empty")
    await client.start("/bin/cat", pipeStdin=True)
    assert await client.start("/bin/true") == (-32600, "process p already exists")
    assert await client.start("/bin/true", sandbox={"permissions": {"type": "x"}}) == (
        -32602,
        "unknown variant `x`, expected one of `managed`, `disabled`, `external`",
    )


async def test_a_failure_may_name_a_folder_that_is_not_unicode(
    client: Client, tmp_path: Path
) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    cwd = f"{tmp_path.as_uri()}/%FF"
    assert await client.start("./nope", tty=True, cwd=cwd) == (
        -32603,
        f"Unable to spawn {tmp_path}/\N{REPLACEMENT CHARACTER}/./nope because it does not exist",
    )


# A start that waits.


@pytest.mark.requirement("snapshot.reuse")
async def test_a_start_that_waits_is_answered_when_it_is_done(
    client: Client, tmp_path: Path
) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    reply = await client.start("/bin/bash", "-lc", "echo hi", env=env, **SNAPSHOT)
    assert reply == {"processId": "p", "sandboxType": "none"}
    await client.sees(b"hi\n")


async def test_a_start_that_waits_may_be_dropped_before_it_began(
    server: Server, tmp_path: Path
) -> None:
    client = Client(server)
    session = await client.initialize()
    client.ask(
        "process/start",
        processId="p",
        argv=["/bin/bash", "-lc", "echo never"],
        cwd="file:///",
        env={"HOME": str(tmp_path)},
        tty=False,
        **SNAPSHOT,
    )
    client.hang_up()
    await client.settled()
    successor = Client(server)
    await successor.initialize(resumeSessionId=session)
    assert await successor.start("/bin/true") == {"processId": "p", "sandboxType": "none"}


async def test_a_start_that_has_begun_goes_on_when_its_connection_is_lost(
    server: Server, tmp_path: Path
) -> None:
    """The command may run already, so the client that comes back must not start it again."""
    client = Client(server)
    session = await client.initialize(acknowledges=True)
    client.ask(
        "process/start",
        processId="p",
        argv=["/bin/sh", "-c", "echo once >> count; cat count"],
        cwd=tmp_path.as_uri(),
        env={"PATH": "/usr/bin:/bin"},
        tty=False,
        # With limits, a thread waits until the command has been executed.
        limits={"openFiles": 100},
    )
    await asyncio.sleep(0)
    client.hang_up()
    successor = Client(server)
    await successor.initialize(acknowledges=True, resumeSessionId=session)
    assert await successor.write(b"", "probe") == {"status": "starting"}
    await eventually(lambda: any(len(one.processes) for one in server.state.sessions))
    read = await successor.call("process/read", processId="p", afterSeq=0, waitMs=5000)
    assert base64.b64decode(read["chunks"][0]["chunk"]) == b"once\n"
    successor.hang_up()


# Writing.


@pytest.mark.requirement("write.terminated")
async def test_a_write_after_the_end_by_a_limit_fails_too(client: Client) -> None:
    await client.start("/bin/cat", pipeStdin=True, limits={"wallTimeMs": 1})
    await client.hears("process/closed")
    assert await client.write(b"x", "1") == (-32603, "failed to write to process stdin")


@pytest.mark.requirement("write.terminated")
async def test_a_write_without_an_input_is_no_error(client: Client) -> None:
    await client.start("/bin/sleep", "60")
    await client.call("process/terminate", processId="p")
    assert await client.write(b"x", "1") == {"status": "stdinClosed"}


def reference(text: str) -> bytes | None:
    """Base64 as the protocol wants it: the one text that its value is encoded as."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == text else None


@pytest.mark.requirement("write.base64")
@given(
    st.binary(max_size=20).map(lambda data: base64.b64encode(data).decode())
    | st.text(st.sampled_from("AQgw+/=-_ \nü"), max_size=9)
    | st.text(max_size=8)
)
@example("")
@example("=")
@example("====")
@example("QQ==")
@example("QR==")  # loose bits
@example("QQ")
@example("QQ=")
@example("QQ===")
@example("QQ==QQ==")
@example("Q-_Q")
@example("QQ\n==")
def test_base64_is_taken_in_its_one_form_only(text: str) -> None:
    expected = reference(text)
    if expected is None:
        with pytest.raises(InvalidParams):
            decode_base64(text)
    else:
        assert decode_base64(text) == expected


@pytest.mark.requirement("write.base64")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Q", "Invalid input length: 1"),
        ("QQ", "Invalid padding"),
        ("QQ=", "Invalid padding"),
        ("Q-_Q", "Invalid symbol 45, offset 1."),
        ("QQ Q", "Invalid symbol 32, offset 2."),
        ("QR==", "Invalid last symbol 82, offset 1."),
    ],
)
def test_what_is_wrong_with_base64_is_told(text: str, reason: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        decode_base64(text)
    assert str(caught.value) == reason


# Signals and ends.


async def test_what_was_left_can_be_killed_while_a_process_is_retained(client: Client) -> None:
    await client.start("/bin/sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    await client.hears("process/closed")
    pidfd = os.pidfd_open(int(client.output()))
    try:
        asked = {"processId": "p", "left": True}
        assert await client.call("process/terminate", processId="p") == {"running": False}
        assert await client.call("process/terminate", **asked) == {"running": True}
        assert select.select([pidfd], [], [], LIMIT)[0]
        assert await client.call("process/terminate", **asked) == {"running": False}
        asked["processId"] = "unknown"
        assert await client.call("process/terminate", **asked) == {"running": False}
    finally:
        os.close(pidfd)


async def test_another_word_for_the_streams_is_refused(client: Client) -> None:
    await client.start("/bin/cat", pipeStdin=True)
    code, text = await client.call("process/terminate", processId="p", streams="both")
    assert code == -32602
    assert "both" in text
    assert (await client.call("process/list"))["processes"][0]["running"]


# Extensions.


async def test_a_terminal_can_be_resized(client: Client) -> None:
    size = {"rows": 10, "cols": 20}
    script = "trap 'stty size; exit' WINCH; stty size; while :; do read x; done"
    await client.start("/bin/sh", "-c", script, tty=True, terminalSize=size)
    await client.sees(b"10 20")
    assert await client.call("process/resize", processId="p", rows=30, cols=40) == {}
    await client.sees(b"30 40")
    assert await client.call("process/resize", processId="q", rows=1, cols=1) == (
        -32600,
        "unknown process id q",
    )


async def test_processes_can_be_listed(client: Client) -> None:
    assert await client.call("process/list") == {"processes": []}
    await client.start("/bin/true", process_id="a")
    await client.hears("process/closed")
    await client.start("/bin/cat", process_id="b", tty=True)
    first, second = (await client.call("process/list"))["processes"]
    assert {**first, "pid": 0} == {
        "processId": "a",
        "pid": 0,
        "argv": ["/bin/true"],
        "tty": False,
        "running": False,
        "closed": True,
        "exitCode": 0,
        "reason": "exited",
        "nextSeq": 3,
        "sandboxType": "none",
    }
    assert (second["processId"], second["tty"], second["running"]) == ("b", True, True)
    assert (second["exitCode"], second["reason"]) == (None, None)


async def test_the_input_of_a_process_nobody_knows_cannot_be_closed(client: Client) -> None:
    assert await client.call("process/closeStdin", processId="p") == (
        -32600,
        "unknown process id p",
    )


# After a resume.


@pytest.mark.requirement("extension.ack")
@pytest.mark.parametrize("read", ["in pages", "with a wait"])
async def test_events_are_sent_again_once_all_that_was_missed_is_read(
    server: Server, read: str
) -> None:
    first = Client(server)
    session_id = await first.initialize(acknowledges=True)
    script = "echo one; read x; echo two; read x; echo three; read x"
    await first.start("/bin/sh", "-c", script, pipeStdin=True)
    await first.sees(b"one\n")
    first.hang_up()
    second = Client(server)
    await second.initialize(acknowledges=True, resumeSessionId=session_id)
    if read == "in pages":
        page = await second.call("process/read", processId="p", afterSeq=0, maxBytes=1)
        assert page["nextSeq"] == 2
        await second.write(b"\n", "1")
        await second.sees(b"two\n")
    else:
        waiting = second.ask("process/read", processId="p", afterSeq=1, waitMs=60_000)
        await second.write(b"\n", "1")
        assert len((await second.transport.answer(waiting))["chunks"]) == 1  # type: ignore[index]
    await second.write(b"\n", "2")
    await second.sees(b"three\n")
    assert second.output() == (b"two\nthree\n" if read == "in pages" else b"three\n")


@pytest.mark.requirement("client.recovery.write-repeated")
async def test_a_write_that_is_cut_off_before_it_could_wait_does_not_overtake_others(
    server: Server, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    first = Client(server)
    session_id = await first.initialize(acknowledges=True)
    script = f"read x < go; head -c {129 * 65536} > /dev/null; echo ready; exec cat"
    await first.start("/bin/sh", "-c", script, pipeStdin=True, cwd=tmp_path.as_uri())
    full = base64.b64encode(bytes(65536)).decode()
    for number in range(129):
        first.ask("process/write", processId="p", chunk=full, writeId=str(number))
    one, two = (base64.b64encode(text).decode() for text in (b"one ", b"two "))
    first.ask("process/write", processId="p", chunk=one, writeId="one")
    await first.settled()
    first.ask("process/write", processId="p", chunk=two, writeId="two")
    first.hang_up()  # in the same turn of the event loop: nothing waits for the second one yet
    second = Client(server)
    await second.initialize(acknowledges=True, resumeSessionId=session_id)
    (tmp_path / "go").write_text("\n")
    await second.call("process/read", processId="p", waitMs=60_000)
    assert await second.write(b"one ", "one") == {"status": "accepted"}
    assert await second.write(b"two ", "two") == {"status": "accepted"}
    await second.call("process/closeStdin", processId="p")
    await second.hears("process/closed")
    read = await second.call("process/read", processId="p")
    output = b"".join(base64.b64decode(chunk["chunk"]) for chunk in read["chunks"])
    assert output == b"ready\none two "


# What others make of it.


async def test_a_server_takes_observers_and_logs_of_others() -> None:
    class Starts(ProcessObserver):
        ids: ClassVar[list[str]] = []

        def started(self, start: ProcessStart, process: LoggedProcess) -> None:
            self.ids.append(process.process_id)

    def small_log(params: StartParams) -> OutputLog:
        return OutputLog(Retention(max_bytes=4))

    async with Server(observers=[Starts()], make_log=small_log) as server:
        for process_id in ("a", "b"):  # in two sessions
            client = Client(server)
            await client.initialize()
            script = "echo 1234567; echo 89"
            await client.start("/bin/sh", "-c", script, process_id=process_id)
            await client.hears("process/closed")
            read = await client.call("process/read", processId=process_id)
            kept = b"".join(base64.b64decode(chunk["chunk"]) for chunk in read["chunks"])
            assert len(kept) <= 4
    assert Starts.ids == ["a", "b"]


async def test_requests_about_a_start_that_waits_for_files_come_after_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "can_start_without_waiting", lambda *start, **more: False)
    params = {"cwd": "file:///", "env": {"PATH": PATH}, "tty": False, "pipeStdin": True}
    asked = [
        client.ask("process/start", processId="p", argv=["cat"], **params),
        *[
            client.ask(
                "process/write",
                processId="p",
                chunk=base64.b64encode(text.encode()).decode(),
                writeId=text,
            )
            for text in "abc"
        ],
        client.ask("process/closeStdin", processId="p"),
        client.ask("process/resize", processId="p", rows=1, cols=1),
        client.ask("process/start", processId="q", argv=["no such"], **params),
        client.ask("process/write", processId="q", chunk="", writeId="1"),
    ]
    answers = [await client.transport.answer(request) for request in asked]
    accepted = {"status": "accepted"}
    assert answers[1:6] == [accepted] * 3 + [{}, (-32600, "process p has no terminal to resize")]
    assert isinstance(answers[6], tuple)
    assert answers[6][0] == -32603
    assert answers[7] == {"status": "unknownProcess"}
    await client.hears("process/closed")
    assert client.output() == b"abc"


# -- clients that go


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("process/waitingFor", {}),
        ("process/read", {"afterSeq": 1000, "waitMs": 60_000}),
    ],
)
async def test_a_client_that_goes_right_after_a_request_leaves_nothing_to_await(
    server: Server, method: str, params: dict[str, Any]
) -> None:
    """Python warns of a coroutine that is never awaited, which is an error in these tests."""
    client = Client(server)
    await client.initialize(acknowledges=True)
    await client.start("/bin/cat", tty=True)
    client.ask(method, processId="p", **params)
    client.hang_up()
    await client.settled()
    gc.collect()

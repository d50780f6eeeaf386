"""The way into a process: once, in order, and not without limit [write.*]."""

from pathlib import Path

import pytest

from tests.e2e.wire import Client, Fifo, Run

CHUNK = b"x" * 65_536
"""As much as a pipe takes at once."""


async def _wait_for_input(client: Client, process_id: str, go: Fifo) -> None:
    """A process that reads its input only when it is told to, and then counts it."""
    script = f"read x <{go.path}; wc -c"
    await client.shell(process_id, script, pipeStdin=True)


# -- writing


@pytest.mark.requirement("write.accepted")
async def test_what_is_written_arrives_in_order(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    pieces = [f"line {n}\n".encode() for n in range(500)]
    params = [client.write_params("p", piece) for piece in pieces]
    asked = [await client.request("process/write", each) for each in params]
    for request_id in asked:
        assert (await client.reply(request_id))["result"] == {"status": "accepted"}
    assert await client.output("p", pieces[-1]) == b"".join(pieces)


@pytest.mark.requirement("write.accepted")
async def test_a_write_may_be_larger_than_a_pipe(client: Client) -> None:
    data = bytes(range(256)) * 20_000
    await client.start("p", ["cat"], pipeStdin=True)
    assert await client.write("p", data + b"end\n") == "accepted"
    assert await client.output("p", b"end\n") == data + b"end\n"


@pytest.mark.requirement("write.unknown")
async def test_an_unknown_process_is_a_status(client: Client) -> None:
    assert await client.write("nope", b"x") == "unknownProcess"


@pytest.mark.requirement("write.stdin-closed")
async def test_a_process_without_input_is_a_status(client: Client) -> None:
    await client.start("p", ["sleep", "600"])
    assert await client.write("p", b"x") == "stdinClosed"
    await client.start("q", ["sleep", "600"], pipeStdin=False)
    assert await client.write("q", b"x") == "stdinClosed"


@pytest.mark.requirement("write.empty-id")
async def test_an_empty_id_is_refused_before_the_process_is_looked_up(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    for process_id in ("p", "nope"):
        params = {"processId": process_id, "chunk": "", "writeId": ""}
        refusal = await client.refusal("process/write", params)
        assert refusal == (-32602, "writeId must not be empty")


@pytest.mark.requirement("write.base64")
async def test_an_id_is_not_used_by_a_chunk_that_is_no_base64(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    code, text = await client.refusal(
        "process/write", {"processId": "p", "chunk": "eA", "writeId": "1"}
    )
    assert code == -32602
    assert text
    assert await client.write("p", b"good", "1") == "accepted"
    assert await client.output("p", b"good") == b"good"


@pytest.mark.requirement("write.vanishes")
async def test_writes_to_a_process_that_has_gone_vanish(client: Client) -> None:
    await client.shell("p", "exit 0", pipeStdin=True)
    await client.finish("p")
    assert await client.write("p", b"x") == "accepted"
    assert await client.write("p", CHUNK * 10) == "accepted"


@pytest.mark.requirement("write.terminated")
@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
async def test_after_terminate_writes_are_refused(client: Client, tty: bool) -> None:
    await client.start("p", ["sleep", "600"], pipeStdin=True, tty=tty)
    await client.write("p", b"x", "before")
    await client.terminate("p")
    refused = (-32603, "failed to write to process stdin")
    params = client.write_params("p", b"x")
    assert await client.refusal("process/write", params) == refused
    await client.finish("p")
    assert await client.refusal("process/write", params) == refused


# -- once


@pytest.mark.requirement("write.once")
async def test_an_id_is_written_once(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    for write_id, data in (("a", b"1"), ("a", b"1"), ("a", b"other"), ("b", b"2"), ("a", b"3")):
        assert await client.write("p", data, write_id) == "accepted"
    await client.write("p", b"end", "c")
    assert await client.output("p", b"end") == b"12end"


@pytest.mark.requirement("write.once")
async def test_ids_belong_to_a_process(client: Client) -> None:
    for process_id in ("p", "q"):
        await client.start(process_id, ["cat"], pipeStdin=True)
        await client.write(process_id, process_id.encode(), "same")
        assert await client.output(process_id, process_id.encode()) == process_id.encode()


# -- back-pressure


@pytest.mark.requirement("write.back-pressure")
async def test_a_process_that_does_not_read_holds_up_the_writer(
    client: Client, tmp_path: Path
) -> None:
    count = 200
    with Fifo(tmp_path / "go") as go:
        await _wait_for_input(client, "p", go)
        asked = [
            await client.request("process/write", client.write_params("p", CHUNK))
            for _ in range(count)
        ]
        assert await client.is_ready()  # asked last, answered before those that wait
        answered = [reply["id"] for reply in client.unread_replies()]
        # One in the pipe, 128 in the queue, and perhaps one on its way between them.
        assert 129 <= len(answered) <= 131
        assert answered == asked[: len(answered)]
        go.write()
        for request_id in asked:
            assert (await client.reply(request_id))["result"] == {"status": "accepted"}
        await client.call("process/closeStdin", {"processId": "p"})
        assert await client.finish("p") == Run(0, stdout=b"%d\n" % (count * len(CHUNK)))


@pytest.mark.requirement("write.back-pressure", "write.terminated")
async def test_terminate_answers_the_writes_that_wait(client: Client) -> None:
    await client.start("p", ["sleep", "600"], pipeStdin=True)
    asked = [
        await client.request("process/write", client.write_params("p", CHUNK)) for _ in range(140)
    ]
    assert await client.is_ready()
    assert await client.terminate("p") is True
    replies = [await client.reply(request_id) for request_id in asked]
    refused = [reply["error"] for reply in replies if "error" in reply]
    assert refused == [{"code": -32603, "message": "failed to write to process stdin"}] * len(
        refused
    )
    assert 9 <= len(refused) <= 11


# -- the end of the input: an extension


async def test_the_end_of_the_input_comes_after_what_was_written(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    await client.request("process/write", client.write_params("p", CHUNK * 20))
    assert await client.call("process/closeStdin", {"processId": "p"}) == {}
    assert await client.finish("p") == Run(0, stdout=CHUNK * 20)


async def test_the_end_of_the_input_comes_after_what_waits(client: Client, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        await _wait_for_input(client, "p", go)
        asked = [
            await client.request("process/write", client.write_params("p", CHUNK))
            for _ in range(140)
        ]
        assert await client.call("process/closeStdin", {"processId": "p"}) == {}
        assert await client.write("p", b"late") == "stdinClosed"
        go.write()
        for request_id in asked:
            assert (await client.reply(request_id))["result"] == {"status": "accepted"}
        assert await client.finish("p") == Run(0, stdout=b"%d\n" % (140 * len(CHUNK)))


async def test_an_input_may_be_ended_twice(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    for _ in range(2):
        assert await client.call("process/closeStdin", {"processId": "p"}) == {}
    assert await client.finish("p") == Run(0)
    assert await client.call("process/closeStdin", {"processId": "p"}) == {}
    await client.start("none", ["true"])
    assert await client.call("process/closeStdin", {"processId": "none"}) == {}


async def test_a_terminal_has_no_end_to_close(client: Client) -> None:
    await client.start("p", ["cat"], tty=True)
    code, text = await client.refusal("process/closeStdin", {"processId": "p"})
    assert code == -32600
    assert "0x04" in text
    unknown = (-32600, "unknown process id nope")
    assert await client.refusal("process/closeStdin", {"processId": "nope"}) == unknown

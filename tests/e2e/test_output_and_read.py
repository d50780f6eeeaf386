"""Output of a process, its end, and what of it can be read [output.*]."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire.protocol.codes import OVERLOADED
from tests.e2e.in_process import serving_here
from tests.e2e.wire import (
    Client,
    Fifo,
    Run,
    ServerProcess,
    connect,
    connect_slowly,
    from_base64,
    joined,
    run_of,
    start_params,
)

FOREVER = 2**64 - 1
MIB = 1 << 20


def _summary(read: dict[str, Any]) -> tuple[list[int], bytes, int, bool, bool]:
    """Seqs, bytes, nextSeq, exited and closed of a read."""
    seqs = [chunk["seq"] for chunk in read["chunks"]]
    return seqs, joined(read), read["nextSeq"], read["exited"], read["closed"]


async def _in_pieces(client: Client, process_id: str, *pieces: bytes) -> None:
    """A process that has written each piece apart, and goes on until its input ends."""
    await client.start(process_id, ["cat"], pipeStdin=True)
    so_far = b""
    for piece in pieces:
        await client.write(process_id, piece)
        so_far += piece
        await client.output(process_id, so_far)


async def _close_stdin(client: Client, process_id: str) -> None:
    await client.call("process/closeStdin", {"processId": process_id})


# -- events


@pytest.mark.requirement("output.notifications", "output.seq", "output.one-end")
@pytest.mark.requirement("output.sandbox-denied")
async def test_a_process_is_told_of_in_three_kinds_of_events(client: Client) -> None:
    await client.start("p", ["echo", "hi"])
    output, exited, closed = await client.events("p")
    assert (output.kind, output.params) == (
        "output",
        {"processId": "p", "seq": 1, "stream": "stdout", "chunk": "aGkK"},
    )
    assert (exited.kind, exited.params) == (
        "exited",
        {"processId": "p", "seq": 2, "exitCode": 0, "sandboxDenied": False},
    )
    assert (closed.kind, closed.params) == ("closed", {"processId": "p", "seq": 3})
    # Nothing follows.
    assert await client.is_ready()
    assert len(client.seen("p")) == 3


async def test_stdout_and_stderr_are_apart(client: Client) -> None:
    run = await client.run_shell("echo out; echo err >&2; echo out; echo err >&2; exit 3")
    assert run == Run(3, stdout=b"out\nout\n", stderr=b"err\nerr\n")


@pytest.mark.requirement("output.raw")
async def test_output_is_raw(client: Client, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    file = tmp_path / "data"
    file.write_bytes(data)
    assert await client.run(["cat", str(file)]) == Run(0, stdout=data)


@pytest.mark.requirement("output.late")
async def test_a_background_child_may_write_after_the_exit(client: Client, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        await client.shell("p", f"(read x <{go.path}; echo late) & echo early; exit 4")
        assert await client.exited("p") == 4
        assert "closed" not in [event.kind for event in client.seen("p")]
        go.write()
        events = await client.events("p")
        assert [event.kind for event in events] == ["output", "exited", "output", "closed"]
        assert run_of(events) == Run(4, stdout=b"early\nlate\n")


@pytest.mark.requirement("output.streams-end-first")
async def test_the_close_waits_for_the_exit(client: Client, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        await client.shell("p", f"echo a; exec >&- 2>&-; read x <{go.path}; exit 6")
        await client.output("p", b"a\n")
        read = await client.read("p", afterSeq=1, waitMs=10)
        assert _summary(read) == ([], b"", 2, False, False)
        go.write()
        events = await client.events("p")
        assert [event.kind for event in events] == ["output", "exited", "closed"]


async def test_what_was_written_before_the_exit_is_told_before_it(client: Client) -> None:
    for turn in range(50):
        await client.shell(f"p{turn}", "echo out; echo err >&2")
        events = await client.events(f"p{turn}")
        kinds = [event.kind for event in events]
        assert kinds[-2:] == ["exited", "closed"], kinds


@pytest.mark.slow
async def test_a_large_output_arrives_whole_and_in_order(client: Client) -> None:
    run = await client.run_shell("seq 1 1000000")
    assert run.exit_code == 0
    expected = "".join(f"{n}\n" for n in range(1, 1_000_001)).encode()
    assert hashlib.sha256(run.stdout).digest() == hashlib.sha256(expected).digest()


@pytest.mark.slow
async def test_many_streams_at_once_are_not_mixed_up(client: Client) -> None:
    for number in range(10):
        script = f"seq {number}00000 {number}99999"
        await client.request("process/start", start_params(f"p{number}", ["sh", "-c", script]))
    for number in range(10):
        first = int(f"{number}00000")
        expected = "".join(f"{n}\n" for n in range(first, first + 100_000)).encode()
        assert (await client.finish(f"p{number}")).stdout == expected


# -- retention


@pytest.mark.requirement("limits.retained-bytes", "read.evicted")
async def test_one_mebibyte_is_retained_and_the_oldest_chunks_go_first(client: Client) -> None:
    await client.shell("p", "head -c 5000000 /dev/zero | tr '\\0' x")
    events = await client.events("p")
    outputs = [event for event in events if event.kind == "output"]
    assert sum(len(event.data) for event in outputs) == 5_000_000
    read = await client.read("p")
    kept = [chunk["seq"] for chunk in read["chunks"]]
    assert kept == [event.seq for event in outputs][-len(kept) :]
    retained, largest = len(joined(read)), max(len(event.data) for event in outputs)
    assert MIB - largest < retained <= MIB
    assert read["nextSeq"] == events[-1].seq + 1
    # What is gone is skipped without a word.
    first = await client.read("p", afterSeq=1, maxBytes=1)
    assert [chunk["seq"] for chunk in first["chunks"]] == kept[:1]


@pytest.mark.requirement("limits.closed-process")
async def test_a_closed_process_is_kept_for_a_while_and_then_its_id_is_free() -> None:
    async with serving_here(process_retention=0.05) as url, connect(url) as client:
        await client.shell("p", "echo one")
        await client.finish("p")
        async with asyncio.timeout(5):
            while (await client.call("process/list"))["processes"]:
                pass
        unknown = (-32600, "unknown process id p")
        assert await client.refusal("process/read", {"processId": "p"}) == unknown
        assert await client.write("p", b"x") == "unknownProcess"
        assert await client.terminate("p") is False
        await client.start("p", ["cat"], pipeStdin=True)
        await client.write("p", b"again")
        read = await client.read("p", waitMs=FOREVER)
        assert _summary(read) == ([1], b"again", 2, False, False)


@pytest.mark.requirement("limits.closed-output")
async def test_the_oldest_output_of_closed_processes_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.engine.process.process_table.MAX_OUTPUT", 4 * MIB)
    async with serving_here() as url, connect(url) as client, connect(url) as other:
        await other.shell("p", "echo other")
        await other.finish("p")
        for number in range(8):
            await client.shell(f"p{number}", "head -c 1000000 /dev/zero; exit 3")
            await client.finish(f"p{number}")
        reads = [await client.read(f"p{number}") for number in range(8)]
        # Each session has a limit for itself.
        assert joined(await other.read("p")) == b"other\n"
    sizes = [len(joined(read)) for read in reads]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (0, 1_000_000)
    assert sum(sizes) <= 4 * MIB
    assert all((read["exitCode"], read["closed"]) == (3, True) for read in reads)


async def until_closed(client: Client, process_id: str) -> None:
    async with asyncio.timeout(5):
        while not (await client.read(process_id, afterSeq=FOREVER, waitMs=10))["closed"]:
            pass


@pytest.mark.requirement("limits.closed-output")
async def test_a_client_that_acknowledges_nothing_starts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.engine.process.process_table.MAX_OUTPUT", 4 * MIB)
    argv = ["head", "-c", "1000000", "/dev/zero"]
    async with serving_here() as url, connect(url, initialize=False) as client:
        await client.call("initialize", {"clientName": "c", "acknowledges": True})
        await client.notify("initialized", {})
        for number in range(5):
            await client.start(f"p{number}", argv)
            await until_closed(client, f"p{number}")
        code, text = await client.refusal("process/start", start_params("p", argv))
        assert code == OVERLOADED
        assert text == "4 MiB of output of closed processes are not acknowledged"
        # Nothing of it is lost.
        assert [len(joined(await client.read(f"p{n}"))) for n in range(5)] == [1_000_000] * 5
        for number in range(3):
            await client.notify("process/ack", {"processId": f"p{number}", "seq": 1000})
        await client.start("p", argv)
        await until_closed(client, "p")


# -- reading


@pytest.mark.requirement("read.members")
async def test_a_read_has_seven_members(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    assert await client.read("p") == {
        "chunks": [],
        "nextSeq": 1,
        "exited": False,
        "exitCode": None,
        "closed": False,
        "failure": None,
        "sandboxDenied": False,
    }
    await client.write("p", b"hi")
    await client.output("p", b"hi")
    await _close_stdin(client, "p")
    await client.finish("p")
    assert await client.read("p") == {
        "chunks": [{"seq": 1, "stream": "stdout", "chunk": "aGk="}],
        "nextSeq": 4,
        "exited": True,
        "exitCode": 0,
        "closed": True,
        "failure": None,
        "sandboxDenied": False,
    }


@pytest.mark.requirement("read.max-bytes", "read.state-not-page")
async def test_pages_visit_everything(client: Client) -> None:
    await _in_pieces(client, "p", b"aa", b"b" * 10, b"c", b"dd")
    await _close_stdin(client, "p")
    await client.finish("p")
    after, data, sizes = 0, b"", []
    while (page := await client.read("p", afterSeq=after, maxBytes=3))["chunks"]:
        assert page["closed"]
        data += joined(page)
        sizes.append(len(page["chunks"]))
        after = page["nextSeq"] - 1
    assert (data, sizes) == (b"aa" + b"b" * 10 + b"cdd", [1, 1, 2])
    assert page["nextSeq"] == 7


@pytest.mark.requirement("read.wait")
async def test_a_read_waits_for_output(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    waiting = await client.request("process/read", {"processId": "p", "waitMs": 60_000})
    assert await client.is_ready()
    await client.write("p", b"hey")
    assert _summary((await client.reply(waiting))["result"]) == ([1], b"hey", 2, False, False)
    # There is something: it answers at once, whatever it may wait for.
    assert _summary(await client.read("p", waitMs=FOREVER)) == ([1], b"hey", 2, False, False)


@pytest.mark.requirement("read.wait")
async def test_a_read_that_waited_in_vain_answers_with_nothing(client: Client) -> None:
    await _in_pieces(client, "p", b"x")
    for wait in (0, 1, 20):
        read = await client.read("p", afterSeq=1, waitMs=wait)
        assert _summary(read) == ([], b"", 2, False, False)


@pytest.mark.requirement("read.wait")
async def test_many_reads_may_wait_for_the_same(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    params = {"processId": "p", "waitMs": 60_000}
    asked = [await client.request("process/read", params) for _ in range(20)]
    await client.write("p", b"x")
    for request_id in asked:
        assert joined((await client.reply(request_id))["result"]) == b"x"


@pytest.mark.requirement("read.wait.exit", "output.late")
async def test_a_read_waits_after_the_exit_for_late_output(client: Client, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        await client.shell("p", f"(read x <{go.path}; echo late; read x <{go.path}) & exit 0")
        first = await client.read("p", waitMs=60_000)
        assert _summary(first) == ([], b"", 2, True, False)
        # The exit is news to whoever has not heard of it, and to nobody else.
        assert await client.read("p", afterSeq=0, waitMs=FOREVER) == first
        assert await client.read("p", afterSeq=1, waitMs=20) == first
        waiting = await client.request(
            "process/read", {"processId": "p", "afterSeq": 1, "waitMs": FOREVER}
        )
        go.write()
        late = (await client.reply(waiting))["result"]
        assert _summary(late) == ([2], b"late\n", 3, True, False)
        waiting = await client.request(
            "process/read", {"processId": "p", "afterSeq": 2, "waitMs": FOREVER}
        )
        go.write()
        assert _summary((await client.reply(waiting))["result"]) == ([], b"", 4, True, True)


@pytest.mark.requirement("read.wait.closed")
async def test_a_closed_process_never_waits(client: Client) -> None:
    await client.start("p", ["true"])
    await client.finish("p")
    for after in (0, 1, 2, 3, FOREVER):
        read = await client.read("p", afterSeq=after, waitMs=FOREVER)
        assert _summary(read) == ([], b"", 3, True, True)


@pytest.mark.requirement("read.wait.huge")
async def test_a_read_may_wait_almost_for_ever(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    params = {"processId": "p", "afterSeq": FOREVER, "maxBytes": FOREVER, "waitMs": FOREVER}
    waiting = await client.request("process/read", params)
    params["waitMs"] = FOREVER + 1
    assert await client.refusal("process/read", params) == (-32602, "invalid number")
    await _close_stdin(client, "p")
    # Beyond the end no output is news, and no exit: only the close is.
    assert (await client.reply(waiting))["result"]["closed"] is True


@pytest.mark.requirement("read.unknown")
async def test_an_unknown_process_is_refused_at_once(client: Client) -> None:
    params = {"processId": "nope", "waitMs": FOREVER}
    assert await client.refusal("process/read", params) == (-32600, "unknown process id nope")


@pytest.mark.requirement("dispatch.independent")
async def test_connections_do_not_hold_up_one_another(
    server: ServerProcess, client: Client
) -> None:
    await client.start("p", ["cat"], pipeStdin=True)
    await client.request("process/read", {"processId": "p", "waitMs": FOREVER})
    async with connect(server.url) as other:
        assert await other.is_ready()


# -- a client that does not read


@pytest.mark.slow
@pytest.mark.requirement("output.slow-client")
async def test_a_client_that_stops_reading_holds_up_its_process_and_loses_nothing(
    server: ServerProcess, tmp_path: Path
) -> None:
    total = 24 * MIB
    with Fifo(tmp_path / "done") as done:
        async with connect_slowly(server.url) as client, connect(server.url) as other:
            script = f"head -c {total} /dev/zero | tr '\\0' x; echo >{done.path}"
            await client.shell("p", script)
            # Nobody reads: the other connection has all the attention it wants meanwhile.
            run = await other.run_shell(f"head -c {total // 4} /dev/zero")
            assert len(run.stdout) == total // 4
            ended = asyncio.create_task(done.line())
            await other.is_ready()
            assert not ended.done(), "the process was not held up"
            events = await client.events("p")
            data = b"".join(from_base64(event.params.get("chunk", "")) for event in events)
            assert (len(data), set(data)) == (total, {ord("x")})
            await ended

"""Files when something breaks in the middle, and output while files keep the server busy."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.wire import (
    CONTINUATION,
    INITIALIZE,
    INITIALIZED,
    LIMIT,
    TEXT,
    Client,
    Frames,
    ServerProcess,
    connect,
    file_uri,
    frame,
    frames,
    from_base64,
    gone,
    resume,
    serving,
    start_params,
    to_base64,
)

OLD = bytes(range(256)) * 5000
NEW = OLD[::-1]
BLOCK = 1 << 18


@pytest.fixture(params=["old", "new"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file in a folder of its own: one that is there, or one that is not."""
    folder = tmp_path / "folder"
    folder.mkdir()
    if request.param == "old":
        (folder / "old").write_bytes(OLD)
    return folder / str(request.param)


def assert_untouched(path: Path) -> None:
    """The old file is as it was, the new one is not there, and nothing else is."""
    if path.name == "old":
        assert os.listdir(path.parent) == ["old"]
        assert path.read_bytes() == OLD
    else:
        assert os.listdir(path.parent) == []


def assert_old_or_new(path: Path) -> None:
    """The file is as it was or all of it is new, and nothing else is there."""
    if path.exists() and path.read_bytes() == NEW:
        assert os.listdir(path.parent) == [path.name]
    else:
        assert_untouched(path)


async def released(server: ServerProcess, folder: Path) -> None:
    """Wait until the server has nothing open in a folder."""
    descriptors = f"/proc/{server.serving_pid}/fd"

    def is_open() -> bool:
        for name in os.listdir(descriptors):
            try:
                target = os.readlink(f"{descriptors}/{name}")
            except FileNotFoundError:
                continue  # closed since
            if target.startswith(str(folder)):
                return True
        return False

    async with asyncio.timeout(LIMIT):
        while is_open():  # noqa: ASYNC110 - there is no event for that
            await asyncio.sleep(0.01)


async def seen_to_end(server: ServerProcess, session_id: str) -> None:
    """Wait until the server has seen the end of the connection of a session."""
    async with resume(server.url, session_id):
        pass


async def write_half(client: Client, path: Path) -> None:
    """Replace half of a file in blocks; the last ones are on their way when this returns."""
    uri = file_uri(path)
    await client.call("fs/open", {"handleId": "h", "path": uri, "mode": "replace"})
    for offset in range(0, len(NEW) // 2, BLOCK):
        chunk = to_base64(NEW[offset : offset + BLOCK])
        params = {"handleId": "h", "offset": offset, "chunk": chunk}
        write = await client.request("fs/writeBlock", params)
        if offset == 0:
            assert (await client.reply(write))["result"] == {}
    assert_untouched(path)


@asynccontextmanager
async def by_hand(server: ServerProcess) -> AsyncIterator[tuple[Frames, str]]:
    """A connection past the handshake, on which frames are made by hand; and its session."""
    async with frames(server.url) as connection:
        await connection.send(INITIALIZE)
        _, reply = await connection.receive()
        await connection.send(INITIALIZED)
        yield connection, json.loads(reply)["result"]["sessionId"]


def write_file(path: Path) -> bytes:
    params = {"path": file_uri(path), "dataBase64": to_base64(NEW)}
    return json.dumps({"id": 1, "method": "fs/writeFile", "params": params}).encode()


def half_a_frame(path: Path) -> bytes:
    whole = frame(write_file(path))
    return whole[: len(whole) // 2]


def all_but_the_last_fragment(path: Path) -> bytes:
    message = write_file(path)
    first, second = message[:BLOCK], message[BLOCK:-1]
    return frame(first, kind=TEXT, final=False) + frame(second, kind=CONTINUATION, final=False)


Cut = Callable[[Path], bytes]
CUTS = pytest.mark.parametrize("cut", [half_a_frame, all_but_the_last_fragment])


# -- a connection that is cut


async def test_a_cut_between_blocks_leaves_the_old_file(server: ServerProcess, path: Path) -> None:
    async with connect(server.url) as client:
        await write_half(client, path)
        await client.vanish()
        await seen_to_end(server, client.session_id)
    await released(server, path.parent)
    assert_untouched(path)


async def test_a_cut_inside_a_block_leaves_the_old_file(server: ServerProcess, path: Path) -> None:
    async with by_hand(server) as (connection, session_id):
        opening = {"handleId": "h", "path": file_uri(path), "mode": "replace"}
        block = {"handleId": "h", "offset": 0, "chunk": to_base64(NEW[:BLOCK])}
        await connection.send(frame({"id": 1, "method": "fs/open", "params": opening}))
        write = frame({"id": 2, "method": "fs/writeBlock", "params": block})
        await connection.send(write + write[: len(write) // 2])
        answers = [json.loads((await connection.receive())[1]) for _ in range(2)]
        assert [answer["id"] for answer in answers if "result" in answer] == [1, 2]
        connection.abort()
        await seen_to_end(server, session_id)
    await released(server, path.parent)
    assert_untouched(path)


@CUTS
async def test_a_cut_inside_a_message_leaves_the_old_file(
    server: ServerProcess, path: Path, cut: Cut
) -> None:
    async with by_hand(server) as (connection, session_id):
        await connection.send(cut(path))
        connection.abort()
        await seen_to_end(server, session_id)
    await released(server, path.parent)
    assert_untouched(path)


async def test_a_cut_after_a_message_leaves_the_old_or_the_new_file(
    server: ServerProcess, path: Path
) -> None:
    async with by_hand(server) as (connection, session_id):
        await connection.send(frame(write_file(path)))
        connection.abort()
        await seen_to_end(server, session_id)
    await released(server, path.parent)
    assert_old_or_new(path)


# -- a server that is killed


async def test_a_server_killed_between_blocks_leaves_the_old_file(path: Path) -> None:
    with serving() as server:
        async with connect(server.url) as client:
            await write_half(client, path)
            os.kill(server.serving_pid, signal.SIGKILL)
            await gone(server.serving_pid)
            assert_untouched(path)


@CUTS
async def test_a_server_killed_inside_a_message_leaves_the_old_file(path: Path, cut: Cut) -> None:
    with serving() as server:
        async with by_hand(server) as (connection, _):
            await connection.send(cut(path))
            os.kill(server.serving_pid, signal.SIGKILL)
            await gone(server.serving_pid)
            assert_untouched(path)


# -- a server that is busy


@pytest.mark.slow
async def test_output_is_complete_and_in_order_during_100_walks_and_reads(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(OLD)
    tree = tmp_path / "tree"
    for folder in range(5):
        (tree / str(folder)).mkdir(parents=True)
        for name in range(50):
            (tree / str(folder) / str(name)).touch()
    options = {
        "maxDepth": 64,
        "maxDirectories": 1000,
        "maxEntries": 1000,
        "followDirectorySymlinks": False,
    }
    walk = {"path": file_uri(tree), "options": options}
    read = {"path": file_uri(tmp_path / "file")}

    await client.start("echo", ["/bin/cat"], pipeStdin=True)
    walks, reads = [], []
    for _ in range(50):
        walks.append(await client.request("fs/walk", walk))
        reads.append(await client.request("fs/readFile", read))
    await client.request("process/start", start_params("numbers", ["/usr/bin/seq", "100000"]))
    lines = [f"line {number}\n".encode() for number in range(20)]
    for line in lines:
        assert await client.write("echo", line) == "accepted"

    numbers = await client.finish("numbers")
    assert numbers.exit_code == 0
    assert numbers.stdout == b"".join(b"%d\n" % number for number in range(1, 100_001))
    assert await client.output("echo", lines[-1]) == b"".join(lines)
    for request in walks:
        result = (await client.reply(request))["result"]
        assert len(result["entries"]) == 5 + 5 * 50
        assert not result["truncated"]
    for request in reads:
        assert from_base64((await client.reply(request))["result"]["dataBase64"]) == OLD
    await client.terminate("echo")
    await client.events("echo")

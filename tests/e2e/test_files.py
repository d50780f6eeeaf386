"""`fs/*` over the wire: handles, order, what a cut connection leaves, and the exact words."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import Client, ServerProcess, connect, file_uri, from_base64, to_base64

NO_SANDBOX = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}


async def write_block(client: Client, handle: str, offset: int, data: bytes) -> None:
    params = {"handleId": handle, "offset": offset, "chunk": to_base64(data)}
    assert await client.call("fs/writeBlock", params) == {}


async def gone(server: ServerProcess, folder: Path) -> None:
    """Wait until the server has no file open below a folder."""
    descriptors = Path(f"/proc/{server.serving_pid}/fd")

    def is_open() -> bool:
        links = []
        for name in os.listdir(descriptors):
            try:
                links.append(os.readlink(descriptors / name))
            except FileNotFoundError:
                continue  # closed since
        return any(link.startswith(str(folder)) for link in links)

    async with asyncio.timeout(5):
        while is_open():  # noqa: ASYNC110 - there is no event for that
            await asyncio.sleep(0.01)


# -- whole files


@pytest.mark.requirement("fs.read")
@pytest.mark.parametrize("size", [0, 1, 5000, (1 << 20) + 1, 5 << 20])
async def test_what_is_written_is_read_again(client: Client, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path = file_uri(tmp_path / "fi le")
    assert await client.call("fs/writeFile", {"path": path, "dataBase64": to_base64(data)}) == {}
    assert (tmp_path / "fi le").read_bytes() == data
    result = await client.call("fs/readFile", {"path": path, "sandbox": NO_SANDBOX})
    assert from_base64(result["dataBase64"]) == data


@pytest.mark.requirement("fs.write.base64")
@pytest.mark.parametrize("size", [4, 3 << 20])
async def test_bad_base64_leaves_the_old_file(client: Client, tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    text = "A" * size + "!!!!"
    code, message = await client.refusal(
        "fs/writeFile", {"path": file_uri(path), "dataBase64": text}
    )
    assert code == -32600
    assert message == (
        f"fs/writeFile requires valid base64 dataBase64: Invalid symbol 33, offset {size}."
    )
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


async def test_a_file_is_never_seen_half_written(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * (1 << 20) for number in range(2)]
    path.write_bytes(contents[0])
    writes = [
        await client.request(
            "fs/writeFile", {"path": file_uri(path), "dataBase64": to_base64(contents[n % 2])}
        )
        for n in range(20)
    ]

    async def look() -> None:
        while True:
            assert path.read_bytes() in contents
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    for write in writes:
        assert (await client.reply(write))["result"] == {}
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking


# -- files in blocks


@pytest.mark.requirement("fs.read-block")
async def test_a_file_is_read_in_blocks(client: Client, tmp_path: Path) -> None:
    data = os.urandom((2 << 20) + 5)
    (tmp_path / "file").write_bytes(data)
    path = file_uri(tmp_path / "file")
    assert await client.call("fs/open", {"handleId": "h", "path": path}) == {"handleId": "h"}
    read, eof = b"", False
    while not eof:
        params = {"handleId": "h", "offset": len(read), "len": 1 << 20}
        block = await client.call("fs/readBlock", params)
        read += from_base64(block["chunk"])
        eof = block["eof"]
    assert read == data
    assert await client.call("fs/close", {"handleId": "h"}) == {}


async def test_requests_on_one_handle_need_not_wait_for_each_other(
    client: Client, tmp_path: Path
) -> None:
    path = file_uri(tmp_path / "file")
    requests: list[tuple[str, dict[str, Any]]] = [
        ("fs/open", {"handleId": "h", "path": path, "mode": "replace"}),
        *(
            ("fs/writeBlock", {"handleId": "h", "offset": n % 5, "chunk": to_base64(bytes([n]))})
            for n in range(50)
        ),
        ("fs/close", {"handleId": "h"}),
        ("fs/readBlock", {"handleId": "h", "offset": 0, "len": 100}),
    ]
    sent = [await client.request(*request) for request in requests]
    replies = [await client.reply(request_id) for request_id in sent]
    assert all("result" in reply for reply in replies[:-1])
    assert replies[-1]["error"] == {"code": -32004, "message": "unknown file handle `h`"}
    assert (tmp_path / "file").read_bytes() == bytes(range(45, 50))


@pytest.mark.requirement("fs.open.per-connection")
async def test_a_cut_connection_leaves_the_old_file(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old content")
    async with connect(server.url) as other:
        for path in (old, new):
            await other.call(
                "fs/open", {"handleId": path.name, "path": file_uri(path), "mode": "replace"}
            )
            await write_block(other, path.name, 0, b"half")
        await other.vanish()
    await gone(server, tmp_path)
    assert old.read_bytes() == b"old content"
    assert os.listdir(tmp_path) == ["old"]
    assert await client.is_ready()


@pytest.mark.requirement("fs.open.per-connection", "fs.read-block.unknown")
async def test_handles_belong_to_their_connection(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    params = {"handleId": "h", "path": file_uri(tmp_path / "file")}
    await client.call("fs/open", params)
    async with connect(server.url) as other:
        block = {"handleId": "h", "offset": 0, "len": 1}
        assert await other.refusal("fs/readBlock", block) == (
            -32004,
            "unknown file handle `h`",
        )
        await other.call("fs/open", params)
    assert await client.refusal("fs/open", params) == (
        -32600,
        "file handle `h` already exists",
    )


@pytest.mark.requirement("fs.open.mode")
async def test_an_id_that_could_not_be_opened_is_free(client: Client, tmp_path: Path) -> None:
    params = {"handleId": "h", "path": file_uri(tmp_path / "file")}
    assert await client.refusal("fs/open", params) == (
        -32004,
        "No such file or directory (os error 2)",
    )
    assert await client.call("fs/open", {**params, "mode": "replace"}) == {"handleId": "h"}


@pytest.mark.requirement("fs.open.order", "fs.open.id", "fs.close")
async def test_a_handle_is_checked_before_its_file(client: Client, tmp_path: Path) -> None:
    target = {"path": file_uri(tmp_path / "new"), "mode": "replace"}
    too_long = (-32600, "file handle ID must not exceed 32 bytes")
    for method, params in (
        ("fs/open", target),
        ("fs/readBlock", {"offset": 0, "len": 1}),
        ("fs/writeBlock", {"offset": 0, "chunk": "eA=="}),
        ("fs/close", {}),
    ):
        assert await client.refusal(method, {"handleId": "é" * 16 + "x", **params}) == too_long
    (tmp_path / "file").touch()
    present = {"path": file_uri(tmp_path / "file")}
    for number in range(127):
        await client.call("fs/open", {"handleId": f"{number:032}", **present})
    assert await client.call("fs/open", {"handleId": "", **present}) == {"handleId": ""}
    for handle, text in (
        ("", "file handle `` already exists"),
        ("x", "at most 128 file handles may be open per connection"),
    ):
        assert await client.refusal("fs/open", {"handleId": handle, **target}) == (-32600, text)
    assert os.listdir(tmp_path) == ["file"]
    assert await client.call("fs/close", {"handleId": ""}) == {}
    assert await client.call("fs/close", {"handleId": ""}) == {}
    assert await client.call("fs/close", {"handleId": "never opened"}) == {}
    assert await client.call("fs/open", {"handleId": "x", **target}) == {"handleId": "x"}


@pytest.mark.requirement("fs.errors.base64")
async def test_bad_base64_is_told_before_the_handle_is_looked_for(client: Client) -> None:
    params = {"handleId": "none", "offset": 0, "chunk": "QQ"}
    assert await client.refusal("fs/writeBlock", params) == (-32602, "Invalid padding")


# -- what hangs


async def test_writes_that_hang_hold_up_nothing_else(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = to_base64(bytes(1 << 20))  # more than a pipe takes
        stuck = [
            await client.request("fs/writeFile", {"path": file_uri(fifo), "dataBase64": data})
            for _ in range(8)
        ]
        content = b"content" * 20_000  # more than is read without a thread
        (tmp_path / "file").write_bytes(content)
        path = file_uri(tmp_path / "file")
        result = await client.call("fs/readFile", {"path": path})
        assert from_base64(result["dataBase64"]) == content
        assert (await client.run(["/bin/echo", "fine"])).stdout == b"fine\n"
    finally:
        os.close(reader)
    for request_id in stuck:
        assert (await client.reply(request_id))["error"] == {
            "code": -32603,
            "message": "Broken pipe (os error 32)",
        }


# -- names


@pytest.mark.requirement("fs.metadata")
async def test_metadata_follows_links_unless_told_otherwise(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    path = file_uri(tmp_path / "link")
    for wish in ({}, {"followSymlinks": None}, {"followSymlinks": True}):
        found = await client.call("fs/getMetadata", {"path": path, **wish})
        assert (found["isFile"], found["isSymlink"], found["size"]) == (True, True, 5)
    assert await client.refusal("fs/getMetadata", {"path": path, "followSymlinks": False}) == (
        -32600,
        "path contains a symbolic link",
    )


@pytest.mark.requirement("fs.walk.max-entries")
async def test_long_lists_are_whole(client: Client, tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"f {number}").touch()
    listed = await client.call("fs/readDirectory", {"path": file_uri(tmp_path)})
    assert {entry["fileName"] for entry in listed["entries"]} == set(os.listdir(tmp_path))
    options = {
        "maxDepth": 1,
        "maxDirectories": 10,
        "maxEntries": 1400,
        "followDirectorySymlinks": False,
    }
    walked = await client.call("fs/walk", {"path": file_uri(tmp_path), "options": options})
    assert walked["truncated"] is True
    assert walked["errors"] == []
    expected = sorted(os.listdir(tmp_path))[:1400]
    assert walked["entries"] == [
        {"path": file_uri(tmp_path / name), "kind": "file"} for name in expected
    ]


@pytest.mark.requirement("fs.handshake")
async def test_files_come_after_the_handshake(server: ServerProcess) -> None:
    async with connect(server.url, initialize=False) as client:
        assert await client.refusal("fs/canonicalize", {"path": "file:///"}) == (
            -32600,
            "client must call initialize before using filesystem methods",
        )
        assert (await client.refusal("fs/canonicalize", {}))[0] == -32602


@pytest.mark.requirement("fs.null", "fs.errors.params", "fs.open.mode")
async def test_params_are_decoded_as_the_real_server_does(client: Client, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    path = file_uri(tmp_path / "d")
    for method, params, text in (
        ("fs/readFile", {}, "missing field `path`"),
        ("fs/readFile", {"path": 1}, "invalid type: number, expected a string"),
        ("fs/readFile", {"path": "/x"}, "invalid URI: relative URL without a base"),
        (
            "fs/open",
            {"handleId": "h", "path": path, "mode": "zz"},
            "unknown variant `zz`, expected `read` or `replace`",
        ),
        ("fs/copy", {"sourcePath": path, "destinationPath": path}, "missing field `recursive`"),
        (
            "fs/copy",
            {"sourcePath": path, "destinationPath": path, "recursive": None},
            "invalid type: null, expected a boolean",
        ),
    ):
        assert await client.refusal(method, params) == (-32602, text)
    wish = {"recursive": None, "force": None, "followSymlinks": None, "sandbox": None, "odd": 1}
    assert await client.call("fs/remove", {"path": path, **wish}) == {}
    assert os.listdir(tmp_path) == []


async def test_the_server_says_what_it_can_do(client: Client) -> None:
    capabilities = (await client.call("environment/info"))["capabilities"]
    assert capabilities["fsWatchMissing"] is True
    assert capabilities["fileWriteStreaming"] is True
    assert capabilities["sandboxedFileStreaming"] is True


# -- what is missing


@pytest.mark.requirement("fs.watch.unsuitable", "fs.watch.ids")
async def test_a_newer_watch_replaces_the_older_even_if_it_is_refused(
    client: Client, tmp_path: Path
) -> None:
    async def watch(watch_id: int, *names: str) -> bool:
        missing = [file_uri(tmp_path / name) for name in names]
        params = {"watchId": watch_id, "missing": missing}
        return bool((await client.call("fs/watchMissing", params))["watching"])

    assert not await watch(0, "a")
    assert await watch(1, "a")
    assert not await watch(2)
    (tmp_path / "a").touch()
    assert await watch(3, "b", "folder/c")
    assert not await watch(3, "d")  # used already: the one before it goes on
    (tmp_path / "folder").mkdir()
    assert await client.receive() == {"method": "fs/missingChanged", "params": {"watchId": 3}}
    (tmp_path / "b").touch()
    assert await client.is_ready()

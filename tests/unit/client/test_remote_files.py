"""The files of a server that says what the test tells it to."""

import asyncio
import base64
import errno
import os

import msgspec
import pytest

from holdfast.base.errors import (
    ConnectionLost,
    InvalidParams,
    InvalidRequest,
    NotFound,
    OperationFailed,
    RemoteError,
    RemoteProtocolError,
    Unsupported,
)
from holdfast.client.client import ExecServerClient
from holdfast.engine.files.transfer import BLOCK
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.wire.protocol.envelope import ErrorData, Request
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CopyParams,
    CreateDirectoryParams,
    FileContent,
    GetMetadataParams,
    OpenParams,
    ReadFileParams,
    RemoveParams,
    WalkOptions,
    WalkParams,
    WatchMissingParams,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from tests.unit.client.script import meanwhile, param, settled

PATH = PathUri.parse("file:///f")
BIG = 5 * BLOCK + 3


def metadata(size: int) -> dict[str, object]:
    kinds = {"isDirectory": False, "isFile": True, "isSymlink": False}
    return {**kinds, "size": size, "createdAtMs": 0, "modifiedAtMs": 1}


def b64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture
def server() -> ScriptedServer:
    """One that can do everything."""
    server = ScriptedServer()

    def initialize(peer: ScriptedPeer, request: Request) -> None:
        can = {"fileWriteStreaming": True, "fsWatchMissing": True}
        info = {"shell": {"name": "sh", "path": "/bin/sh"}, "capabilities": can}
        peer.reply(request, {"sessionId": "s", "environmentInfo": info})

    server.answers["initialize"] = initialize
    return server


@pytest.fixture
def limiting(client: ExecServerClient) -> ExecServerClient:
    """A client whose server has `maxBytes`."""
    environment = client._session.environment
    assert environment is not None
    can = msgspec.structs.replace(environment.capabilities, file_read_limit=True)
    client._session.environment = msgspec.structs.replace(environment, capabilities=can)
    return client


class Disk:
    """Answers as a server with one file would."""

    def __init__(self, server: ScriptedServer, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.open: set[str] = set()
        server.answers.update(
            {
                "fs/getMetadata": lambda peer, r: peer.reply(r, metadata(len(self.data))),
                "fs/readFile": lambda peer, r: peer.reply(r, {"dataBase64": b64(self.data)}),
                "fs/open": self._open,
                "fs/readBlock": self._read,
                "fs/writeBlock": self._write,
                "fs/close": self._close,
            }
        )

    def _open(self, peer: ScriptedPeer, request: Request) -> None:
        handle = param(request, "handleId")
        assert isinstance(handle, str)
        assert len(handle) == 32
        int(handle, 16)
        if param(request, "mode") == "replace":
            self.data.clear()
        self.open.add(handle)
        peer.reply(request, {"handleId": handle})

    def _read(self, peer: ScriptedPeer, request: Request) -> None:
        offset, size = param(request, "offset"), param(request, "len")
        assert isinstance(offset, int)
        assert isinstance(size, int)
        chunk = bytes(self.data[offset : offset + size])
        peer.reply(request, {"chunk": b64(chunk), "eof": len(chunk) < size})

    def _write(self, peer: ScriptedPeer, request: Request) -> None:
        offset, chunk = param(request, "offset"), param(request, "chunk")
        assert isinstance(offset, int)
        data = base64.b64decode(str(chunk))
        self.data[offset : offset + len(data)] = data
        peer.reply(request, {})

    def _close(self, peer: ScriptedPeer, request: Request) -> None:
        self.open.discard(str(param(request, "handleId")))
        peer.reply(request, {})


async def test_a_walk_that_lists_what_is_no_path_is_an_error_of_the_server(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    options = WalkOptions(
        max_depth=1, max_directories=1, max_entries=1, follow_directory_symlinks=False
    )
    listed = {"path": "http://x/", "kind": "file"}
    async with meanwhile(client.files.walk(WalkParams(PATH, options=options))) as walking:
        request = await peer.take("fs/walk")
        peer.reply(request, {"entries": [listed], "errors": [], "truncated": False})
    (entry,) = walking.result().entries
    with pytest.raises(RemoteProtocolError, match="unsupported path URI scheme `http`"):
        _ = entry.path


# -- what refusals become


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-32004, NotFound),
        (-32600, InvalidRequest),
        (-32602, InvalidParams),
        (-32603, OperationFailed),
        (-32601, Unsupported),
        (-32010, RemoteError),
    ],
)
async def test_a_refusal_becomes_what_a_local_one_would_be(
    client: ExecServerClient, peer: ScriptedPeer, code: int, kind: type[Exception]
) -> None:
    async with meanwhile(client.files.canonicalize(CanonicalizeParams(PATH))) as asking:
        peer.fail(await peer.take("fs/canonicalize"), code, "the text")
    error = asking.exception()
    assert isinstance(error, kind)
    assert (error.message if isinstance(error, RemoteError) else str(error)) == "the text"


async def test_base64_that_is_none_is_a_fault_of_the_server(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    Disk(server)
    server.answers["fs/readFile"] = lambda peer, r: peer.reply(r, {"dataBase64": "?"})
    with pytest.raises(RemoteProtocolError):
        await client.files.read_file(ReadFileParams(PATH))


# -- what goes out


async def test_members_that_say_nothing_are_null(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.files.remove(RemoveParams(PATH, recursive=False))) as removing:
        request = await peer.take("fs/remove")
        peer.reply(request, {})
    assert removing.result() is None
    assert request.params == {
        "path": "file:///f",
        "recursive": False,
        "force": None,
        "followSymlinks": None,
        "sandbox": None,
    }


async def test_links_that_must_not_be_followed_are_named(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(
        client.files.read_file(ReadFileParams(PATH, follow_symlinks=False))
    ) as reading:
        request = await peer.take("fs/readFile")
        peer.reply(request, {"dataBase64": b64(b"x")})
    assert param(request, "followSymlinks") is False
    assert reading.result() == b"x"
    assert not peer.requests("fs/getMetadata")


# -- large files


async def test_a_small_file_is_not_opened(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    Disk(server, b"small")
    assert await client.files.read_file(ReadFileParams(PATH)) == b"small"
    assert not peer.requests("fs/open")
    with pytest.raises(InvalidRequest, match="file is too large to read: limit is 4 bytes"):
        await client.files.read_file(ReadFileParams(PATH, max_bytes=4))
    (request,) = peer.requests("fs/readFile")
    assert isinstance(request.params, dict)
    assert "maxBytes" not in request.params


async def test_a_server_that_limits_a_read_is_not_asked_for_the_size(
    limiting: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    Disk(server, b"small")
    assert await limiting.files.read_file(ReadFileParams(PATH)) == b"small"
    assert param(peer.requests("fs/readFile")[0], "maxBytes") == 4 * BLOCK
    assert not peer.requests("fs/getMetadata")


async def test_a_file_that_such_a_server_finds_too_large_is_read_in_blocks(
    limiting: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    data = os.urandom(BIG)
    Disk(server, data)
    told: ErrorData = {"kind": "invalidRequest", "errno": errno.EFBIG}
    server.answers["fs/readFile"] = lambda peer, r: peer.fail(r, -32600, "too large", told)
    assert await limiting.files.read_file(ReadFileParams(PATH)) == data
    # A caller that has a limit is refused, and so is one whose links must not be followed.
    for params in (
        ReadFileParams(PATH, max_bytes=1),
        ReadFileParams(PATH, follow_symlinks=False),
    ):
        with pytest.raises(InvalidRequest, match=r"^too large$"):
            await limiting.files.read_file(params)
    assert len(peer.requests("fs/open")) == 1


async def test_a_large_file_is_read_in_blocks_and_the_handle_closed(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    data = os.urandom(BIG)
    disk = Disk(server, data)
    assert await client.files.read_file(ReadFileParams(PATH)) == data
    assert not disk.open
    assert not peer.requests("fs/readFile")


async def test_several_blocks_are_on_their_way(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    Disk(server, b"x" * 8 * BLOCK)
    del server.answers["fs/readBlock"]
    async with meanwhile(client.files.read_file(ReadFileParams(PATH))) as reading:
        first = await peer.take("fs/readBlock")
        await settled()
        assert len(peer.requests("fs/readBlock")) == 1
        peer.reply(first, {"chunk": b64(b"a" * BLOCK), "eof": False})
        taken = [await peer.take("fs/readBlock") for _ in range(4)]
        # Answered in the wrong order, they are put together in the right one.
        for number, request in reversed(list(enumerate(taken))):
            last = number == 3
            chunk = bytes([98 + number]) * (1 if last else BLOCK)
            peer.reply(request, {"chunk": b64(chunk), "eof": last})
    expected = b"".join([b"a" * BLOCK, b"b" * BLOCK, b"c" * BLOCK, b"d" * BLOCK, b"e"])
    assert reading.result() == expected


async def test_a_block_that_is_empty_and_not_the_last_fails(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    disk = Disk(server, b"x" * BIG)
    server.answers["fs/readBlock"] = lambda peer, r: peer.reply(r, {"chunk": "", "eof": False})
    with pytest.raises(OperationFailed, match="empty non-terminal block"):
        await client.files.read_file(ReadFileParams(PATH))
    assert not disk.open


async def test_a_large_file_is_written_in_blocks(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    data = os.urandom(BIG)
    disk = Disk(server)
    await client.files.write_file(WriteFileParams(PATH, data_base64=FileContent(data)))
    assert disk.data == data
    assert not disk.open


async def test_an_older_server_gets_one_message(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    client._session.environment = None
    async with meanwhile(
        client.files.write_file(WriteFileParams(PATH, data_base64=FileContent(b"x" * BIG)))
    ) as writing:
        request = await peer.take("fs/writeFile")
        peer.reply(request, {})
    assert writing.exception() is None
    with pytest.raises(InvalidRequest, match="too large to write in one message"):
        await client.files.write_file(
            WriteFileParams(PATH, data_base64=FileContent(b"x" * (12 << 20)))
        )
    with pytest.raises(InvalidRequest, match="cannot write a file in blocks"):
        await client.files.open(OpenParams(handle_id="", path=PATH, mode="replace"))


async def test_an_upload_that_is_cancelled_is_never_completed(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    Disk(server)
    del server.answers["fs/writeBlock"]
    async with meanwhile(
        client.files.write_file(WriteFileParams(PATH, data_base64=FileContent(b"x" * BIG)))
    ) as writing:
        await peer.take("fs/writeBlock")
        writing.cancel()
    await settled()
    assert not peer.requests("fs/close")


async def test_an_open_that_is_cancelled_is_closed_again(
    client: ExecServerClient, peer: ScriptedPeer
) -> None:
    async with meanwhile(client.files.open(OpenParams(handle_id="", path=PATH))) as opening:
        request = await peer.take("fs/open")
        opening.cancel()
    closing = await peer.take("fs/close")
    assert param(closing, "handleId") == param(request, "handleId")
    peer.reply(closing, {})


# -- lost connections


async def test_a_question_is_asked_again_after_a_lost_connection(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    async with meanwhile(client.files.get_metadata(GetMetadataParams(PATH))) as asking:
        await peer.take("fs/getMetadata")
        peer.cut()
        again = await server.peer(1)
        again.reply(await again.take("fs/getMetadata"), metadata(7))
    assert asking.result().size == 7


async def test_a_file_is_written_again_after_a_lost_connection(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    async with meanwhile(
        client.files.write_file(WriteFileParams(PATH, data_base64=FileContent(b"x")))
    ) as writing:
        await peer.take("fs/writeFile")
        peer.cut()
        again = await server.peer(1)
        again.reply(await again.take("fs/writeFile"), {})
    assert writing.exception() is None


@pytest.mark.parametrize("method", ["fs/readBlock", "fs/writeBlock", "fs/close"])
async def test_a_large_file_begins_anew_after_a_lost_connection(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer, method: str
) -> None:
    data = os.urandom(BIG)
    disk = Disk(server, data)
    usual = server.answers[method]

    def cut_once(peer: ScriptedPeer, request: Request) -> None:
        server.answers[method] = usual
        peer.cut()

    server.answers[method] = cut_once
    if method == "fs/readBlock":
        assert await client.files.read_file(ReadFileParams(PATH)) == data
    else:
        await client.files.write_file(WriteFileParams(PATH, data_base64=FileContent(data)))
        assert disk.data == data
    assert len(server.peers) == 2


@pytest.mark.parametrize("method", ["createDirectory", "remove", "copy"])
async def test_what_may_have_happened_is_not_repeated(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer, method: str
) -> None:
    work = {
        "createDirectory": lambda: client.files.create_directory(CreateDirectoryParams(PATH)),
        "remove": lambda: client.files.remove(RemoveParams(PATH)),
        "copy": lambda: client.files.copy(
            CopyParams(source_path=PATH, destination_path=PATH, recursive=False)
        ),
    }[method]()
    async with meanwhile(work) as changing:
        await peer.take(f"fs/{method}")
        peer.cut()
    assert isinstance(changing.exception(), ConnectionLost)


async def test_a_handle_ends_with_its_connection(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    Disk(server, b"x")
    reading = await client.files.open(OpenParams(handle_id="", path=PATH))
    writing = await client.files.open(OpenParams(handle_id="", path=PATH, mode="replace"))
    peer.cut()
    await server.peer(1)
    for work in (reading.read_block(0, 1), writing.write_block(0, b"x"), writing.aclose()):
        with pytest.raises(ConnectionLost):
            await work
    await reading.aclose()  # there is nothing to lose


# -- watches


async def watching(client: ExecServerClient, peer: ScriptedPeer, *, granted: bool = True) -> object:
    async with meanwhile(
        client.files.watch_missing(WatchMissingParams(watch_id=0, missing=[PATH]))
    ) as asking:
        peer.reply(await peer.take("fs/watchMissing"), {"watching": granted})
    return asking.result()


async def test_a_watch_fires_by_its_number(client: ExecServerClient, peer: ScriptedPeer) -> None:
    async with meanwhile(
        client.files.watch_missing(WatchMissingParams(watch_id=0, missing=[PATH]))
    ) as asking:
        request = await peer.take("fs/watchMissing")
        peer.reply(request, {"watching": True})
    watch = asking.result()
    assert watch is not None
    number = param(request, "watchId")
    async with meanwhile(watch.changed()) as waiting:
        peer.notify("fs/missingChanged", {"watchId": 99})
        await settled()
        assert not waiting.done()
        peer.notify("fs/missingChanged", {"watchId": number})


async def test_a_watch_that_is_replaced_or_lost_may_have_fired(
    client: ExecServerClient, peer: ScriptedPeer, server: ScriptedServer
) -> None:
    first = await watching(client, peer)
    second = await watching(client, peer)
    async with asyncio.timeout(5):
        await first.changed()  # type: ignore[attr-defined]
        peer.cut()
        await second.changed()  # type: ignore[attr-defined]


async def test_what_cannot_be_watched_is_none(client: ExecServerClient, peer: ScriptedPeer) -> None:
    assert await watching(client, peer, granted=False) is None
    client._session.environment = None
    assert await client.files.watch_missing(WatchMissingParams(watch_id=0, missing=[PATH])) is None

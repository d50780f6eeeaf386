"""Files of a environment that do not come, or not as a whole."""

import asyncio
import errno
import os
import stat
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectionLost, InvalidParams, NotFound, OperationFailed
from holdfast.engine.files.handle import LocalFileHandle
from holdfast.environments import files as files_module
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.environments.sandbox import SandboxProfile
from holdfast.environments.tree_transfer import open_regular
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.wire.protocol.envelope import Request
from holdfast.wire.protocol.fs import WalkEntry, WalkError, WalkParams, WalkResponse
from holdfast.wire.protocol.handshake import Capabilities
from holdfast.wire.protocol.paths import PathUri
from tests.e2e.wire import LIMIT


@pytest.fixture
async def env(tmp_path: Path) -> AsyncIterator[Environment]:
    async with LocalEnvironment() as environment:
        environment.cwd = tmp_path
        yield environment


async def test_a_download_that_fails_leaves_the_old_file_and_nothing_else(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_bytes(b"x" * 3_000_000)
    (tmp_path / "here").write_text("old")
    read_block = LocalFileHandle.read_block

    async def fail_later(self: LocalFileHandle, offset: int, size: int) -> tuple[bytes, bool]:
        if offset:
            raise ConnectionLost("cut")
        return await read_block(self, offset, size)

    monkeypatch.setattr(LocalFileHandle, "read_block", fail_later)
    with pytest.raises(ConnectionLost, match="cut"):
        await env.files.download("there", tmp_path / "here")
    assert (tmp_path / "here").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["here", "there"]


async def test_an_upload_that_fails_leaves_the_old_file_and_nothing_else(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").write_bytes(b"x" * 3_000_000)
    (tmp_path / "there").write_text("old")

    async def fail(self: LocalFileHandle, offset: int, data: bytes) -> None:
        raise ConnectionLost("cut")

    monkeypatch.setattr(LocalFileHandle, "write_block", fail)
    with pytest.raises(ConnectionLost, match="cut"):
        await env.files.upload(tmp_path / "here", "there")
    assert (tmp_path / "there").read_text() == "old"


async def test_a_downloaded_file_has_the_usual_mode(env: Environment, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    old = os.umask(0o027)
    try:
        await env.files.download("there", tmp_path / "here")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "here").stat().st_mode) == 0o640


async def test_a_server_that_takes_no_blocks_is_sent_a_file_at_once(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"hello")
    written: list[object] = []

    def take(peer: ScriptedPeer, request: Request) -> None:
        assert isinstance(request.params, dict)
        written.append((request.params["path"], request.params["dataBase64"]))
        peer.reply(request, {})

    server = ScriptedServer()
    server.answers["fs/writeFile"] = take
    async with RemoteEnvironment("far", server) as far:
        await far.files.upload(tmp_path / "here", "there")
    assert written == [("file:///there", "aGVsbG8=")]


async def test_paths_that_make_no_sense_are_refused(env: Environment) -> None:
    with pytest.raises(InvalidParams, match="the path is empty"):
        await env.files.read_text("")
    foreign = PathUri.parse("file:///C:/work/x")
    with pytest.raises(InvalidParams, match="create it with mkdir"):
        await env.files.write(foreign, "", parents=True)


async def test_a_folder_of_this_process_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    async with LocalEnvironment() as env:
        with pytest.raises(NotFound, match="pass a cwd"):
            await env.run("true")
        assert (await env.run("pwd", cwd="/")).stdout == "/\n"
        env.cwd = "/"
        assert (await env.run("pwd")).stdout == "/\n"


async def test_folders_whose_names_begin_with_a_dot_can_be_left_out(env: Environment) -> None:
    await env.files.write(".git/x", "", parents=True)
    await env.files.write("src/y", "", parents=True)
    everything = {entry.path.native for entry in (await env.files.walk()).entries}
    usual = {entry.path.native for entry in (await env.files.walk(hidden=False)).entries}
    here = (await env.uri()).native
    assert f"{here}/.git/x" in everything
    assert f"{here}/.git/x" not in usual
    assert f"{here}/src/y" in usual
    assert (await env.files.walk(max_entries=1)).truncated


async def test_files_of_a_sandbox_go_whole_where_they_cannot_go_in_blocks(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_more(self: Environment) -> Capabilities:
        return Capabilities(file_write_streaming=True)

    async def fail(*args: object, **options: object) -> None:
        raise AssertionError("a server may not know how to keep a sandbox for a handle")

    monkeypatch.setattr(LocalEnvironment, "capabilities", nothing_more)
    monkeypatch.setattr(type(env.filesystem), "open", fail)
    env.sandbox = SandboxProfile("read-only", write=["."])
    (tmp_path / "here").write_text("text")
    await env.files.upload(tmp_path / "here", "there")
    await env.files.download("there", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "text"
    with pytest.raises(IsADirectoryError):
        await env.files.download("there", tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["back", "here", "there"]


# -- folders


def walking(env: Environment, monkeypatch: pytest.MonkeyPatch, answer: WalkResponse) -> None:
    """Let the environment list something else than it has."""

    async def walk(params: WalkParams) -> WalkResponse:
        return answer

    monkeypatch.setattr(env.filesystem, "walk", walk)


@pytest.mark.parametrize("listed", ["/etc/passwd", "/{root}/../x", "/{root}x/y"])
async def test_a_place_cannot_choose_where_a_download_writes(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    (tmp_path / "there").mkdir()
    path = PathUri.parse("file://" + listed.replace("/{root}", f"{tmp_path}/there"))
    entries = [WalkEntry(uri=str(path), kind="file")]
    walking(env, monkeypatch, WalkResponse(entries=entries, errors=[], truncated=False))
    with pytest.raises(OperationFailed, match="was listed, which is not below"):
        await env.files.download("there", tmp_path / "here")
    assert sorted(os.listdir(tmp_path)) == ["there"]


async def test_a_folder_with_too_much_in_it_is_not_fetched_at_all(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    walking(env, monkeypatch, WalkResponse(entries=[], errors=[], truncated=True))
    with pytest.raises(OperationFailed, match=r"has more entries than can be fetched"):
        await env.files.download("there", tmp_path / "here")
    deep = PathUri.from_path(str(tmp_path / "there" / "/".join("x" * 65)))
    entries = [WalkEntry(uri=str(deep), kind="directory")]
    walking(env, monkeypatch, WalkResponse(entries=entries, errors=[], truncated=False))
    with pytest.raises(OperationFailed, match="too deep"):
        await env.files.download("there", tmp_path / "here")
    error = WalkError(path=deep, message="Permission denied")
    walking(env, monkeypatch, WalkResponse(entries=[], errors=[error], truncated=False))
    with pytest.raises(OperationFailed, match="x/x: Permission denied"):
        await env.files.download("there", tmp_path / "here")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_folder_that_fails_half_way_leaves_whole_files_only(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        (source / f"{number}").write_bytes(b"x" * 10)
    (source / "9").write_bytes(b"x" * 3_000_000)

    async def fail(self: LocalFileHandle, offset: int, data: object) -> None:
        if offset:
            raise ConnectionLost("cut")
        await asyncio.sleep(0)

    if direction == "up":
        monkeypatch.setattr(LocalFileHandle, "write_block", fail)
        with pytest.raises(ConnectionLost, match="source/9: cut"):
            await env.files.upload(source, "target")
    else:
        read_block = LocalFileHandle.read_block

        async def fail_later(self: LocalFileHandle, offset: int, size: int) -> tuple[bytes, bool]:
            if offset:
                raise ConnectionLost("cut")
            return await read_block(self, offset, size)

        monkeypatch.setattr(LocalFileHandle, "read_block", fail_later)
        with pytest.raises(ConnectionLost, match="source/9: cut"):
            await env.files.download("source", tmp_path / "target")
        for name in os.listdir(tmp_path / "target"):
            assert (tmp_path / "target" / name).read_bytes() == b"x" * 10
    assert "9" not in os.listdir(tmp_path / "target")
    assert not [name for name in os.listdir(tmp_path / "target") if name.startswith(".")]


async def test_a_file_that_became_a_pipe_does_not_make_an_upload_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is no longer a regular file"):
        open_regular(str(tmp_path / "pipe"))
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(str(tmp_path / "link"))


async def test_a_folder_that_cannot_be_sent_has_the_error_of_the_system(
    env: Environment, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").touch()
    await env.files.write("taken", "")
    with pytest.raises(OperationFailed, match="File exists") as caught:
        await env.files.upload(source, "taken")
    assert caught.value.errno == errno.EEXIST
    assert caught.value.path == (await env.uri("taken")).native
    with pytest.raises(TypeError, match="a path must be a string"):
        await env.files.exists(None)  # type: ignore[arg-type]


async def test_a_download_that_is_cancelled_while_it_begins_leaves_nothing(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_bytes(b"x")
    begun, go_on = threading.Event(), threading.Event()
    make = tempfile.mkstemp

    def make_late(prefix: str, dir: str) -> tuple[int, str]:  # noqa: A002 - as it is called
        begun.set()
        go_on.wait(LIMIT)
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkstemp", make_late)
    removed = asyncio.Event()
    give_up = files_module._Arriving.give_up

    def note(self: files_module._Arriving) -> None:
        give_up(self)
        removed.set()

    monkeypatch.setattr(files_module._Arriving, "give_up", note)
    fetching = asyncio.create_task(env.files.download("there", tmp_path / "here"))
    assert await asyncio.to_thread(begun.wait, LIMIT)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    go_on.set()
    async with asyncio.timeout(LIMIT):
        await removed.wait()
    assert os.listdir(tmp_path) == ["there"]


async def test_an_error_of_a_folder_has_its_number_and_its_path(
    env: Environment, tmp_path: Path
) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "name").write_text("new")
    (tmp_path / "to" / "name").mkdir(parents=True)
    with pytest.raises(OperationFailed) as raised:
        await env.files.upload(tmp_path / "from", "to")
    assert raised.value.errno == errno.EISDIR
    assert raised.value.path == str(tmp_path / "to" / "name")  # the one that is in the way
    with pytest.raises(IsADirectoryError) as local:
        await env.files.download("from", tmp_path / "to")
    assert (local.value.errno, local.value.filename) == (
        errno.EISDIR,
        str(tmp_path / "to" / "name"),
    )

"""Errors of a server: the same as local ones to our client, and as Codex tells them to others."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import (
    DuplicateProcess,
    InvalidRequest,
    NotFound,
    OperationFailed,
    Refused,
    RemoteError,
    SpawnFailed,
)
from holdfast.client.client import ExecServerClient
from holdfast.client.error_mapping import start_refusals
from holdfast.client.remote_process import RemoteProcess
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.wire.protocol.fs import (
    CopyParams,
    GetMetadataParams,
    OpenParams,
    ReadFileParams,
    RemoveParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams
from tests.e2e.wire import Client, ServerProcess, connect, file_uri, start_params


@pytest.fixture
async def holdfast(server: ServerProcess) -> AsyncIterator[ExecServerClient]:
    async with await ExecServerClient.connect(server.url) as client:
        yield client


async def start(client: ExecServerClient, argv: list[str], **params: object) -> RemoteProcess:
    usual = {"cwd": PathUri.from_path("/"), "env": {"PATH": "/usr/bin:/bin"}, "tty": False}
    request = StartParams(process_id="p", argv=argv, **{**usual, **params})  # type: ignore[arg-type]
    with start_refusals("p", argv[0]):
        return await client.start(request)


def told(error: Refused) -> tuple[object, ...]:
    return type(error), str(error), error.errno, error.path, error.program


# -- our client


async def test_a_file_error_is_the_same_here_and_there(
    holdfast: ExecServerClient, tmp_path: Path
) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    paths = [str(tmp_path / "none"), odd, str(tmp_path / "folder"), str(tmp_path / "file/below")]
    async with LocalFileSystem() as local:
        for native in paths:
            path = PathUri.from_path(native)
            with pytest.raises(Refused) as here:
                await local.read_file(ReadFileParams(path))
            with pytest.raises(Refused) as there:
                await holdfast.files.read_file(ReadFileParams(path))
            assert told(there.value) == told(here.value)
            assert there.value.path == native
            assert isinstance(there.value.__cause__, RemoteError)


async def test_file_errors_carry_number_and_path(
    holdfast: ExecServerClient, tmp_path: Path
) -> None:
    missing = PathUri.from_path(tmp_path / "none")
    with pytest.raises(NotFound) as caught:
        await holdfast.files.get_metadata(GetMetadataParams(missing))
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, missing.native)
    with pytest.raises(NotFound) as caught:
        await holdfast.files.open(OpenParams(handle_id="", path=missing))
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, missing.native)
    (tmp_path / "folder/full").mkdir(parents=True)
    folder = PathUri.from_path(tmp_path / "folder")
    with pytest.raises(OperationFailed) as failed:
        await holdfast.files.remove(RemoveParams(folder, recursive=False))
    assert (failed.value.errno, failed.value.path) == (errno.ENOTEMPTY, folder.native)
    with pytest.raises(NotFound) as caught:
        await holdfast.files.copy(
            CopyParams(source_path=missing, destination_path=folder.child("copy"), recursive=False)
        )
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, missing.native)
    with pytest.raises(InvalidRequest) as refused:
        await holdfast.files.copy(
            CopyParams(source_path=folder, destination_path=missing, recursive=False)
        )
    assert refused.value.errno is None


@pytest.mark.parametrize("tty", [False, True])
async def test_a_spawn_error_carries_number_and_program(
    holdfast: ExecServerClient, tmp_path: Path, tty: bool
) -> None:
    plain = tmp_path / "plain"
    plain.touch(0o644)
    cases = [
        ("no-such-tool", errno.ENOENT),
        (str(tmp_path / "none"), errno.ENOENT),
        (str(plain), errno.EACCES),
    ]
    for program, number in cases:
        with pytest.raises(SpawnFailed) as caught:
            await start(holdfast, [program], tty=tty)
        assert (caught.value.errno, caught.value.program) == (number, program)
        assert caught.value.path is None
        assert isinstance(caught.value.__cause__, RemoteError)


@pytest.mark.parametrize("program", ["true", "/bin/true"])
async def test_a_folder_that_is_missing_is_told_apart_from_a_program(
    holdfast: ExecServerClient, tmp_path: Path, program: str
) -> None:
    missing = tmp_path / "none"
    with pytest.raises(SpawnFailed) as caught:
        await start(holdfast, [program], cwd=PathUri.from_path(missing))
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, str(missing))
    assert caught.value.program is not None
    assert os.path.basename(caught.value.program) == "true"


async def test_an_id_that_is_taken_is_a_duplicate(holdfast: ExecServerClient) -> None:
    await start(holdfast, ["sleep", "60"])
    with pytest.raises(DuplicateProcess) as caught:
        await start(holdfast, ["true"])
    assert caught.value.process_id == "p"


# -- others


async def fails(client: Client, method: str, params: object) -> dict[str, object]:
    reply = await client.reply(await client.request(method, params))
    error = reply["error"]
    assert isinstance(error, dict)
    return error


async def test_a_client_that_is_not_holdfast_gets_no_data(
    client: Client, server: ServerProcess, tmp_path: Path
) -> None:
    missing = {"path": file_uri(tmp_path / "none")}
    for other in (False, None):
        async with connect(server.url, initialize=False) as fresh:
            params = {"clientName": "c", "acknowledges": other}
            if other is None:
                del params["acknowledges"]
            await fresh.call("initialize", params)
            await fresh.notify("initialized", {})
            for method, given in (
                ("fs/readFile", missing),
                ("process/start", start_params("p", ["/none"])),
                ("process/read", {"processId": "nope"}),
                ("nope", {}),
                ("process/start", {}),
            ):
                assert set(await fails(fresh, method, given)) == {"code", "message"}


async def test_a_client_that_acknowledges_gets_data(server: ServerProcess, tmp_path: Path) -> None:
    async with connect(server.url, initialize=False) as client:
        await client.call("initialize", {"clientName": "c", "acknowledges": True})
        await client.notify("initialized", {})
        missing = file_uri(tmp_path / "none")
        assert await fails(client, "fs/readFile", {"path": missing}) == {
            "code": -32004,
            "message": "No such file or directory (os error 2)",
            "data": {"kind": "notFound", "errno": 2, "path": missing},
        }
        assert await fails(client, "process/start", start_params("p", ["/none"])) == {
            "code": -32603,
            "message": "No such file or directory (os error 2)",
            "data": {"kind": "spawnFailed", "errno": 2, "program": "/none"},
        }
        odd = await fails(client, "fs/readFile", {"path": f"{missing}%FF"})
        assert odd["data"] == {"kind": "notFound", "errno": 2, "path": f"{missing}%FF"}

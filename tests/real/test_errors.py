"""The errors of the real server, which tells no data: our client raises what a local one would."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.base.errors import (
    DuplicateProcess,
    InvalidRequest,
    NotFound,
    OperationFailed,
    RemoteError,
    SpawnFailed,
)
from holdfast.client.client import ExecServerClient
from holdfast.client.error_mapping import start_refusals
from holdfast.client.remote_process import RemoteProcess
from holdfast.wire.protocol.fs import ReadFileParams, RemoveParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams
from tests.real.codex import codex_serving

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(90)]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ExecServerClient]:
    with codex_serving(tmp_path / "home") as url:
        async with await ExecServerClient.connect(url) as client:
            yield client


async def start(client: ExecServerClient, argv: list[str], **params: object) -> RemoteProcess:
    usual = {"cwd": PathUri.from_path("/"), "env": {"PATH": "/usr/bin:/bin"}, "tty": False}
    request = StartParams(process_id="p", argv=argv, **{**usual, **params})  # type: ignore[arg-type]
    with start_refusals("p", argv[0]):
        return await client.start(request)


async def test_file_errors_have_number_and_path(client: ExecServerClient, tmp_path: Path) -> None:
    missing = PathUri.from_path(tmp_path / "none")
    with pytest.raises(NotFound) as caught:
        await client.files.read_file(ReadFileParams(missing))
    assert (caught.value.errno, caught.value.path) == (errno.ENOENT, missing.native)
    assert isinstance(caught.value.__cause__, RemoteError)
    assert caught.value.__cause__.data is None
    (tmp_path / "folder/full").mkdir(parents=True)
    folder = PathUri.from_path(tmp_path / "folder")
    with pytest.raises(OperationFailed) as failed:
        await client.files.remove(RemoveParams(folder, recursive=False))
    assert (failed.value.errno, failed.value.path) == (errno.ENOTEMPTY, folder.native)
    with pytest.raises(InvalidRequest) as refused:
        await client.files.read_file(ReadFileParams(folder))
    assert (refused.value.errno, refused.value.path) == (None, folder.native)


@pytest.mark.parametrize("tty", [False, True])
async def test_spawn_errors_have_number_and_program(
    client: ExecServerClient, tmp_path: Path, tty: bool
) -> None:
    plain = tmp_path / "plain"
    plain.touch(0o644)
    folders = {"PATH": f"{tmp_path}:/usr/bin"}
    cases = [
        ("no-such-tool", errno.ENOENT),
        ("plain", errno.EACCES),
        (str(tmp_path / "none"), errno.ENOENT),
        (str(plain), errno.EACCES),
    ]
    for program, number in cases:
        with pytest.raises(SpawnFailed) as caught:
            await start(client, [program], tty=tty, env=folders)
        assert (program, caught.value.errno) == (program, number)
        assert caught.value.program == program


async def test_an_id_that_is_taken_is_a_duplicate(client: ExecServerClient) -> None:
    # Once its end is known here, the client itself has forgotten the id.
    await (await start(client, ["/bin/true"])).wait()
    with pytest.raises(DuplicateProcess) as caught:
        await start(client, ["/bin/true"])
    assert caught.value.process_id == "p"
    assert isinstance(caught.value.__cause__, RemoteError)

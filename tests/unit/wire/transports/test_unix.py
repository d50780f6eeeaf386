"""Unix sockets: who may connect, and what is left by those that are gone."""

import fcntl
import os
import socket
import stat
from pathlib import Path

import pytest

from holdfast.base.errors import ConnectFailed
from holdfast.wire.transports import unix
from holdfast.wire.transports.unix import bind_unix, connect_unix, listen_unix
from tests.unit.wire.transports.recorder import Recorder


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "socket")


async def test_messages_cross_a_unix_socket(path: str) -> None:
    near, far = Recorder(), Recorder()
    server = await listen_unix(path, far.accept)
    transport = await connect_unix(path, near.accept)
    transport.send(b"one")
    assert await far.count(1) == [b"one"]
    far.line.send(b"two")
    assert await near.count(1) == [b"two"]
    assert transport.kind == far.line.kind == "unix"
    transport.close()
    assert await far.end() == "end of input"
    server.close()


@pytest.mark.requirement("security.unix-socket")
async def test_only_the_owner_may_connect(path: str) -> None:
    before = os.umask(0)
    try:
        server = await listen_unix(path, Recorder().accept)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert os.umask(0) == 0  # as it was
    finally:
        os.umask(before)
    server.close()


async def test_a_socket_left_by_a_server_that_is_gone_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    server = await listen_unix(path, Recorder().accept)
    (await connect_unix(path, Recorder().accept)).abort()
    server.close()


async def test_a_socket_that_answers_is_not_replaced(path: str) -> None:
    server = await listen_unix(path, Recorder().accept)
    with pytest.raises(OSError, match="Address already in use"):
        await listen_unix(path, Recorder().accept)
    (await connect_unix(path, Recorder().accept)).abort()
    server.close()


async def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(OSError, match="Address already in use"):
        await listen_unix(str(file), Recorder().accept)
    assert file.read_text() == "precious"


async def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await listen_unix(str(tmp_path / "no" / "socket"), Recorder().accept)


async def test_a_connection_that_cannot_be_made_says_why(path: str) -> None:
    with pytest.raises(ConnectFailed, match=r"socket`: No such file or directory \(os error 2\)$"):
        await connect_unix(path, Recorder().accept)


async def test_a_connection_that_takes_too_long_is_given_up(path: str) -> None:
    with pytest.raises(ConnectFailed, match="timed out connecting to unix socket"):
        await connect_unix(path, Recorder().accept, timeout=0)


def test_a_folder_that_somebody_keeps_locked_does_not_keep_a_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix, "_LOCK_LIMIT", 0.01)
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bind_unix(str(tmp_path / "socket")).close()
    finally:
        os.close(lock)

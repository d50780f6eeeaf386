"""Socket files: who may use one, who takes one over, and what is left of it."""

import errno
import socket
import stat
from pathlib import Path

import pytest

from holdfast.base.local_servers import reachable
from holdfast.server.app import Server
from holdfast.wire.transports.unix import bind_unix

pytestmark = pytest.mark.both_loops


@pytest.mark.requirement("security.unix-socket")
async def test_a_socket_file_is_only_its_users_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with Server() as server:
        await server.listen(f"unix://{path}")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert str(path) in reachable({}).sockets  # and no sandbox shows it
    assert not path.exists()
    assert str(path) not in reachable({}).sockets


async def test_a_socket_file_of_another_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        async with Server() as server:
            await server.listen(f"unix://{path}")
            path.unlink()
            other.bind(str(path))
        assert path.exists()


def test_a_socket_whose_server_is_too_busy_to_accept_is_not_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(path)
        busy.listen(0)
        waiting.connect(path)
        with pytest.raises(OSError, match="in use") as caught:  # at once, though nobody accepts
            bind_unix(path)
        assert caught.value.errno == errno.EADDRINUSE

"""A server as a part of another asyncio program, on a socket file that only its user can open."""

import asyncio
import os
import stat
import tempfile

from holdfast import ExecServerClient, PathUri, Server, StartParams
from holdfast.server.listen import parse_listen_url


async def use(url: str) -> int:
    """Start a process that outlives its client, and return its pid."""
    async with await ExecServerClient.connect(url) as client:
        request = StartParams(
            process_id="sleeper",
            argv=["/bin/sleep", "600"],
            cwd=PathUri.from_path("/"),
            env={},
            tty=False,
        )
        await client.start(request)
        (summary,) = await client.list_processes()
        print(f"{summary.process_id} runs as pid {summary.pid}")
        assert summary.running
        return summary.pid


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/holdfast.sock"
        async with asyncio.timeout(20), Server() as server:
            url = await server.listen(parse_listen_url(f"unix://{socket}"))
            assert stat.S_IMODE(os.stat(socket).st_mode) == 0o600
            pid = await use(url)
            assert runs(pid)  # its client is gone, and may come back for 80 seconds
        assert not runs(pid)
        print("with the server, everything it started is gone")


asyncio.run(main())

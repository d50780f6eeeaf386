"""A server as a part of another asyncio program, on a socket file that only its user can open."""

import asyncio
import stat
import tempfile
from pathlib import Path

from holdfast import ExecServerClient, PathUri, Server, StartParams
from holdfast.server.listen import parse_listen_url


async def use(url: str) -> None:
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
        assert Path(f"/proc/{summary.pid}").exists()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "holdfast.sock")
        async with asyncio.timeout(20), Server() as server:
            url = await server.listen(parse_listen_url(f"unix://{socket}"))
            assert stat.S_IMODE(socket.stat().st_mode) == 0o600
            await use(url)
            (process,) = server.state.sessions.processes()
            assert process.running  # its client is gone, and may come back for 30 seconds
        assert not process.running
        print("with the server, everything it started is gone")


asyncio.run(main())

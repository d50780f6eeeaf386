"""
A server that tells what it holds: run as a program by the soak tests, and never imported.

Takes the seconds for which closed processes are kept, and those between two pings. Prints its
URL, then one line of JSON for each line it reads; the end of its input ends it.
"""

import asyncio
import gc
import json
import os
import sys

from holdfast.engine.process.spawn import raise_descriptor_limit
from holdfast.server.app import Server
from holdfast.server.listen import parse_listen_url
from holdfast.wire.transports import websocket_listener


def _measure(server: Server) -> dict[str, int]:
    gc.collect()
    with open("/proc/self/status") as status:
        (resident,) = [line.split()[1] for line in status if line.startswith("VmRSS")]
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        alive = children.read().split()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": len(alive),
        "tasks": len(asyncio.all_tasks()),
        "kilobytes": int(resident),
        "sessions": len(server.state.sessions),
        "processes": sum(len(session.processes) for session in server.state.sessions),
    }


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _main(retention: float, ping_interval: float) -> None:
    websocket_listener.PING_INTERVAL = ping_interval
    stopped = asyncio.Event()

    def asked() -> None:
        if os.read(0, 1):
            _tell(json.dumps(_measure(server)))
        else:
            stopped.set()

    raise_descriptor_limit()
    async with Server(process_retention=retention, session_expiry=retention) as server:
        _tell(await server.listen(parse_listen_url("ws://127.0.0.1:0")))
        asyncio.get_running_loop().add_reader(0, asked)
        await stopped.wait()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(_main(*map(float, sys.argv[1:])))
    else:
        uvloop.run(_main(*map(float, sys.argv[1:])))

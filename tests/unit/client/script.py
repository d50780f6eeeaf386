"""Messages between the tests of the client and their scripted server."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.client.client import ExecServerClient
from holdfast.client.remote_process import RemoteProcess
from holdfast.events import ProcessEvent
from holdfast.testing import ScriptedPeer, ScriptedServer
from holdfast.wire.protocol.envelope import Request
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import StartParams

T = TypeVar("T")


def start_params(process_id: str = "p1", **options: Any) -> StartParams:
    return StartParams(
        process_id=process_id,
        argv=["true"],
        cwd=PathUri.parse("file:///"),
        env={},
        tty=False,
        **options,
    )


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Run something beside the test until it is over, well or not; its result is the test's."""
    async with asyncio.timeout(5):
        task = asyncio.ensure_future(work)
        try:
            yield task
            await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.wait([task])


async def started(
    client: ExecServerClient, peer: ScriptedPeer, process_id: str = "p1"
) -> RemoteProcess:
    """A process that the server says it started."""
    async with meanwhile(client.start(start_params(process_id))) as starting:
        peer.reply(await peer.take("process/start"), {"processId": process_id})
    return await starting


async def cut_off(peer: ScriptedPeer, server: ScriptedServer) -> ScriptedPeer:
    """Cut the connection, and return the next one, on which nothing is answered yet."""
    del server.answers["initialize"]
    peer.cut()
    return await server.peer(len(server.peers))


async def resume(again: ScriptedPeer, client: ExecServerClient) -> None:
    """Let a client have its session back, with one process that has written nothing."""
    again.reply(await again.take("initialize"), {"sessionId": client.session_id})
    again.reply(await again.take("process/read"), read_result(next_seq=1))


async def all_events(process: RemoteProcess) -> list[ProcessEvent]:
    async with asyncio.timeout(5):
        return [event async for event in process.events()]


async def settled(rounds: int = 20) -> None:
    """Let everything run that can without news from anybody: messages pass in a few rounds."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def param(request: Request, name: str) -> object:
    assert isinstance(request.params, dict)
    return request.params[name]


def nothing_missed(peer: ScriptedPeer, request: Request) -> None:
    """Answer a read of a process of which nothing is known yet."""
    after = param(request, "afterSeq")
    assert isinstance(after, int)
    peer.reply(request, read_result(next_seq=after + 1))


def read_result(
    *,
    next_seq: int,
    chunks: list[dict[str, object]] | None = None,
    exit_code: int | None = None,
    closed: bool = False,
) -> dict[str, object]:
    return {
        "chunks": chunks or [],
        "nextSeq": next_seq,
        "exited": exit_code is not None,
        "exitCode": exit_code,
        "closed": closed,
        "failure": None,
        "sandboxDenied": False,
    }

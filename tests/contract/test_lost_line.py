"""
Contract of the backends while the connection to a server is down, and when it is back.

Every line here can be made anew, so nothing but a delay may be noticed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectFailed
from holdfast.client.client import ExecServerClient
from holdfast.client.target import Target
from holdfast.events import Reason, Verdict
from holdfast.server.app import Server
from holdfast.testing import CODEX, FakeBackend
from holdfast.testing import HOLDFAST as ALL
from holdfast.wire.protocol.process import StartParams, WriteStatus
from holdfast.wire.transports.transport import Receiver, Transport
from tests.contract.conftest import SERVED, FakeSubject, MemoryTarget, Subject
from tests.contract.fake_programs import install
from tests.contract.running import Output, check, finish, program, shell
from tests.e2e.wire import LIMIT, Fifo

pytestmark = [
    pytest.mark.requirement("client.recovery.resumes"),
    pytest.mark.every_transport,
    pytest.mark.both_loops,
]


class GatedTarget(Target):
    """Another target, which can be made unreachable."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self._transport: Transport | None = None
        self.reachable = True

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        if not self.reachable:
            raise ConnectFailed("the line is down")
        self._transport = await self._inner.open(accept)
        return self._transport

    def cut(self) -> None:
        """End the connection, and make no other."""
        self.reachable = False
        assert self._transport is not None  # somebody uses it
        self._transport.abort()


@dataclass(frozen=True)
class RealLine(Subject):
    """A subject behind a connection."""

    target: GatedTarget

    async def cut(self) -> None:
        """Lose the line, and wait until that is noticed."""
        assert isinstance(self.backend, ExecServerClient)
        noticed = asyncio.Event()
        self.backend.connection_changed = noticed.set
        self.target.cut()
        async with asyncio.timeout(LIMIT):
            await noticed.wait()

    def restore(self) -> None:
        """Let it be made again."""
        self.target.reachable = True


@dataclass(frozen=True)
class ServedLine(RealLine):
    """A connection to a server whose processes are those of `holdfast.testing`."""

    fake: FakeSubject

    def is_alive(self, pid: int) -> bool:
        return self.fake.is_alive(pid)

    async def gone(self, pid: int) -> None:
        await self.fake.gone(pid)


class FakeLine(FakeSubject):
    """The same of `holdfast.testing`."""

    async def cut(self) -> None:
        self._fake.lose_line()

    def restore(self) -> None:
        self._fake.restore_line()


Line = RealLine | FakeLine


@pytest.fixture(
    params=[
        "memory",
        "websocket",
        "unix",
        pytest.param("real-websocket", marks=pytest.mark.real),
        "fake-remote",
        "fake-codex",
        SERVED,
    ]
)
async def subject(
    request: pytest.FixtureRequest, websocket_url: str, unix_url: str, codex_url: str | None
) -> AsyncIterator[Line]:
    """Each subject whose line can be lost and made again."""
    name: str = request.param
    async with AsyncExitStack() as stack:
        if name in ("fake-remote", "fake-codex"):
            codex_like = name == "fake-codex"
            fake = FakeBackend(remote=True, capabilities=CODEX if codex_like else ALL)
            install(await stack.enter_async_context(fake))
            yield FakeLine(fake, remote=True, real=codex_like)
            return
        if name == SERVED:
            backend = await stack.enter_async_context(FakeBackend())
            install(backend)
            server = await stack.enter_async_context(Server(processes=backend))
            target = GatedTarget(MemoryTarget(server))
            client = await stack.enter_async_context(await ExecServerClient.connect(target))
            played = FakeSubject(backend, remote=False, real=False)
            yield ServedLine(client, remote=True, real=False, target=target, fake=played)
            return
        if name == "memory":
            inner: Target = MemoryTarget(await stack.enter_async_context(Server()))
        else:
            url = {"websocket": websocket_url, "unix": unix_url}.get(name, codex_url)
            assert url is not None  # the mark sees to it
            inner = Target.of(url)
        target = GatedTarget(inner)
        client = await stack.enter_async_context(await ExecServerClient.connect(target))
        yield RealLine(client, remote=True, real=name.startswith("real"), target=target)


async def start(subject: Line, params: StartParams) -> ExecProcess:
    async with asyncio.timeout(LIMIT):
        return await subject.backend.start(params)


async def turns() -> None:
    """Let everything happen that needs no line."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_termination_does_not_wait_for_the_line(subject: Line) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    await subject.cut()
    async with asyncio.timeout(LIMIT):
        assert await process.terminate() is True
        assert await process.write(b"x") is WriteStatus.STDIN_CLOSED
    assert process.verdict is None
    subject.restore()
    async with asyncio.timeout(LIMIT):
        assert (await process.exited()).reason is Reason.TERMINATED
    assert (await finish(process)).stdout == b""


async def test_what_was_left_is_ended_when_the_line_is_back(subject: Line) -> None:
    process = await start(subject, shell("sleep 60 >/dev/null 2>&1 & echo $!"))
    below = int((await finish(process)).stdout)
    await subject.cut()
    async with asyncio.timeout(LIMIT):
        assert await process.terminate(left=True) is False  # nobody knows
    assert subject.is_alive(below)
    subject.restore()
    if subject.real:  # it never does that
        subject.kill(below)
    async with asyncio.timeout(LIMIT):
        await subject.gone(below)


async def test_input_does_not_wait_for_the_line_and_arrives_once_and_in_order(
    subject: Line,
) -> None:
    process = await start(subject, program("cat", pipe_stdin=True))
    output = Output(process)
    await process.write(b"0")
    await output.until(b"0")
    await subject.cut()
    for text, write_id in ((b"1", None), (b"2", "two"), (b"-", "two"), (b"3", None)):
        async with asyncio.timeout(LIMIT):
            assert await process.write(text, write_id) is WriteStatus.ACCEPTED
    subject.restore()
    await process.write(b"4")
    await output.until(b"4")
    await process.terminate()
    assert (await output.finish()).stdout == b"01234"


async def test_a_start_waits_for_the_line(subject: Line) -> None:
    await subject.cut()
    starting = asyncio.ensure_future(subject.backend.start(shell("seq 1 20000")))
    await turns()
    assert not starting.done()
    subject.restore()
    async with asyncio.timeout(LIMIT):
        process = await starting
    assert (await finish(process)).stdout.endswith(b"\n20000\n")


async def test_a_start_that_is_given_up_without_a_line_never_ran(subject: Line) -> None:
    await subject.cut()
    starting = asyncio.ensure_future(subject.backend.start(program("cat", pipe_stdin=True)))
    await turns()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    subject.restore()
    assert (await finish(await start(subject, program("true")))).exit_code == 0  # the id is free


async def test_what_happens_without_a_line_is_told_when_it_is_back(
    subject: Line, tmp_path: Path
) -> None:
    with Fifo(tmp_path / "go") as go:
        process = await start(subject, shell(f"(read x; echo late) < {go.path} & echo early"))
        stream = process.events()
        waiting: list[asyncio.Future[Verdict]] = [
            asyncio.ensure_future(process.exited()),
            asyncio.ensure_future(process.wait()),
        ]
        async with asyncio.timeout(LIMIT):
            await waiting[0]
        reading = asyncio.ensure_future(process.read(99, wait=60.0))
        await subject.cut()
        go.write()
        await turns()
        assert not waiting[1].done()
        subject.restore()
        async with asyncio.timeout(LIMIT):
            events = [event async for event in stream]
            assert (await waiting[1]) == (await waiting[0])
            assert (await reading).closed
    assert check(events).stdout == b"early\nlate\n"


async def test_a_reader_that_stood_still_goes_on(subject: Line) -> None:
    """A Codex server is not asked for more than it keeps."""
    size = 900_000 if subject.real else 6_000_000
    process = await start(subject, shell(f"head -c {size} /dev/zero"))
    async with process.events() as stream:
        async with asyncio.timeout(LIMIT):
            first = await anext(stream)
            # Until it is held, and writes no more.
            last = 0
            while (news := await process.read(last, wait=0.1)).chunks and not news.closed:
                last = news.next_seq - 1
        await subject.cut()
        await turns()
        subject.restore()
        async with asyncio.timeout(2 * LIMIT):
            events = [first, *[event async for event in stream]]
    assert len(check(events).stdout) == size

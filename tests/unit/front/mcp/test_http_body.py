"""Bodies of requests: which of them are refused, and which make room."""

import asyncio

import pytest
from starlette.types import Message, Receive

from holdfast.front.mcp import http_body
from holdfast.front.mcp.http_body import LARGEST, Bodies, BodyRefused

pytestmark = pytest.mark.both_loops


class Sender:
    """A client that sends parts of a body."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[Message] = asyncio.Queue()

    def send(self, size: int, *, last: bool = False) -> None:
        part: Message = {"type": "http.request", "body": b"x" * size, "more_body": not last}
        self._parts.put_nowait(part)

    async def receive(self) -> Message:
        return await self._parts.get()


class Reading:
    """A request whose body is read to its end, in a task."""

    def __init__(self, bodies: Bodies, owner: str, tasks: asyncio.TaskGroup) -> None:
        self.client = Sender()
        self.completed = asyncio.Event()
        self.over = asyncio.Event()
        self.refused: asyncio.Future[BodyRefused] = asyncio.get_running_loop().create_future()
        self._begun = asyncio.Event()
        self._task = tasks.create_task(self._read(bodies, owner))

    async def _read(self, bodies: Bodies, owner: str) -> None:
        try:
            with bodies.reading(owner, self.client.receive, None, self.completed.set) as receive:
                await self._to_its_end(receive)
                await self.over.wait()
        except BodyRefused as error:
            self.refused.set_result(error)

    async def _to_its_end(self, receive: Receive) -> None:
        more = True
        while more:
            more = (await receive())["more_body"]
            self._begun.set()

    async def begun(self) -> None:
        """Wait until a part has been read."""
        await self._begun.wait()


async def test_the_oldest_incomplete_body_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_body, "_BYTES_OF_ONE", 100)
    bodies = Bodies()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        complete, slow, other, late = (
            Reading(bodies, owner, tasks) for owner in ("one", "one", "two", "one")
        )
        complete.client.send(30, last=True)
        await complete.completed.wait()
        slow.client.send(60)
        await slow.begun()
        other.client.send(60)
        await other.begun()
        late.client.send(60, last=True)
        assert "requests of more than" in str(await slow.refused)
        await late.completed.wait()
        # There is no other one that could make room.
        last = Reading(bodies, "one", tasks)
        last.client.send(60, last=True)
        assert (await last.refused).status == 429
        # The place of one that was given up is free.
        for each in (complete, late):
            each.over.set()
        other.client.send(0, last=True)
        other.over.set()
        again = Reading(bodies, "one", tasks)
        again.client.send(100, last=True)
        await again.completed.wait()
        again.over.set()


async def test_a_body_has_a_largest_size() -> None:
    bodies = Bodies()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        reading = Reading(bodies, "one", tasks)
        reading.client.send(LARGEST)
        reading.client.send(1)
        refusal = await reading.refused
        assert (refusal.status, str(refusal)) == (413, "the request has more than 4 MiB")


async def test_a_size_that_is_too_large_is_refused_before_the_body_comes() -> None:
    with (
        pytest.raises(BodyRefused, match="more than 4 MiB"),
        Bodies().reading("one", Sender().receive, str(LARGEST + 1), lambda: None),
    ):
        pass

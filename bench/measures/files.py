"""
Files through a server: their metadata, their content, their place in a tree.

A client that reads ends up with bytes, and one that writes starts with bytes: base64 is encoded and
decoded while the clock runs, on both sides. The floor is a plain local copy of the same file
through base64, in one piece; a copy in blocks, which stay in the processor's caches, is shown next
to it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pybase64

from bench import bare, wire
from bench.calls import AtOnce, InTurn, settle
from bench.client import RawClient
from bench.errors import BenchError
from bench.figures import (
    Acks,
    Benchmark,
    Better,
    Context,
    Figure,
    Measure,
    Runner,
    Subject,
    Target,
    both_clients,
    for_both,
    through_both,
)
from bench.processes import on_one_core
from bench.servers import talking

__all__ = ["METADATA", "READ", "WALK", "WRITE", "make_tree", "walk_params"]

_MIB = 1024 * 1024

_BLOCK = 1024 * 1024
"""Bytes of a block: the maximum."""

_WINDOW = 4
"""Blocks in flight."""

_LARGEST_CALL = 45 * _MIB
"""Bytes that `fs/writeFile` accepts: in base64 they fit a message of 64 MiB."""

_HANDLE = "h"
_WARM_UP = 20
_FILES = 99
"""Files in each directory of a tree."""


# -- metadata


async def _metadata(context: Context, acks: Acks) -> Mapping[str, float]:
    sizes = context.sizes
    with tempfile.NamedTemporaryFile(prefix="bench-") as file:
        params = {"path": Path(file.name).as_uri()}

        def requests(number: int) -> list[bytes]:
            return [wire.request(n, "fs/getMetadata", params) for n in range(number)]

        async with talking(context.command, acks) as (server, client):
            await InTurn(client, requests(_WARM_UP)).run()
            apart = await InTurn(client, requests(sizes.metadata_calls)).run()
            batch = requests(sizes.pipelined_width)
            await AtOnce(client, batch).run()
            batches = [AtOnce(client, batch) for _ in range(sizes.metadata_batches)]
            at_once = sum([await one.run() for one in batches])
            with on_one_core(server.processes()):
                await InTurn(client, requests(_WARM_UP)).run()
                together = await InTurn(client, requests(sizes.metadata_calls)).run()
    return {
        "metadata": sizes.metadata_calls / together,
        "metadata_apart": sizes.metadata_calls / apart,
        "metadata_pipelined": sizes.metadata_batches * sizes.pipelined_width / at_once,
    }


# -- content


class _Call:
    """Reads a file by one request."""

    def __init__(self, client: RawClient, path: Path) -> None:
        self._client = client
        self._request = wire.request(1, "fs/readFile", {"path": path.as_uri()})
        self._data = b""

    async def run(self) -> bytes:
        """Return the content."""
        await self._client.until(self, [self._request])
        return self._data

    def __call__(self, payload: memoryview) -> bool:
        _, text = wire.payload_of(payload)
        self._data = _decode(text)
        return True


class _Blocks:
    """Reads a file in blocks, some always in flight; their replies arrive in any order."""

    def __init__(self, client: RawClient, path: Path, size: int) -> None:
        self._client = client
        self._open = _open(path, "read")
        self._requests = [
            wire.request(
                number, "fs/readBlock", {"handleId": _HANDLE, "offset": offset, "len": _BLOCK}
            )
            for number, offset in enumerate(range(0, size, _BLOCK))
        ]
        self._next = _WINDOW
        self._blocks: dict[int, bytes] = {}

    async def run(self) -> list[bytes]:
        """Return the content, block by block."""
        await self._client.call(self._open, 0)
        await self._client.until(self, self._requests[:_WINDOW])
        await self._client.call(_CLOSE, 0)
        return [self._blocks[number] for number in range(len(self._requests))]

    def __call__(self, payload: memoryview) -> bool:
        if self._next < len(self._requests):
            self._client.send(self._requests[self._next])
            self._next += 1
        number, text = wire.payload_of(payload)
        self._blocks[number] = _decode(text)
        return len(self._blocks) == len(self._requests)


class _WrittenBlocks:
    """Replaces a file in blocks, some always in flight."""

    def __init__(self, client: RawClient, path: Path, data: bytes) -> None:
        self._client = client
        self._open = _open(path, "replace")
        self._data = data
        self._next = 0
        self._unanswered: set[int] = set()

    async def run(self) -> None:
        """Run until all blocks are written."""
        await self._client.call(self._open, 0)
        for _ in range(_WINDOW):
            self._send()
        await self._client.until(self)
        await self._client.call(_CLOSE, 0)

    def _send(self) -> None:
        offset = self._next * _BLOCK
        if offset >= len(self._data):
            return
        head = {"handleId": _HANDLE, "offset": offset, "chunk": ""}
        chunk = memoryview(self._data)[offset : offset + _BLOCK]
        self._client.send_parts(_around(self._next, "fs/writeBlock", head, chunk))
        self._unanswered.add(self._next)
        self._next += 1

    def __call__(self, payload: memoryview) -> bool:
        settle(self._unanswered, payload)
        self._send()
        return not self._unanswered


async def _write_by_call(client: RawClient, path: Path, data: bytes) -> None:
    """Write a file by one request."""
    head = {"path": path.as_uri(), "dataBase64": ""}
    client.send_parts(_around(1, "fs/writeFile", head, memoryview(data)))
    await client.until(lambda payload: wire.decode(payload).id == 1)


def _open(path: Path, mode: str) -> bytes:
    return wire.request(0, "fs/open", {"handleId": _HANDLE, "path": path.as_uri(), "mode": mode})


_CLOSE = wire.request(0, "fs/close", {"handleId": _HANDLE})


def _around(
    request_id: int, method: str, params: Mapping[str, object], data: memoryview
) -> tuple[bytes, bytes, bytes]:
    """Return a request in parts; base64 goes into its last, empty param."""
    message = wire.request(request_id, method, params)
    assert message.endswith(b'""}}'), "the last param is an empty text"
    return message[:-3], pybase64.b64encode(data), message[-3:]


def _decode(text: memoryview) -> bytes:
    data: bytes = pybase64.b64decode(text, validate=True)
    return data


async def _seconds(times: int, transfer: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds of a number of transfers."""
    begun = time.perf_counter()
    for _ in range(times):
        await transfer()
    return time.perf_counter() - begun


async def _read(context: Context, acks: Acks) -> Mapping[str, float]:
    size, times = context.sizes.file_bytes, context.sizes.transfers
    with _file(size) as path:
        async with talking(context.command, acks) as (_, client):
            data = path.read_bytes()
            if data != await _Call(client, path).run():
                raise BenchError("other content was read in one piece")
            if data != b"".join(await _Blocks(client, path, size).run()):
                raise BenchError("other content was read in blocks")
            del data
            by_call = await _seconds(times, lambda: _Call(client, path).run())
            in_blocks = await _seconds(times, lambda: _Blocks(client, path, size).run())
    mib = times * size / _MIB
    return {"read_call": mib / by_call, "read_blocks": mib / in_blocks}


async def _write(context: Context, acks: Acks) -> Mapping[str, float]:
    size, times = context.sizes.file_bytes, context.sizes.transfers
    with _file(size) as source:
        data = source.read_bytes()
        part = data[:_LARGEST_CALL]
        path = source.with_name("written")
        async with talking(context.command, acks) as (_, client):
            await _write_by_call(client, path, part)
            if path.read_bytes() != part:
                raise BenchError("other content was written in one piece")
            by_call = await _seconds(times, lambda: _write_by_call(client, path, part))
            await _WrittenBlocks(client, path, data).run()
            if path.read_bytes() != data:
                raise BenchError("other content was written in blocks")
            in_blocks = await _seconds(times, lambda: _WrittenBlocks(client, path, data).run())
    return {
        "write_call": times * len(part) / _MIB / by_call,
        "write_blocks": times * size / _MIB / in_blocks,
    }


def _copies(kind: str, largest: int | None = None) -> Runner:
    """Return the floor of reading or writing, and the same copy in blocks."""

    async def run(context: Context) -> Mapping[str, float]:
        size, times = context.sizes.file_bytes, context.sizes.transfers
        whole = _copy_rate(size, times, None)
        part = whole if largest is None or size <= largest else _copy_rate(largest, times, None)
        floor = for_both({f"{kind}_call": part, f"{kind}_blocks": whole})
        return {**floor, f"{kind}_local": _copy_rate(size, times, _BLOCK)}

    return run


def _copy_rate(size: int, times: int, block: int | None) -> float:
    with _file(size) as source:
        destination = source.with_name("written")
        bare.copy_through_base64(source, destination, block)
        begun = time.perf_counter()
        for _ in range(times):
            bare.copy_through_base64(source, destination, block)
        return times * size / _MIB / (time.perf_counter() - begun)


@contextmanager
def _file(size: int) -> Iterator[Path]:
    """Create a file in its own directory."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder, "file")
        path.write_bytes(os.urandom(size))
        yield path


# -- trees


def make_tree(root: Path, folders: int) -> int:
    """
    Fill a directory with directories of as many files each, and return the number of entries.

    The files are links to one file: creating thousands of files can take half a minute.
    """
    with tempfile.NamedTemporaryFile(dir=root.parent) as file:
        for number in range(folders):
            folder = root / f"folder-{number:03}"
            folder.mkdir()
            for name in range(_FILES):
                (folder / f"file-{name:02}.txt").hardlink_to(file.name)
    return folders * (1 + _FILES)


def walk_params(root: Path) -> Mapping[str, object]:
    """Return the params of a complete walk."""
    options = {
        "maxDepth": 64,
        "maxDirectories": 10_000,
        "maxEntries": 50_000,
        "followDirectorySymlinks": False,
    }
    return {"path": root.as_uri(), "options": options}


class _Walked(msgspec.Struct):
    entries: list[dict[str, str]]
    errors: list[msgspec.Raw]
    truncated: bool


class _Walks:
    """Walks a tree repeatedly; the answers must be as long as the first, which is checked."""

    def __init__(self, client: RawClient, root: Path, entries: int) -> None:
        self._client = client
        self._request = wire.request(0, "fs/walk", walk_params(root))
        self._entries = entries
        self._size = 0
        self._left = 0

    async def check(self) -> None:
        """Walk once and check that all of it was found."""
        await self._client.until(self._check, [self._request])

    def _check(self, payload: memoryview) -> bool:
        found = msgspec.json.decode(wire.decode(payload).result, type=_Walked)
        if len(found.entries) != self._entries or found.errors or found.truncated:
            raise BenchError(f"a walk found {len(found.entries)} entries of {self._entries}")
        self._size = len(payload)
        return True

    async def run(self, times: int) -> float:
        """Return the seconds taken."""
        self._left = times
        begun = time.perf_counter()
        await self._client.until(self, [self._request])
        return time.perf_counter() - begun

    def __call__(self, payload: memoryview) -> bool:
        if len(payload) != self._size:
            raise BenchError("a walk did not find the same as the first one")
        self._left -= 1
        if self._left:
            self._client.send(self._request)
        return not self._left


async def _walk(context: Context, acks: Acks) -> Mapping[str, float]:
    times = context.sizes.walks
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        entries = make_tree(Path(folder), context.sizes.tree_folders)
        async with talking(context.command, acks) as (_, client):
            walks = _Walks(client, Path(folder), entries)
            await walks.check()
            seconds = await walks.run(times)
    return {"walk": times * entries / seconds}


# -- the table


def _ahead(key: str, title: str, unit: str, *more: Target) -> Figure:
    """Return a figure that has to beat the real server's."""
    targets = (Target(factor=1.0), *more)
    return Figure(key=key, title=title, unit=unit, better=Better.HIGHER, targets=targets)


def _transfers(kind: str, whole: str, measure: Measure, largest: int | None = None) -> Benchmark:
    floor = Target(factor=0.5, against=Subject.BARE)
    blocks = f"{kind} 64 MiB in blocks of 1 MiB, {_WINDOW} in flight"
    local = Figure(
        key=f"{kind}_local",
        title="64 MiB copied locally through base64 in blocks of 1 MiB",
        unit="MiB/s",
        better=Better.HIGHER,
    )
    return Benchmark(
        name=kind,
        figures=(
            *both_clients(
                _ahead(f"{kind}_call", whole, "MiB/s", floor),
                _ahead(f"{kind}_blocks", blocks, "MiB/s", floor),
            ),
            local,
        ),
        runners={
            **dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(measure)),
            Subject.BARE: _copies(kind, largest),
        },
    )


METADATA = Benchmark(
    name="metadata",
    figures=both_clients(
        _ahead(
            "metadata",
            "`fs/getMetadata` of a file, in turn, client and server on one core",
            "calls/s",
        ),
        Figure(
            key="metadata_apart",
            title="`fs/getMetadata` of a file, in turn, on any core",
            unit="calls/s",
            better=Better.HIGHER,
        ),
        _ahead("metadata_pipelined", "`fs/getMetadata` of a file, batches of 250", "calls/s"),
    ),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_metadata)),
)

READ = _transfers("read", "read 64 MiB by one `fs/readFile`", _read)
WRITE = _transfers("write", "write 45 MiB by one `fs/writeFile`", _write, _LARGEST_CALL)

WALK = Benchmark(
    name="walk",
    figures=both_clients(_ahead("walk", "`fs/walk` of a tree of 20,000 entries", "entries/s")),
    runners=dict.fromkeys((Subject.HOLDFAST, Subject.CODEX), through_both(_walk)),
)

"""Conditions that end a wait early, and refusals."""

import asyncio
import socket
import sys
from typing import Any

import pytest

from holdfast.agent.unified_exec.output.call_output import OutputSearch
from holdfast.agent.unified_exec.output.search_thread import SearchThread
from holdfast.agent.unified_exec.waiting.wait_for import PORT_INTERVAL, WaitFor, Watch
from holdfast.backends import FileSystem
from holdfast.base.errors import ConnectionLost, InvalidParams, InvalidRequest, NotFound
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.events import WaitingFor
from holdfast.wire.protocol.fs import ReadFileParams
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    ManagedProfile,
    Network,
    PermissionProfile,
    SandboxContext,
    UnrestrictedFiles,
)

HEAD = (
    b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
)

THREAD = SearchThread()


def row(port: int, state: str = "0A", number: int = 0) -> bytes:
    return f"   {number}: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000\n".encode()


class Tables:
    """The files of a machine that has only tables of sockets."""

    def __init__(self, **tables: bytes | Exception) -> None:
        self.tables = tables
        self.reads: list[str] = []

    async def read_file(self, params: ReadFileParams) -> bytes:
        name = params.path.native.removeprefix("/proc/net/")
        self.reads.append(name)
        found = self.tables.get(name)
        if found is None:
            raise NotFound("No such file or directory (os error 2)")
        if isinstance(found, Exception):
            raise found
        return HEAD + found


class Wait:
    """One call that waits."""

    def __init__(self, watch: Watch, woken: asyncio.Event) -> None:
        self.watch = watch
        self.woken = woken
        self.search = OutputSearch(THREAD, None, watch.stream, watch.searched)
        self.task = asyncio.get_running_loop().create_task(watch.run())

    def feed(self, data: bytes) -> None:
        self.watch.output_came()
        self.search.feed(data)

    async def met(self) -> tuple[str | None, str | None]:
        async with asyncio.timeout(60):
            await self.woken.wait()
        return self.watch.met, self.watch.detail

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.search.close()


async def begin(
    files: Any = None, sandbox: SandboxContext | None = None, **conditions: Any
) -> Wait:
    woken = asyncio.Event()

    def wake() -> None:
        assert not woken.is_set()  # once is enough
        woken.set()

    files = Tables(tcp=b"") if files is None else files
    watch = await Watch.open(
        WaitFor(**conditions), wake, thread=THREAD, files=files, sandbox=sandbox
    )
    return Wait(watch, woken)


def sandbox(permissions: PermissionProfile) -> SandboxContext:
    return SandboxContext(permissions=permissions, windows_sandbox_level="disabled")


# -- bad input


@pytest.mark.requirement("tools.wait-for.bad")
@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ({}, "wait_for: give a pattern, quiet, a port or input"),
        ({"input": False}, "wait_for: give a pattern, quiet, a port or input"),
        ({"input": 1}, "wait_for: input is 1, it must be true or false"),
        ({"pattern": ""}, "wait_for: pattern is '', it must be a text that is not empty"),
        ({"pattern": 5}, "wait_for: pattern is 5, it must be a text that is not empty"),
        ({"port": 0}, "wait_for: port is 0, it must be from 1 to 65535"),
        ({"port": 65536}, "wait_for: port is 65536, it must be from 1 to 65535"),
        ({"port": True}, "wait_for: port is True, it must be from 1 to 65535"),
        ({"port": "80"}, "wait_for: port is '80', it must be from 1 to 65535"),
        ({"quiet": 0}, "wait_for: quiet is 0, it must be a number of seconds above 0"),
        ({"quiet": -1.5}, "wait_for: quiet is -1.5, it must be a number of seconds above 0"),
        ({"quiet": float("nan")}, "wait_for: quiet is nan, it must be a number of seconds above 0"),
        ({"quiet": float("inf")}, "wait_for: quiet is inf, it must be a number of seconds above 0"),
        ({"quiet": True}, "wait_for: quiet is True, it must be a number of seconds above 0"),
        ({"quiet": 86_401}, "wait_for: quiet is 86401, .* at most 86,400"),
    ],
)
def test_conditions_that_cannot_be_are_refused(conditions: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidParams, match=text):
        WaitFor(**conditions)


def test_the_borders_are_taken() -> None:
    for port in (1, 65535):
        assert WaitFor(port=port).port == port
    for quiet in (0.001, 86_400):
        assert WaitFor(quiet=quiet).quiet == quiet


@pytest.mark.requirement("tools.wait-for.bad")
@pytest.mark.parametrize("pattern", ["(a", r"(?=a)", r"\1", "a{2000}", "[z-a]", "x" * 10_000])
async def test_a_bad_pattern_is_named(pattern: str) -> None:
    files = Tables()
    with pytest.raises(InvalidParams) as caught:
        await begin(files, pattern=pattern, port=80)
    assert pattern[:40] in str(caught.value).replace("\\\\", "\\")
    assert files.reads == []


async def test_without_the_engine_a_pattern_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidParams, match=r"pip install 'holdfast-exec\[patterns\]'"):
        await begin(pattern="a")
    wait = await begin(input=True)
    await wait.end()


# -- patterns


@pytest.mark.virtual_time
@pytest.mark.requirement("tools.wait-for.first")
async def test_a_pattern_ends_the_wait() -> None:
    wait = await begin(pattern=r"ready in \d+ ms")
    wait.feed(b"starting\r\nrea")
    wait.feed(b"dy in 12 ms\r\n")
    assert await wait.met() == ("pattern", "ready in 12 ms")
    wait.feed(b"ready in 13 ms")
    assert wait.watch.detail == "ready in 12 ms"
    await wait.end()


@pytest.mark.virtual_time
async def test_what_came_last_is_searched_before_the_result_is_told() -> None:
    wait = await begin(pattern="late")
    wait.feed(b"x")
    wait.feed(b"late")
    await wait.search.finish()
    assert wait.watch.met == "pattern"
    await wait.end()


@pytest.mark.virtual_time
async def test_the_text_of_a_match_is_bounded() -> None:
    wait = await begin(pattern="<x*>")
    wait.feed(b"<" + b"x" * 5000 + b">")
    assert await wait.met() == ("pattern", "<" + 199 * "x")
    await wait.end()


# -- quiet


@pytest.mark.virtual_time
@pytest.mark.requirement("tools.wait-for.first")
async def test_a_time_without_output_ends_the_wait() -> None:
    loop = asyncio.get_running_loop()
    wait = await begin(quiet=2)
    begun = loop.time()
    for _ in range(10):
        await asyncio.sleep(1.5)
        wait.feed(b"x")
    assert wait.watch.met is None
    assert await wait.met() == ("quiet", "2 s")
    assert loop.time() - begun == pytest.approx(17.0)
    await wait.end()


@pytest.mark.virtual_time
async def test_the_time_begins_with_the_call() -> None:
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    watch = await Watch.open(WaitFor(quiet=2), woken.set, thread=THREAD, files=_files(Tables()))
    await asyncio.sleep(60)  # the command is started
    begun = loop.time()
    wait = Wait(watch, woken)
    assert await wait.met() == ("quiet", "2 s")
    assert loop.time() - begun == pytest.approx(2.0)
    await wait.end()


# -- ports


@pytest.mark.virtual_time
@pytest.mark.requirement("tools.wait-for.first")
@pytest.mark.parametrize("table", ["tcp", "tcp6"])
async def test_a_port_that_is_listened_on_ends_the_wait(table: str) -> None:
    others = row(8081) + row(8080, "01", 1) + row(31, number=2)
    files = Tables(tcp=others, tcp6=others)
    wait = await begin(files, port=8080)
    await asyncio.sleep(10)
    assert wait.watch.met is None
    assert len(files.reads) <= 2 * (10 / PORT_INTERVAL + 2)
    files.tables[table] = others + row(8080, number=12345)
    assert await wait.met() == ("port", "8080")
    await wait.end()


@pytest.mark.virtual_time
async def test_a_port_that_was_open_before_is_told_as_such() -> None:
    wait = await begin(Tables(tcp=row(80)), port=80)
    assert await wait.met() == ("port", "80, open before this call")
    await wait.end()


@pytest.mark.virtual_time
async def test_a_kernel_without_one_of_the_tables_is_fine() -> None:
    files = Tables(tcp=b"")
    wait = await begin(files, port=80)
    await asyncio.sleep(10)
    assert files.reads.count("tcp6") == 1
    files.tables["tcp"] = row(80)
    assert await wait.met() == ("port", "80")
    await wait.end()


@pytest.mark.virtual_time
async def test_a_machine_that_lists_its_sockets_slowly_is_asked_less_often() -> None:
    class Slow(Tables):
        async def read_file(self, params: ReadFileParams) -> bytes:
            await asyncio.sleep(0.5)
            return await super().read_file(params)

    files = Slow(tcp=b"", tcp6=b"")
    wait = await begin(files, port=80)
    await asyncio.sleep(100)
    assert len(files.reads) <= 2 * 6
    await wait.end()


@pytest.mark.virtual_time
async def test_a_server_that_is_lost_is_not_asked_any_more() -> None:
    files = Tables(tcp=b"", tcp6=b"")
    wait = await begin(files, port=80, quiet=50)
    files.tables["tcp"] = ConnectionLost("gone")
    await asyncio.sleep(10)
    asked = len(files.reads)
    assert await wait.met() == ("quiet", "50 s")
    assert len(files.reads) == asked
    await wait.end()


class Silent(Tables):
    """The files of a machine that does not answer until `answers` is set."""

    def __init__(self) -> None:
        super().__init__(tcp=row(80))
        self.answers = asyncio.Event()

    async def read_file(self, params: ReadFileParams) -> bytes:
        await self.answers.wait()
        return await super().read_file(params)


@pytest.mark.virtual_time
async def test_a_machine_that_does_not_answer_does_not_hold_the_call() -> None:
    files = Silent()
    wait = await begin(files, port=80)  # the call goes on, and has its own deadline
    files.answers.set()
    assert await wait.met() == ("port", "80")
    await wait.end()


@pytest.mark.virtual_time
async def test_a_server_that_is_lost_before_is_left_to_the_call() -> None:
    wait = await begin(Tables(tcp=ConnectionLost("gone")), port=80, quiet=5)
    assert await wait.met() == ("quiet", "5 s")
    await wait.end()


@pytest.mark.requirement("tools.wait-for.port-refused")
@pytest.mark.parametrize(
    "permissions",
    [
        ManagedProfile(file_system=UnrestrictedFiles(), network="restricted"),
        ExternalProfile(network="restricted"),
    ],
)
async def test_in_a_network_of_its_own_a_port_is_refused(permissions: PermissionProfile) -> None:
    files = Tables(tcp=row(80))
    with pytest.raises(InvalidParams, match=r"port 80 .* sandbox gives the command a network of"):
        await begin(files, sandbox(permissions), port=80)
    assert files.reads == []
    wait = await begin(files, sandbox(permissions), quiet=1)  # the rest needs no network
    await wait.end()


@pytest.mark.parametrize("network", ["enabled", None])
async def test_in_the_network_of_the_machine_it_is_not(network: Network | None) -> None:
    profile: PermissionProfile = DisabledProfile()
    if network is not None:
        profile = ExternalProfile(network=network)
    wait = await begin(Tables(tcp=row(80)), sandbox(profile), port=80)
    assert (await wait.met())[0] == "port"
    await wait.end()


@pytest.mark.requirement("tools.wait-for.port-refused")
@pytest.mark.parametrize("error", [None, InvalidRequest("not permitted")])
async def test_an_environment_that_shows_no_sockets_refuses_a_port(
    error: Exception | None,
) -> None:
    files = Tables() if error is None else Tables(tcp=error)
    text = r"port 80 cannot be looked up, because the environment does not show its sockets in"
    with pytest.raises(InvalidParams, match=text):
        await begin(files, port=80)


async def test_a_real_port_is_found() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as listening:
            try:
                listening.bind((address, 0))
            except OSError:
                assert family is socket.AF_INET6  # a machine may do without it
                continue
            wait = await begin(LocalFileSystem(), port=listening.getsockname()[1])
            assert not wait.woken.is_set()  # bound, not listening
            listening.listen()
            async with asyncio.timeout(5):
                await wait.woken.wait()
            assert wait.watch.met == "port"
            assert wait.watch.detail == str(listening.getsockname()[1])
            await wait.end()


# -- input


@pytest.mark.virtual_time
@pytest.mark.requirement("tools.wait-for.first")
async def test_wanted_input_ends_the_wait() -> None:
    wait = await begin(input=True)
    for found in (WaitingFor.NONE, WaitingFor.UNKNOWN):
        wait.watch.input_found(found)
        assert wait.watch.met is None
    wait.watch.input_found(WaitingFor.PASSWORD)
    wait.watch.input_found(WaitingFor.LINE)
    assert await wait.met() == ("input", "password")
    await wait.end()


@pytest.mark.virtual_time
async def test_input_that_nobody_waits_for_ends_nothing() -> None:
    wait = await begin(quiet=1)
    wait.watch.input_found(WaitingFor.LINE)
    assert await wait.met() == ("quiet", "1 s")
    await wait.end()


# -- several


@pytest.mark.virtual_time
@pytest.mark.requirement("tools.wait-for.first")
async def test_the_first_of_several_counts() -> None:
    files = Tables(tcp=b"", tcp6=b"")
    wait = await begin(files, pattern="done", quiet=5, port=80, input=True)
    await asyncio.sleep(4)
    files.tables["tcp"] = row(80)
    assert await wait.met() == ("port", "80")
    wait.feed(b"done")
    wait.watch.input_found(WaitingFor.LINE)
    await asyncio.sleep(60)
    assert wait.watch.met == "port"
    await wait.end()


@pytest.mark.virtual_time
async def test_a_wait_that_is_cancelled_leaves_nothing() -> None:
    before = asyncio.all_tasks()
    files = Tables(tcp=b"", tcp6=b"")
    wait = await begin(files, pattern="done", quiet=50, port=80, input=True)
    await asyncio.sleep(4)
    wait.feed(b"x")
    wait.feed(b"do")
    await wait.end()
    reads = len(files.reads)
    await asyncio.sleep(600)
    assert (wait.watch.met, len(files.reads)) == (None, reads)
    assert asyncio.all_tasks() == before


def _files(tables: Tables) -> FileSystem:
    files: Any = tables
    checked: FileSystem = files
    return checked

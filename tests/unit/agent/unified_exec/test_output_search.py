"""Searches of output: which of them hold the event loop, and which wait for a thread."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from holdfast.agent.unified_exec import Options, UnifiedExec
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments, WaitForArguments
from holdfast.agent.unified_exec.output import line_search
from holdfast.agent.unified_exec.output.call_output import _INTERVAL, _ROOM, OutputSearch
from holdfast.agent.unified_exec.output.patterns import Pattern, compile_pattern
from holdfast.agent.unified_exec.output.search_thread import SearchThread
from holdfast.agent.unified_exec.output.selection import Selection, Selector
from holdfast.agent.unified_exec.waiting import wait_for
from holdfast.agent.unified_exec.waiting.stream_search import StreamSearch
from holdfast.base.errors import InvalidParams
from holdfast.environments.local_environment import LocalEnvironment

# Steps of the engine that take 10 ms or less: instructions times bytes.
STEPS = 1_000_000

# Of the slowest kind that is not refused: its automaton does not fit into its memory.
SLOW = r"(?:a|b)*a(?:a|b){300}c"


class Held:
    """The largest searches, and all compilations, that were done in the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.compiled: list[str] = []
        self.searches = 0
        loop = threading.current_thread()
        search, spans = Pattern.search, Pattern.spans

        def note(pattern: Pattern, size: int) -> None:
            self.searches += 1
            if threading.current_thread() is loop:
                self.steps = max(self.steps, size * pattern._engine.programsize)

        def noting_search(
            pattern: Pattern, data: bytes, start: int = 0, end: int | None = None
        ) -> tuple[int, int] | None:
            note(pattern, len(data))
            return search(pattern, data, start, end)

        def noting_spans(pattern: Pattern, data: bytes, start: int = 0) -> object:
            note(pattern, len(data))
            return spans(pattern, data, start)

        def noting_compile(text: str, **options: object) -> Pattern:
            if threading.current_thread() is loop:
                self.compiled.append(text)
            return compile_pattern(text, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Pattern, "search", noting_search)
        monkeypatch.setattr(Pattern, "spans", noting_spans)
        for module in (line_search, wait_for):
            monkeypatch.setattr(module, "compile_pattern", noting_compile)


# Lines of all lengths, and one that is longer than any that is kept whole.
LINES = (
    "yes abab | head -c 300000; head -c 300000 /dev/zero | tr '\\0' a; echo; yes ab | head -c 99"
)


@pytest.mark.both_loops
@pytest.mark.requirement("tools.search-thread")
@pytest.mark.parametrize("pattern", [SLOW, r"\pL+x", "b{9}"])
async def test_no_search_holds_the_event_loop(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        LocalEnvironment() as environment,
        UnifiedExec(environment, options=Options(extras=True)) as tools,
    ):
        held = Held(monkeypatch)
        result = await tools.exec_command(
            ExecArguments(
                cmd=LINES,
                login=False,
                grep=pattern,
                wait_for=WaitForArguments(pattern=pattern + "no"),
                yield_time_ms=30_000,
            )
        )
        assert result.exit_code == 0
        assert result.selected is not None
        # The slow one is refused.
        with contextlib.suppress(InvalidParams):
            await tools.read_output(result.call_id, pattern=pattern)
        assert held.searches
        assert held.steps <= STEPS
        assert held.compiled == []


class Gate(StreamSearch):
    """A search that goes on only when it is let."""

    def __init__(self, *, quick: bool = False) -> None:
        super().__init__(compile_pattern("needle"))
        self.begun = threading.Event()
        self.free = threading.Event()
        self.fed: list[bytes] = []
        self._quick = quick

    def is_quick(self, size: int) -> bool:
        return self._quick

    def feed(self, data: bytes) -> None:
        self.begun.set()
        assert self._quick or self.free.wait(20)
        self.fed.append(data)
        super().feed(data)


@pytest.fixture
def thread() -> Iterator[SearchThread]:
    made = SearchThread()
    yield made
    made.close()


@pytest.mark.both_loops
@pytest.mark.requirement("tools.search-thread")
async def test_output_waits_for_a_search_that_takes_long(thread: SearchThread) -> None:
    stream = Gate()
    search = OutputSearch(thread, None, stream, lambda: None)
    pieces = [bytes([65 + number]) * (_ROOM // 4) for number in range(6)]
    for piece in pieces:
        search.feed(piece)
    waiting = asyncio.ensure_future(search.room())
    done, _ = await asyncio.wait([waiting], timeout=0)
    assert not done
    stream.free.set()
    await waiting
    await search.finish()
    assert b"".join(stream.fed) == b"".join(pieces)


@pytest.mark.both_loops
async def test_a_search_that_is_closed_holds_nobody(thread: SearchThread) -> None:
    stream = Gate()
    search = OutputSearch(thread, None, stream, lambda: None)
    for _ in range(3):
        search.feed(b"x" * _ROOM)
    waiting = asyncio.ensure_future(search.room())
    await asyncio.sleep(0)
    search.close()
    await waiting
    search.feed(b"later")
    stream.free.set()
    await search.finish()
    assert b"later" not in stream.fed
    # Closed tools give up what has not begun.
    blocked = Gate()
    other = OutputSearch(thread, None, blocked, lambda: None)
    other.feed(b"x" * _ROOM)
    # Otherwise the thread may take the search that is to be given up.
    assert await asyncio.to_thread(blocked.begun.wait, 20)
    queued = OutputSearch(thread, None, Gate(), lambda: None)
    queued.feed(b"x" * (2 * _ROOM))
    thread.close()
    await queued.finish()
    blocked.free.set()
    await other.finish()


@pytest.mark.virtual_time
async def test_a_stream_of_single_bytes_is_not_searched_for_each(thread: SearchThread) -> None:
    stream = Gate(quick=True)
    found: list[bytes | None] = []
    search = OutputSearch(thread, None, stream, lambda: found.append(stream.match))
    for byte in b"x" * 10_000 + b"needle":
        search.feed(bytes([byte]))
    assert len(found) == 1
    await asyncio.sleep(_INTERVAL)
    assert found == [None, b"needle"]


async def test_a_failure_is_that_of_the_call(thread: SearchThread) -> None:
    class Broken(Gate):
        def feed(self, data: bytes) -> None:
            raise ValueError("broken")

    search = OutputSearch(thread, None, Broken(), lambda: None)
    search.feed(b"x" * _ROOM)
    with pytest.raises(ValueError, match="broken"):
        await search.finish()


async def test_what_is_left_out_ends_a_line_also_in_a_thread(thread: SearchThread) -> None:
    selector = Selector(Selection(grep="a"))
    search = OutputSearch(thread, selector, None, lambda: None)
    search.feed(b"a\n" * 100_000 + b"a")
    search.leave_out(7)
    search.feed(b"b\na\n")
    selected = await search.finish()
    assert selected is not None
    assert (selected.total_lines, selected.matching_lines) == (100_003, 100_002)
    assert "7 bytes from before this call are not counted" in selected.note

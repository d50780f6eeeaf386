"""The log: one numbering, what is kept, and the reads of the protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.process.io.log import (
    MAX_RETAINED_BYTES,
    MAX_RETAINED_CHUNKS,
    LogListener,
    OutputLog,
    Retention,
)
from holdfast.events import Closed, Exited, Reason, Verdict
from holdfast.wire.protocol.process import OutputChunk, OutputStream

EXIT = Verdict(reason=Reason.EXITED, exit_code=3)


class Listener(LogListener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def output(self, chunk: OutputChunk) -> None:
        self.events.append((chunk.seq, chunk.chunk))

    def exited(self, seq: int, verdict: Verdict) -> None:
        self.events.append((seq, verdict))

    def closed(self, seq: int) -> None:
        self.events.append((seq, "closed"))


def filled(*chunks: bytes) -> OutputLog:
    log = OutputLog()
    for chunk in chunks:
        log.append("stdout", chunk)
    return log


def seqs(log: OutputLog, after_seq: int = 0, max_bytes: int | None = None) -> list[int]:
    return [chunk.seq for chunk in log.read(after_seq, max_bytes).chunks]


# Numbers.


@pytest.mark.requirement("output.seq", "output.one-end")
def test_output_exit_and_close_share_one_numbering_from_1() -> None:
    log = OutputLog()
    listener = Listener()
    log.subscribe(listener)
    log.append("stdout", b"a")
    log.append("stderr", b"b")
    log.exit(EXIT)
    log.append("stdout", b"late")
    log.close()
    assert listener.events == [(1, b"a"), (2, b"b"), (3, EXIT), (4, b"late"), (5, "closed")]
    assert log.next_seq == 6


@pytest.mark.requirement("output.one-end")
def test_there_is_one_exit_and_one_close() -> None:
    log = OutputLog()
    log.exit(EXIT)
    with pytest.raises(AssertionError):
        log.exit(EXIT)
    log.close()
    with pytest.raises(AssertionError):
        log.close()


# Reads.


@pytest.mark.requirement("read.after-seq")
def test_a_read_returns_what_came_after_a_number() -> None:
    log = filled(b"a", b"b", b"c")
    assert [chunk.chunk for chunk in log.read().chunks] == [b"a", b"b", b"c"]
    assert seqs(log, 1) == [2, 3]
    assert seqs(log, 3) == seqs(log, 4) == seqs(log, 2**64) == []


@pytest.mark.requirement("read.max-bytes")
@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [(0, [1]), (1, [1]), (4, [1]), (5, [1, 2]), (9, [1, 2]), (10, [1, 2, 3]), (10**9, [1, 2, 3])],
)
def test_a_page_stops_before_it_exceeds_its_size_but_never_before_the_first(
    max_bytes: int, expected: list[int]
) -> None:
    log = filled(b"xxx", b"xx", b"xxxxx")
    assert seqs(log, 0, max_bytes) == expected


@pytest.mark.requirement("read.next-seq")
def test_the_next_number_is_that_of_the_page_or_that_of_the_process() -> None:
    log = filled(b"a", b"b")
    log.exit(EXIT)
    assert log.read(0, 1).next_seq == 2  # a page with chunks
    assert log.read(0, 100).next_seq == 3
    assert log.read(0).next_seq == 4  # no page
    assert log.read(2, 1).next_seq == 4  # a page without chunks
    log.close()
    assert log.read(5, 1).next_seq == 5


@pytest.mark.requirement("read.state-not-page")
def test_exit_and_close_describe_the_process_and_not_the_page() -> None:
    log = filled(b"a", b"b")
    state = log.read()
    assert (state.exited, state.exit_code, state.closed) == (False, None, False)
    log.exit(EXIT)
    state = log.read(0, 0)
    assert (state.exited, state.exit_code, state.closed) == (True, 3, False)
    log.close()
    assert log.read(0, 0).closed
    assert len(log.read(0, 0).chunks) == 1


@pytest.mark.requirement("read.wait", "read.wait.exit", "read.wait.closed")
def test_news_are_chunks_an_exit_that_is_newer_or_the_close() -> None:
    log = OutputLog()
    assert not log.has_news(0)
    log.append("stdout", b"a")
    assert log.has_news(0)
    assert not log.has_news(1)
    log.exit(EXIT)
    assert log.has_news(1)
    assert not log.has_news(2)  # the exit is known: wait for late output or the close
    log.append("stdout", b"late")
    assert log.has_news(2)
    assert not log.has_news(3)
    log.close()
    assert log.has_news(3)
    assert log.has_news(1000)


# What is kept.


@pytest.mark.requirement("limits.retained-bytes", "limits.retained-chunks")
def test_the_limits_are_the_protocols() -> None:
    assert (MAX_RETAINED_BYTES, MAX_RETAINED_CHUNKS) == (1024 * 1024, 50_000)


@pytest.mark.requirement("limits.retained-bytes", "read.evicted")
def test_the_oldest_whole_chunks_go_first() -> None:
    log = OutputLog(Retention(max_bytes=10))
    for chunk in (b"xxxx", b"xxxx", b"xx"):
        log.append("stdout", chunk)
    assert seqs(log) == [1, 2, 3]
    log.append("stdout", b"x")
    assert seqs(log) == seqs(log, 0) == [2, 3, 4]
    assert log.retained_bytes == 7


@pytest.mark.requirement("limits.retained-chunks")
def test_50000_chunks_of_one_byte_are_kept() -> None:
    log = OutputLog()
    for _ in range(MAX_RETAINED_CHUNKS + 7):
        log.append("stdout", b"x")
    found = seqs(log)
    assert len(found) == MAX_RETAINED_CHUNKS
    assert found[0] == 8


def test_a_chunk_above_the_limit_evicts_itself_and_spends_its_number() -> None:
    log = OutputLog(Retention(max_bytes=10))
    log.append("stdout", b"a")
    log.append("stdout", b"x" * 11)
    assert seqs(log) == []
    assert log.retained_bytes == 0
    log.append("stdout", b"b")
    assert seqs(log) == [3]


def test_eviction_does_not_forget_the_exit() -> None:
    log = OutputLog(Retention(max_chunks=1))
    log.append("stdout", b"a")
    log.exit(EXIT)
    for _ in range(200):
        log.append("stdout", b"b")
    log.close()
    assert [entry.seq for entry in log.entries()] == [1, 2, 201, 202, 203]


# Watching.


def test_a_listener_hears_of_entries_until_it_leaves() -> None:
    log = OutputLog()
    first, second = Listener(), Listener()
    log.subscribe(first)
    log.append("stdout", b"a")
    log.subscribe(second)
    log.append("stdout", b"b")
    log.unsubscribe(first)
    log.append("stdout", b"c")
    assert first.events == [(1, b"a"), (2, b"b")]
    assert second.events == [(2, b"b"), (3, b"c")]


def test_a_waker_is_called_once_after_the_next_entry_of_any_kind() -> None:
    log = OutputLog()
    woken: list[str] = []
    log.wake_once(lambda: woken.append("output"))
    log.append("stdout", b"a")
    log.append("stdout", b"b")
    log.wake_once(lambda: woken.append("exit"))
    log.exit(EXIT)
    log.wake_once(lambda: woken.append("close"))
    log.close()
    assert woken == ["output", "exit", "close"]


def test_a_waker_may_ask_to_be_woken_again() -> None:
    log = OutputLog()
    woken: list[int] = []

    def wake() -> None:
        woken.append(log.next_seq)
        log.wake_once(wake)

    log.wake_once(wake)
    log.append("stdout", b"a")
    log.append("stdout", b"b")
    assert woken == [2, 3]


def test_a_forgotten_waker_is_not_called() -> None:
    log = OutputLog()
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    log.wake_once(wake)
    log.forget_waker(wake)
    log.forget_waker(wake)  # harmless
    log.append("stdout", b"a")
    assert woken == []


def test_entries_are_the_whole_log_in_order() -> None:
    log = filled(b"a")
    log.exit(EXIT)
    log.append("stderr", b"b")
    log.close()
    assert log.entries() == [
        OutputChunk(seq=1, stream="stdout", chunk=b"a"),
        Exited(2, EXIT),
        OutputChunk(seq=3, stream="stderr", chunk=b"b"),
        Closed(4),
    ]


# Anything a process may do.

chunks = st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=12))


@given(st.lists(chunks, max_size=200), st.integers(1, 40), st.integers(1, 20))
def test_retention_never_exceeds_its_limits_and_keeps_the_newest(
    written: list[tuple[OutputStream, bytes]], max_bytes: int, max_chunks: int
) -> None:
    log = OutputLog(Retention(max_bytes=max_bytes, max_chunks=max_chunks))
    for number, (stream, data) in enumerate(written, start=1):
        log.append(stream, data)
        kept = log.read().chunks
        assert sum(len(chunk.chunk) for chunk in kept) == log.retained_bytes <= max_bytes
        assert len(kept) <= max_chunks
        # What is kept is the end of what was written, whole and without holes.
        first = number - len(kept)
        assert [(c.stream, c.chunk) for c in kept] == written[first:number]
        assert [c.seq for c in kept] == list(range(first + 1, number + 1))
        # And one chunk more would be too much, unless nothing is missing.
        if first:
            longer = log.retained_bytes + len(written[first - 1][1])
            assert longer > max_bytes or len(kept) == max_chunks


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=40), st.integers(0, 20))
def test_paging_visits_everything_once(written: list[bytes], max_bytes: int) -> None:
    log = OutputLog()
    half = len(written) // 2
    for data in written[:half]:
        log.append("stdout", data)
    log.exit(EXIT)
    for data in written[half:]:
        log.append("stdout", data)
    log.close()
    seen: list[OutputChunk] = []
    after = 0
    while True:
        page = log.read(after, max_bytes)
        if not page.chunks:
            break
        assert len(page.chunks) == 1 or sum(len(c.chunk) for c in page.chunks) <= max_bytes
        seen += page.chunks
        after = page.next_seq - 1
    assert seen == log.read().chunks
    assert [c.chunk for c in seen] == written
    assert log.next_seq == len(written) + 3


@given(st.lists(st.sampled_from(["write", "exit", "close"]), max_size=12), st.integers(0, 14))
def test_news_are_what_the_algorithm_of_the_protocol_says(steps: list[str], after: int) -> None:
    log = OutputLog(Retention(max_chunks=3))
    for step in steps:
        if step == "write" and not log.closed:
            log.append("stdout", b"x")
        elif step == "exit" and log.verdict is None and not log.closed:
            log.exit(EXIT)
        elif step == "close" and log.verdict is not None and not log.closed:
            log.close()
    state = log.read(after)
    expected = bool(state.chunks) or state.closed or (state.exited and after < state.next_seq - 1)
    assert log.has_news(after) is expected

"""The order of events: whatever comes, and however often, goes out once and by its number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import RemoteProtocolError
from holdfast.client.reorder import MAX_EVENT_BYTES, MAX_EVENTS, Reorder
from holdfast.events import Closed, Exited, Gap, LogEntry, Reason, Verdict
from holdfast.wire.protocol.process import OutputChunk, ReadResponse

VERDICT = Verdict(reason=Reason.EXITED, exit_code=3)


def output(seq: int, data: bytes = b"x") -> OutputChunk:
    return OutputChunk(seq=seq, stream="stdout", chunk=data)


def life(outputs: int, *, exit_at: int) -> list[LogEntry]:
    """A whole life in order: so many outputs with the exit among them, and the close."""
    events: list[LogEntry] = [
        Exited(seq, VERDICT) if seq == exit_at else output(seq, b"%d" % seq)
        for seq in range(1, outputs + 2)
    ]
    return [*events, Closed(outputs + 2)]


def answer(events: list[LogEntry], after: int) -> ReadResponse:
    """Return the answer to a read by a server that retained everything."""
    exited = any(isinstance(event, Exited) for event in events)
    return ReadResponse(
        chunks=[e for e in events if isinstance(e, OutputChunk) and e.seq > after],
        next_seq=len(events) + 1,
        exited=exited,
        exit_code=VERDICT.exit_code if exited else None,
        closed=any(isinstance(event, Closed) for event in events),
    )


lives = st.integers(0, 40).flatmap(
    lambda outputs: st.integers(1, outputs + 1).map(lambda at: life(outputs, exit_at=at))
)


@pytest.mark.requirement("client.order")
@given(lives.flatmap(lambda events: st.tuples(st.just(events), st.permutations(events * 2))))
def test_events_in_any_order_and_twice_come_out_once_and_in_order(
    case: tuple[list[LogEntry], list[LogEntry]],
) -> None:
    events, arrivals = case
    reorder = Reorder()
    assert [due for event in arrivals for due in reorder.add(event)] == events
    assert reorder.last == len(events)


@pytest.mark.requirement("client.recovery.missing-exit", "client.recovery.reads")
@given(
    lives.flatmap(
        lambda events: st.tuples(
            st.just(events),
            st.sets(st.sampled_from(events)),
            st.integers(0, len(events)),
            st.integers(0, len(events)),
        )
    )
)
def test_a_read_after_any_loss_completes_the_events(
    case: tuple[list[LogEntry], set[LogEntry], int, int],
) -> None:
    events, arrived, cut, read = sorted_cuts(case)
    reorder = Reorder()
    out: list[LogEntry | Gap] = []
    for event in events[:cut]:
        if event in arrived:
            out += reorder.add(event)
    reorder.interrupted()
    out += catch_up(reorder, answer(events[:read], reorder.last))
    for event in events[read:]:  # what happens after the read is told as ever
        out += reorder.add(event)
    assert out == events


def sorted_cuts(
    case: tuple[list[LogEntry], set[LogEntry], int, int],
) -> tuple[list[LogEntry], set[LogEntry], int, int]:
    events, arrived, *cuts = case
    cut, read = sorted(cuts)
    return events, arrived, cut, read


def test_events_that_overtake_the_answer_to_a_read_wait_for_it() -> None:
    events = life(4, exit_at=5)
    reorder = Reorder()
    reorder.interrupted()
    assert [due for event in reversed(events[2:]) for due in reorder.add(event)] == []
    assert catch_up(reorder, answer(events[:3], 0)) == events


@pytest.mark.requirement("client.reorder-limit")
def test_too_many_events_behind_a_gap_are_an_error() -> None:
    reorder = Reorder()
    for seq in range(2, MAX_EVENTS + 2):
        assert reorder.add(output(seq)) == []
    with pytest.raises(RemoteProtocolError) as caught:
        reorder.add(output(MAX_EVENTS + 2))
    assert str(caught.value) == "process event reorder buffer exceeds 256 entries"


@pytest.mark.requirement("client.reorder-limit")
def test_too_many_bytes_behind_a_gap_are_an_error() -> None:
    reorder = Reorder()
    half = bytes(MAX_EVENT_BYTES // 2)
    assert reorder.add(output(2, half)) == []
    assert reorder.add(output(3, half)) == []
    with pytest.raises(RemoteProtocolError) as caught:
        reorder.add(output(4, b"x"))
    assert str(caught.value) == "process event reorder buffer exceeds 1048576 bytes"


@pytest.mark.requirement("client.reorder-limit")
def test_an_event_that_is_too_large_by_itself_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Reorder().add(output(1, bytes(MAX_EVENT_BYTES + 1)))
    assert str(caught.value) == "process event exceeds 1048576 bytes"


@pytest.mark.requirement("client.reorder-limit")
def test_the_event_that_closes_the_gap_is_taken_however_much_waits() -> None:
    reorder = Reorder()
    events = [output(seq) for seq in range(1, MAX_EVENTS + 2)]
    for event in events[1:]:
        reorder.add(event)
    assert reorder.add(events[0]) == events
    assert reorder.add(output(MAX_EVENTS + 3)) == []  # and there is room again


def test_more_may_wait_while_the_answer_to_a_read_is_on_its_way() -> None:
    reorder = Reorder()
    reorder.interrupted()
    events: list[LogEntry] = [output(seq, bytes(8192)) for seq in range(1, MAX_EVENTS + 100)]
    for event in events[1:]:
        assert reorder.add(event) == []
    assert catch_up(reorder, answer(events[:1], 0)) == events


@pytest.mark.requirement("client.recovery.evicted")
@pytest.mark.parametrize("exited", [False, True])
def test_events_that_are_gone_are_an_error(exited: bool) -> None:
    reorder = Reorder()
    reorder.add(output(1))
    gone = ReadResponse(
        chunks=[output(9)], next_seq=10, exited=exited, exit_code=None, closed=False
    )
    with pytest.raises(RemoteProtocolError) as caught:
        catch_up(reorder, gone)
    assert (
        str(caught.value)
        == "process events are no longer retained while recovering through sequence 9"
    )


def test_a_server_that_claims_a_huge_number_costs_nothing() -> None:
    gone = ReadResponse(chunks=[], next_seq=1 << 62, exited=False, exit_code=None, closed=False)
    with pytest.raises(RemoteProtocolError, match="no longer retained"):
        catch_up(Reorder(), gone)


def test_an_exit_without_a_number_has_the_one_that_is_missing() -> None:
    over = ReadResponse(chunks=[], next_seq=3, exited=True, exit_code=137, closed=True)
    assert catch_up(Reorder(), over) == [Exited(1, VERDICT), Closed(2)]


def test_an_exit_with_its_number_has_its_place() -> None:
    chunks = [output(1), output(3)]
    over = ReadResponse(chunks=chunks, next_seq=5, exited=True, exit_code=0, closed=True)
    assert Reorder().catch_up(over, Exited(2, VERDICT), gaps=False) == [
        output(1),
        Exited(2, VERDICT),
        output(3),
        Closed(4),
    ]


@pytest.mark.parametrize("numbered", [False, True])
def test_what_is_gone_can_be_a_gap(numbered: bool) -> None:
    reorder = Reorder()
    reorder.add(output(1))
    reorder.add(output(9))
    gone = ReadResponse(
        chunks=[output(5), output(6)], next_seq=9, exited=True, exit_code=0, closed=False
    )
    assert reorder.catch_up(gone, Exited(8 if numbered else 0, VERDICT), gaps=True) == [
        Gap(2, 4),
        output(5),
        output(6),
        Gap(7, 7),
        Exited(8, VERDICT),
        output(9),
    ]
    assert reorder.last == 9


def catch_up(reorder: Reorder, answer: ReadResponse) -> list[LogEntry | Gap]:
    """Take an answer of a server that does not number the exit."""
    return reorder.catch_up(answer, Exited(0, VERDICT) if answer.exited else None, gaps=False)

"""Extensions of calls beyond the original: conditions, parts of the output, pages."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.agent.unified_exec import (
    ExecResult,
    Note,
    NoteKind,
    Options,
    ReadResult,
    ToolError,
    UnifiedExec,
)
from holdfast.agent.unified_exec.sessions.session_events import (
    CommandBegan,
    CommandEnded,
    InputWanted,
    OutputDelta,
)
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.events import WaitingFor
from holdfast.testing import FakeBackend, FakeEnvironment

LONG = 30_000


@pytest.fixture
async def tools() -> AsyncIterator[UnifiedExec]:
    async with (
        LocalEnvironment() as environment,
        # Start files of a login shell may take long, or wait for a lock.
        UnifiedExec(environment, options=Options(extras=True, allow_login_shell=False)) as tools,
    ):
        yield tools


async def run(tools: UnifiedExec, cmd: str, **arguments: object) -> ExecResult:
    given = {"cmd": cmd, "login": False, "yield_time_ms": LONG, **arguments}
    result = await tools.call("exec_command", given)
    assert isinstance(result, ExecResult), result.text()
    return result


async def test_a_pattern_ends_the_wait(tools: UnifiedExec) -> None:
    result = await run(
        tools, "echo begin; echo ready on 80; sleep 60", wait_for={"pattern": "ready on [0-9]+"}
    )
    assert result.ended_by == "pattern (ready on 80)"
    assert result.session_id is not None
    assert result.text().startswith("Wait ended by pattern (ready on 80)\nChunk ID: ")
    assert b"ready on 80" in result.raw_output
    tools.terminate(result.session_id)


async def test_a_pattern_in_output_between_two_calls_counts(tools: UnifiedExec) -> None:
    first = await run(
        tools, "echo one; read x; echo two; sleep 60", tty=True, wait_for={"pattern": "one"}
    )
    assert first.session_id is not None
    session = tools.session(first.session_id)
    await session.process.write(b"\n")
    while b"two" not in bytes(session.output.unreported):  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.01)
    again = await tools.call(
        "write_stdin",
        {"session_id": first.session_id, "yield_time_ms": LONG, "wait_for": {"pattern": "two"}},
    )
    assert isinstance(again, ExecResult)
    assert again.ended_by == "pattern (two)"
    tools.clean()


async def test_a_program_that_reads_late_and_without_a_prompt_is_found(
    tools: UnifiedExec,
) -> None:
    # It is looked at before that, and not quiet anew afterwards: it writes nothing.
    result = await run(tools, "sleep 0.9; read x", tty=True, wait_for={"input": True})
    assert result.ended_by == "input (line)"
    tools.clean()


async def test_a_program_that_waits_for_input_ends_the_wait_and_is_told(
    tools: UnifiedExec,
) -> None:
    listener = tools.listen(deltas=False)
    result = await run(tools, "read -p 'name? ' x; echo $x", tty=True, wait_for={"input": True})
    assert result.ended_by == "input (line)"
    assert result.waiting_for is WaitingFor.LINE
    assert "The program waits for a line of input." in result.text(notes=True)
    events = [await anext(listener) for _ in range(2)]
    assert isinstance(events[1], InputWanted)
    answered = await tools.call("write_stdin", {"session_id": result.session_id, "chars": "me\n"})
    assert isinstance(answered, ExecResult)
    assert (answered.exit_code, answered.waiting_for) == (0, None)


@pytest.mark.virtual_time
async def test_a_time_without_output_ends_the_wait() -> None:
    async with (
        FakeEnvironment() as environment,
        UnifiedExec(environment, options=Options(extras=True)) as tools,
    ):
        call = asyncio.ensure_future(
            tools.call(
                "exec_command",
                {"cmd": "x", "yield_time_ms": LONG, "wait_for": {"quiet_ms": 2000}},
            )
        )
        process = await environment.backend.process()
        for _ in range(3):
            await asyncio.sleep(1.5)
            process.output(b"still busy\n")
        result = await call
        assert isinstance(result, ExecResult)
        assert result.ended_by == "quiet (2 s)"
        assert result.wall_time == pytest.approx(6.5 - 0.15)


@pytest.mark.parametrize(
    ("wait_for", "text"),
    [
        ({"pattern": "("}, "pattern"),
        ({"port": 0}, "port"),
        ({}, "wait_for"),
    ],
)
async def test_a_condition_that_makes_no_sense_is_refused_before_the_start(
    tools: UnifiedExec, wait_for: dict[str, object], text: str
) -> None:
    result = await tools.call("exec_command", {"cmd": "touch started", "wait_for": wait_for})
    assert isinstance(result, ToolError)
    assert text in result.text()
    assert tools.sessions() == []
    assert tools._owner.store.reserved == frozenset()


async def test_a_part_of_the_output_with_true_counts_and_the_exit_code(
    tools: UnifiedExec,
) -> None:
    result = await run(tools, "seq 1 50000; exit 3", tail=2)
    assert result.exit_code == 3
    assert result.text().endswith(
        "Original token count: 72224\nOutput:\n"
        f'[last 2 of 50,000 lines; read_output with call_id "{result.call_id}" shows the rest]\n'
        "49999\n50000\n"
    )
    matching = await run(tools, "seq 1 50000", grep="^4999.$")
    assert matching.selected is not None
    assert matching.selected.matching_lines == 10
    assert len(matching.raw_output) == 288_894  # all of it is still in the result


async def test_what_was_not_shown_can_be_read_later(tools: UnifiedExec) -> None:
    await tools.call("exec_command", {"cmd": "seq 1 50000"}, call_id="first")
    page = await tools.call("read_output", {"call_id": "first", "lines": [48_000, 48_001]})
    assert isinstance(page, ReadResult)
    assert page.text().endswith("48000\n48001\n")
    unknown = await tools.call("read_output", {"call_id": "other"})
    assert isinstance(unknown, ToolError)
    assert unknown.text() == "no output is kept for 'other'"


async def test_a_session_that_runs_can_be_read_by_its_number(tools: UnifiedExec) -> None:
    result = await run(tools, "echo here; sleep 60", wait_for={"pattern": "here"})
    page = await tools.call("read_output", {"session_id": result.session_id})
    assert page.text().endswith("here\n")
    tools.clean()


async def test_without_extras_they_are_ignored_as_in_the_original() -> None:
    async with LocalEnvironment() as environment, UnifiedExec(environment) as tools:
        result = await run(tools, "seq 1 3", tail=1, wait_for={"pattern": "("})
        assert result.output == "1\n2\n3\n"
        unknown = await tools.call("read_output", {"call_id": result.call_id})
        assert unknown.text() == "unsupported call: read_output"
        page = await tools.read_output(result.call_id, lines=(2, 2))  # still there for the owner
        assert page.text == "2\n"


async def test_input_is_not_known_on_a_server_that_cannot_look() -> None:
    async with (
        FakeEnvironment(FakeBackend.codex()) as environment,
        UnifiedExec(environment, options=Options(extras=True)) as tools,
    ):
        call = asyncio.ensure_future(
            tools.call("exec_command", {"cmd": "x", "tty": True, "yield_time_ms": 250})
        )
        await environment.backend.process()
        result = await call
        assert isinstance(result, ExecResult)
        assert result.waiting_for is None


async def test_the_object_of_a_part_counts_the_whole_output(tools: UnifiedExec) -> None:
    done = await run(tools, "seq 1 1000", head=1)
    assert done.object()["original_token_count"] == done.original_token_count > 900


async def test_a_page_has_an_object_as_its_schema_says(tools: UnifiedExec) -> None:
    done = await run(tools, "seq 1 20")
    read = await tools.call("read_output", {"call_id": done.call_id, "lines": [3, 4]})
    assert isinstance(read, ReadResult)
    assert read.object() == {
        "first_line": 3,
        "last_line": 4,
        "total_lines": 20,
        "output": read.text(),
    }
    described: Any = tools.schemas("mcp")[2]["outputSchema"]
    assert read.object().keys() <= described["properties"].keys()
    assert set(described["required"]) <= read.object().keys()


async def test_arguments_that_are_no_object_are_told_by_their_type(tools: UnifiedExec) -> None:
    for given, said in ((None, "invalid type: null"), (5, "invalid type: integer `5`")):
        refused = await tools.call("exec_command", given)  # type: ignore[arg-type]
        assert isinstance(refused, ToolError)
        assert refused.message.startswith("failed to parse function arguments: ")
        assert said in refused.message, refused.message


async def test_the_begin_and_the_live_output_are_everything(tools: UnifiedExec) -> None:
    events = tools.listen()
    await run(tools, "echo early; sleep 0.5; echo later")
    shown = b""
    async for event in events:
        match event:
            case CommandBegan():
                shown += bytes(event.early)
            case OutputDelta():
                shown += event.data
            case CommandEnded():
                assert shown == bytes(event.output) == b"early\nlater\n"
                return
    pytest.fail("no end was told")


async def test_a_note_tells_how_to_read_what_is_cut(tools: UnifiedExec) -> None:
    done = await run(tools, "seq 1 50000")
    text = f'read_output with call_id "{done.call_id}" shows what is cut.'
    assert done.notes == (Note(NoteKind.CUT, text),)
    assert (await run(tools, "seq 1 5")).notes == ()
    assert (await run(tools, "seq 1 50000", tail=1)).notes == ()


async def test_a_note_for_keys_leaves_room_for_a_line(tools: UnifiedExec) -> None:
    asked = await run(tools, "bash --norc -i", tty=True, wait_for={"input": True})
    assert asked.waiting_for is WaitingFor.KEY
    (note,) = asked.notes
    assert note.kind is NoteKind.INPUT
    assert str(note) == "The program waits for a key, or for a line that it edits itself."
    tools.clean()


async def test_a_pattern_that_is_too_slow_holds_up_nobody(tools: UnifiedExec) -> None:
    slow = "(a?){400}a{400}b"
    flood = f"yes {'a' * 999} | head -c 3000000; exit 3"
    waited = await tools.call("exec_command", {"cmd": flood, "wait_for": {"pattern": slow}})
    assert isinstance(waited, ExecResult)
    assert (waited.exit_code, waited.ended_by, waited.pattern_given_up) == (3, None, True)
    assert waited.text().startswith("wait_for: pattern was given up, it takes too long")
    read = await tools.call("read_output", {"call_id": waited.call_id, "pattern": slow})
    assert isinstance(read, ToolError)
    assert read.text() == f"pattern {slow!r} cannot be used here: it takes too long to search for"


async def test_the_counts_are_true_of_what_is_written_at_once(tools: UnifiedExec) -> None:
    """In the 150 ms after a start a command can write far more than is kept for its call."""
    ends = await run(tools, "seq 1 600000; exit 4", head=1, tail=1)
    assert ends.selected is not None
    assert ends.selected.note == "first 1 and last 1 of 600,000 lines"
    assert (ends.exit_code, ends.omitted_bytes > 0) == (4, True)
    found = await run(tools, "seq 1 600000", grep="^300000$")
    assert found.selected is not None
    assert found.selected.note == "1 of 600,000 lines matches"
    assert found.selected.text_bytes == b"300000\n"
    met = await run(tools, "seq 1 600000; sleep 600", wait_for={"pattern": "^300000$"})
    assert met.ended_by == "pattern (300000)"


async def test_a_selection_says_what_is_not_kept_for_it(tools: UnifiedExec) -> None:
    events = tools.listen()
    started = await run(tools, "sleep 0.5; seq 1 600000; exit 4", yield_time_ms=250)
    async for event in events:
        if isinstance(event, CommandEnded):
            break
    given = {"session_id": started.session_id, "tail": 1}
    ended = await tools.call("write_stdin", given)
    assert isinstance(ended, ExecResult)
    assert (ended.exit_code, ended.selected is not None) == (4, True)
    assert f"; {ended.omitted_bytes:,} bytes from before this call are not counted" in ended.text()
    assert ended.text().endswith("]\n600000\n")

"""A server that is far away, or busy, takes input later than a call waits for output."""

import asyncio

import pytest

from holdfast.agent.unified_exec import NoteKind, Options, ToolError, UnifiedExec
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from holdfast.agent.unified_exec.tool_errors import WriteToStdin
from holdfast.base.errors import ConnectionLost
from holdfast.testing import FakeBackend, FakeEnvironment
from holdfast.wire.protocol.process import WriteStatus

pytestmark = pytest.mark.virtual_time


@pytest.mark.requirement("tools.slow-line")
@pytest.mark.parametrize(("delay", "taken"), [(1.0, True), (60.0, False)])
async def test_input_may_take_longer_than_the_shortest_call(
    monkeypatch: pytest.MonkeyPatch, delay: float, taken: bool
) -> None:
    environment = FakeEnvironment(FakeBackend(remote=True))
    async with environment, UnifiedExec(environment) as tools:
        begun = await tools.exec_command(ExecArguments(cmd="cat", tty=True, yield_time_ms=250))
        assert begun.session_id is not None
        (process,) = environment.backend.processes

        async def write(data: bytes, write_id: str | None = None) -> WriteStatus:
            await asyncio.sleep(delay)
            process.output(data)
            return WriteStatus.ACCEPTED

        monkeypatch.setattr(process, "write", write)
        call = tools.write_stdin(WriteArguments(session_id=begun.session_id, chars="a\n"))
        if taken:
            assert (await call).output == "a\n"
        else:
            with pytest.raises(WriteToStdin):
                await call


@pytest.mark.requirement("tools.lost-line")
async def test_an_interrupt_whose_line_breaks_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = FakeEnvironment(FakeBackend(remote=True))
    async with environment, UnifiedExec(environment) as tools:
        begun = await tools.exec_command(ExecArguments(cmd="sleep 100", yield_time_ms=250))
        assert begun.session_id is not None
        (process,) = environment.backend.processes
        breaks = [ConnectionLost("the line broke"), ConnectionLost("the line broke")]

        async def signal(name: str) -> None:
            if breaks:
                raise breaks.pop()
            process.end(130)

        monkeypatch.setattr(process, "signal", signal)
        call = WriteArguments(session_id=begun.session_id, chars="\x03", yield_time_ms=1000)
        assert (await tools.write_stdin(call)).exit_code == 130


@pytest.mark.requirement("tools.lost-line")
async def test_an_interrupt_is_given_up_with_its_server() -> None:
    environment = FakeEnvironment(FakeBackend(remote=True))
    async with environment, UnifiedExec(environment) as tools:
        begun = await tools.exec_command(ExecArguments(cmd="sleep 100", yield_time_ms=250))
        assert begun.session_id is not None
        environment.backend.lose_line()
        call = WriteArguments(session_id=begun.session_id, chars="\x03")
        assert (await tools.write_stdin(call)).session_id == begun.session_id
        environment.backend.lose_for_good()
        # Nothing of the interrupt is left to do.
        await tools._owner.tasks.join()


@pytest.mark.requirement("tools.notes")
async def test_a_poll_without_a_line_says_so() -> None:
    environment = FakeEnvironment(FakeBackend(remote=True))
    async with environment, UnifiedExec(environment, options=Options(notes=True)) as tools:
        begun = await tools.exec_command(ExecArguments(cmd="sleep 100", yield_time_ms=250))
        assert begun.session_id is not None
        assert begun.notes == ()
        environment.backend.lose_line()
        poll = WriteArguments(session_id=begun.session_id)
        lost = await tools.write_stdin(poll)
        assert [note.kind for note in lost.notes] == [NoteKind.CONNECTION_LOST]
        assert lost.text().startswith("The connection to the server is lost for now, ")
        environment.backend.restore_line()
        assert (await tools.write_stdin(poll)).notes == ()
        environment.backend.lose_for_good()
        gone = await tools.call("write_stdin", {"session_id": begun.session_id})
        assert isinstance(gone, ToolError)
        assert [note.kind for note in gone.notes] == [NoteKind.CONNECTION_LOST]

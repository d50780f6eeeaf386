"""What the tools say about a result, in addition to the text of Codex: here and on servers."""

import asyncio
from pathlib import Path

import pytest

from holdfast.agent.approvals import Approvals, Question
from holdfast.agent.approvals.question import Decision, DecisionKind
from holdfast.agent.unified_exec import (
    CommandBegan,
    ExecResult,
    NoteKind,
    Options,
    ToolError,
    UnifiedExec,
)
from holdfast.environments.environment import Environment
from holdfast.environments.limits import Limits

pytestmark = [pytest.mark.slow, pytest.mark.requirement("tools.notes")]


async def result_of(tools: UnifiedExec, cmd: str, **more: object) -> ExecResult | ToolError:
    arguments = {"cmd": cmd, "login": False, "yield_time_ms": 30_000, **more}
    result = await tools.call("exec_command", arguments)
    assert isinstance(result, ExecResult | ToolError)
    # Without them the text is that of Codex.
    assert not any(note.text in result.text(notes=False) for note in result.notes)
    assert all(note.text in result.text() for note in result.notes)
    return result


async def only_note(tools: UnifiedExec, cmd: str, **more: object) -> tuple[NoteKind, str]:
    """Return the one note on a command."""
    (note,) = (await result_of(tools, cmd, **more)).notes
    return note.kind, note.text


async def test_a_denial_names_the_path_and_the_network(
    machine: Environment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "file"
    options = Options(sandbox="read-only", notes=True)
    async with UnifiedExec(machine, options=options) as tools:
        kind, text = await only_note(tools, f"echo x > {outside}")
        assert kind is NoteKind.DENIED
        assert text.startswith(f"The sandbox does not let commands write `{outside}`; no call can")
        kind, text = await only_note(tools, "exec 3<>/dev/tcp/127.0.0.1/9")
        assert kind is NoteKind.NETWORK
        assert text.startswith("The sandbox has no network, ")
        # The kernel reports it, also of a command that says nothing and succeeds.
        silent = await result_of(tools, "(exec 3<>/dev/tcp/127.0.0.1/9) 2>&-; true")
        assert len(silent.notes) == (0 if machine.id == "codex" else 1)
        # A file mode is not the sandbox.
        assert (await result_of(tools, "echo 'no'; exit 1")).notes == ()


@pytest.mark.in_turn("machine", "local", "holdfast")
@pytest.mark.parametrize("extra", [False, True])
async def test_a_note_says_how_to_ask(machine: Environment, extra: bool) -> None:
    async def answer(question: Question) -> Decision:
        return Decision(DecisionKind.DECLINE)

    approvals = Approvals(approver=answer, additional_permissions=extra)
    options = Options(sandbox="workspace-write", notes=True, approvals=approvals)
    async with UnifiedExec(machine, options=options) as tools:
        _, text = await only_note(tools, "touch /usr/file")
        how = "with_additional_permissions" if extra else "require_escalated"
        assert text.endswith(
            f"; to ask for it, call `exec_command` with `sandbox_permissions: {how}`."
        )


async def test_a_missing_directory_is_named(machine: Environment, tmp_path: Path) -> None:
    async with UnifiedExec(machine, options=Options(notes=True)) as tools:
        missing = str(tmp_path / "missing")
        failed = await result_of(tools, "true", workdir=missing)
        assert isinstance(failed, ToolError)
        assert failed.text(notes=False) == failed.message
        (note,) = failed.notes
        assert note.kind is NoteKind.DIRECTORY
        # A Codex server does not say what is missing.
        known = "may not exist" if machine.id == "codex" else f"`{missing}` does not exist"
        assert f"The working directory {known}; " in failed.text()
        # On a terminal it runs elsewhere, without a word.
        kind, text = await only_note(tools, "pwd", workdir=missing, tty=True)
        assert kind is NoteKind.DIRECTORY
        assert text.startswith(f"The working directory `{missing}` does not exist, so the command")
        assert (await result_of(tools, "pwd", workdir=str(tmp_path), tty=True)).notes == ()


async def test_a_limit_and_a_cut_are_named(machine: Environment) -> None:
    limits = None if machine.id == "codex" else Limits(output=100_000)
    async with UnifiedExec(machine, options=Options(notes=True, limits=limits)) as tools:
        kind, text = await only_note(tools, "seq 1 9000", max_output_tokens=10)
        assert kind is NoteKind.CUT
        assert "write it to a file" in text
        if limits is not None:
            limited = await result_of(tools, "yes")
            note, cut = limited.notes
            assert (note.kind, cut.kind) == (NoteKind.LIMIT, NoteKind.CUT)
            assert note.text.startswith("The command wrote more than 100000 bytes, which is its")


async def test_a_killed_command_and_what_one_left(machine: Environment) -> None:
    async with UnifiedExec(machine, options=Options(notes=True, counted_ids=True)) as tools:
        async with tools.listen(deltas=False) as news:
            call = asyncio.ensure_future(result_of(tools, "exec sleep 1000"))
            # It has a number from here on.
            assert isinstance(await anext(news), CommandBegan)
        assert tools.terminate(1000)
        killed = await call
        assert [note.kind for note in killed.notes] == [NoteKind.KILLED]
        left = await result_of(tools, "sleep 1000 & echo")
        assert isinstance(left, ExecResult)
        kinds = [note.kind for note in left.notes]
        assert kinds == ([NoteKind.LEFT_BEHIND] if left.left_behind else [])

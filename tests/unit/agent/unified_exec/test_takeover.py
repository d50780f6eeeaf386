"""Commands that are patches: who decides, where they run, and what is told."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from holdfast.agent.approvals import UNTRUSTED, Approvals, Decision, Question, QuestionKind
from holdfast.agent.approvals.question_text import question_text
from holdfast.agent.unified_exec import Hooks, Options, UnifiedExec
from holdfast.agent.unified_exec.hooks import PatchRequest, StartRequest
from holdfast.agent.unified_exec.tool_errors import CallRefused, CreateProcess
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.sandbox import SandboxProfile
from holdfast.wire.protocol.sandbox import SandboxContext

PATCH = "*** Begin Patch\n*** Add File: n\n+x\n*** End Patch"
COMMAND = f"apply_patch <<'EOF'\n{PATCH}\nEOF\n"


async def told(
    folder: Path, cmd: str = COMMAND, hooks: Hooks | None = None, **options: object
) -> str:
    async with LocalEnvironment() as environment:
        environment.cwd = str(folder)
        chosen = Options(**options)  # type: ignore[arg-type]
        async with UnifiedExec(environment, options=chosen, hooks=hooks) as tools:
            arguments = json.dumps({"cmd": cmd, "login": False})
            result = await tools.call("exec_command", arguments)
            assert tools.sessions() == []
            return result.text()


async def test_without_approvals(tmp_path: Path) -> None:
    text = await told(tmp_path)
    assert text.startswith("Wall time: 0.0000 seconds\nOutput:\nExit code: 0\nWall time: 0")
    assert (tmp_path / "n").read_text() == "x\n"


async def test_switched_off(tmp_path: Path) -> None:
    assert "apply_patch: command not found" in await told(tmp_path, patches=False)
    assert not (tmp_path / "n").exists()


async def test_the_result_for_a_program(tmp_path: Path) -> None:
    async with LocalEnvironment() as environment:
        environment.cwd = str(tmp_path)
        async with UnifiedExec(environment) as tools:
            result = await tools.call("exec_command", {"cmd": COMMAND})
            assert result.patch is not None  # type: ignore[union-attr]
            assert [change.name for change in result.patch.changes] == ["n"]  # type: ignore[union-attr]
            assert result.object()["exit_code"] == 0  # type: ignore[union-attr]


async def test_who_refuses_commands_refuses_patches(tmp_path: Path) -> None:
    class Refusing(Hooks):
        async def before_start(self, request: StartRequest) -> StartRequest:
            raise CreateProcess("not today")

    assert "not today" in await told(tmp_path, hooks=Refusing())
    assert not (tmp_path / "n").exists()


async def test_a_hook_for_patches(tmp_path: Path) -> None:
    seen = []

    class Watching(Hooks):
        async def before_patch(self, request: PatchRequest) -> SandboxContext | None:
            seen.append([path.native for path in request.plan.touched])
            raise CallRefused("no patches on Sundays")

    approvals = Approvals(policy="never")
    assert await told(tmp_path, hooks=Watching(), approvals=approvals) == "no patches on Sundays"
    assert seen == [[f"{tmp_path}/n"]]
    assert not (tmp_path / "n").exists()


async def test_the_question_names_where_a_link_leads(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "l").symlink_to(outside)
    asked: list[Question] = []

    async def ask(question: Question) -> Decision:
        asked.append(question)
        return Decision.parse("decline")

    text = await told(
        inside,
        COMMAND.replace(": n", ": l/n"),
        sandbox="read-only",
        approvals=Approvals(approver=ask),
    )
    assert text == "patch rejected by user"
    assert asked[0].kind is QuestionKind.FILE_CHANGE
    assert [(file.path, file.leads_to) for file in asked[0].files] == [
        (f"{inside}/l/n", f"{outside}/n")
    ]
    assert [(file.outside, file.hunks) for file in asked[0].files] == [(True, "+x")]
    assert not list(outside.iterdir())


class Approving:
    """Keeps the questions, and accepts."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    async def ask(self, question: Question) -> Decision:
        self.asked.append(question)
        return Decision.parse("accept")


def written(*parts: str) -> str:
    body = "\n".join(parts)
    return f"apply_patch <<'END'\n*** Begin Patch\n{body}\n*** End Patch\nEND\n"


def added(path: object, *lines: str) -> str:
    return "\n".join([f"*** Add File: {path}", *(f"+{line}" for line in lines)])


@pytest.mark.both_loops
@pytest.mark.requirement("approvals.question.patch")
async def test_a_question_shows_what_a_patch_changes_outside_first(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "f").write_text("a\nb\n")
    (inside / "gone").symlink_to(outside / "f")
    (inside / "moved").write_text("a\n")
    for name in ("m", "old"):
        (outside / name).write_text("before\n")
    parts = [
        *(added(f"n{number}", *["x"] * 100) for number in range(30)),
        added("in/l/evil", "evil"),
        f"*** Update File: {outside}/f\n@@ a\n-b\n+B",
        f"*** Update File: moved\n*** Move to: {outside}/m\n@@\n-a\n+b",
        added(outside / "old", "new"),
        "*** Delete File: gone",
    ]
    (inside / "in").mkdir()
    (inside / "in" / "l").symlink_to(outside)
    person = Approving()
    profile = SandboxProfile("read-only", write=["."])
    approvals = Approvals(approver=person)
    text = await told(inside, written(*parts), sandbox=profile, approvals=approvals)
    assert "Success" in text
    (question,) = person.asked
    assert question.command == ()
    assert question.explanation == "it writes what its sandbox does not let it write"
    heading, lines = question_text(question)
    assert heading == "Change these files outside its sandbox?"
    assert lines == [
        f"add {inside}/in/l/evil (a link to {outside}/evil)",
        "| +evil",
        f"update {outside}/f",
        *("| @@ a", "| -b", "| +B"),
        f"update {inside}/moved to {outside}/m, in place of another file",
        *("| @@", "| -a", "| +b"),
        f"add {outside}/old, in place of another file",
        "| +new",
        # The link is removed, which is inside; what it leads to stays.
        "and 31 more inside",
        "Asked because: it writes what its sandbox does not let it write",
    ]
    assert (outside / "evil").read_text() == "evil\n"
    assert not (inside / "gone").is_symlink()
    assert (outside / "f").read_text() == "a\nB\n"


@pytest.mark.both_loops
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([str(number) for number in range(400)], id="many"),
        pytest.param(["x" * 20_000], id="long"),
        pytest.param(["\x1b" * 5_000], id="escaped"),
        pytest.param([str(number) * 30 for number in range(20_000)], id="huge"),
    ],
)
@pytest.mark.requirement("approvals.question.patch")
async def test_a_patch_that_cannot_be_shown_is_refused(tmp_path: Path, lines: list[str]) -> None:
    person = Approving()
    command = written(added(tmp_path / "n", *lines), added("m", "1"))
    text = await told(tmp_path, command, sandbox="read-only", approvals=Approvals(approver=person))
    assert text == (
        "patch rejected: it changes 2 files outside the sandbox by more than a question can show"
        " (400 lines, 16384 characters); split it into smaller patches, and keep files inside the"
        " sandbox in another one"
    )
    assert person.asked == []
    assert os.listdir(tmp_path) == []


@pytest.mark.requirement("approvals.question.patch")
async def test_a_patch_inside_is_asked_about_whatever_its_size(tmp_path: Path) -> None:
    person = Approving()
    command = written(added("n", *[str(number) * 30 for number in range(5_000)]), added("m", "1"))
    profile = SandboxProfile("read-only", write=["."])
    approvals = Approvals(approver=person, policy=UNTRUSTED)
    assert "Success" in await told(tmp_path, command, sandbox=profile, approvals=approvals)
    (question,) = person.asked
    assert question.explanation == "the policy asks about every patch"
    assert sum(len(file.hunks) for file in question.files) == 16_384
    lines = question_text(question)[1]
    assert "and 1 more inside" in lines
    assert any(line.startswith("… ") and "characters are not shown" in line for line in lines)


async def test_a_file_that_changes_while_somebody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\nb\n")

    async def ask(question: Question) -> Decision:
        (tmp_path / "f").write_text("changed\n")
        return Decision.parse("accept")

    update = COMMAND.replace("*** Add File: n\n+x", "*** Update File: f\n@@\n-b\n+B")
    text = await told(tmp_path, update, sandbox="read-only", approvals=Approvals(approver=ask))
    assert text == (
        "apply_patch verification failed: "
        f"{tmp_path}/f changed while the patch was being decided about"
    )
    assert (tmp_path / "f").read_text() == "changed\n"


async def test_closing_the_tools_ends_the_question(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def ask(question: Question) -> Decision:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with LocalEnvironment() as environment:
        environment.cwd = str(tmp_path)
        options = Options(sandbox="read-only", approvals=Approvals(approver=ask))
        tools = UnifiedExec(environment, options=options)
        call = asyncio.create_task(tools.call("exec_command", {"cmd": COMMAND}))
        async with asyncio.timeout(5):
            await asked.wait()
        await tools.aclose()
        assert (await call).text() == "the tools are closed"
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("name", ["other", "LOCAL"])
async def test_a_patch_for_another_environment(tmp_path: Path, name: str) -> None:
    text = await told(
        tmp_path, COMMAND.replace("Patch\n***", f"Patch\n*** Environment ID: {name}\n***", 1)
    )
    assert text == f"unknown turn environment id `{name}`"
    assert not (tmp_path / "n").exists()


async def test_as_a_tool_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    async with LocalEnvironment() as environment:
        environment.cwd = str(tmp_path)
        options = Options(sandbox="read-only", approvals=Approvals(policy="never"))
        async with UnifiedExec(environment) as tools:
            result = await tools.apply_patch(PATCH, workdir="d")
            assert result.patch is not None
            assert result.output.endswith("Success. Updated the following files:\nA n\n")
            with pytest.raises(CallRefused, match="apply_patch verification failed: invalid"):
                await tools.apply_patch("nothing of the kind")
        async with UnifiedExec(environment, options=options) as tools:
            with pytest.raises(CallRefused, match="writing is blocked by read-only sandbox"):
                await tools.apply_patch(PATCH)
    assert (tmp_path / "d" / "n").read_text() == "x\n"
    assert not (tmp_path / "n").exists()

"""Commands that are patches: who decides, where they run, and what is told."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.approvals import Approvals, Decision, Question, QuestionKind
from holdfast.environments.local import LocalEnvironment
from holdfast.protocol.sandbox import SandboxContext
from holdfast.unified_exec import Hooks, Options, UnifiedExec
from holdfast.unified_exec.errors import CallRefused, CreateProcess
from holdfast.unified_exec.hooks import PatchRequest, StartRequest

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
    assert asked[0].to_json()["patch"] == PATCH.replace(": n", ": l/n")
    assert not list(outside.iterdir())


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

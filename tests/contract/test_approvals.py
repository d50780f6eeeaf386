"""The flow of approvals with real sandboxes: on this machine, and on both kinds of servers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.approvals import (
    AddedPermissions,
    Approvals,
    Decision,
    DecisionKind,
    Question,
    QuestionKind,
)
from holdfast.agent.unified_exec import (
    Attempt,
    CallInterrupted,
    CallRefused,
    CommandBegan,
    CommandEnded,
    ExecResult,
    Hooks,
    Options,
    PermissionGrant,
    StartRequest,
    ToolError,
    UnifiedExec,
)
from holdfast.environments.environment import Environment
from holdfast.environments.sandbox import SandboxProfile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

GRANULAR = {
    "granular": {
        "sandbox_approval": True,
        "rules": True,
        "mcp_elicitations": False,
        "request_permissions": True,
    }
}

ACCEPT, DECLINE, CANCEL = (
    Decision(kind) for kind in (DecisionKind.ACCEPT, DecisionKind.DECLINE, DecisionKind.CANCEL)
)


class Counting(Hooks):
    """Counts the attempts, which end exactly as often as they begin."""

    def __init__(self) -> None:
        self.begun: list[StartRequest] = []
        self.ended: list[StartRequest] = []

    async def attempt_begins(self, request: StartRequest) -> Attempt:
        self.begun.append(request)
        return Attempt(request=request)

    def attempt_ended(self, attempt: Attempt) -> None:
        self.ended.append(attempt.request)


@dataclass
class Person:
    """Somebody who answers questions by a script, and keeps them."""

    answers: list[Decision] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a question was asked."""

    async def ask(self, question: Question) -> Decision:
        self.asked.append(question)
        self.opened.set()
        if not self.answers:
            await asyncio.Event().wait()  # until whoever asks gives up
        return self.answers.pop(0)


@dataclass
class Scene:
    """A model in a sandbox, and a person who is asked."""

    tools: UnifiedExec
    person: Person
    hooks: Counting
    outside: Path
    """A folder that the sandbox cannot write."""

    async def run(self, cmd: str, *answers: Decision, **options: Any) -> ExecResult:
        result = await self.try_to_run(cmd, *answers, **options)
        assert isinstance(result, ExecResult), result.text()
        return result

    async def try_to_run(self, cmd: str, *answers: Decision, **options: Any) -> Any:
        self.person.answers = list(answers)
        arguments = {"cmd": cmd, "login": False, "yield_time_ms": 30_000, **options}
        return await self.tools.call("exec_command", arguments)

    async def escalated(self, cmd: str, *answers: Decision, **options: Any) -> Any:
        wish = {"sandbox_permissions": "require_escalated", "justification": "may I?"}
        return await self.try_to_run(cmd, *answers, **wish, **options)


MakeScene = Callable[..., Any]


@pytest.fixture
def scene(machine: Environment, tmp_path: Path) -> MakeScene:
    """Return what makes a scene, with the given choices about approvals."""
    outside = tmp_path / "outside"
    workspace = tmp_path / "ws"
    outside.mkdir()
    workspace.mkdir()
    machine.cwd = workspace

    @asynccontextmanager
    async def made(
        *, deny: tuple[str, ...] = (), policy: Any = GRANULAR, **choices: Any
    ) -> AsyncIterator[Scene]:
        person, hooks = Person(), Counting()
        approvals = Approvals(policy=policy, approver=person, **choices)
        sandbox = SandboxProfile("read-only", write=["."], deny=deny)
        options = Options(sandbox=sandbox, approvals=approvals)
        async with UnifiedExec(machine, options=options, hooks=hooks) as tools:
            yield Scene(tools, person, hooks, outside)
        assert hooks.begun == hooks.ended

    return made


@pytest.mark.requirement("approvals.flow.accepted")
async def test_denied_asked_accepted_run_outside(scene: MakeScene) -> None:
    async with scene() as played, played.tools.listen(deltas=False) as events:
        target = played.outside / "f"
        result = await played.run(f"echo ran >> runs; echo hi > {target} && echo done", ACCEPT)
        assert (result.exit_code, target.read_text()) == (0, "hi\n")
        assert result.output == "done\n"
        (asked,) = played.person.asked
        assert asked.reason == "command failed; retry without sandbox?"
        assert asked.leaves_sandbox
        assert asked.denied is not None
        assert "Read-only file system" in asked.denied.output
        assert [one.sandbox is None for one in played.hooks.begun] == [False, True]
        assert len({one.session_id for one in played.hooks.begun}) == 1
        kinds = [type(await anext(events)) for _ in range(2)]
        assert kinds == [CommandBegan, CommandEnded]


@pytest.mark.requirement("approvals.flow.declined")
async def test_denied_asked_declined_keeps_the_first_output(scene: MakeScene) -> None:
    async with scene() as played:
        target = played.outside / "f"
        result = await played.run(f"echo first; echo hi > {target}", DECLINE)
        assert result.exit_code == 1
        # A Codex server reads the two streams apart: either may come first.
        assert "first\n" in result.output
        assert "Read-only file system" in result.output
        assert len(played.person.asked) == 1
        assert not target.exists()
        assert len(played.hooks.begun) == 1


@pytest.mark.requirement("approvals.flow.cancelled")
async def test_cancelled_in_the_question_nothing_runs(scene: MakeScene) -> None:
    async with scene() as played:
        target = played.outside / "f"
        for ask in (played.try_to_run, played.escalated):
            result = await ask(f"echo hi > {target}", CANCEL)
            assert isinstance(result, ToolError)
            assert isinstance(result.cause, CallInterrupted)
            assert result.text().endswith(" seconds\naborted by user")
        late = await played.try_to_run(f"sleep 0.3; echo hi > {target}", CANCEL)
        assert isinstance(late.cause, CallInterrupted)
        assert not target.exists()
        assert played.tools.sessions() == []
        # The escalated command never began; the others ran once, in their sandboxes.
        assert [one.sandbox is not None for one in played.hooks.begun] == [True, True]


@pytest.mark.requirement("approvals.flow.network")
async def test_the_question_tells_what_the_network_was_asked_for(
    scene: MakeScene, machine: Environment
) -> None:
    async with scene() as played:
        result = await played.run("exec 3<>/dev/tcp/127.0.0.1/9", DECLINE)
        assert result.exit_code == 1
        (asked,) = played.person.asked
        assert asked.denied is not None
        # A server of Codex does not tell.
        told = () if machine.id == "codex" else ("bash asked for an IPv4 stream socket",)
        assert asked.denied.network_attempts == told


@pytest.mark.requirement("approvals.flow.late")
async def test_a_late_denial_is_asked_about_too(scene: MakeScene) -> None:
    async with scene() as played, played.tools.listen(deltas=False) as events:
        target = played.outside / "f"
        result = await played.run(f"sleep 0.3; echo hi > {target} && echo done", ACCEPT)
        assert (result.exit_code, result.output) == (0, "done\n")
        assert target.exists()
        began, ended = [await anext(events) for _ in range(2)]
        assert isinstance(began, CommandBegan)
        assert isinstance(ended, CommandEnded)
        assert ended.exit_code == 0
        declined = await played.run(f"sleep 0.3; mkdir {played.outside}/d", DECLINE)
        assert declined.exit_code == 1
        assert len(played.person.asked) == 2
        assert len(played.hooks.begun) == 3


@pytest.mark.requirement("approvals.flow.window")
async def test_a_window_leaves_late_denials_alone(scene: MakeScene) -> None:
    async with scene(retry_window=0.15) as played:
        result = await played.run(f"sleep 0.3; echo hi > {played.outside}/f", ACCEPT)
        assert result.exit_code == 1
        assert played.person.asked == []


@pytest.mark.requirement("approvals.flow.retry")
async def test_policies_that_do_not_ask_after_a_denial(scene: MakeScene) -> None:
    for policy in ("on-request", "never"):
        async with scene(policy=policy) as played:
            result = await played.run(f"echo hi > {played.outside}/f", ACCEPT)
            assert result.exit_code == 1
            assert played.person.asked == []
    async with scene(policy="on-request", retry_on_request=True) as played:
        assert (await played.run(f"echo hi > {played.outside}/f", ACCEPT)).exit_code == 0


@pytest.mark.requirement("approvals.decide.syntax")
async def test_a_script_that_cannot_be_parsed_is_refused_with_its_error(scene: MakeScene) -> None:
    for policy in ("on-request", "never"):
        async with scene(policy=policy) as played:
            refused = await played.tools.call("exec_command", {"cmd": "echo a; echo )"})
            assert "cannot be parsed: line 1, column 14: `)` closes nothing" in refused.text()
            assert played.person.asked == []


@pytest.mark.requirement("unified.12.declined")
async def test_a_declined_command_is_told_as_declined(scene: MakeScene) -> None:
    async with scene() as played, played.tools.listen() as events:
        await played.escalated("echo hi", DECLINE)
        began, ended = [await anext(events) for _ in range(2)]
        assert isinstance(began, CommandBegan)
        assert isinstance(ended, CommandEnded)
        assert (began.session_id, ended.declined, ended.exit_code) == (None, True, -1)
        assert played.hooks.begun == []


@pytest.mark.requirement("approvals.flow.escalated")
async def test_an_escalated_command_and_its_input(scene: MakeScene) -> None:
    async with scene(policy="on-request") as played:
        target = played.outside / "f"
        refused = await played.escalated(f"echo hi > {target}", DECLINE)
        assert 'Rejected(\\"rejected by user\\")' in refused.text()
        result = await played.escalated(
            f"stty -echo; read line; echo $line > {target}", ACCEPT, tty=True, yield_time_ms=250
        )
        session = result.session_id
        # The argv has one type and one name wherever it is shown.
        (listed,) = played.tools.sessions()
        question = played.person.asked[-1]
        assert result.command == listed.command == question.command
        assert result.command[1:] == ("-c", listed.script)
        write = {"session_id": session, "chars": "typed\n", "yield_time_ms": 30_000}
        played.person.answers = [DECLINE]
        declined = await played.tools.call("write_stdin", write)
        assert declined.text() == "write_stdin rejected: rejected by user"
        asked = played.person.asked[-1]
        assert asked.kind is QuestionKind.WRITE_STDIN
        assert asked.command_line == f"write_stdin --session-id {session} 'typed\n'"
        played.person.answers = [CANCEL]
        cancelled = await played.tools.call("write_stdin", write)
        assert isinstance(cancelled, ToolError)
        assert isinstance(cancelled.cause, CallInterrupted)
        played.person.answers = [ACCEPT]
        accepted = await played.tools.call("write_stdin", write)
        assert isinstance(accepted, ExecResult)
        assert accepted.exit_code == 0
        assert target.read_text() == "typed\n"


@pytest.mark.requirement("approvals.flow.interrupted")
async def test_an_interrupted_call_or_closed_tools_withdraw_the_question(
    scene: MakeScene,
) -> None:
    async with scene() as played:
        target = played.outside / "f"
        calling = asyncio.create_task(played.escalated(f"echo hi > {target}"))
        await played.person.opened.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        played.person.opened.clear()
        calling = asyncio.create_task(played.try_to_run(f"echo hi > {target}"))
        await played.person.opened.wait()
        await played.tools.aclose()
        closed = await calling
        assert isinstance(closed.cause, CallRefused)
        assert not target.exists()


@pytest.mark.requirement("approvals.permissions.command")
async def test_additional_permissions_hold_for_one_command(scene: MakeScene) -> None:
    async with scene(policy="on-request", additional_permissions=True) as played:
        target = played.outside / "f"
        wish = {
            "sandbox_permissions": "with_additional_permissions",
            "additional_permissions": {"file_system": {"write": ["../outside"]}},
        }
        result = await played.run(
            f"echo hi > {target}; touch {played.outside}/../no", ACCEPT, **wish
        )
        assert target.read_text() == "hi\n"
        assert result.exit_code == 1
        (asked,) = played.person.asked
        assert asked.permissions == AddedPermissions(write=(str(played.outside),))
        assert (await played.run(f"echo again > {target}")).exit_code == 1
        assert target.read_text() == "hi\n"


async def refused(played: Scene, path: str, text: str) -> None:
    """Check that a path cannot be added to the sandbox of a command."""
    wish = {
        "sandbox_permissions": "with_additional_permissions",
        "additional_permissions": {"file_system": {"read": [path]}},
    }
    result = await played.try_to_run("true", ACCEPT, **wish)
    assert isinstance(result, ToolError), path
    assert text in result.text()


@pytest.mark.requirement("approvals.permissions.denied")
async def test_denied_paths_stay_denied(scene: MakeScene, tmp_path: Path) -> None:
    secret = tmp_path / "outside" / "secret"
    secret.mkdir()
    (secret / "key").write_text("k\n")
    (tmp_path / "ws" / "link").symlink_to(secret)
    (tmp_path / "ws" / "dangling").symlink_to(secret / "new")
    (tmp_path / "real" / "x").mkdir(parents=True)
    (tmp_path / "alias").symlink_to("real")
    choices: dict[str, Any] = {"deny": (str(secret),), "additional_permissions": True}
    async with scene(policy="on-request", **choices) as played:
        target = played.outside / "f"
        result = await played.escalated(f"echo hi > {target}; cat {secret}/key", ACCEPT)
        assert target.read_text() == "hi\n"
        assert isinstance(result, ExecResult)
        assert result.exit_code == 1
        assert "k\n" not in result.output.splitlines(keepends=True)
        assert played.hooks.begun[-1].sandbox is not None
        for path in (str(secret), f"{secret}/key", f"{secret}/new", "link/key", "link"):
            await refused(played, path, "is denied by the permission profile")
        for path in ("dangling", "link/new", "missing"):
            await refused(played, path, "is missing")
        asked = len(played.person.asked)
    async with scene(policy=GRANULAR, **choices) as played:
        assert (await played.run(f"echo hi > {played.outside}/g; false", ACCEPT)).exit_code == 1
        assert asked == 1
        assert played.person.asked == []
    # What a denied link leads to is denied by its own name, too.
    async with scene(policy="on-request", **{**choices, "deny": (f"{tmp_path}/alias",)}) as played:
        await refused(played, "../real/x", "is denied by the permission profile")


@pytest.mark.requirement("approvals.permissions.request")
async def test_permissions_that_are_requested_ahead(scene: MakeScene) -> None:
    async with scene(permission_requests=True) as played:
        target = played.outside / "f"
        wanted = {
            "permissions": {"file_system": {"write": [str(played.outside)]}},
            "reason": "to build",
        }
        more = AddedPermissions(write=("/", str(played.outside)), network=True)
        played.person.answers = [Decision(DecisionKind.ACCEPT, granted=more)]
        grant = await played.tools.call("request_permissions", wanted)
        assert isinstance(grant, PermissionGrant), grant.text()
        # Nobody gets more than what was asked for.
        assert grant.permissions == AddedPermissions(write=(str(played.outside),))
        assert grant.scope == "turn"
        assert (await played.run(f"echo hi > {target}")).exit_code == 0
        assert len(played.person.asked) == 1
        played.tools.end_turn()
        assert (await played.run(f"echo no > {target}", DECLINE)).exit_code == 1
        played.person.answers = [Decision(DecisionKind.ACCEPT, scope="session"), DECLINE]
        await played.tools.call("request_permissions", wanted)
        played.tools.end_turn()
        assert (await played.run(f"echo kept > {target}")).exit_code == 0
        assert target.read_text() == "kept\n"


@pytest.mark.requirement("approvals.question.digest", "security.approvals.changed")
async def test_what_changes_after_the_approval_is_refused(machine: Environment) -> None:
    class Changing(Hooks):
        async def attempt_begins(self, request: StartRequest) -> Attempt:
            changed = replace(request, argv=(*request.argv[:2], "echo other"))
            return Attempt(request=changed)

    person = Person([ACCEPT])
    options = Options(sandbox="read-only", approvals=Approvals(approver=person))
    async with UnifiedExec(machine, options=options, hooks=Changing()) as tools:
        result = await tools.call("exec_command", {"cmd": "echo hi"})
        assert "the command changed after it was approved" in result.text()

"""The flow without processes: who is asked when, what is remembered, what is refused."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.approvals import (
    UNTRUSTED,
    AddedPermissions,
    ApprovalFlow,
    Approvals,
    CallCancelled,
    CommandRefused,
    CommandRequest,
    Decision,
    DecisionKind,
    DeniedRun,
    EscalationRefused,
    InputRefused,
    InputToSend,
    PrefixRule,
    Question,
    RuleSet,
    Ruling,
)
from holdfast.agent.approvals.explain_decision import explanation
from holdfast.agent.approvals.permissions import (
    denies_paths,
    escalated_context,
    is_restricted,
    with_permissions,
)
from holdfast.base.errors import InvalidParams
from holdfast.engine.sandbox.profile.builtin import path_entry, sandbox_context, special_entry
from holdfast.wire.protocol.sandbox import (
    ExternalProfile,
    FileEntry,
    GlobPath,
    ManagedProfile,
    RestrictedFiles,
    SandboxContext,
    UnrestrictedFiles,
)

INSIDE = sandbox_context("workspace-write", cwd="/ws")
DENIED = DeniedRun(what="a file", output="Read-only file system", exit_code=1)
BIN = ":".join(dict.fromkeys(str(Path(path).resolve()) for path in ("/usr/bin", "/bin")))
TOUCH = str(Path("/usr/bin/touch").resolve())
PERMISSIVE = {
    "granular": {
        "sandbox_approval": True,
        "rules": True,
        "mcp_elicitations": False,
        "request_permissions": True,
    }
}
GRANULAR = {"granular": {"sandbox_approval": True, "rules": True, "mcp_elicitations": False}}


def say(kind: str, **members: Any) -> Decision:
    return Decision(DecisionKind(kind), **members)


def amend(*words: str) -> Decision:
    return say("acceptWithExecpolicyAmendment", amendment=words)


@dataclass
class Person:
    answers: list[Decision] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)

    async def ask(self, question: Question) -> Decision:
        self.asked.append(question)
        return self.answers.pop(0)


def made(*answers: Decision, **choices: Any) -> tuple[ApprovalFlow, Person]:
    person = Person(list(answers))
    return ApprovalFlow(Approvals(approver=person, **choices)), person


def request(script: str = "touch x", **members: Any) -> CommandRequest:
    given: dict[str, Any] = {
        "call_id": "c",
        "environment_id": "local",
        "argv": ("/bin/bash", "-c", script),
        "cwd": "/ws",
        "sandbox": INSIDE,
        "variables": {"PATH": "/usr/bin:/bin"},
        **members,
    }
    return CommandRequest(**given)


def escalated(script: str = "touch x", **members: Any) -> CommandRequest:
    return request(script, permissions="require_escalated", **members)


@pytest.mark.parametrize("script", ["rm -rf x", "ask me", "if true; then echo", "make x"])
@pytest.mark.requirement("approvals.explain")
async def test_a_question_has_the_sentence_of_an_explanation(script: str) -> None:
    rules = RuleSet([PrefixRule(pattern=(("ask",),), ruling=Ruling.PROMPT, source="a.rules")])
    flow, person = made(say("accept"), rules=rules, policy=UNTRUSTED)
    clearance = await flow.admit(request(script))
    lines = dict(explanation(clearance.request, clearance.judgement))
    assert person.asked[0].explanation == lines["because"]


@pytest.mark.requirement("approvals.cache.session")
async def test_only_accept_for_session_is_remembered() -> None:
    flow, person = made(say("accept"), say("decline"), say("acceptForSession"), say("accept"))
    await flow.admit(escalated())
    with pytest.raises(CommandRefused, match="rejected by user"):
        await flow.admit(escalated())
    await flow.admit(escalated())
    assert len(person.asked) == 3
    again = await flow.admit(escalated("touch  'x'", justification="other"))
    assert (again.sandbox, again.left_sandbox, again.approved) == (None, True, True)
    assert len(person.asked) == 3
    await flow.admit(escalated(tty=True))
    assert len(person.asked) == 4


@pytest.mark.requirement("approvals.question.always")
@pytest.mark.parametrize(
    ("asked", "codex", "leaves"),
    [
        (request(), False, False),
        (escalated(), False, True),
        # An allow rule lets commands out then, whatever it says.
        (request(), True, True),
        (request(sandbox=None), True, False),
    ],
)
async def test_a_question_knows_whether_its_rule_lets_commands_out(
    asked: CommandRequest, codex: bool, leaves: bool
) -> None:
    flow, person = made(
        amend("touch", "x"), say("accept"), policy=UNTRUSTED, rules_leave_sandbox=codex
    )
    await flow.admit(asked)
    assert person.asked[0].amendment_leaves_sandbox is leaves
    later = await flow.admit(replace(asked, permissions="use_default"))
    assert later.left_sandbox is leaves


@pytest.mark.requirement("approvals.amendments.accepted")
async def test_an_accepted_amendment_counts_from_now_on(tmp_path: Path) -> None:
    flow, person = made(amend("touch"), say("decline"), home=tmp_path)
    await flow.admit(escalated(prefix_rule=("touch",)))
    later = await flow.admit(request("touch y"))
    assert (later.sandbox, later.left_sandbox) == (None, True)
    assert (await flow.admit(request("touch y && ls"))).sandbox == INSIDE
    with pytest.raises(CommandRefused):
        await flow.admit(escalated("touch y && ls"))
    assert len(person.asked) == 2
    stored = (tmp_path / "rules" / "default.rules").read_text()
    assert stored == 'prefix_rule(pattern=["touch"], decision="allow", sandbox="none")\n'


@pytest.mark.requirement("approvals.amendments.accepted")
async def test_an_amendment_of_a_question_in_the_sandbox_leaves_it_on(tmp_path: Path) -> None:
    flow, _ = made(amend("touch", "x"), policy=UNTRUSTED, home=tmp_path)
    assert (await flow.admit(request())).sandbox == INSIDE
    assert (await flow.admit(request())).sandbox == INSIDE
    assert "sandbox" not in (tmp_path / "rules" / "default.rules").read_text()


@pytest.mark.parametrize(
    "answer",
    [amend("touch"), amend("cargo"), amend("/bin/bash"), amend("touch", "x\0")],
    ids=["broader", "other", "shell", "NUL"],
)
@pytest.mark.requirement("approvals.amendments.broader")
async def test_an_amendment_that_was_not_proposed_refuses(answer: Decision, tmp_path: Path) -> None:
    flow, person = made(answer, say("accept"), home=tmp_path)
    with pytest.raises(CommandRefused):
        await flow.admit(escalated())
    assert not (tmp_path / "rules").exists()
    await flow.admit(escalated())
    assert len(person.asked) == 2


async def test_an_amendment_may_be_narrower_or_as_codex_takes_it() -> None:
    flow, _ = made(amend("touch", "x", "y"))
    await flow.admit(escalated())
    assert (await flow.admit(request("touch x y"))).left_sandbox
    assert not (await flow.admit(request("touch x"))).left_sandbox
    flow, _ = made(amend("touch"), broader_amendments=True)
    await flow.admit(escalated())
    assert (await flow.admit(request("touch z"))).left_sandbox


async def test_a_rule_that_cannot_be_stored_counts_for_the_session(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("in the way")
    flow, person = made(amend("touch", "x"), home=tmp_path)
    await flow.admit(escalated())
    await flow.admit(escalated())
    assert len(person.asked) == 1


@pytest.mark.parametrize("kind", ["decline", "cancel", "applyNetworkPolicyAmendment"])
@pytest.mark.requirement("approvals.ask.fails-closed")
async def test_answers_that_do_not_accept(kind: str) -> None:
    members = {"network_host": "h", "network_action": "allow"} if "Network" in kind else {}
    flow, _ = made(say(kind, **members))
    with pytest.raises(CallCancelled if kind == "cancel" else CommandRefused):
        await flow.admit(escalated())


async def test_without_an_approver_what_would_be_asked_is_declined() -> None:
    flow = ApprovalFlow(Approvals())
    with pytest.raises(CommandRefused):
        await flow.admit(escalated())
    assert (await flow.admit(request())).sandbox == INSIDE


@pytest.mark.requirement("approvals.ask.fails-closed")
async def test_an_approver_that_never_answers_is_not_waited_for() -> None:
    async def never(question: Question) -> Decision:
        await asyncio.Event().wait()
        raise AssertionError

    flow = ApprovalFlow(Approvals(approver=never, ask_limit=0.01))
    with pytest.raises(CommandRefused, match="no answer arrived in time"):
        await flow.admit(escalated())


@pytest.mark.requirement("approvals.flow.clock")
async def test_clocks_stand_still_while_somebody_is_asked() -> None:
    log: list[str] = []

    @contextmanager
    def paused() -> Iterator[None]:
        log.append("paused")
        yield
        log.append("goes on")

    async def ask(question: Question) -> Decision:
        log.append("asked")
        return say("accept")

    flow = ApprovalFlow(Approvals(approver=ask), paused=paused)
    await flow.admit(request())
    assert log == []
    await flow.admit(escalated())
    assert log == ["paused", "asked", "goes on"]


# -- after a denial


@pytest.mark.requirement("approvals.flow.reask")
async def test_a_retry_is_asked_about_whatever_was_approved_before() -> None:
    flow, person = made(*[say("acceptForSession")] * 4, policy=UNTRUSTED)
    first = await flow.admit(request())
    again = await flow.after_denial(first, DENIED, seconds=0)
    assert again is not None
    assert (again.sandbox, again.left_sandbox) == (None, True)
    assert [one.reason for one in person.asked] == [None, "command failed; retry without sandbox?"]
    assert person.asked[1].denied == DENIED
    assert person.asked[0].digest != person.asked[1].digest
    # The session remembers the run in the sandbox, not the one without.
    second = await flow.admit(request())
    assert len(person.asked) == 2
    assert await flow.after_denial(second, DENIED, seconds=0) is not None
    assert len(person.asked) == 3


@pytest.mark.requirement("approvals.flow.reask")
async def test_without_reask_what_was_approved_runs_again() -> None:
    flow, person = made(say("accept"), say("decline"), policy=UNTRUSTED, reask=False)
    first = await flow.admit(request())
    assert await flow.after_denial(first, DENIED, seconds=0) is not None
    assert len(person.asked) == 1
    flow, person = made(say("decline"), policy=GRANULAR, reask=False)
    first = await flow.admit(request())
    assert await flow.after_denial(first, DENIED, seconds=0) is None
    assert len(person.asked) == 1


@pytest.mark.requirement("approvals.flow.window")
async def test_the_window_of_a_retry() -> None:
    flow, person = made(say("accept"), say("accept"), policy=GRANULAR, retry_window=1)
    first = await flow.admit(request())
    assert await flow.after_denial(first, DENIED, seconds=1.1) is None
    assert await flow.after_denial(first, DENIED, seconds=0.9) is not None
    assert len(person.asked) == 1


@pytest.mark.requirement("approvals.permissions.denied")
async def test_a_profile_with_denied_paths_is_never_left() -> None:
    context = replaced(INSIDE, path_entry("/ws/secret", "deny"))
    rules = RuleSet([PrefixRule(pattern=(("touch",),), outside_sandbox=True)])
    flow, person = made(say("accept"), policy=GRANULAR, rules=rules)
    by_rule = await flow.admit(request(sandbox=context))
    assert (by_rule.sandbox, by_rule.left_sandbox) == (context, False)
    assert await flow.after_denial(by_rule, DENIED, seconds=0) is None
    asked = await flow.admit(escalated("ls", sandbox=context))
    assert asked.left_sandbox
    assert asked.sandbox is not None
    assert denies_paths(asked.sandbox)
    assert len(person.asked) == 1


@pytest.mark.requirement("rules.real-program")
async def test_a_rule_lets_out_only_what_no_command_could_ever_write() -> None:
    rules = RuleSet([PrefixRule(pattern=(("touch",),), outside_sandbox=True)])
    usr = AddedPermissions(write=("/usr",))
    flow, _ = made(say("accept"), rules=rules)
    free = await flow.admit(request())
    assert (free.sandbox, free.left_sandbox) == (None, True)
    assert free.program is not None
    assert free.argv == (TOUCH, "x")
    assert free.program.env["PATH"] == BIN
    # What is started has to be the program, not the shell that was asked for.
    where: dict[str, Any] = {"environment_id": "local", "cwd": "/ws", "tty": False, "sandbox": None}
    flow.verify(free, free.argv, **where)
    with pytest.raises(CommandRefused, match="changed after it was approved"):
        flow.verify(free, free.request.argv, **where)
    assert (await flow.admit(request(variables=None))).sandbox == INSIDE
    # Granted once and over by now: the file may have been exchanged meanwhile.
    asked: dict[str, Any] = {"call_id": "c", "cwd": "/ws", "sandbox": INSIDE}
    flow, person = made(say("accept"), say("accept"), policy=PERMISSIVE, rules=rules)
    await flow.request_permissions(usr, environment_id="other", **asked)
    assert (await flow.admit(request())).left_sandbox
    await flow.request_permissions(usr, environment_id="local", **asked)
    flow.end_turn()
    held = await flow.admit(request())
    assert (held.sandbox, held.left_sandbox, held.argv) == (INSIDE, False, request().argv)
    (note,) = held.judgement.notes
    assert "can write" in note
    assert len(person.asked) == 2
    # It asks to leave its sandbox: a person decides.
    person.answers = [say("decline")]
    with pytest.raises(CommandRefused):
        await flow.admit(escalated())


# -- what is asked for


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"permissions": "require_escalated"}, "approval policy is Never; reject command"),
        ({"added": AddedPermissions(network=True)}, "approval policy is Never; reject command"),
    ],
)
@pytest.mark.requirement("approvals.escalation.refused")
async def test_escalation_under_never(wish: dict[str, Any], text: str) -> None:
    flow, _ = made(policy="never")
    with pytest.raises(EscalationRefused, match=text):
        await flow.admit(request(**wish))


@pytest.mark.requirement("approvals.escalation.refused")
async def test_additional_permissions_off_and_missing() -> None:
    wish: dict[str, Any] = {"permissions": "with_additional_permissions"}
    flow, _ = made()
    with pytest.raises(EscalationRefused, match="additional permissions are disabled; enable"):
        await flow.admit(request(**wish, added=AddedPermissions(network=True)))
    flow, person = made(say("accept"), say("accept"), additional_permissions=True)
    with pytest.raises(EscalationRefused, match="missing `additional_permissions`; provide at"):
        await flow.admit(request(**wish))
    # Additional permissions alone are a request, too.
    alone = await flow.admit(request(added=AddedPermissions(network=True)))
    assert alone.sandbox is not None
    profile = alone.sandbox.permissions
    assert isinstance(profile, ManagedProfile)
    assert profile.network == "enabled"
    assert not alone.left_sandbox
    assert person.asked[0].permissions == AddedPermissions(network=True)


@pytest.mark.requirement("approvals.permissions.request")
async def test_granted_permissions_need_no_further_question() -> None:
    flow, person = made(say("accept"), additional_permissions=True)
    wanted = AddedPermissions(write=("/out",))
    granted, scope = await flow.request_permissions(
        wanted, call_id="c", environment_id="local", cwd="/ws", sandbox=INSIDE
    )
    assert (granted, scope) == (wanted, "turn")
    cleared = await flow.admit(
        request(
            permissions="with_additional_permissions", added=AddedPermissions(write=("/out/x",))
        )
    )
    assert cleared.sandbox == with_permissions(INSIDE, wanted)
    other = await flow.admit(request(environment_id="other"))
    assert other.sandbox == INSIDE
    flow.end_turn()
    assert (await flow.admit(request())).sandbox == INSIDE
    assert len(person.asked) == 1


@pytest.mark.requirement("approvals.permissions.request")
async def test_requests_that_are_refused_or_declined() -> None:
    where: dict[str, Any] = {
        "call_id": "c",
        "environment_id": "local",
        "cwd": "/ws",
        "sandbox": replaced(INSIDE, path_entry("/secret", "deny")),
    }
    flow, _ = made(say("decline"), say("cancel"))
    for wanted, text in (
        (AddedPermissions(), "give at least one"),
        (AddedPermissions(read=("/secret/x",)), "is denied by the permission profile"),
    ):
        with pytest.raises(EscalationRefused, match=text):
            await flow.request_permissions(wanted, **where)
    granted, _ = await flow.request_permissions(AddedPermissions(network=True), **where)
    assert not granted
    with pytest.raises(CallCancelled):
        await flow.request_permissions(AddedPermissions(network=True), **where)
    for policy in ("never", GRANULAR):
        flow, _ = made(policy=policy)
        with pytest.raises(EscalationRefused, match="not allowed by the approval policy"):
            await flow.request_permissions(AddedPermissions(network=True), **where)


@pytest.mark.requirement("approvals.input")
async def test_input_under_policies_that_cannot_ask() -> None:
    given = InputToSend(
        call_id="c", environment_id="local", session_id=7, chars="it's\n", cwd="/ws"
    )
    flow, _ = made(policy="never")
    with pytest.raises(InputRefused, match="AskForApproval is set to Never"):
        await flow.admit_input(given)
    flow, person = made(say("accept"), say("decline", rejection="not now"))
    await flow.admit_input(given)
    assert person.asked[0].command_line == 'write_stdin --session-id 7 "it\'s\n"'
    with pytest.raises(InputRefused, match="not now"):
        await flow.admit_input(given)


# -- the digest


@pytest.mark.requirement("approvals.question.digest")
async def test_a_clearance_is_for_one_command_only() -> None:
    flow, _ = made(say("accept"))
    cleared = await flow.admit(escalated())
    same: dict[str, Any] = {
        "environment_id": "local",
        "cwd": "/ws",
        "tty": False,
        "sandbox": None,
    }
    argv = ("/bin/bash", "-c", "touch x")
    flow.verify(cleared, argv, **same)
    for other, changed in (
        (("/bin/bash", "-c", "touch y"), {}),
        (("/bin/bash", "-lc", "touch x"), {}),
        (("/bin/sh", "-c", "touch x"), {}),
        (argv, {"cwd": "/"}),
        (argv, {"tty": True}),
        (argv, {"environment_id": "e"}),
        (argv, {"sandbox": INSIDE}),
    ):
        with pytest.raises(CommandRefused, match="changed after it was approved"):
            flow.verify(cleared, other, **{**same, **changed})


# -- profiles


def replaced(context: SandboxContext, *entries: Any) -> SandboxContext:
    profile = context.permissions
    assert isinstance(profile, ManagedProfile)
    assert isinstance(profile.file_system, RestrictedFiles)
    files = RestrictedFiles(entries=(*profile.file_system.entries, *entries))
    return SandboxContext(
        permissions=ManagedProfile(file_system=files, network=profile.network),
        windows_sandbox_level="disabled",
        cwd=context.cwd,
        workspace_roots=context.workspace_roots,
    )


def test_what_an_escalation_would_lift() -> None:
    def context(profile: Any) -> SandboxContext:
        return sandbox_context(profile, cwd="/ws")

    free = UnrestrictedFiles()
    assert not is_restricted(None)
    assert not is_restricted(context("disabled"))
    assert is_restricted(INSIDE)
    assert is_restricted(context(ManagedProfile(file_system=free, network="restricted")))
    assert not is_restricted(context(ManagedProfile(file_system=free, network="enabled")))
    assert is_restricted(context(ExternalProfile(network="restricted")))
    assert not is_restricted(context(ExternalProfile(network="enabled")))


@pytest.mark.requirement("approvals.permissions.denied")
def test_an_escalation_keeps_what_is_denied() -> None:
    assert escalated_context(None) is None
    assert escalated_context(INSIDE) is None
    denied = path_entry("/ws/secret", "deny")
    wide = escalated_context(replaced(INSIDE, denied))
    assert wide is not None
    profile = wide.permissions
    assert isinstance(profile, ManagedProfile)
    assert isinstance(profile.file_system, RestrictedFiles)
    assert profile.file_system.entries == (special_entry("root", "write"), denied)
    assert profile.network == "restricted"


@pytest.mark.parametrize(
    ("denied", "path", "allowed"),
    [
        (path_entry("/a/b", "deny"), "/a/b", False),
        (path_entry("/a/b", "deny"), "/a/b/c", False),
        (path_entry("/a/b", "none"), "/a/./x/../b/c", False),
        (path_entry("/a/b", "deny"), "/a", True),
        (path_entry("/a/b", "deny"), "/a/bc", True),
        (special_entry("project_roots", "deny", subpath="keys"), "/ws/keys/x", False),
        (special_entry("project_roots", "deny", subpath="keys"), "/ws/key", True),
        (special_entry("root", "deny"), "/anything", False),
        (special_entry("slash_tmp", "deny"), "/tmp/x", False),
        (special_entry("tmpdir", "deny"), "/x", False),
    ],
)
@pytest.mark.requirement("approvals.permissions.denied")
def test_nothing_below_a_denied_path_can_be_added(denied: Any, path: str, allowed: bool) -> None:
    context = replaced(INSIDE, denied)
    added = AddedPermissions(read=(path,))
    if allowed:
        assert with_permissions(context, added) is not None
    else:
        with pytest.raises(InvalidParams):
            with_permissions(context, added)


def test_additions_can_only_add() -> None:
    for entry in (path_entry("/x", "deny"), replace_path("*.txt")):
        with pytest.raises(InvalidParams, match="can only add"):
            with_permissions(INSIDE, AddedPermissions(entries=(entry,)))
    external = sandbox_context(ExternalProfile(network="restricted"), cwd="/ws")
    opened = with_permissions(external, AddedPermissions(network=True))
    assert opened is not None
    assert opened.permissions == ExternalProfile(network="enabled")
    assert with_permissions(None, AddedPermissions(network=True)) is None


def replace_path(pattern: str) -> Any:
    return FileEntry(path=GlobPath(pattern=pattern), access="read")


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        ({"policy": "sometimes"}, InvalidParams),
        ({"policy": "untrusted"}, InvalidParams),
        ({"rules": ["x.rules"]}, TypeError),
        ({"approver": 5}, TypeError),
        ({"retry_window": -1}, InvalidParams),
        ({"ask_limit": float("nan")}, InvalidParams),
        ({"home": "/home/x"}, TypeError),
    ],
)
def test_choices_that_make_no_sense(choices: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Approvals(**choices)


def test_a_limited_grant_is_part_of_the_request() -> None:
    wanted = AddedPermissions(read=("/a",), write=("/b",))
    given = AddedPermissions(read=("/a/x", "/c", "/ab"), write=("/",), network=True)
    assert given.limited_to(wanted) == AddedPermissions(read=("/a/x",))
    assert replace(wanted, network=True).limited_to(wanted) == wanted

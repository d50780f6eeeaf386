"""Plays the cases on the library, with the switches that give the meaning of the original."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.agent.approvals import (
    UNTRUSTED,
    Approvals,
    Decision,
    Question,
    RuleSet,
    parse_policy,
)
from holdfast.agent.unified_exec import CallInterrupted, Options, ToolError, UnifiedExec
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.sandbox import SandboxProfile
from tests.real.approvals.cases import CASES, POLICIES, Case, Step
from tests.real.approvals.rows import Row, answer, hide, lay_out, shown

# As `workspace-write`, but without the temporary folders: the workspaces of tests are there.
INSIDE = SandboxProfile("read-only", write=["."])
SANDBOXES: dict[str, Any] = {"workspace-write": INSIDE, "danger-full-access": "disabled"}


@dataclass
class Scripted:
    """Answers questions as a script says, and keeps them."""

    answers: list[str] = field(default_factory=lambda: ["accept"])
    questions: list[dict[str, Any]] = field(default_factory=list)
    required_human_approval: bool = True

    async def ask(self, question: Question) -> Decision:
        told = question.to_json()
        self.questions.append(told)
        script = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Decision.parse(answer(script, told))


async def play(name: str, rules: RuleSet, root: Path) -> Row:
    """Return what the library does with a case under a policy."""
    policy, _, case_name = name.partition("/")
    case = CASES[case_name]
    workspace = lay_out(case, root)
    asked = Scripted(required_human_approval=case.reaches_person)
    approvals = Approvals(
        policy=UNTRUSTED if policy == "untrusted" else parse_policy(POLICIES[policy]),
        rules=rules,
        approver=asked,
        home=root / "home",
        rules_leave_sandbox=True,
        unreadable_runs=True,
        reask=False,
        broader_amendments=True,
    )
    options = Options(sandbox=SANDBOXES[case.sandbox], approvals=approvals)
    async with LocalEnvironment() as environment:
        environment.cwd = workspace
        async with UnifiedExec(environment, options=options) as tools:
            return await _steps(case, tools, asked, root)


async def _steps(case: Case, tools: UnifiedExec, asked: Scripted, root: Path) -> Row:
    row: Row = []
    session = 1
    for step in case.steps:
        asked.answers, asked.questions = list(step.answers), []
        result = await tools.call(step.tool, _arguments(step, session))
        session = getattr(result, "session_id", None) or session
        call: dict[str, Any] = {
            "questions": [shown(question, root) for question in asked.questions],
            "text": hide(result.text(), root),
        }
        if isinstance(result, ToolError) and isinstance(result.cause, CallInterrupted):
            call["interrupted"] = True
        row.append(call)
    return row


def _arguments(step: Step, session: int) -> str:
    given = dict(step.arguments)
    if given.get("session_id") == "$session":
        given["session_id"] = session
    return json.dumps(given)


async def play_all(names: list[str], rules: RuleSet, root: Path) -> dict[str, Row]:
    """Play cases side by side."""
    rows: dict[str, Row] = {}
    limit = asyncio.Semaphore(4)

    async def one(number: int, name: str) -> None:
        async with limit:
            rows[name] = await play(name, rules, root / str(number))

    async with asyncio.TaskGroup() as tasks:
        for number, name in enumerate(names):
            tasks.create_task(one(number, name))
    return rows

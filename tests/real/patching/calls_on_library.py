"""Plays the calls about patches with the library."""

import asyncio
import json
from pathlib import Path
from typing import Any

from holdfast.agent.approvals import UNTRUSTED, Approvals, Decision, Question
from holdfast.agent.unified_exec import Options, UnifiedExec
from holdfast.environments.local_environment import LocalEnvironment
from tests.real.patching.calls import CallCase
from tests.real.patching.record_calls import described, fill, hide, lay_out_call

Row = dict[str, Any]

_SANDBOXES = {"danger-full-access": "disabled"}


async def play(case: CallCase, root: Path) -> Row:
    """Return what the library does with the calls of a case."""
    lay_out_call(case, root)
    asked: list[Question] = []
    answer = "accept"

    async def ask(question: Question) -> Decision:
        asked.append(question)
        return Decision.parse(answer)

    approvals = Approvals.like_codex(
        policy=UNTRUSTED if case.policy == "untrusted" else case.policy, approver=ask
    )
    options = Options(sandbox=_SANDBOXES.get(case.sandbox, case.sandbox), approvals=approvals)
    answers = []
    async with LocalEnvironment() as environment:
        environment.cwd = str(root / "ws")
        async with UnifiedExec(environment, options=options) as tools, asyncio.timeout(60):
            for step in case.steps:
                asked.clear()
                answer = step.answer
                # What is no patch is run: a login shell would only take longer.
                arguments = {"cmd": fill(step.cmd, root), "login": False, **step.more}
                result = await tools.call("exec_command", json.dumps(arguments))
                answers.append(
                    {
                        "questions": [question.kind.value for question in asked],
                        "text": hide(result.text(), root),
                    }
                )
    return {"answers": answers, "after": described(root)}


def expected(row: Row) -> Row:
    """Return a recorded row in the form of ours: of a question its kind only."""
    answers = [
        {"questions": ["fileChange"] * len(answer["questions"]), "text": answer["text"]}
        for answer in row["answers"]
    ]
    return {"answers": answers, "after": row["after"]}

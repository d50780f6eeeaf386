"""Somebody is asked before a command leaves its sandbox."""

import asyncio
import tempfile
from pathlib import Path

import holdfast
from holdfast import SandboxProfile
from holdfast.agent.approvals import Approvals, Decision, DecisionKind, Question, load_rules
from holdfast.agent.unified_exec import Options, UnifiedExec

RULES = """
prefix_rule(pattern=["git", "push"], decision="forbidden", justification="pushing is for people")
prefix_rule(pattern=["mkdir"], decision="prompt", justification="folders matter")
"""


async def person(question: Question) -> Decision:
    """Accept everything but folders; a user interface would show the question instead."""
    print(f"asked: {question.command_line} ({question.reason})")
    if question.reason is not None and "folders matter" in question.reason:
        return Decision(DecisionKind.DECLINE)
    return Decision(DecisionKind.ACCEPT)


async def main(folder: Path) -> None:
    (folder / "a.rules").write_text(RULES)
    (folder / "ws").mkdir()
    granular = {"sandbox_approval": True, "rules": True, "mcp_elicitations": False}
    approvals = Approvals(
        policy={"granular": granular},
        rules=load_rules(explicit=[folder / "a.rules"]),
        approver=person,
    )
    sandbox = SandboxProfile("read-only", write=["."])
    options = Options(sandbox=sandbox, approvals=approvals, allow_login_shell=False)
    async with holdfast.connect() as env:
        env.cwd = folder / "ws"
        async with UnifiedExec(env, options=options) as tools:
            forbidden = await tools.call("exec_command", {"cmd": "(git push) | cat"})
            assert "pushing is for people" in forbidden.text()

            declined = await tools.call("exec_command", {"cmd": "mkdir x"})
            assert "rejected by user" in declined.text()

            # Its sandbox denies it, somebody is asked, and it runs again without.
            outside = folder / "outside.txt"
            result = await tools.call("exec_command", {"cmd": f"echo hi > {outside}"})
            assert outside.read_text() == "hi\n", result.text()
    print("done")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(Path(made)))

"""Rows: what each command did under each policy, with everything that may vary hidden."""

import json
import re
from pathlib import Path
from typing import Any

from tests.real.approvals.cases import Case

ROWS = Path(__file__).parent / "rows.json"

Row = list[dict[str, Any]]
"""Per call of a case its questions and the text that the model reads."""

FIELDS = (
    "kind",
    "command",
    "cwd",
    "reason",
    "proposedExecpolicyAmendment",
    "availableDecisions",
)

_PATTERNS = (
    (re.compile(r"Chunk ID: [0-9a-f]{6}\n"), "Chunk ID: <chunk>\n"),
    (re.compile(r"Wall time: [\d.]+ seconds"), "Wall time: <wall> seconds"),
    (re.compile(r"session ID \d+"), "session ID <session>"),
    (re.compile(r"--session-id \d+"), "--session-id <session>"),
)


def load() -> dict[str, Row]:
    """Return the recorded rows by the names of policy and case."""
    rows: dict[str, Row] = json.loads(ROWS.read_text())
    return rows


def lay_out(case: Case, root: Path) -> Path:
    """Make the folders of one run and return the workspace."""
    workspace, outside = root / "ws", root / "outside"
    workspace.mkdir(parents=True)
    outside.mkdir()
    (outside / "x").write_text("x\n")
    for name, content in case.files.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(content)
    return workspace


def hide(value: Any, root: Path) -> Any:
    """Return a value without what differs from run to run."""
    if isinstance(value, dict):
        return {name: hide(item, root) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hide(item, root) for item in value]
    if not isinstance(value, str):
        return value
    value = value.replace(str(root), "<ROOT>")
    for pattern, stand_in in _PATTERNS:
        value = pattern.sub(stand_in, value)
    return value


def shown(question: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return the members of a question that are compared; null and absent are the same."""
    kept = {name: question[name] for name in FIELDS if question.get(name) is not None}
    found: dict[str, Any] = hide(kept, root)
    return found


def answer(script: str, question: dict[str, Any]) -> Any:
    """Return the decision that a script means; `amend` takes what the question proposes."""
    if script not in ("amend", "store"):
        return script
    proposed = ["dirname"] if script == "store" else question.get("proposedExecpolicyAmendment")
    if proposed is None:
        return "accept"
    return {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": proposed}}

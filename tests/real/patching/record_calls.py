"""
Records what a model reads about patches: `python -m tests.real.patching.record_calls`.

It plays `codex app-server` with a scripted model. `$CODEX_BIN` names the program. Each case of
`cases.py` is given to the tool as well, as a here document.
"""

import asyncio
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.real.approvals.record import Asked, config, one_turn
from tests.real.model import GOODBYE, Model, playing
from tests.real.patching.calls import CALLS, CallCase, Step
from tests.real.patching.cases import CASES
from tests.real.patching.folder import WORKSPACE, describe, lay_out
from tests.real.unified_exec.on_codex import app_server, base_environment

ROWS = Path(__file__).parent / "call_rows.json"
TOOL_ROWS = Path(__file__).parent / "tool_rows.json"
OUTSIDE = "<OUT>"
MARK = "END_OF_THIS_PATCH"

Row = dict[str, Any]
_WALL = re.compile(r"^Wall time: [\d.]+ seconds", re.MULTILINE)
_CHUNK = re.compile(r"^Chunk ID: \w+", re.MULTILINE)


def load(path: Path = ROWS) -> dict[str, Row]:
    """Return recorded rows by the names of their cases."""
    rows: dict[str, Row] = json.loads(path.read_text())
    return rows


def hide(text: str, root: Path) -> str:
    """Return a text without what differs from run to run."""
    text = text.replace(str(root / "ws"), WORKSPACE).replace(str(root / "out"), OUTSIDE)
    text = text.replace(str(root), "<ROOT>")
    return _CHUNK.sub("Chunk ID: <chunk>", _WALL.sub("Wall time: <wall> seconds", text))


def fill(text: str, root: Path) -> str:
    """Return a text with the folders of a run in the place of their marks."""
    return text.replace(WORKSPACE, str(root / "ws")).replace(OUTSIDE, str(root / "out"))


def lay_out_call(case: CallCase, root: Path) -> None:
    """Make the workspace of a case, and the folder next to it."""
    lay_out(case.before, root / "ws")
    (root / "out").mkdir()
    (root / "out" / "o").write_text("old\n")
    (root / "ws" / "link").symlink_to(root / "out")
    (root / "ws" / "filelink").symlink_to(root / "out" / "o")
    (root / "ws" / ".git").mkdir()


class AskedAboutFiles(Asked):
    """An app-server whose questions about files are answered by a script, too."""

    def reply(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method != "item/fileChange/requestApproval":
            return super().reply(method, params)
        self.questions.append(params)
        return {"result": {"decision": self.answers[0]}}


def shown(question: dict[str, Any], root: Path) -> Row:
    """Return what is kept of a question."""
    left_out = {"threadId", "turnId", "itemId", "startedAtMs", "commandActions"}
    kept = {key: value for key, value in question.items() if key not in left_out}
    text: Row = json.loads(hide(json.dumps(kept), root))
    return text


async def one_call(
    app: Asked, model: Model, thread: str, call_id: str, step: Step, root: Path
) -> Row:
    arguments = {"cmd": fill(step.cmd, root), **step.more}
    item = {
        "type": "function_call",
        "id": f"fc-{call_id}",
        "call_id": call_id,
        "name": "exec_command",
        "arguments": json.dumps(arguments, ensure_ascii=False),
    }
    app.questions, app.answers = [], [step.answer]
    model.play_next([[item], [GOODBYE]])
    await one_turn(app, thread)
    questions = app.questions
    interrupted = call_id not in model.outputs
    if interrupted:
        model.play_next([[GOODBYE]])
        await one_turn(app, thread)
    row = {
        "questions": [shown(question, root) for question in questions],
        "text": hide(model.outputs[call_id], root),
    }
    return {**row, "interrupted": True} if interrupted else row


def variables_in(root: Path) -> dict[str, str]:
    for name in ("home", "codex/rules", "tmp"):
        (root / name).mkdir(parents=True)
    return {
        **base_environment(root / "home"),
        "TMPDIR": str(root / "tmp"),
        "CODEX_HOME": str(root / "codex"),
    }


async def play(case: CallCase, root: Path) -> Row:
    """Return what the real one does with the calls of a case."""
    variables = variables_in(root)
    lay_out_call(case, root)
    async with playing([]) as model:
        (root / "codex" / "config.toml").write_text(config(model.url))
        async with (
            app_server(variables, root / "ws", AskedAboutFiles) as app,
            asyncio.timeout(60),
        ):
            thread = await app.open(root / "ws", approvalPolicy=case.policy, sandbox=case.sandbox)
            answers = [
                await one_call(app, model, thread, f"c{number}", step, root)
                for number, step in enumerate(case.steps)
            ]
    return {"answers": answers, "after": described(root)}


def described(root: Path) -> Row:
    """Return the files of a run: those of the workspace, and those next to it."""
    outside = {f"{OUTSIDE}/{name}": value for name, value in describe(root / "out").items()}
    return json.loads(hide(json.dumps({**describe(root / "ws"), **outside}), root))  # type: ignore[no-any-return]


def tool_cases() -> list[str]:
    """Return the names of the cases that the tool can be given."""
    return [
        name
        for name, case in CASES.items()
        if len(case.patch) < 10_000 and not any(mark in case.patch for mark in ("\0", "\r"))
    ]


def tool_command(patch: str) -> str:
    """Return the command that hands a patch over."""
    return f"apply_patch <<'{MARK}'\n{patch}\n{MARK}\n"


async def play_tool(names: list[str], root: Path) -> dict[str, Row]:
    """Return what the tool does with patches, each in a folder of its own."""
    variables = variables_in(root)
    (root / "ws").mkdir()
    rows: dict[str, Row] = {}
    async with playing([]) as model:
        (root / "codex" / "config.toml").write_text(config(model.url))
        async with app_server(variables, root / "ws", AskedAboutFiles) as app:
            thread = await app.open(
                root / "ws", approvalPolicy="never", sandbox="danger-full-access"
            )
            for number, name in enumerate(names):
                case = CASES[name]
                one = root / f"case{number}"
                lay_out(case.before, one / "ws")
                step = Step(
                    cmd=tool_command(case.patch.replace(WORKSPACE, str(one / "ws"))),
                    more={"workdir": str(one / "ws" / case.cwd)},
                )
                async with asyncio.timeout(60):
                    row = await one_call(app, model, thread, f"c{number}", step, one)
                rows[name] = {"text": row["text"], "after": describe(one / "ws")}
    return rows


async def record(names: list[str]) -> None:
    """Record the cases of these names, or all."""
    rows = load() if ROWS.exists() and names else {}
    for name, case in CALLS.items():
        if names and not any(name.startswith(one) for one in names):
            continue
        # Not below /tmp: the sandbox can write there.
        root = Path(tempfile.mkdtemp(prefix="rec", dir=Path.home()))
        try:
            rows[name] = await play(case, root)
        except Exception as error:  # noqa: BLE001 - the others go on
            sys.stderr.write(f"{name}: {error!r}\n")
        finally:
            shutil.rmtree(root, ignore_errors=True)
    save(ROWS, {name: rows[name] for name in CALLS if name in rows})
    if names and "tool" not in names:
        return
    root = Path(tempfile.mkdtemp(prefix="rec", dir=Path.home()))
    try:
        save(TOOL_ROWS, await play_tool(tool_cases(), root))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def save(path: Path, rows: dict[str, Row]) -> None:
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:]))

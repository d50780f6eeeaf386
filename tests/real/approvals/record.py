"""
Records the rows from the real Codex: `python -m tests.real.approvals.record`.

`$CODEX_BIN` names the program. Its temporary folder must not be the one of the commands. Root
has to run this: the program sees `/etc` with managed requirements, in a mount namespace.
"""

import argparse
import asyncio
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.real.approvals.cases import CASES, POLICIES, REQUIREMENTS, RULES, Case, Step
from tests.real.approvals.rows import ROWS, Row, answer, hide, lay_out, shown
from tests.real.model import GOODBYE, Model, playing
from tests.real.unified_exec.on_codex import (
    KNOWN_MODEL,
    AppServer,
    app_server,
    base_environment,
)

FEATURES = ("shell_snapshot = false",)
AT_ONCE = 1
TRIES = 6


class Asked(AppServer):
    """An app-server whose questions are answered by a script."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__(process)
        self.questions: list[dict[str, Any]] = []
        self.answers: list[str] = ["accept"]
        self.capabilities = {"experimentalApi": True, "requiredHumanApproval": True}

    def reply(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method != "item/commandExecution/requestApproval":
            return super().reply(method, params)
        self.questions.append(params)
        script = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return {"result": {"decision": answer(script, params)}}


def managed(folder: Path, program: str) -> str:
    """Return a program that runs another one on a machine with managed requirements."""
    shutil.copytree("/etc", folder / "etc", symlinks=True)
    (folder / "etc" / "codex").mkdir()
    (folder / "etc" / "codex" / "requirements.toml").write_text(REQUIREMENTS)
    mount = f"mount --make-rprivate / && mount --bind {shlex.quote(str(folder / 'etc'))} /etc"
    script = folder / "codex"
    run = f"""exec unshare -m sh -c '{mount} && exec "$@"' sh {shlex.quote(program)} "$@"\n"""
    script.write_text(f"#!/bin/sh\n{run}")
    script.chmod(0o700)
    return str(script)


def config(url: str) -> str:
    return "\n".join(
        [
            f'model = "{KNOWN_MODEL}"',
            'model_provider = "scripted"',
            "check_for_update_on_startup = false",
            "[analytics]",
            "enabled = false",
            "[features]",
            *FEATURES,
            "[model_providers.scripted]",
            'name = "scripted"',
            f'base_url = "{url}"',
            'wire_api = "responses"',
            "request_max_retries = 0",
            "stream_max_retries = 0",
            "",
        ]
    )


async def play(case: Case, policy: str, root: Path) -> Row:
    """Return what the real Codex does with a case."""
    workspace = lay_out(case, root)
    home, codex_home = root / "home", root / "codex"
    for folder in (home, codex_home / "rules", root / "tmp"):
        folder.mkdir(parents=True)
    (codex_home / "rules" / "default.rules").write_text(RULES)
    variables = {
        **base_environment(home),
        "TMPDIR": str(root / "tmp"),
        "CODEX_HOME": str(codex_home),
    }
    async with playing([]) as model:
        (codex_home / "config.toml").write_text(config(model.url))
        async with app_server(variables, workspace, Asked) as app, asyncio.timeout(60):
            app.capabilities["requiredHumanApproval"] = case.reaches_person
            thread = await app.open(
                workspace, approvalPolicy=POLICIES[policy], sandbox=case.sandbox
            )
            row: Row = []
            for number, step in enumerate(case.steps):
                row.append(await one_call(app, model, thread, f"c{number}", step))
    found: Row = [
        {
            "questions": [shown(question, root) for question in call["questions"]],
            "text": hide(call["text"], root),
            **({"interrupted": True} if call["interrupted"] else {}),
        }
        for call in row
    ]
    return found


async def one_call(
    app: Asked, model: Model, thread: str, call_id: str, step: Step
) -> dict[str, Any]:
    arguments = dict(step.arguments)
    if arguments.get("session_id") == "$session":
        arguments["session_id"] = model.session("c0") if "session ID" in model.outputs["c0"] else 1
    item = {
        "type": "function_call",
        "id": f"fc-{call_id}",
        "call_id": call_id,
        "name": step.tool,
        "arguments": json.dumps(arguments, ensure_ascii=False, separators=(",", ":")),
    }
    app.questions, app.answers = [], list(step.answers)
    model.play_next([[item], [GOODBYE]])
    await one_turn(app, thread)
    interrupted = call_id not in model.outputs
    questions = app.questions
    if interrupted:
        model.play_next([[GOODBYE]])
        await one_turn(app, thread)
    return {"questions": questions, "text": model.outputs[call_id], "interrupted": interrupted}


async def one_turn(app: AppServer, thread: str) -> None:
    asked = {"threadId": thread, "input": [{"type": "text", "text": "go"}]}
    turn = (await app.call("turn/start", asked))["turn"]["id"]
    await app.completed(turn)


async def record_one(case: Case, policy: str, best: Row | None) -> Row:
    """
    Return the row of a case.

    Codex notices a denial only if the command ends within 150 ms. Of a case that the sandbox
    denies something, the run that it noticed is kept, also of an earlier recording.
    """
    for _ in range(TRIES if case.denied else 1):
        # Not below /tmp: the sandbox can write there.
        root = Path(tempfile.mkdtemp(prefix="rec", dir=Path.home()))
        try:
            row = await play(case, policy, root)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        if best is None or _noticed(row) > _noticed(best):
            best = row
    assert best is not None
    return best


def _noticed(row: Row) -> tuple[int, bool]:
    questions = sum(len(call["questions"]) for call in row)
    return questions, not any("Read-only" in call["text"] for call in row)


async def record_all(names: list[str]) -> dict[str, Row]:
    rows: dict[str, Row] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        policy, _, case = name.partition("/")
        async with limit:
            try:
                known = rows.get(name) if CASES[case].denied else None
                rows[name] = await record_one(CASES[case], policy, known)
            except Exception as error:  # noqa: BLE001 - the others go on
                sys.stderr.write(f"{name}: {error!r}\n")

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(one(name))
    return rows


def main() -> None:
    """Record the rows whose names contain a text, all of them without one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="")
    parser.add_argument("--denied", action="store_true", help="only cases that are denied")
    parser.add_argument("--show", action="store_true", help="print the rows, write nothing")
    given = parser.parse_args()
    every = [f"{policy}/{case}" for policy in POLICIES for case in CASES]
    names = [name for name in every if given.filter in name]
    if given.denied:
        names = [name for name in names if CASES[name.partition("/")[2]].denied]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CODEX_BIN"] = managed(Path(folder), os.environ["CODEX_BIN"])
        rows = asyncio.run(record_all(names))
    kept = {name: rows[name] for name in (names if given.show else every) if name in rows}
    text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    if given.show:
        sys.stdout.write(text)
    else:
        ROWS.write_text(text)


if __name__ == "__main__":
    main()

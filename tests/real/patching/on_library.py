"""Applies the patches of the cases with the library."""

from pathlib import Path
from typing import Any

from holdfast.agent.patching import EmptyPatch, PatchError, Rules, apply_patch, tool_error_text
from holdfast.agent.patching.report import EMPTY_PATCH, result_text
from holdfast.backends import FileSystem
from tests.real.patching import record
from tests.real.patching.cases import CASES, Case
from tests.real.patching.folder import WORKSPACE, content, describe, lay_out
from tests.real.patching.record_calls import hide

Row = dict[str, Any]


async def play(case: Case, root: Path, files: FileSystem) -> Row:
    """Return what the library does with a case under the rules of the program."""
    workspace = root / "ws"
    lay_out(case.before, workspace)
    before = describe(workspace)
    stdout, stderr = await _applied(case, workspace, files, "program")
    return {
        "before": before,
        "patch": content(case.patch.encode()),
        "after": describe(workspace),
        "stdout": stdout.replace(str(workspace), WORKSPACE),
        "stderr": stderr.replace(str(workspace), WORKSPACE),
        "exit_code": 1 if stderr else 0,
    }


async def _applied(case: Case, workspace: Path, files: FileSystem, rules: Rules) -> tuple[str, str]:
    try:
        result = await apply_patch(
            case.patch.replace(WORKSPACE, str(workspace)),
            files=files,
            cwd=str(workspace / case.cwd),
            rules=rules,
        )
    except EmptyPatch as error:
        return "", f"{error if rules == 'program' else EMPTY_PATCH}\n"
    except PatchError as error:
        return "", f"{error if rules == 'program' else tool_error_text(error)}\n"
    return result.text, ""


async def play_tool(case: Case, root: Path, files: FileSystem) -> Row:
    """Return what a model reads about a case, and the files afterwards."""
    workspace = root / "ws"
    lay_out(case.before, workspace)
    stdout, stderr = await _applied(case, workspace, files, "tool")
    if stderr:
        text = stderr.removesuffix("\n")
    else:
        text = f"Wall time: 0 seconds\nOutput:\n{result_text(stdout, exit_code=0, seconds=0)}"
    return {"text": hide(text, root), "after": describe(workspace)}


async def differences(files: FileSystem, folder: Path) -> list[str]:
    """Return the cases about files, and not about texts, that end otherwise on a server."""
    rows = record.load()
    different = []
    names = [
        name
        for name in CASES
        if name.startswith(("add", "delete", "move", "several", "update.link", "update.folder"))
        and name not in ("add.link-nowhere", "delete.twice")
        and not name.startswith(("move.onto-itself", "several.second"))
    ]
    for number, name in enumerate(names):
        if await play(CASES[name], folder / str(number), files) != rows[name]:
            different.append(name)
    return different

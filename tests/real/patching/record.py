"""
Records what the real Codex does with each patch: `python -m tests.real.patching.record`.

`$CODEX_BIN` names the program. Called by the name `apply_patch` it applies one patch.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.real.patching.cases import CASES, Case
from tests.real.patching.folder import WORKSPACE, content, describe, lay_out

ROWS = Path(__file__).parent / "rows.json"
LIMIT = 60

Row = dict[str, Any]


def load() -> dict[str, Row]:
    """Return the recorded rows by the names of their cases."""
    rows: dict[str, Row] = json.loads(ROWS.read_text())
    return rows


def play(case: Case, root: Path, codex: str) -> Row:
    """Return what the real one does with a case, in a folder below `root`."""
    workspace = root / "ws"
    lay_out(case.before, workspace)
    before = describe(workspace)
    program = root / "apply_patch"
    program.symlink_to(codex)
    patch = case.patch.replace(WORKSPACE, str(workspace))
    done = subprocess.run(
        [str(program), *([] if case.by_stdin else [patch])],
        input=patch.encode() if case.by_stdin else b"",
        capture_output=True,
        cwd=workspace / case.cwd,
        # The variable that Codex sets for the commands it starts.
        env={**os.environ, "CODEX_APPLY_PATCH_PRESERVE_LINE_ENDINGS": "1"},
        timeout=LIMIT,
        check=False,
    )
    return {
        "before": before,
        "patch": content(case.patch.encode()),
        "after": describe(workspace),
        "stdout": done.stdout.decode().replace(str(workspace), WORKSPACE),
        "stderr": done.stderr.decode().replace(str(workspace), WORKSPACE),
        "exit_code": done.returncode,
    }


def main(names: list[str]) -> None:
    """Record the cases of these names, or all."""
    rows = load() if ROWS.exists() and names else {}
    for case in CASES.values():
        if names and case.name not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="patch") as root:
            rows[case.name] = play(case, Path(root).resolve(), os.environ["CODEX_BIN"])
    kept = {name: rows[name] for name in CASES if name in rows}
    ROWS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    sys.stderr.write(f"{len(kept)} rows in {ROWS}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""
The Python in the documentation runs.

A block counts if a comment stands before it: `<!-- runnable: program -->` for one that is a whole
program, `<!-- runnable: session -->` for one that goes on where the one before it ended, as in
`python -m asyncio`.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.environments.config.file import load

ROOT = Path(__file__).parents[2]

SESSIONS = [
    "docs/python.md",
    "docs/agent-loop.md",
    "docs/background-and-interactive.md",
    "docs/unified-exec.md",
    "docs/approvals.md",
]
"""Documents whose blocks are one session."""

_BLOCK = re.compile(
    r"^<!-- runnable: (?P<kind>program|session) -->\n```python\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)

_SESSION = """
import ast, asyncio, inspect, json, sys

async def session(blocks):
    names = {"__name__": "__main__"}
    for number, block in enumerate(blocks, 1):
        code = compile(block, f"block {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            await result

asyncio.run(session(json.load(sys.stdin)))
"""


def _blocks(document: str, kind: str) -> list[str]:
    found = _BLOCK.finditer((ROOT / document).read_text())
    return [block["code"] for block in found if block["kind"] == kind]


def _run(program: str, folder: Path, stdin: str = "") -> None:
    commands = Path(sys.executable).parent  # where `holdfast` is
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=28,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}"},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "docs/app-server.md"])
def test_the_programs_of_a_document_run(document: str, tmp_path: Path) -> None:
    programs = _blocks(document, "program")
    assert programs
    for program in programs:
        _run(program, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("document", SESSIONS)
def test_the_snippets_of_a_document_run_one_after_the_other(document: str, tmp_path: Path) -> None:
    blocks = _blocks(document, "session")
    assert blocks
    _run(_SESSION, tmp_path, json.dumps(blocks))


@pytest.mark.parametrize("document", ["README.md", *SESSIONS])
def test_no_python_of_a_document_is_left_out(document: str) -> None:
    text = (ROOT / document).read_text()
    assert len(_BLOCK.findall(text)) == text.count("```python")


def test_the_program_of_the_readme_is_the_first_example() -> None:
    assert _blocks("README.md", "program")[0] == (ROOT / "examples/hello/main.py").read_text()


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_nothing_runs_here_when_the_servers_of_the_readme_fail(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```toml\n(default = .*?)```", text, re.DOTALL)
    (tmp_path / "environments.toml").write_text(block)
    found = load(tmp_path / "environments.toml")
    assert not found.include_local
    assert found.default in {entry.id for entry in found.entries}

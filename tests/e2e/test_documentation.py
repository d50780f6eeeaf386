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
import tempfile
from pathlib import Path

import pytest

from holdfast.engine.sandbox.profile.profile_file import load_profile
from holdfast.environments.config.config_file import load
from scripts.pages import GENERATED
from tests.warm import HOLDFAST, PROGRAM, folder_of_commands

ROOT = Path(__file__).parents[2]

DOCUMENTS = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
DOCUMENTS = [name for name in DOCUMENTS if name not in GENERATED]

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


def _with(kind: str) -> list[str]:
    """Return the documents that have blocks of a kind."""
    return [name for name in DOCUMENTS if _blocks(name, kind)]


def _run(program: str, folder: Path, commands: Path, stdin: str = "", **variables: str) -> str:
    """Run a program with these commands first on its `PATH`; return what it prints."""
    folder.mkdir(exist_ok=True)
    file = folder.with_name("program.py")
    file.write_text(program)
    done = subprocess.run(
        [*PROGRAM, str(file)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=28,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}",
            **variables,
        },
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("document", _with("program"))
def test_the_programs_of_a_document_run(document: str, tmp_path: Path) -> None:
    commands = folder_of_commands(tmp_path)
    for program in _blocks(document, "program"):
        _run(program, tmp_path / "here", commands)


@pytest.mark.slow
def test_the_programs_of_the_readme_need_no_activated_environment(tmp_path: Path) -> None:
    for program in _blocks("README.md", "program"):
        _run(program, tmp_path / "here", tmp_path, PATH="/usr/bin:/bin")


def test_the_first_program_of_the_readme_prints_what_is_shown_under_it() -> None:
    # The sandbox lets commands write to /tmp, so this home is elsewhere.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as above:
        home = Path(above, "home")
        home.mkdir()
        (home / ".bashrc").touch()
        printed = _run(
            _blocks("README.md", "program")[0], Path(above, "here"), home, HOME=str(home)
        )
        assert (home / ".bashrc").exists()
    shown = re.findall(
        r"^```text\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )[0]
    assert printed.replace(str(home), "/home/me") == shown


@pytest.mark.slow
@pytest.mark.parametrize("document", _with("session"))
def test_the_snippets_of_a_document_run_one_after_the_other(document: str, tmp_path: Path) -> None:
    commands = folder_of_commands(tmp_path)
    _run(_SESSION, tmp_path / "here", commands, json.dumps(_blocks(document, "session")))


@pytest.mark.parametrize("document", _with("session"))
def test_no_python_of_a_document_is_left_out(document: str) -> None:
    text = (ROOT / document).read_text()
    assert len(_BLOCK.findall(text)) == text.count("```python")


def test_the_program_of_the_readme_is_the_first_example() -> None:
    assert _blocks("README.md", "program")[1] == (ROOT / "examples/hello/main.py").read_text()


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def _checked(key: str) -> list[tuple[str, str]]:
    """Return the marked TOML of all documents, each with the name of its document."""
    marked = re.compile(rf"^<!-- checked: {key} -->\n```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [
        (name, text) for name in DOCUMENTS for text in marked.findall((ROOT / name).read_text())
    ]


def test_every_environments_file_of_a_document_can_be_read(tmp_path: Path) -> None:
    files = _checked("environments")
    assert {"README.md", "docs/how-to/codex.md"} <= {name for name, _ in files}
    for name, text in files:
        (tmp_path / "environments.toml").write_text(text)
        found = load(tmp_path / "environments.toml")
        assert found.entries, name
        # Of those for Codex, none runs anything here when its servers fail.
        if "include_local" in text or name in ("README.md", "docs/how-to/codex.md"):
            assert not found.include_local, name
            assert found.default in {entry.id for entry in found.entries}, name


def test_every_profile_of_a_document_can_be_read(tmp_path: Path) -> None:
    files = _checked("profile")
    assert files
    for _, text in files:
        (tmp_path / "profile.toml").write_text(text)
        load_profile(tmp_path / "profile.toml")


MISTAKES = [
    "run --url ws://127.0.0.1:1 -- true",
    "run --url http://127.0.0.1:1 -- true",
    "run --sandbox nope -- true",
    "run -- no-such-command",
    "run --cwd /no/such -- true",
    "run --limit-time 0.2 -- sleep 600",
    "serve --listen ws://localhost:4500",
]
"""Commands whose last line is quoted on the page about troubleshooting."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_error_is_on_the_page_as_it_is_shown(mistake: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*HOLDFAST, *mistake.split()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
    )
    last = done.stderr.strip().splitlines()[-1]
    page = (ROOT / "docs/troubleshooting.md").read_text().splitlines()
    assert last in page or last.removeprefix("holdfast: ") in page

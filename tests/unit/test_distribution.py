"""The distribution has a name of its own, and nobody is told to install another project."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.base.version import DISTRIBUTION, __version__, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PATHS = [
    *("src", "docs", "examples", "scripts", "bench", "packaging", "man", "requirements", ".ci"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Dockerfile", "pyproject.toml"),
]

WRONG = re.compile(
    r"\b(?:pip3?|pipx|uvx|uv (?:tool|pip|add))\b[^\n]*?[ '\"=]holdfast(?![\w./-])"
    r"|\bholdfast\[[a-z,]+\]"
    r"|(?:version|distribution)\([\"']holdfast[\"']\)"
)


def test_the_name_is_written_once() -> None:
    assert PROJECT["name"] == DISTRIBUTION == "holdfast-exec"
    assert importlib.metadata.version(DISTRIBUTION) == __version__


def test_an_extra_is_installed_by_that_name() -> None:
    assert install_command("mcp") == (
        "pip install 'holdfast-exec[mcp]', or in a checkout: pip install '.[mcp]'"
    )
    own = [
        one
        for extra in PROJECT["optional-dependencies"].values()
        for one in extra
        if one.startswith("holdfast")
    ]
    assert own == [f"{DISTRIBUTION}[approvals,patterns]"]


@pytest.mark.parametrize(
    "text",
    [
        "pip install holdfast",
        "RUN pip install --no-cache-dir holdfast",
        "pip install 'holdfast[mcp]'",
        "uv tool install holdfast",
        "uvx holdfast serve",
        'version("holdfast")',
    ],
)
def test_a_text_that_installs_the_other_project_is_found(text: str) -> None:
    assert WRONG.search(text)


@pytest.mark.parametrize(
    "text",
    ["pip install 'holdfast-exec[mcp]'", "pip install .", "/opt/holdfast/bin/pip install x"],
)
def test_a_text_that_does_not_is_left_alone(text: str) -> None:
    assert not WRONG.search(text)


def test_no_text_installs_the_other_project() -> None:
    files = [
        file
        for path in PATHS
        for file in ([ROOT / path] if (ROOT / path).is_file() else (ROOT / path).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        for match in WRONG.finditer(file.read_text(errors="replace"))
    ]
    assert found == []


def test_python_m_holdfast_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout

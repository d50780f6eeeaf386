"""A project with a virtual environment in it, from which Holdfast runs, for root and for others."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.breakout.ground import NOBODY, PYTHON
from tests.breakout.harness import LIMIT

__all__ = ["USERS", "Project", "projects"]

_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def _is_ours(program: str) -> bool:
    """Return True for an interpreter that can use the packages of this one."""
    return os.path.realpath(program).endswith(_VERSION)


USERS = [
    pytest.param(None, id="own user"),
    pytest.param(
        NOBODY,
        id="ordinary user",
        marks=pytest.mark.skipif(
            os.geteuid() != 0 or not _is_ours(PYTHON),
            reason="only root becomes another user, with a Python that both have",
        ),
    ),
]
"""Who runs Holdfast: root in most tests, and a user without rights."""


@dataclass(frozen=True)
class Project:
    """A home with a project in it; the project is the workspace."""

    home: Path
    user: int | None

    @property
    def work(self) -> Path:
        return self.home / "work"

    @property
    def python(self) -> Path:
        return self.work / ".venv/bin/python"

    @property
    def packages(self) -> Path:
        return self.work / ".venv/lib" / _VERSION / "site-packages"

    def write(self, path: str, text: str) -> Path:
        """Write a file of the user."""
        file = self.home / path
        missing = [folder for folder in (file, *file.parents) if not folder.exists()]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for made in missing:
            self.give(made)
        return file

    def give(self, path: Path) -> None:
        if self.user is not None:
            os.chown(path, self.user, self.user, follow_symlinks=False)

    @property
    def owner(self) -> dict[str, Any]:
        """Arguments by which `subprocess` starts a program of the user."""
        groups: list[int] | None = None if self.user is None else []
        return {"user": self.user, "group": self.user, "extra_groups": groups}

    def variables(self, **more: str) -> dict[str, str]:
        """Return the variables of the user."""
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.home), **more}

    def call(
        self, *argv: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program as the user."""
        return subprocess.run(
            argv,
            cwd=cwd or self.work,
            env=self.variables(**(env or {})),
            capture_output=True,
            text=True,
            timeout=2 * LIMIT,
            check=False,
            **self.owner,
        )

    def run(
        self,
        script: str,
        *,
        sandboxed: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script of the shell by `holdfast run`."""
        options = ["--sandbox", "workspace-write"] if sandboxed else []
        words = ["-m", "holdfast", "run", *options, "--", "/bin/sh", "-c", script]
        return self.call(self.python, *words, env=env, cwd=cwd)


@contextmanager
def projects(user: int | None) -> Iterator[Project]:
    """Make a project, and remove it."""
    if user is not None:
        # Without a home, servers of one user meet in /tmp: tests at the same time need several.
        user += os.getpid() % 4_000 - 5_000
    # Not below the folder of pytest, which only its user can enter.
    base = Path(tempfile.mkdtemp(prefix="holdfast-own-")).resolve()
    project = Project(base / "home", user)
    program = PYTHON if _is_ours(PYTHON) else sys.executable
    try:
        base.chmod(0o755)
        project.write("work/.venv/pyvenv.cfg", f"home = {os.path.dirname(program)}\n")
        source = Path(holdfast.__file__).parents[1]
        found = f"{source}\n{sysconfig.get_path('purelib')}\n"
        project.write(str((project.packages / "found.pth").relative_to(project.home)), found)
        project.python.parent.mkdir()
        project.python.symlink_to(program)
        for path in (project.python.parent, project.python):
            project.give(path)
        yield project
    finally:
        shutil.rmtree(base)
        with suppress(FileNotFoundError):
            os.rmdir(f"/tmp/holdfast-{user}")

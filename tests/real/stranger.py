"""
An ordinary user, for tests that root runs: what it needs to run Holdfast, and nothing else.

A checkout, its environment and its Python may lie where only root can read. So what runs is
a copy that everybody can read, of hard links where the file system has them: to write 4,000
files takes seconds.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import holdfast
from holdfast.base.version import DISTRIBUTION
from tests.e2e.wire import LIMIT, PATH

__all__ = ["Stranger", "stranger"]

NOBODY = 65534

_NAME = re.compile(r"[\w.-]+")

_UNNEEDED = shutil.ignore_patterns(
    "config-*", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tkinter"
)
"""Half of a standard library. What was compiled is kept: to do it anew takes longer."""


@dataclass(frozen=True)
class Stranger:
    """Another user, as whom processes are started."""

    folder: Path
    python: str

    @property
    def popen(self) -> dict[str, Any]:
        """Arguments of `subprocess.Popen`."""
        env = {
            "PATH": PATH,
            "HOME": str(self.folder / "home"),
            "LD_LIBRARY_PATH": str(self.folder / "python" / "lib"),
            "PYTHONPATH": str(self.folder / "packages"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        return {**user, "env": env, "cwd": "/", "umask": 0o022}

    def copy(self, *files: Path) -> None:
        """Put files where this user can read them, side by side."""
        for file in files:
            shutil.copyfile(file, self.folder / file.name)


@contextmanager
def stranger() -> Iterator[Stranger]:
    """One who can run Holdfast, until the end of the block."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "home").mkdir()
        os.chown(folder / "home", NOBODY, NOBODY)
        package = Path(holdfast.__file__).parent
        _copy_tree(package, folder / "packages" / "holdfast")
        _copy_packages(folder / "packages", {DISTRIBUTION, "websockets"})
        one = Stranger(folder, os.path.realpath(sys.executable))
        if not _works(one):
            one = Stranger(folder, _copy_python(folder / "python"))
            assert _works(one), f"{one.python} cannot be run by an ordinary user"
        yield one


def _works(one: Stranger) -> bool:
    """Return True if its Python runs with its own library."""
    try:
        done = subprocess.run(
            [one.python, "-c", "import os; print(os.__file__)"],
            **one.popen,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT,
            check=False,
        )
    except PermissionError:
        return False
    library = Path(done.stdout.strip()).parent.parent.parent
    return done.returncode == 0 and library == Path(one.python).parent.parent


def _copy_python(folder: Path) -> str:
    (folder / "bin").mkdir(parents=True)
    program = shutil.copy(os.path.realpath(sys.executable), folder / "bin")
    library = sysconfig.get_path("stdlib")
    _copy_tree(Path(library), folder / "lib" / Path(library).name)
    for shared in Path(library).parent.glob("libpython*.so*"):
        shutil.copy(shared, folder / "lib")
    return str(program)


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=_UNNEEDED, copy_function=_copy)


def _copy(source: "str | os.PathLike[str]", target: "str | os.PathLike[str]") -> None:
    """Make a hard link, or a copy on another file system; the other user cannot write to it."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass  # a package that others need by two spellings of its name
    except OSError:
        shutil.copy2(source, target)


def _copy_packages(folder: Path, wanted: set[str]) -> None:
    """Copy packages and all they need, but none of what is installed besides."""
    known: set[str] = set()
    while wanted:
        name = wanted.pop()
        known.add(name)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # it is for another platform or another Python
        for file in package.files or ():
            if ".." not in file.parts and file.suffix != ".pth":
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(file.locate(), target)
        for text in package.requires or ():
            found = _NAME.match(text)
            if found is not None and "extra ==" not in text and found[0] not in known:
                wanted.add(found[0])

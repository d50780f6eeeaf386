"""
The table of attempts: what each is, under which profiles it has to fail, and by what.

An attempt is a function whose text is run by a bare interpreter, once free and once in the
sandbox (inside.py). It returns if it got through, and raises what stopped it if not.
"""

import ast
import inspect
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from holdfast.engine.sandbox.bubblewrap.landlock import landlock_abi
from tests.breakout import inside
from tests.breakout.inside import Ground

__all__ = ["ALL", "INSIDE", "LACKS", "Attempt", "attempt", "unless_landlock"]

ALL: list["Attempt"] = []
"""Every attempt, in the order of the files."""

INSIDE = Path(inside.__file__).read_text()
"""What goes in front of each attempt."""

LACKS: Mapping[str, tuple[bool, str]] = {
    "root": (os.getuid() != 0, "only root gets through without a sandbox"),
    "x86": (platform.machine() != "x86_64", "only x86_64 has these calls"),
    "user": (os.getuid() == 0, "root needs no such program: it is what it would become"),
}
"""What an attempt may need to get through freely: whether that is missing here, and why."""


def _source(function: Callable[[Ground], object]) -> str:
    """A function without its decorator, after what its file imports from the standard library."""
    text = inspect.getsource(function)
    return "\n".join([*_imports(function.__module__), "", text[text.index("def ") :]])


@cache
def _imports(module: str) -> list[str]:
    """Return the imports of a module from the standard library, a line for each."""
    return [
        ast.unparse(node)
        for node in ast.parse(inspect.getsource(sys.modules[module])).body
        if (isinstance(node, ast.Import) and node.names[0].name != "pytest")
        or (isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("tests."))
    ]


@dataclass(frozen=True, eq=False)
class Attempt:
    """One way out that must be closed."""

    family: str
    name: str
    profiles: tuple[str, ...]
    blocked_by: frozenset[str]
    """The errors, or other words, that count as being stopped; anything else is a mistake."""
    source: str
    needs: str | None = None
    """A key of `LACKS`: why it may fail without a sandbox, too."""
    kernel: str | None = None
    """What a kernel may be built without; then it fails without a sandbox, too."""
    gap: str | None = None
    """Why it gets through the sandbox all the same; documented for users."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the start; `{name}` is replaced by a path of the ground."""
    tty: bool = False
    marks: tuple[pytest.Mark, ...] = ()
    """Marks below the decorator: ids of what it shows."""

    @property
    def program(self) -> str:
        """Program that the interpreter is given to run."""
        return f"{INSIDE}\n\n{self.source}\n\nmain({self.name})\n"


def unless_landlock(abi: int, gap: str) -> str | None:
    """A gap on kernels without Landlock, or with one that is older than this."""
    return gap if landlock_abi() < abi else None


def attempt(
    *profiles: str,
    blocked_by: str,
    needs: str | None = None,
    kernel: str | None = None,
    gap: str | None = None,
    env: Mapping[str, str] | None = None,
    tty: bool = False,
) -> Callable[[Callable[[Ground], object]], Callable[[Ground], object]]:
    """
    Add a function to the table.

    Args:
        profiles: The names of the profiles under which it must fail (ground.py).
        blocked_by: Errors by name, separated by blanks; or texts, separated by `|`.
        needs: See `Attempt.needs`.
        kernel: See `Attempt.kernel`.
        gap: See `Attempt.gap`.
        env: See `Attempt.env`.
        tty: Whether it runs on a terminal.
    """
    assert needs is None or needs in LACKS

    def add(function: Callable[[Ground], object]) -> Callable[[Ground], object]:
        words = blocked_by.split() if blocked_by.isupper() else blocked_by.split("|")
        ALL.append(
            Attempt(
                family=function.__module__.rpartition(".")[2],
                name=function.__name__,
                profiles=profiles,
                blocked_by=frozenset(words),
                source=_source(function),
                needs=needs,
                kernel=kernel,
                gap=gap,
                env=dict(env or {}),
                tty=tty,
                marks=tuple(getattr(function, "pytestmark", ())),
            )
        )
        return function

    return add

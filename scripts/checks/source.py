"""
Checks names and sizes in the source: `python -m scripts.checks.source`.

A class name means one thing, so a search for it finds one class. A function fits on a screen.
A docstring begins with a verb or with the thing itself, not with a question. An import inside of
a function has a comment above it that says why.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LONGEST_FUNCTION", "doubled_classes", "late_imports", "main", "problems"]

ROOT = Path(__file__).parents[2]

LONGEST_FUNCTION = 60
"""Lines of a function, its signature included; its docstring may be as long as it has to be."""

_QUESTION = re.compile(r"\s*(What|Whether|How|Who|Whose|Whom|Those|Where|Why)\b")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield what is wrong with one module, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            lines = _height(node) - (_height(node.body[0]) if ast.get_docstring(node) else 0)
            if lines > LONGEST_FUNCTION:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines: divide it"
        if isinstance(node, _Function | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text is not None and _QUESTION.match(text):
                line = getattr(node, "lineno", 1)
                yield f"{path}:{line}: a docstring begins with a question: {text.split()[0]!r}"


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def late_imports(path: str, text: str, tree: ast.Module) -> Iterator[str]:
    """Yield the imports inside of functions without a reason above them."""
    lines = text.splitlines()
    late = {
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, _Function)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    for line in sorted(late):
        above = line - 1
        # The reason of the first import of a block is that of the others.
        while above in late or not lines[above - 1].strip():
            above -= 1
        if not lines[above - 1].lstrip().startswith("#"):
            yield f"{path}:{line}: an import inside of a function needs its reason above it"


def doubled_classes(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Yield the class names that mean several things."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{path}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"{name} is the name of several classes: {', '.join(found)}"


def main() -> int:
    """Print what is wrong, and return 1 if anything is."""
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted(ROOT.glob("src/holdfast/**/*.py"))
    }
    trees = {path: ast.parse(text) for path, text in texts.items()}
    wrong = [*doubled_classes(trees)]
    for path, tree in trees.items():
        wrong += problems(path, tree)
        wrong += late_imports(path, texts[path], tree)
    print(*(wrong or ["every name and size in the source is in form"]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

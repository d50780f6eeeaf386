"""
Checks names and sizes in the source: `python -m scripts.checks.source`.

A class name means one thing, so a search for it finds one class. A function fits on a screen. A
docstring begins with a verb or with the thing itself, not with a question. An import inside a
function has a comment above it that says why, and there are few. A module has one idea, and is
imported by another. Comments say why often enough, most of all where Linux is difficult. The server
uses the seams, so it names an engine of this machine in one file only. What imitates Codex is in
one room, and the others do not know whom they imitate.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = [
    *("CODEX_OUTSIDE", "COMMENTS", "LATE_IMPORTS", "LONGEST_FUNCTION", "LONGEST_MODULE"),
    *("codex_outside", "codex_versions", "doubled_classes", "engines_in_the_server"),
    *("late_imports", "long_modules", "main"),
    *("broken_names", "problems", "too_few_comments", "unused_modules"),
]

ROOT = Path(__file__).parents[2]

LONGEST_FUNCTION = 60
"""Lines of a function, its signature included; not counting its docstring."""

LONGEST_MODULE = 620
"""Lines of a module; one that needs more has its reason in `LONG_FOR_A_REASON`."""

LONG_FOR_A_REASON: Mapping[str, str] = {}
"""Modules that may be longer, by their path, each with the reason."""

LATE_IMPORTS = 10
"""Imports inside functions, in total."""

COMMENTS: Mapping[str, float] = {
    "": 5.0,
    "engine/process": 7.5,
    "engine/sandbox": 7.5,
    "client": 7.5,
}
"""Least share of comments, in per cent of the non-empty lines: overall, and by directory."""

CODEX_OUTSIDE = 10
"""Modules outside the room `codex/` that may mention Codex: options and names that are about it."""

_PACKAGE = "src/holdfast/"
_LOCAL_ENGINE = re.compile(r"\bLocal(?:Process|Processes|FileSystem|FileHandle|HttpClient)\b")

_ROOM = f"{_PACKAGE}codex/"
_CODEX = re.compile(r"\bcodex\b|\b(?:real server|the original)\b", re.IGNORECASE)
_CODEX_VERSION = re.compile(r"\b0\.1[6-9]\d\.\d")

_QUESTION = re.compile(r"\s*(What|Whether|How|Who|Whose|Whom|Those|Where|Why)\b")

_LATE_NAME = re.compile(r"(holdfast(?:\.\w+)+):(\w+)")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield what is wrong with one module, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            lines = _height(node) - (_height(node.body[0]) if ast.get_docstring(node) else 0)
            if lines > LONGEST_FUNCTION:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines: divide it"
        # Including the strings under constants and attributes.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and _QUESTION.match(text):
                word = text.split()[0]
                yield f"{path}:{node.lineno}: a docstring begins with a question: {word!r}"


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def late_imports(path: str, text: str, tree: ast.Module) -> Iterator[str]:
    """Yield the imports inside functions without a reason above them."""
    lines = text.splitlines()
    late = _late_lines(tree)
    for line in sorted(late):
        above = line - 1
        # The reason of the first import of a block is that of the others.
        while above in late or not lines[above - 1].strip():
            above -= 1
        if not lines[above - 1].lstrip().startswith("#"):
            yield f"{path}:{line}: an import inside a function needs its reason above it"


def _late_lines(tree: ast.Module) -> set[int]:
    return {
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, _Function)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }


def long_modules(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules that are too long without a reason."""
    for path, text in texts.items():
        lines = len(text.splitlines())
        if lines > LONGEST_MODULE and path not in LONG_FOR_A_REASON:
            yield f"{path}: {lines} lines: look for the second idea inside"


def unused_modules(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield the modules that no other one imports."""
    imported: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
            elif isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                imported.add(node.value.partition(":")[0])
    for path in trees:
        name = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        # A package is imported with its modules; `python -m` and the build run the others.
        if not name.endswith((".__init__", ".__main__")) and name not in imported:
            yield f"{path}: nothing imports it"


def broken_names(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield the strings `package.module:name` that name nothing."""
    modules = {_module(path): tree for path, tree in trees.items()}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            found = _LATE_NAME.fullmatch(node.value)
            if found and found[2] not in _defined(modules.get(found[1], ast.Module([], []))):
                yield f"{path}:{node.lineno}: {node.value} does not exist"


def _module(path: str) -> str:
    name = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def _defined(module: ast.Module) -> set[str]:
    """Return the names that a module defines, or imports for others."""
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def too_few_comments(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the directories whose comments say why too rarely."""
    comments: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, text in texts.items():
        inside = path.removeprefix(_PACKAGE)
        found, filled = _comments(text), sum(bool(line.strip()) for line in text.splitlines())
        for key in COMMENTS:
            if inside.startswith(key):
                comments[key] += found
                lines[key] += filled
    for key, least in COMMENTS.items():
        share = 100 * comments[key] / max(lines[key], 1)
        if round(share, 1) < least:
            yield f"{_PACKAGE}{key}: {share:.2f} % comments, fewer than {least:g} %: say why"


def _comments(text: str) -> int:
    """Count the lines that are comments; a heading inside a module gives no reason."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        token.type == tokenize.COMMENT
        and token.line.lstrip().startswith("#")
        and not token.string.startswith("# -- ")
        for token in tokens
    )


def engines_in_the_server(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the server that name an engine of this machine."""
    for path, text in texts.items():
        if not path.startswith(f"{_PACKAGE}server/") or path.endswith("/local_engines.py"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if _LOCAL_ENGINE.search(line):
                yield f"{path}:{number}: the server knows only seams; see server/local_engines.py"


def codex_outside(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules outside the room `codex/` that mention Codex, if there are too many."""
    found = {
        path: text.count("\n", 0, first.start()) + 1
        for path, text in texts.items()
        if not path.startswith(_ROOM) and (first := _CODEX.search(text))
    }
    if len(found) > CODEX_OUTSIDE:
        yield (
            f"{len(found)} modules outside codex/ mention Codex, more than {CODEX_OUTSIDE}:"
            " say what holds and why, and keep the imitation in codex/"
        )
        yield from (f"{path}:{number}: mentions Codex" for path, number in found.items())


def codex_versions(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines that write a version of Codex, but for those of `codex/versions.py`."""
    for path, text in texts.items():
        if path == f"{_ROOM}versions.py":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if _CODEX_VERSION.search(line):
                yield f"{path}:{number}: a version of Codex; it is in codex/versions.py"


def doubled_classes(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield the class names that mean several things."""
    positions: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                positions[node.name.lstrip("_")].append(f"{path}:{node.lineno}")
    for name, found in sorted(positions.items()):
        if len(found) > 1:
            yield f"{name} is the name of several classes: {', '.join(found)}"


def main() -> int:
    """Print what is wrong, and return 1 if anything is."""
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted(ROOT.glob("src/holdfast/**/*.py"))
    }
    trees = {path: ast.parse(text) for path, text in texts.items()}
    wrong = [*doubled_classes(trees), *unused_modules(trees), *broken_names(trees)]
    wrong += [*long_modules(texts), *too_few_comments(texts), *engines_in_the_server(texts)]
    wrong += [*codex_outside(texts), *codex_versions(texts)]
    late = 0
    for path, tree in trees.items():
        wrong += problems(path, tree)
        wrong += late_imports(path, texts[path], tree)
        late += len(_late_lines(tree))
    if late > LATE_IMPORTS:
        wrong.append(f"{late} imports inside functions, more than {LATE_IMPORTS}")
    print(*(wrong or ["every name and size in the source is in form"]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

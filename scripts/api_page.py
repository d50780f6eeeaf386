"""
Makes the page "Python API" from the docstrings; `scripts.pages` writes it to docs/reference.

Reads the source without importing it, so only the parser, griffe, has to be installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import griffe

__all__ = ["SECTIONS", "api_page"]

SECTIONS = {
    "Environments and commands": (
        *("connect", "Environment", "Completed", "Running", "ExpectMatch", "Chunk", "Captured"),
        *("Files", "TransferProgress", "Transferred", "SandboxProfile", "Limits"),
        *("EnvironmentManager", "Status"),
    ),
    "Tools for a model": ("UnifiedExec",),
    "Seams": (
        *("ExecBackend", "ExecProcess", "FileSystem", "HttpClient"),
        *("LocalBackend", "LocalFileSystem", "LocalHttpClient", "ExecServerClient"),
        *("MemoryTarget", "Server"),
    ),
    "Requests": (
        *("StartParams", "EnvPolicy", "TerminalSize", "WalkOptions", "HttpRequestParams"),
        *("HttpHeader", "PathUri", "Base64"),
    ),
    "Results and events": (
        *("OutputChunk", "Exited", "Closed", "StreamEnded", "Gap", "ProcessEvent", "Verdict"),
        *("Reason", "Denial", "DenialKind", "NetworkAttempt", "Enforcement", "WaitingFor"),
        *("WriteStatus", "FileMetadata", "DirectoryEntry", "HttpResponse"),
    ),
    "Errors": (
        *("HoldfastError", "ConnectionLost", "ConnectFailed", "RemoteError", "Unsupported"),
        *("CommandFailed", "OutputLost", "PatternNotFound", "PatternTimedOut", "InvalidConfig"),
        *("Refused", "InvalidParams", "InvalidRequest", "DuplicateProcess", "UnknownProcess"),
        *("EnvironmentClosed", "NotFound", "OperationFailed", "SpawnFailed", "StdinClosed"),
        "ProtocolError",
    ),
}
"""Every public name of the package except the module `sync`, whose methods repeat others."""

_HEAD = """# Python API

Generated from the docstrings of the package `holdfast`. The page [Python](../python.md) explains
the same with examples. `holdfast.sync` has the methods of these classes without `await`.
"""

_WIDTH = 88


def api_page(source: Path) -> str:
    """Return the page for the package in a directory of sources."""
    package = _read(source, "holdfast")
    lines = [_HEAD]
    for section, names in SECTIONS.items():
        lines.append(f"## {section}\n")
        for name in names:
            lines.extend(_object(_resolve(source, package[name])))
    return "\n".join(lines) + "\n"


@cache
def _read(source: Path, module: str) -> griffe.Module:
    """Read one module; griffe would read the whole package, which takes ten times as long."""
    path = source.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return griffe.visit(module, filepath=file, code=file.read_text())


def _resolve(source: Path, found: griffe.Object | griffe.Alias) -> griffe.Object:
    """Follow imports to where a name is defined."""
    while isinstance(found, griffe.Alias):
        module, _, name = found.target_path.rpartition(".")
        found = _read(source, module)[name]
    return found


def _object(item: griffe.Object) -> Iterator[str]:
    yield f"### {item.name}\n"
    if isinstance(item, griffe.Function):
        yield _code(_signature(item))
    elif isinstance(item, griffe.Class):
        bases = ", ".join(str(base) for base in item.bases if "Struct" not in str(base))
        yield _code(f"class {item.name}({bases})" if bases else f"class {item.name}")
    yield from _docstring(item)
    if isinstance(item, griffe.Class):
        yield from _members(item)


def _members(item: griffe.Class) -> Iterator[str]:
    """Yield the public members that have a docstring: attributes as a list, then methods."""
    public = [
        member
        for name, member in item.members.items()
        if not name.startswith("_") and not member.is_alias and member.docstring is not None
    ]
    attributes = [member for member in public if member.is_attribute]
    if attributes:
        yield "\n".join(_field(member) for member in attributes) + "\n"
    for member in public:
        if isinstance(member, griffe.Function):
            yield f"#### {item.name}.{member.name}\n"
            yield _code(_signature(member))
            yield from _docstring(member)


def _field(member: griffe.Object | griffe.Alias) -> str:
    assert member.docstring is not None  # chosen for it
    kind = getattr(member, "annotation", None)
    shown = f" (`{kind}`)" if kind is not None else ""
    return f"- `{member.name}`{shown}: {_inline(member.docstring.value)}"


def _docstring(item: griffe.Object) -> Iterator[str]:
    if item.docstring is None:
        return
    for section in item.docstring.parse("google"):
        match section.kind:
            case griffe.DocstringSectionKind.text:
                yield f"{section.value.strip()}\n"
            case griffe.DocstringSectionKind.parameters | griffe.DocstringSectionKind.attributes:
                yield _list("Arguments", [(f"`{one.name}`", one) for one in section.value])
            case griffe.DocstringSectionKind.raises:
                yield _list("Raises", [(f"`{one.annotation}`", one) for one in section.value])
            case griffe.DocstringSectionKind.returns | griffe.DocstringSectionKind.yields:
                texts = " ".join(_inline(one.description) for one in section.value)
                yield f"**{section.kind.value.capitalize()}:** {texts}\n"
            case _:
                continue


def _list(title: str, rows: Sequence[tuple[str, griffe.DocstringElement]]) -> str:
    listed = "\n".join(f"- {name}: {_inline(one.description)}" for name, one in rows)
    return f"**{title}:**\n\n{listed}\n"


def _inline(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _signature(function: griffe.Function) -> str:
    """Return the signature, on one line if it fits."""
    kinds = griffe.ParameterKind
    shown: list[str] = []
    starred = False
    for one in function.parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is kinds.keyword_only and not starred:
            starred = True
            shown.append("*")
        starred = starred or one.kind is kinds.var_positional
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(one.kind, "")
        kind = f": {one.annotation}" if one.annotation is not None else ""
        equals = " = " if kind else "="
        default = f"{equals}{one.default}" if one.default is not None and not stars else ""
        shown.append(f"{stars}{one.name}{kind}{default}")
    begin = "async def" if "async" in function.labels else "def"
    end = f" -> {function.returns}" if function.returns is not None else ""
    line = f"{begin} {function.name}({', '.join(shown)}){end}"
    if len(line) <= _WIDTH:
        return line
    rows = "".join(f"    {one},\n" for one in shown)
    return f"{begin} {function.name}(\n{rows}){end}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"

"""Lays out the folder of a case, and describes what is in it afterwards."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.real.patching.cases import Directory, Entry, Link

WORKSPACE = "<WS>"
_SHOWN = 4_096
"""Bytes of a file that a row shows; of a larger one it has the digest."""


def lay_out(before: Mapping[str, Entry], folder: Path) -> None:
    """Make the files of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in before.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match entry:
            case Directory():
                path.mkdir()
            case Link(target):
                path.symlink_to(target.replace(WORKSPACE, str(folder)))
            case bytes():
                path.write_bytes(entry)
            case str():
                path.write_bytes(entry.encode())


def content(data: bytes) -> Any:
    """Return the form of bytes in a row."""
    if len(data) > _SHOWN:
        return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def describe(folder: Path) -> dict[str, Any]:
    """Return everything below a folder, by its path in it."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = {"link": str(path.readlink()).replace(str(folder), WORKSPACE)}
        elif path.is_file():
            found[name] = content(path.read_bytes())
        elif not any(path.iterdir()):
            found[name] = {"directory": True}
    return found

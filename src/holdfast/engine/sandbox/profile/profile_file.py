"""
Reads profiles from TOML files.

The keys are those of the wire. Those with a usual value may be left out, and a path may be a
string:

    network = "enabled"             # "restricted" unless given

    [file_system]
    glob_scan_max_depth = 4
    entries = [
        { path = ":minimal", access = "read" },
        { path = ":project_roots", access = "write" },
        { path = ":project_roots/vendor", access = "read" },
        { path = "~/.netrc", access = "deny" },
        { path = "/srv/**/*.env", access = "deny" },
    ]

A string with a leading colon names a special path, and one with a wildcard is a pattern. All others
are paths; `~` is the user's home directory.
"""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any

from holdfast.base.errors import InvalidParams
from holdfast.base.own_files import keep_unchanged
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import PermissionProfile, SandboxContext
from holdfast.wire.rpc.params import decode_params

__all__ = ["load_profile", "parse_profile"]

# Not braces: a pattern without one of these characters would be refused later.
_WILDCARD = re.compile(r"[*?\[\]]")


def load_profile(path: str | os.PathLike[str]) -> PermissionProfile:
    """
    Read a profile from a file.

    Raises:
        InvalidParams: It cannot be read, or is not a profile; the text names the file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            profile = parse_profile(file.read())
    except (OSError, UnicodeDecodeError, InvalidParams) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidParams(f"sandbox profile `{os.fspath(path)}`: {reason}") from error
    # A command could otherwise loosen the profile of the next one.
    keep_unchanged(path)
    return profile


def parse_profile(text: str) -> PermissionProfile:
    """
    Read a profile.

    Raises:
        InvalidParams: The text is not TOML, or not a profile.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidParams(str(error)) from None
    _refuse_unknown(table, {"type", "network", "file_system"}, "the profile")
    # Most files describe a managed profile with restrictions, so they need not say so.
    table.setdefault("type", "managed")
    # A disabled profile has no member `network`.
    if table["type"] != "disabled":
        table.setdefault("network", "restricted")
    files = table.get("file_system")
    if isinstance(files, dict):
        _refuse_unknown(files, {"type", "entries", "glob_scan_max_depth"}, "file_system")
        files.setdefault("type", "restricted")
        entries = files.get("entries")
        if isinstance(entries, list):
            files["entries"] = [_entry(entry) for entry in entries]
    # Decoded as part of a context, so that errors have the texts and paths of the protocol.
    context = {"permissions": table, "windowsSandboxLevel": "disabled"}
    return decode_params(context, SandboxContext).permissions


def _refuse_unknown(table: dict[str, Any], known: set[str], where: str) -> None:
    """Raise for an unknown key: a misspelled one would silently allow more than intended."""
    for key in table:
        if key not in known:
            raise InvalidParams(f"unknown key `{key}` in {where}")


def _entry(entry: object) -> object:
    if not isinstance(entry, dict):
        return entry
    _refuse_unknown(entry, {"path", "access", "missing_path_behavior"}, "an entry")
    # A path may also be a table, as on the wire, which is decoded with the rest.
    path = entry.get("path")
    return {**entry, "path": _path(path)} if isinstance(path, str) else entry


def _path(text: str) -> dict[str, object]:
    if text.startswith(":"):
        kind, _, subpath = text[1:].partition("/")
        value = {"kind": kind, "subpath": subpath} if subpath else {"kind": kind}
        return {"type": "special", "value": value}
    if text == "~" or text.startswith("~/"):
        text = os.path.expanduser(text)
    if _WILDCARD.search(text):
        return {"type": "glob_pattern", "pattern": text}
    if not text.startswith("/"):
        raise InvalidParams(f"path `{text}` is neither absolute nor special (`:project_roots/…`)")
    return {"type": "path", "path": str(PathUri.from_path(text))}

"""Which version of an installed plugin is in use: by the names of the folders it is in."""

import re
from collections.abc import Iterable
from functools import cmp_to_key

__all__ = ["active_version", "is_marketplace_name", "is_plugin_name"]

# A version that is being worked on; it comes before all others.
LOCAL = "local"

_PLUGIN = re.compile(r"[A-Za-z0-9._-]+")
_MARKETPLACE = re.compile(r"[A-Za-z0-9_-]+")
_VERSION = re.compile(r"[A-Za-z0-9._+-]+")
_SEMANTIC = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


def is_plugin_name(name: str) -> bool:
    """Whether a folder can be that of a plugin."""
    return _PLUGIN.fullmatch(name) is not None and name not in {".", ".."}


def is_marketplace_name(name: str) -> bool:
    """Whether a folder can be that of a marketplace."""
    return _MARKETPLACE.fullmatch(name) is not None


def active_version(names: Iterable[str]) -> str | None:
    """The one in use among the names of folders, if any is a version."""
    versions = sorted(
        (name for name in names if _VERSION.fullmatch(name) and name not in {".", ".."}),
        key=cmp_to_key(_compare),
    )
    if LOCAL in versions:
        return LOCAL
    return versions[-1] if versions else None


def _compare(left: str, right: str) -> int:
    """By number if both are semantic versions, else by their letters."""
    parsed = _SEMANTIC.fullmatch(left), _SEMANTIC.fullmatch(right)
    if parsed[0] is None or parsed[1] is None:
        return (left > right) - (left < right)
    a, b = _key(parsed[0]), _key(parsed[1])
    return (a > b) - (a < b)


def _key(version: re.Match[str]) -> tuple[object, ...]:
    numbers = tuple(int(version[part]) for part in (1, 2, 3))
    # One without a suffix is the finished one.
    return (
        numbers,
        version[4] is None,
        _parts(version[4]),
        version[5] is not None,
        _parts(version[5]),
    )


def _parts(suffix: str | None) -> tuple[tuple[bool, int, str], ...]:
    parts = suffix.split(".") if suffix else []
    return tuple((not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts)

"""Selects the version of an installed plugin in use, by the names of its directories."""

import re
from collections.abc import Iterable
from functools import cmp_to_key

__all__ = ["active_version", "is_marketplace_name", "is_plugin_name"]

# Directory of a version under development, which takes precedence over all others.
LOCAL = "local"

_PLUGIN = re.compile(r"[A-Za-z0-9._-]+")
_MARKETPLACE = re.compile(r"[A-Za-z0-9_-]+")
_VERSION = re.compile(r"[A-Za-z0-9._+-]+")
_SEMANTIC = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


def is_plugin_name(name: str) -> bool:
    """Return True if a name is valid for a plugin's directory."""
    return _PLUGIN.fullmatch(name) is not None and name not in {".", ".."}


def is_marketplace_name(name: str) -> bool:
    """Return True if a name is valid for a marketplace's directory."""
    return _MARKETPLACE.fullmatch(name) is not None


def active_version(names: Iterable[str]) -> str | None:
    """Return the directory name of the version in use, or None."""
    versions = sorted(
        (name for name in names if _VERSION.fullmatch(name) and name not in {".", ".."}),
        key=cmp_to_key(_compare),
    )
    # A developer is working on it, so it wins over any number.
    if LOCAL in versions:
        return LOCAL
    return versions[-1] if versions else None


def _compare(left: str, right: str) -> int:
    """Compare by number if both are semantic versions, otherwise by text."""
    parsed = _SEMANTIC.fullmatch(left), _SEMANTIC.fullmatch(right)
    if parsed[0] is None or parsed[1] is None:
        return (left > right) - (left < right)
    a, b = _key(parsed[0]), _key(parsed[1])
    return (a > b) - (a < b)


def _key(version: re.Match[str]) -> tuple[object, ...]:
    numbers = tuple(int(version[part]) for part in (1, 2, 3))
    # A version without a suffix is the release, which sorts after its pre-releases.
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

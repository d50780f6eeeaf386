"""Decides which directory the entry `tmpdir` of a profile may stand for (13, rule 5)."""

from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.engine.sandbox.policy.disk import RememberedDisk, trace
from holdfast.engine.sandbox.policy.policy import (
    KEPT_NAMES,
    PROTECTED_NAMES,
    Rule,
    covers,
    rule_above,
)

__all__ = ["tmpdir_fault"]

# Directories that a TMPDIR may be in, in addition to the server's own and the workspace roots.
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - names to compare with


def tmpdir_fault(
    path: str,
    rules: Mapping[str, Rule],
    *,
    roots: Iterable[str],
    own: str | None,
    home: str | None,
    disk: RememberedDisk,
) -> str | None:
    """
    Return the reason why a directory may not be the temporary one, or None.

    An environment variable must not grant a path that no entry names, let alone one that an entry
    denies.

    Args:
        path: The real path of the directory.
        rules: The rules of all other entries.
        roots: The workspace roots.
        own: The temporary directory of the server.
        home: The home directory of the user.
        disk: The file system to look at.
    """
    # Real paths, since `path` is one.
    real_roots = [trace(root, disk).path for root in roots]
    homes = _real(home, disk)
    if _is_wide(path, real_roots, homes):
        return "TMPDIR has to be a separate directory"
    servers = [real for real in _real(own, disk) if not _is_wide(real, real_roots, homes)]
    shared = [real for name in _TEMPORARY for real in _real(name, disk)]
    if not any(covers(real, path) for real in (*servers, *shared, *real_roots)):
        return (
            "TMPDIR has to be in the server's own temporary directory, in /tmp, in "
            "/var/tmp or in a workspace root"
        )
    if _is_protected(path, rules):
        return "TMPDIR must not be in what the profile protects or denies"
    return None


def _is_protected(path: str, rules: Mapping[str, Rule]) -> bool:
    over = rules.get(path) or rule_above(rules, path)
    if over is None:
        return False
    # In a writable root, its protected names are the exception.
    if over.access == "write":
        name = path.removeprefix(over.path).lstrip("/").partition("/")[0]
        return name in PROTECTED_NAMES or name in KEPT_NAMES
    # A read-only rule inside a writable root protects something on purpose.
    around = rule_above(rules, over.path)
    return over.access == "deny" or (around is not None and around.access == "write")


def _is_wide(path: str, roots: Iterable[str], homes: Iterable[str]) -> bool:
    """Return True for `/`, a home directory, a parent of a root: more than temporary files."""
    return (
        path == "/"
        or any(covers(path, home) for home in homes)
        or any(covers(path, root) and path != root for root in roots)
    )


def _real(path: str | None, disk: RememberedDisk) -> list[str]:
    """Return the real path of a directory in a list; an empty list if not given, or `/`."""
    if not path or not path.startswith("/"):
        return []
    real = trace(path, disk).path
    return [] if real == "/" else [real]

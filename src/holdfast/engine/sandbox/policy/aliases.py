"""Repeats denials and read-only rules at the other paths of the same files (see `linux.mounts`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal

from holdfast.engine.linux.mounts import MountTable
from holdfast.engine.sandbox.policy.disk import Disk, trace
from holdfast.engine.sandbox.policy.own_paths import Below, OwnPath
from holdfast.engine.sandbox.policy.policy import Rule, covers, rule_above

__all__ = ["at_all_paths", "repeat_at_aliases"]

# Reasons of rules that are made for all paths of their files.
_REPEATED: Final = frozenset({"glob", "socket", "server", "code", "settings"})

# Accesses that are more than another one.
_MORE: Final[Mapping[str, tuple[str, ...]]] = {"deny": ("read", "write"), "read": ("write",)}


def at_all_paths(paths: Iterable[OwnPath], mounts: MountTable) -> Iterator[OwnPath]:
    """Yield paths of Holdfast, and the other paths at which mounts show the same files."""
    if not mounts.has_aliases:
        yield from paths
        return
    for own in paths:
        links = (*own.links, *(name for link in own.links for name in mounts.names(link)))
        yield own._replace(links=links)
        aliases = mounts.aliases(own.path)
        for path in aliases.whole:
            yield own._replace(path=path, links=())
        # A part of an installation may be a workspace, under its other path, too.
        below: Below = own.below if own.below == "nothing" else "named or itself"
        for path in aliases.parts:
            yield own._replace(path=path, links=(), is_made=False, below=below)
        for path in aliases.ways:
            yield own._replace(path=path, links=(), is_made=False, below="named or itself")


def repeat_at_aliases(
    rules: dict[str, Rule],
    access: Literal["read", "deny"],
    mounts: MountTable,
    disk: Disk,
    *,
    granted: Collection[str],
) -> None:
    """
    Repeat rules of an access at the other paths of their files.

    Of readable rules, these are the exceptions in writable directories. A path that an entry names,
    or a directory above it, keeps its access: the entry shows the file on purpose.

    Args:
        rules: The rules, to be added to.
        access: The access of the rules to repeat.
        mounts: Mounts of this machine.
        disk: File system to query.
        granted: Paths that entries make readable or writable.
    """
    if not mounts.has_aliases:
        return
    for rule in [rule for rule in rules.values() if rule.access == access]:
        if rule.why in _REPEATED or (access == "read" and not _gives(rules, rule.path, ("write",))):
            continue
        aliases = mounts.aliases(rule.path)
        for path in (*aliases.whole, *aliases.parts):
            named = any(covers(path, other) for other in granted)
            if not named and _gives(rules, path, _MORE[access]):
                kind = trace(path, disk).kind
                rules.setdefault(path, Rule(path, access, kind, rule.why))


def _gives(rules: Mapping[str, Rule], path: str, accesses: tuple[str, ...]) -> bool:
    """Return True if the directory of a path has one of these accesses."""
    over = rule_above(rules, path)
    return over is not None and over.access in accesses

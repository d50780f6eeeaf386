"""
Predicts whether a sandbox permits writing a path.

The sandbox itself makes the final decision. Unknown paths count as denied, so that the approver is
asked.
"""

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.agent.approvals.permissions import entry_paths, file_entries
from holdfast.base.dialect import names
from holdfast.engine.sandbox.policy.policy import GIT_NAMES
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["WriteAccess", "writable_roots", "write_access"]

# Names directly below a writable directory that a sandbox always protects.
_PROTECTED = frozenset({*names.PROTECTED_NAMES, ".holdfast"})


@dataclass(frozen=True, slots=True)
class WriteAccess:
    """The access at and below certain paths; None if everything is writable."""

    rules: tuple[tuple[str, str], ...] | None
    """Absolute paths, each with `read`, `write` or `deny`."""

    @property
    def writes_anything(self) -> bool:
        """False if the sandbox is read-only."""
        return self.rules is None or any(access == "write" for _, access in self.rules)

    def may_write(self, path: str) -> bool:
        """Return True if a normalized absolute path is writable."""
        if self.rules is None:
            return True
        covering = [rule for rule in self.rules if _covers(rule[0], path)]
        if not covering:
            return False
        longest = max(len(folder) for folder, _ in covering)
        deciding = [rule for rule in covering if len(rule[0]) == longest]
        if any(access != "write" for _, access in deciding):
            return False
        below = path[longest:].strip("/").partition("/")[0]
        in_git = ".git" in path[:longest].split("/")
        return below not in _PROTECTED and not (in_git and below in GIT_NAMES)

    def also(self, same: Iterable[tuple[str, str]]) -> "WriteAccess":
        """
        Return the access with rules for alternative spellings of paths added.

        Args:
            same: Pairs of a path with a rule, and the same path with links resolved.
        """
        if self.rules is None:
            return self
        real = dict(same)
        more = tuple((real[path], access) for path, access in self.rules if path in real)
        return WriteAccess((*self.rules, *more))


def write_access(context: SandboxContext | None, *, tmpdir: str | None = None) -> WriteAccess:
    """
    Return the paths that a sandbox permits writing.

    Args:
        context: The sandbox; None for no sandbox.
        tmpdir: The value of `:tmpdir` in the environment, if known.
    """
    entries = file_entries(context)
    if context is None or entries is None:
        return WriteAccess(None)
    rules = (
        (posixpath.normpath(path), "deny" if entry.access == "none" else entry.access)
        for entry in entries
        for path in entry_paths(entry, context, tmpdir=tmpdir)
    )
    return WriteAccess(tuple(rules))


def writable_roots(
    context: SandboxContext | None, *, tmpdir: str | None = None
) -> tuple[str, ...] | None:
    """
    Return all paths at and below which a sandbox may permit writing.

    Exceptions below them are ignored, since the caller trusts files outside these paths.

    Args:
        context: The sandbox.
        tmpdir: The value of `TMPDIR`, if set.

    Returns:
        None if everything is writable.
    """
    rules = write_access(context, tmpdir=tmpdir).rules
    if rules is None:
        return None
    roots = [path for path, access in rules if access == "write"]
    roots += (folder.native for folder in (context and context.temporary_directories) or ())
    return tuple(dict.fromkeys([*roots, *([] if tmpdir is None else [tmpdir])]))


def _covers(folder: str, path: str) -> bool:
    return folder == "/" or path == folder or path.startswith(f"{folder}/")

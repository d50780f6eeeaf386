"""
The cache of a session: commands that somebody accepted for the whole session.

A key says exactly what will run. Its digest binds a question to it.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.agent.approvals.permissions import NO_PERMISSIONS, AddedPermissions

__all__ = ["CAPACITY", "CommandKey", "SessionCache", "canonical_command"]

CAPACITY = 4_096
"""Accepted commands that are remembered; of more, the one used longest ago is forgotten."""

_SHELLS = frozenset({"bash", "sh", "zsh"})
_FLAGS = frozenset({"-c", "-lc"})
_SCRIPT = "__codex_shell_script__"


def canonical_command(
    argv: Sequence[str], segments: Sequence[Sequence[str]], *, plain: bool
) -> tuple[str, ...]:
    """
    Return what two commands have in common that count as the same.

    Args:
        argv: The command.
        segments: What it was split into.
        plain: True if it is a script that could be split.
    """
    words = tuple(argv)
    if not is_shell_script(words):
        return words
    # A program called like the marker must not pass for the script that is its argument.
    if plain and len(segments) == 1 and _SCRIPT not in segments[0][:1]:
        return tuple(segments[0])
    return (_SCRIPT, *words[1:])


def is_shell_script(argv: Sequence[str]) -> bool:
    """Return True for exactly `SHELL -c SCRIPT` or `SHELL -lc SCRIPT`."""
    return len(argv) == 3 and argv[0].rpartition("/")[2] in _SHELLS and argv[1] in _FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandKey:
    """All that has to be the same for an approval to count again."""

    environment_id: str
    executable: str
    command: tuple[str, ...]
    """The canonical command."""
    cwd: str
    tty: bool
    sandbox_permissions: str
    permissions: AddedPermissions = NO_PERMISSIONS
    rules_fingerprint: str | None = None
    """Stands for the rules that belong to the environment."""

    def digest(self, *more: str) -> str:
        """Return the SHA-256 of the key, and of whatever else a question is about."""
        members: list[object] = [
            self.environment_id,
            self.executable,
            self.command,
            self.cwd,
            self.tty,
            self.sandbox_permissions,
            self.permissions.to_json(),
            self.rules_fingerprint,
            more,
        ]
        text = json.dumps(members, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class SessionCache:
    """The commands that were accepted for a session. Denials are never remembered."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        # By their digests: a command may be a megabyte long.
        self._accepted: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accepted)

    def add(self, key: CommandKey) -> None:
        """Remember that a command was accepted for the session."""
        digest = key.digest()
        self._accepted[digest] = None
        self._accepted.move_to_end(digest)
        while len(self._accepted) > self._capacity:
            self._accepted.popitem(last=False)

    def holds(self, *keys: CommandKey) -> bool:
        """Return True if all of these were accepted; False for none at all."""
        digests = [key.digest() for key in keys]
        if not digests or not all(digest in self._accepted for digest in digests):
            return False
        for digest in digests:
            self._accepted.move_to_end(digest)
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._accepted.clear()

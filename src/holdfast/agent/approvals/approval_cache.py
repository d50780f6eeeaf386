"""
Cache of the commands accepted for a whole session.

A key identifies exactly what will run. Its digest binds a question to it.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.agent.approvals.permissions import NO_PERMISSIONS, AddedPermissions

__all__ = ["CAPACITY", "CommandKey", "SessionCache", "canonical_command"]

CAPACITY = 4_096
"""Most commands to remember; beyond that, the least recently used one is forgotten."""

_SHELLS = frozenset({"bash", "sh", "zsh"})
_FLAGS = frozenset({"-c", "-lc"})
_SCRIPT = "__codex_shell_script__"


def canonical_command(
    argv: Sequence[str], segments: Sequence[Sequence[str]], *, plain: bool
) -> tuple[str, ...]:
    """
    Return the form of a command by which equivalent commands are equal.

    Args:
        argv: The command.
        segments: The commands in it.
        plain: True if it is a script that could be split.
    """
    words = tuple(argv)
    if not is_shell_script(words):
        return words
    # A program named like the marker must not be confused with a script.
    if plain and len(segments) == 1 and _SCRIPT not in segments[0][:1]:
        return tuple(segments[0])
    return (_SCRIPT, *words[1:])


def is_shell_script(argv: Sequence[str]) -> bool:
    """Return True for exactly `SHELL -c SCRIPT` or `SHELL -lc SCRIPT`."""
    return len(argv) == 3 and argv[0].rpartition("/")[2] in _SHELLS and argv[1] in _FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandKey:
    """Everything that must be equal for an approval to apply again."""

    environment_id: str
    executable: str
    command: tuple[str, ...]
    """The canonical command."""
    cwd: str
    tty: bool
    sandbox_permissions: str
    permissions: AddedPermissions = NO_PERMISSIONS
    rules_fingerprint: str | None = None
    """Identifies the rules of the environment."""

    def digest(self, *more: str) -> str:
        """Return the SHA-256 of the key and of further subjects of a question."""
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
    """The commands accepted for a session. Denials are never remembered."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        # By digest, since a command may be a megabyte long.
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
        """Return True if all keys were accepted; False without any keys."""
        digests = [key.digest() for key in keys]
        if not digests or not all(digest in self._accepted for digest in digests):
            return False
        for digest in digests:
            self._accepted.move_to_end(digest)
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._accepted.clear()

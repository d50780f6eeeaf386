"""
The text of a macOS Seatbelt profile for a policy [sandbox.macos].

Experimental: the text is made and tested as a text; nobody has run it. On macOS a rule
is checked at each access, so patterns hold for files that appear later, too.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.sandbox.policy import PROTECTED_NAMES, Policy, parent_of

__all__ = ["Seatbelt", "seatbelt"]

_BASE: Final = """\
(version 1)
(deny default)
(allow process-exec)
(allow process-fork)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow file-write-data (require-all (path "/dev/null") (vnode-type CHARACTER-DEVICE)))
(allow sysctl-read (sysctl-name-prefix "hw.") (sysctl-name-prefix "kern."))
(allow ipc-posix-sem)
(allow pseudo-tty)
(allow file-read* file-write* file-ioctl (literal "/dev/ptmx"))
(allow file-read* file-write* (regex #"^/dev/ttys[0-9]+$"))
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow mach-lookup (global-name "com.apple.PowerManagement.control"))
"""

_PLATFORM: Final = (
    "/bin",
    "/sbin",
    "/usr",
    "/etc",
    "/private/etc",
    "/dev",
    "/System",
    "/Library/Apple",
    "/private/var/db/dyld",
)
_NETWORK: Final = """\
(allow network-outbound)
(allow network-inbound)
(allow system-socket)
(allow mach-lookup (global-name "com.apple.dnssd.service"))
(allow mach-lookup (global-name "com.apple.SystemConfiguration.configd"))
"""


class Seatbelt(NamedTuple):
    """What `sandbox-exec` is given."""

    text: str
    parameters: tuple[tuple[str, str], ...]
    """Paths by the names that the text calls them."""

    def arguments(self) -> list[str]:
        """For `/usr/bin/sandbox-exec`, before `--` and the command."""
        return ["-p", self.text, *(f"-D{name}={path}" for name, path in self.parameters)]


def seatbelt(policy: Policy) -> Seatbelt:
    """
    Write the profile.

    Paths are parameters, so that none of them can end a text of the profile and
    begin a rule of its own.
    """
    writing = _Writing(policy)
    writing.reads()
    writing.writes()
    writing.denials()
    return Seatbelt(
        _BASE + "\n".join(writing.lines) + "\n" + (_NETWORK if policy.network == "enabled" else ""),
        tuple(writing.parameters),
    )


class _Writing:
    def __init__(self, policy: Policy) -> None:
        self.lines: list[str] = []
        self.parameters: list[tuple[str, str]] = []
        self._policy = policy

    def reads(self) -> None:
        policy = self._policy
        if policy.full_write or "/" in policy.rules:
            self.lines.append("(allow file-read*)")
            return
        readable = [*policy.readable, *policy.writable, *(_PLATFORM if policy.minimal else ())]
        for path in readable:
            self.lines.append(f"(allow file-read* {self._below('READABLE', path)})")
        for above in sorted({above for path in readable for above in _parents(path)}):
            # Without these a path cannot be resolved; they show no names.
            self.lines.append(f"(allow file-read-metadata {self._at('WAY', above)})")

    def writes(self) -> None:
        policy = self._policy
        if policy.full_write:
            self.lines.append("(allow file-write*)")
        for root in policy.writable:
            # Later rules win, and what is protected comes later.
            self.lines.append(f"(allow file-write* {self._below('WRITABLE', root)})")
        for root in policy.writable:
            for name in PROTECTED_NAMES:
                path = f"{root.rstrip('/')}/{name}"
                if policy.access(path) != "write":
                    self.lines.append(f"(deny file-write* {self._below('PROTECTED', path)})")
        for path in sorted(policy.rules):
            rule = policy.rules[path]
            over = policy.governing(parent_of(path)) if path != "/" else None
            if over is None or over.access != "write":
                continue
            if rule.access == "read" and path.rpartition("/")[2] not in PROTECTED_NAMES:
                self.lines.append(f"(deny file-write* {self._below('READONLY', path)})")
            elif rule.why == "pin":
                self.lines.append(f"(deny file-write-unlink {self._at('PINNED', path)})")

    def denials(self) -> None:
        for path in self._policy.denied:
            inside = path.rstrip("/") + "/"
            self.lines.append(f"(deny file-read* file-write* {self._below('DENIED', path)})")
            for root in self._policy.writable:
                if root.startswith(inside):
                    self.lines.append(
                        f"(allow file-read* file-write* {self._below('REOPENED', root)})"
                    )
        for glob in self._policy.globs:
            pattern = _quoted(f"^(?:{glob.regex})$")
            self.lines.append(f"(deny file-read* file-write* (regex #{pattern}))")

    def _below(self, word: str, path: str) -> str:
        return f"(subpath {self._parameter(word, path)})"

    def _at(self, word: str, path: str) -> str:
        return f"(literal {self._parameter(word, path)})"

    def _parameter(self, word: str, path: str) -> str:
        name = f"{word}_{len(self.parameters)}"
        self.parameters.append((name, path))
        return f'(param "{name}")'


def _parents(path: str) -> list[str]:
    found = []
    while path != "/":
        path = parent_of(path)
        found.append(path)
    return found


def _quoted(pattern: str) -> str:
    """A regular expression as a text of the profile, which knows no groups without a number."""
    pattern = pattern.replace("(?:", "(").replace("(?!/)", "")
    return '"' + re.sub(r'(?<!\\)"', r"\"", pattern) + '"'

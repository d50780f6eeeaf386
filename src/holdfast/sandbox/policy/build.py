"""
From a profile to rules: what its entries mean here and now [sandbox.*].

Entries may be missing on disk and may lead through links. What comes out has none of
that: real paths, each with what holds there. Rules that no entry asks for are made here
too: protected names, the first missing part of a path that must stay missing, sockets of
engines that would run anything, and directories that must keep their name because of
what is below them (13, rule 2).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Final

from holdfast.errors import CannotEnforce, InvalidParams
from holdfast.local_servers import Reachable
from holdfast.protocol.sandbox import (
    DisabledProfile,
    ManagedProfile,
    Network,
    RestrictedFiles,
    SandboxContext,
)
from holdfast.sandbox.policy.disk import HOST, Disk, Remembering, Seen, Traced, trace
from holdfast.sandbox.policy.policy import (
    KEPT_NAMES,
    PATH_MAX,
    PROTECTED_NAMES,
    Kind,
    Policy,
    Rule,
    Why,
    parent_of,
)
from holdfast.sandbox.profile.entries import Wanted, Wish, check_places, read_entries
from holdfast.sandbox.profile.globs import LOOK_LIMIT, MAX_MATCHES, Glob, expand

__all__ = ["PLATFORM_DIRECTORIES", "Facts", "resolve"]

PLATFORM_DIRECTORIES: Final = (
    "/bin",
    "/sbin",
    "/usr",
    "/etc",
    "/lib",
    "/lib64",
    "/nix/store",
    "/run/current-system/sw",
)
"""What `minimal` makes readable, as far as it is there: programs and their libraries."""

_ENGINE_SOCKETS: Final = (
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/libvirt/libvirt-sock",
    "/run/snapd.socket",
    "/run/user/{uid}/bus",
    "/run/user/{uid}/docker.sock",
    "/run/user/{uid}/podman/podman.sock",
    "/run/user/{uid}/systemd/private",
    "/tmp/codex-daemon-{uid}",  # noqa: S108 (not ours)
)
"""
Whoever may talk to one of these can have anything run outside. Without network nobody
can connect to a socket; with it, these are hidden unless an entry names them.
"""

_STRENGTH: Final = {"read": 0, "write": 1, "deny": 2}
"""Of two entries for one path the stronger one holds."""

_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 (where a TMPDIR may be)


_NOBODY: Final = Reachable()


@dataclass(frozen=True, slots=True)
class Facts:
    """What a profile means depends on these."""

    cwd: str | None
    """The directory of the command; `None` for an operation on files, which has none."""
    tmpdir: str | None = None
    """What `tmpdir` stands for; nothing if it is empty or not absolute."""
    own_tmpdir: str | None = None
    """The server's own: what a request names may be in there."""
    home: str | None = None
    """Not to be had through `tmpdir`."""
    uid: int = 0
    reachable: Reachable = _NOBODY
    """The ways to use the Holdfast servers of this user."""
    disk: Disk = HOST


def resolve(context: SandboxContext, facts: Facts) -> Policy:
    """
    Work out the rules of a profile.

    Raises:
        InvalidPermissionPath: An entry names a path of another system.
        InvalidParams: The directory or a root does, or they are needed and not given; or
            `tmpdir` stands for something that no temporary directory is.
        CannotEnforce: A pattern cannot be looked for, or a rule could be got around
            because its path leads through a link that the command may change.
    """
    profile = context.permissions
    if isinstance(profile, DisabledProfile):
        return _FREE
    if not (
        isinstance(profile, ManagedProfile) and isinstance(profile.file_system, RestrictedFiles)
    ):
        if facts.cwd is not None:
            check_places(context)
        return _all_writing(profile.network, facts)
    key = (context, facts)
    kept = _kept.get(key)
    if kept is not None and kept[1].hold():
        return kept[0]
    memory = Remembering(facts.disk)
    policy = _make(context, facts, profile.network, memory)
    if len(_kept) >= _KEPT_AT_MOST:
        _kept.clear()
    if not policy.globs:
        _kept[key] = (policy, memory)
    return policy


def _make(context: SandboxContext, facts: Facts, network: Network, disk: Remembering) -> Policy:
    wanted = read_entries(context, facts.cwd)
    making = _Making(wanted, facts, disk)
    making.take_entries()
    if making.grants_all_writing():
        return _all_writing(network, facts)
    making.complete(sockets=network == "enabled")
    return Policy(
        network=network,
        full_read="/" in making.rules and not making.denies,
        full_write=False,
        minimal=wanted.minimal,
        rules=making.rules,
        globs=tuple(making.globs),
        links=tuple(dict.fromkeys(making.links)),
        legacy_landlock=context.use_legacy_landlock,
    )


def _all_writing(network: Network, facts: Facts) -> Policy:
    """Everything may be written; without network, the secrets of servers are hidden even so."""
    if network != "restricted" or facts.cwd is None:
        return Policy(network=network)  # nobody is enclosed, so nothing can be hidden
    found = [trace(path, facts.disk) for path in facts.reachable.secrets]
    rules = {it.path: Rule(it.path, "deny", it.kind, "server") for it in found if it.kind}
    return Policy(network=network, rules=rules)


_kept: Final[dict[tuple[SandboxContext, Facts], tuple[Policy, Remembering]]] = {}
"""Policies by what they were made from. Asking the disk again is all it takes to use one."""

_KEPT_AT_MOST: Final = 128

_FREE: Final = Policy()


class _Making:
    """Rules in the making."""

    def __init__(self, wanted: Wanted, facts: Facts, disk: Disk) -> None:
        self.rules: dict[str, Rule] = {}
        self.links: list[tuple[str, str]] = []
        self.globs = list(wanted.globs)
        self.denies = bool(wanted.globs)
        self._wanted = wanted
        self._facts = facts
        self._disk = disk
        # Where protected names are given up, and entries whose links are yet to be judged.
        self._lifted: set[str] = set()
        self._linked: list[tuple[Wish, Traced]] = []

    def take_entries(self) -> None:
        """Look up every entry; of two for one path the stronger holds."""
        for wish in chain(self._wanted.wishes, self._tmpdir()):
            _refuse_impossible(wish.path)
            found = trace(wish.path, self._disk)
            if wish.access == "deny":
                self.denies = True
            if wish.access == "write" and found.kind is None:
                self._lifted.add(found.path)
                continue
            if found.links:
                self._linked.append((wish, found))
            known = self.rules.get(found.path)
            if known is None or _STRENGTH[known.access] < _STRENGTH[wish.access]:
                self.rules[found.path] = Rule(found.path, wish.access, found.kind)
        for path in self._lifted:
            # Writing is the stronger of the two, here as well.
            if path in self.rules and self.rules[path].access == "read":
                del self.rules[path]

    def grants_all_writing(self) -> bool:
        """Whether nothing narrows a writable `/`."""
        root = self.rules.get("/")
        return (
            root is not None
            and root.access == "write"
            and not self.denies
            and all(rule.access == "write" for rule in self.rules.values())
        )

    def complete(self, *, sockets: bool) -> None:
        """Add what no entry says, and drop what has no effect."""
        root = self.rules.get("/")
        if root is not None and root.access == "deny":
            del self.rules["/"]  # what no rule covers is hidden anyway
        self._judge_links()
        deadline = monotonic() + LOOK_LIMIT
        for pattern in self._wanted.globs:
            placed = self._place(pattern)
            for path in expand(placed, self._disk, limit=MAX_MATCHES, deadline=deadline):
                self._deny_match(path)
        if self._wanted.minimal:
            for path in PLATFORM_DIRECTORIES:
                self._add_found(path, "platform")
        if sockets:
            for path in _ENGINE_SOCKETS:
                self._hide_socket(path.format(uid=self._facts.uid))
            for path in self._facts.reachable.sockets:
                self._hide_from_all(path)
        for path in self._facts.reachable.secrets:
            self._hide_from_all(path)
        self._drop_reading_below_denied()
        for rule in [rule for rule in self.rules.values() if rule.access == "write"]:
            self._protect(rule)
        for rule in list(self.rules.values()):
            self._cover_or_pin(rule)

    def _tmpdir(self) -> Iterator[Wish]:
        path = self._facts.tmpdir
        if not self._wanted.tmpdir or not path or not path.startswith("/"):
            return
        _refuse_impossible(path)
        found = trace(path, self._disk)
        for access in self._wanted.tmpdir:
            over = self.rules.get(found.path) or self._above(found.path)
            given = over is not None and access == "read" and over.access != "deny"
            if access != "deny" and not given and found.kind is not None:
                fault = self._tmpdir_fault(found.path)
                if fault is not None:
                    word = "writable" if access == "write" else "readable"
                    raise InvalidParams(
                        f"sandbox entry `tmpdir` cannot make `{found.path}` {word}: {fault}"
                    )
            yield Wish(path, access)

    def _tmpdir_fault(self, path: str) -> str | None:
        """
        Why a directory is not taken for a temporary one, if so.

        A variable must not hand out what no entry names (13, rule 5), and less so what
        an entry keeps from the command. The entries have been looked up by now.
        """
        roots = [trace(root, self._disk).path for root in self._wanted.roots]
        if self._is_wide(path, roots):
            return "TMPDIR has to be a directory of its own"
        own = [
            place for place in self._real(self._facts.own_tmpdir) if not self._is_wide(place, roots)
        ]
        shared = [place for name in _TEMPORARY for place in self._real(name)]
        if not any(_covers(place, path) for place in (*own, *shared, *roots)):
            return (
                "TMPDIR has to be in the server's own temporary directory, in /tmp, in "
                "/var/tmp or in a workspace root"
            )
        over = self.rules.get(path) or self._above(path)
        if over is None:
            return None
        if over.access == "write":
            name = path.removeprefix(over.path).lstrip("/").partition("/")[0]
            kept = name in PROTECTED_NAMES or name in KEPT_NAMES
        else:
            around = self._above(over.path)
            kept = over.access == "deny" or (around is not None and around.access == "write")
        return "TMPDIR must not be in what the profile protects or denies" if kept else None

    def _is_wide(self, path: str, roots: list[str]) -> bool:
        """Whether a directory holds more than temporary files."""
        return (
            path == "/"
            or any(_covers(path, home) for home in self._real(self._facts.home))
            or any(_covers(path, root) and path != root for root in roots)
        )

    def _real(self, path: str | None) -> list[str]:
        """Where a directory really is; nowhere if it is not given, or `/`."""
        if not path or not path.startswith("/"):
            return []
        real = trace(path, self._disk).path
        return [] if real == "/" else [real]

    # -- links

    def _judge_links(self) -> None:
        for wish, found in self._linked:
            self._refuse_links(wish.path, wish.access, found)
            if wish.access == "deny" and (found.itself or "").startswith("/"):
                # The real server fails on these (and only on these), so nobody relies
                # on them; refusing is clearer than to hide the file but not the link.
                raise CannotEnforce(
                    f"cannot enforce sandbox deny-read path {wish.path} because it is an "
                    f"absolute symlink: deny {found.path} instead"
                )
            if wish.access != "deny":
                self.links += found.links

    def _refuse_links(self, path: str, access: str, found: Traced) -> None:
        """
        Refuse a path that leads through a link which the command may change.

        The next command's rule would then follow the changed link. A writable path
        does no harm as long as it ends where writing is allowed anyway.
        """
        for link, _ in found.links:
            over = self._above(link)
            if over is None or over.access != "write":
                continue
            if access == "write":
                end = self._above(found.path)
                if end is not None and end.access == "write":
                    continue
            raise CannotEnforce(
                f"cannot enforce sandbox {_WORDS[access]} path {path} "
                f"because it crosses writable symlink {link}"
            )

    # -- rules that no entry asks for

    def _add_found(self, path: str, why: Why) -> None:
        found = trace(path, self._disk)
        if found.kind is not None:
            self.links += found.links
            self.rules.setdefault(found.path, Rule(found.path, "read", found.kind, why))

    def _place(self, pattern: Glob) -> Glob:
        """A pattern where its directory really is: what is found there has its real path."""
        found = trace(pattern.folder, self._disk)
        if found.path == pattern.folder:
            return pattern
        self._refuse_links(pattern.pattern, "deny", found)
        placed = pattern.within(found.path)
        self.globs.append(placed)
        return placed

    def _deny_match(self, path: str) -> None:
        found = trace(path, self._disk)
        if found.links:
            self._refuse_links(path, "deny", found)
        if found.kind is not None:
            self.rules[found.path] = Rule(found.path, "deny", found.kind, "glob")

    def _hide_socket(self, path: str) -> None:
        found = trace(path, self._disk)
        if found.kind is not None and found.path not in self.rules:
            self.rules[found.path] = Rule(found.path, "deny", found.kind, "socket")

    def _hide_from_all(self, path: str) -> None:
        """Deny what belongs to a Holdfast server, whatever entries say about it."""
        found = trace(path, self._disk)
        if found.kind is None:
            return
        for below in [known for known in self.rules if _covers(found.path, known)]:
            del self.rules[below]
        if self._above(found.path) is None:
            return  # nothing shows it
        self.rules[found.path] = Rule(found.path, "deny", found.kind, "server")

    def _drop_reading_below_denied(self) -> None:
        """What is denied is opened up again for writing only, as the real server does."""
        for path in sorted(self.rules):
            if self.rules[path].access == "read":
                over = self._above(path)
                if over is not None and over.access == "deny":
                    del self.rules[path]

    def _protect(self, root: Rule) -> None:
        """Keep the protected names of a writable root as they are, or missing."""
        if root.kind != "directory":
            return
        over = self._above(root.path)
        if (
            root.path.rpartition("/")[2] in (*PROTECTED_NAMES, *KEPT_NAMES)
            and over is not None
            and (over.access == "write" or over.why == "protected")
        ):
            return  # an entry opened it up on purpose
        start = root.path.rstrip("/")
        for name in PROTECTED_NAMES:
            path = f"{start}/{name}"
            if path not in self.rules and path not in self._lifted:
                self._protect_name(root.path, path)
        for name in KEPT_NAMES:
            path = f"{start}/{name}"
            # A command may have made a link: nothing is to be kept, and no start to fail of it.
            if path not in self.rules and self._disk.kind(path) in ("directory", "file"):
                self._protect_name(root.path, path)
        git = self.rules.get(f"{start}/.git")
        if git is not None and git.access != "write" and git.kind == "file":
            self._protect_pointed(start, git.path)

    def _protect_name(self, root: str, path: str) -> None:
        kind = self._disk.kind(path)
        if kind is None and (root == "/" or not self._disk.can_create(root)):
            return  # nobody can make it: not this user, or (13, rule 16) not in `/`
        if kind == "link":
            self._refuse_links(path, "read", trace(path, self._disk))
            return
        blank = kind == "directory" and self._disk.is_blank(path)
        self.rules[path] = Rule(path, "read", kind, "protected", blank)

    def _protect_pointed(self, root: str, pointer: str) -> None:
        """A `.git` file names the directory that has to be protected in its place."""
        said = self._disk.text(pointer).lstrip()
        if not said.startswith("gitdir:"):
            return
        path = said.removeprefix("gitdir:").strip().rstrip("\0")
        path = path if path.startswith("/") else f"{root}/{path}"
        found = trace(path, self._disk)
        over = self._above(found.path)
        if over is None or over.access != "write":
            return
        self._refuse_links(path, "read", found)
        # If it is missing, nobody may make it: git would take it for the repository.
        self.rules.setdefault(found.path, Rule(found.path, "read", found.kind, "gitdir"))

    def _cover_or_pin(self, rule: Rule) -> None:
        """Keep a rule inside of a writable root from being moved out of the way."""
        over = self._above(rule.path)
        if over is None or over.access != "write" or rule.access == "write":
            return
        path = rule.path
        if rule.kind is None:
            path, kind = self._first_missing(path, over.path)
            if over.kind != "directory" or (
                kind is None and not self._disk.can_create(parent_of(path))
            ):
                del self.rules[rule.path]  # nobody can make it
                return
            blank = kind is not None and self._disk.is_blank(path)
            self.rules.setdefault(path, Rule(path, "read", kind, "cover", blank))
        elif rule.why in ("entry", "gitdir") and self._disk.is_blank(path):
            self.rules[path] = rule._replace(blank=True)
        path = parent_of(path)
        while path != over.path:
            self.rules.setdefault(path, Rule(path, "write", "directory", "pin"))
            path = parent_of(path)

    def _first_missing(self, path: str, root: str) -> tuple[str, Kind | None]:
        """The part of a missing path to cover: the first one that is not a directory."""
        parts = path.removeprefix(root).strip("/").split("/")
        at = root.rstrip("/")
        kind: Seen | None = "directory"
        for part in parts:
            at = f"{at}/{part}"
            kind = self._disk.kind(at)
            if kind != "directory":
                break
        assert kind != "directory"  # the path ended before this, or it would be there
        assert kind != "link"  # each was followed
        return at, kind

    def _above(self, path: str) -> Rule | None:
        """The rule that governs a path if the path has none of its own."""
        while path != "/":
            path = parent_of(path)
            rule = self.rules.get(path)
            if rule is not None:
                return rule
        return None


def _refuse_impossible(path: str) -> None:
    """
    Refuse a path that no system call takes.

    Looking at each part of one that is too long could take minutes.

    Raises:
        CannotEnforce: It is too long, or has a NUL.
    """
    if "\0" in path:
        raise CannotEnforce(
            f"cannot enforce sandbox entry for {path[:80]!r}: there is a NUL in that path"
        )
    length = len(os.fsencode(path))
    if length >= PATH_MAX:
        raise CannotEnforce(
            f"cannot enforce sandbox entry for `{path[:80]}…`: its {length:,} bytes are more than"
            f" the {PATH_MAX - 1:,} of a path"
        )


_WORDS: Final = {"read": "read-only", "write": "writable", "deny": "deny-read"}


def _covers(path: str, other: str) -> bool:
    return path == "/" or other == path or other.startswith(path + "/")

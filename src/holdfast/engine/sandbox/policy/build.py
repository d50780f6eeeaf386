"""
Builds the policy of a profile for the files that are on disk now [sandbox.*].

A path in a profile may be missing on disk and may lead through symbolic links. A policy has only
real paths, each with its access. Some rules come from no entry. They protect names such as `.git`,
keep missing paths missing, and hide sockets of container engines. They keep code and settings of
Holdfast read-only. They repeat what a rule forbids at the other paths of the same files. And they
keep the names of directories with a rule below them (13, rule 2).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from math import inf
from time import monotonic
from typing import Final, Literal, NamedTuple

from holdfast.base.dialect import texts
from holdfast.base.errors import CannotEnforce, InvalidParams
from holdfast.base.local_servers import Reachable
from holdfast.engine.linux.mounts import NO_MOUNTS, MountTable
from holdfast.engine.sandbox.policy.aliases import at_all_paths, repeat_at_aliases
from holdfast.engine.sandbox.policy.disk import HOST, Disk, RememberedDisk, Seen, Traced, trace
from holdfast.engine.sandbox.policy.known_paths import (
    ENGINE_SOCKETS,
    PLATFORM_DIRECTORIES,
    ROOT_SOCKETS,
)
from holdfast.engine.sandbox.policy.own_paths import OwnPath, keep_own, keep_own_links
from holdfast.engine.sandbox.policy.policy import (
    GIT_NAMES,
    KEPT_NAMES,
    PATH_MAX,
    PROTECTED_NAMES,
    Kind,
    Policy,
    Rule,
    Why,
    covers,
    is_private,
    parent_of,
    rule_above,
)
from holdfast.engine.sandbox.policy.temporary import tmpdir_fault
from holdfast.engine.sandbox.profile.entries import PathRequest, ProfileRequest, read_entries
from holdfast.engine.sandbox.profile.globs import LOOK_LIMIT, MAX_MATCHES, Glob, expand
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ManagedProfile,
    Network,
    RestrictedFiles,
    SandboxContext,
)
from holdfast.wire.protocol.sandbox_directories import check_directories

__all__ = ["PolicyInputs", "resolve"]

# Of two entries for one path, the one with the higher number wins.
_STRENGTH: Final = {"read": 0, "write": 1, "deny": 2}

# The request of a profile without restrictions.
_NO_ENTRIES: Final = ProfileRequest((), (), minimal=False, tmpdir=(), roots=())

# No servers: the default of tests and of operations that do not need them.
_NOBODY: Final = Reachable()


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """Facts of the request and the host that decide which paths a profile stands for."""

    cwd: str | None
    """Working directory of the command; `None` for a file operation, which has none."""
    tmpdir: str | None = None
    """Path that `tmpdir` stands for; ignored if it is empty or not absolute."""
    own_tmpdir: str | None = None
    """Temporary directory of the server; `tmpdir` may be below it."""
    home: str | None = None
    """Home directory of the user, which `tmpdir` must not contain."""
    uid: int = 0
    """User id for the paths of per-user sockets."""
    reachable: Reachable = _NOBODY
    """Sockets and token files of this user's Holdfast servers."""
    own: tuple[OwnPath, ...] = ()
    """Code and settings of Holdfast, which no command may write."""
    mounts: MountTable = NO_MOUNTS
    """Mounts of this machine, by which a file may have several paths."""
    makes: bool = False
    """True to create missing directories of settings that a command could create."""
    search_valid: float = 0.0
    """Seconds for which matches of patterns may be used again, or as long as the search took."""
    disk: Disk = HOST
    """File system to query; another one in tests."""


def resolve(context: SandboxContext, facts: PolicyInputs) -> Policy:
    """
    Return the policy for a profile.

    An earlier policy is reused if the disk still gives all the answers it was built from.

    Raises:
        InvalidPermissionPath: An entry names a path of another operating system.
        InvalidParams: The working directory or a root does, or is needed and not given; or
            `tmpdir` is not a temporary directory.
        CannotEnforce: A pattern cannot be searched for, or a path leads through a symbolic
            link that the command may change.
    """
    profile = context.permissions
    if isinstance(profile, DisabledProfile):
        return _FREE
    if not (
        isinstance(profile, ManagedProfile) and isinstance(profile.file_system, RestrictedFiles)
    ):
        if facts.cwd is not None:
            check_directories(context)
        return _all_writing(context, profile.network, facts)
    key = (context, facts)
    known = _known(key)
    if known is not None:
        return known
    memory = RememberedDisk(facts.disk)
    begun = monotonic()
    policy = _make(context, facts, profile.network, memory)
    if not policy.globs:
        return _keep(key, policy, memory)
    # Asking again for all files that match a pattern would cost as much as building it again.
    if not facts.search_valid:
        return policy
    memory.forget_search()
    ended = monotonic()
    return _keep(key, policy, memory, until=ended + max(facts.search_valid, ended - begun))


def _make(
    context: SandboxContext, facts: PolicyInputs, network: Network, disk: RememberedDisk
) -> Policy:
    profile = read_entries(context, facts.cwd)
    builder = _PolicyBuilder(profile, facts, disk)
    builder.take_entries()
    if builder.grants_all_writing():
        return _all_writing(context, network, facts)
    builder.complete(sockets=network == "enabled")
    return Policy(
        network=network,
        full_read="/" in builder.rules and not builder.denies,
        full_write=False,
        minimal=profile.minimal,
        rules=builder.rules,
        globs=tuple(builder.globs),
        links=tuple(dict.fromkeys(builder.links)),
        mounts=facts.mounts if builder.globs else NO_MOUNTS,
        group_directories=tuple(
            rule.path
            for rule in builder.rules.values()
            if (rule.access, rule.kind) == ("write", "directory") and disk.sets_group(rule.path)
        ),
        legacy_landlock=context.use_legacy_landlock,
    )


def _all_writing(context: SandboxContext, network: Network, facts: PolicyInputs) -> Policy:
    """Return a policy that allows all writing, except for the files of Holdfast itself."""
    if network != "restricted" or facts.cwd is None:
        # There is no mount namespace in this case, so nothing can be hidden or read-only.
        return Policy(network=network)
    key = (context, facts)
    known = _known(key)
    if known is not None:
        return known
    memory = RememberedDisk(facts.disk)
    builder = _PolicyBuilder(_NO_ENTRIES, facts, memory)
    builder.rules["/"] = Rule("/", "write", "directory")
    builder.complete(sockets=False, names=False)
    # Without it, since all else may be written: devices and shared memory included.
    del builder.rules["/"]
    return _keep(key, Policy(network=network, rules=builder.rules), memory)


class _KeptPolicy(NamedTuple):
    """Policy, the answers of the disk it was built from, and the time until it may be used."""

    policy: Policy
    memory: RememberedDisk
    until: float


def _known(key: tuple[SandboxContext, PolicyInputs]) -> Policy | None:
    """Return an earlier policy if the disk still gives the same answers."""
    kept = _policies.get(key)
    if kept is None or monotonic() >= kept.until or not kept.memory.still_true():
        return None
    return kept.policy


def _keep(
    key: tuple[SandboxContext, PolicyInputs],
    policy: Policy,
    memory: RememberedDisk,
    *,
    until: float = inf,
) -> Policy:
    # The policies of other mounts are outdated.
    outdated = any(facts.mounts is not key[1].mounts for _, facts in islice(_policies, 1))
    if outdated or len(_policies) >= _MAX_POLICIES:
        _policies.clear()
    _policies[key] = _KeptPolicy(policy, memory, until)
    return policy


# Policies by the arguments of `resolve`.
_policies: Final[dict[tuple[SandboxContext, PolicyInputs], _KeptPolicy]] = {}

# A server sees a few profiles and directories; more than this many means that they change.
_MAX_POLICIES: Final = 128

_FREE: Final = Policy()


class _PolicyBuilder:
    """
    Collects the rules of one policy.

    Call `take_entries`, then `complete`. Each rule replaces or yields to those that are known
    by then, so the order of the steps is part of the meaning.
    """

    def __init__(self, profile: ProfileRequest, facts: PolicyInputs, disk: RememberedDisk) -> None:
        self.rules: dict[str, Rule] = {}
        self.links: list[tuple[str, str]] = []
        self.globs = list(profile.globs)
        self.denies = bool(profile.globs)
        self._profile = profile
        self._facts = facts
        self._disk = disk
        # Paths that entries make readable or writable.
        self._granted: set[str] = set()
        # Missing paths that an entry makes writable: a protected name among them is not kept.
        self._lifted: set[str] = set()
        # Entries with symbolic links in their paths, to be judged once all rules are known.
        self._linked: list[tuple[PathRequest, Traced]] = []

    def take_entries(self) -> None:
        """Add a rule for each entry; of two entries for one path the stronger one wins."""
        for request in chain(self._profile.requests, self._tmpdir()):
            _refuse_impossible(request.path)
            found = trace(request.path, self._disk)
            if request.access == "deny":
                self.denies = True
            else:
                self._granted.add(found.path)
            # A missing path cannot be mounted, so it gets no rule. A command may create it if
            # a directory above is writable.
            if request.access == "write" and found.kind is None:
                self._lifted.add(found.path)
                continue
            if found.links:
                self._linked.append((request, found))
            known = self.rules.get(found.path)
            if known is None or _STRENGTH[known.access] < _STRENGTH[request.access]:
                self.rules[found.path] = Rule(found.path, request.access, found.kind)
        for path in self._lifted:
            # A writable entry wins over a readable one for a missing path, too.
            if path in self.rules and self.rules[path].access == "read":
                del self.rules[path]

    def grants_all_writing(self) -> bool:
        """Return True if `/` is writable and no entry restricts anything below it."""
        root = self.rules.get("/")
        return (
            root is not None
            and root.access == "write"
            and not self.denies
            and all(rule.access == "write" for rule in self.rules.values())
        )

    def complete(self, *, sockets: bool, names: bool = True) -> None:
        """
        Add the rules that no entry asks for, and drop those without an effect.

        Args:
            sockets: Hide the sockets of engines and servers; they work only with a network.
            names: Protect names such as `.git` in writable directories.

        Raises:
            CannotEnforce: A path leads through a symbolic link that the command may change.
        """
        root = self.rules.get("/")
        if root is not None and root.access == "deny":
            # A path that no rule covers is hidden anyway.
            del self.rules["/"]
        # Before any rule is added: links are judged by the entries of the profile alone.
        self._judge_links()
        if self._profile.minimal:
            for path in PLATFORM_DIRECTORIES:
                self._add_found(path, "platform")
        # One deadline for all patterns, so that their number does not multiply the time.
        deadline = monotonic() + LOOK_LIMIT
        for pattern in self._profile.globs:
            resolved = self._with_real_folder(pattern)
            for path in expand(resolved, self._disk, limit=MAX_MATCHES, deadline=deadline):
                self._deny_match(path)
        if sockets:
            uid = self._facts.uid
            for path in (*ENGINE_SOCKETS, *(() if uid else ROOT_SOCKETS)):
                self._hide_socket(path.format(uid=uid))
            for path in self._facts.reachable.sockets:
                self._hide_from_all(path)
        for path in self._facts.reachable.settings:
            self._hide_settings(path)
        for path in self._facts.reachable.secrets:
            self._hide_from_all(path)
        self._repeat_at_aliases("deny")
        # After all denials are known, and before read-only rules are added on purpose.
        self._drop_reading_below_denied()
        own = list(at_all_paths(self._facts.own, self._facts.mounts))
        keep_own(self.rules, own, self._disk, makes=self._facts.makes)
        keep_own_links(self.rules, own, self._disk)
        if names:
            for rule in [rule for rule in self.rules.values() if rule.access == "write"]:
                self._protect(rule)
        self._repeat_at_aliases("read")
        # Last: every rule inside a writable root needs directories that keep their names.
        for rule in list(self.rules.values()):
            self._cover_or_pin(rule)

    def _repeat_at_aliases(self, access: Literal["read", "deny"]) -> None:
        mounts = self._facts.mounts
        repeat_at_aliases(self.rules, access, mounts, self._disk, granted=self._granted)

    def _tmpdir(self) -> Iterator[PathRequest]:
        """Yield the requests for `tmpdir`; a generator, so it runs after all other entries."""
        path = self._facts.tmpdir
        if not self._profile.tmpdir or not path or not path.startswith("/"):
            return
        _refuse_impossible(path)
        found = trace(path, self._disk)
        for access in self._profile.tmpdir:
            over = self.rules.get(found.path) or self._above(found.path)
            # Reading what an entry shows already grants nothing new.
            given = over is not None and access == "read" and over.access != "deny"
            if access != "deny" and not given and found.kind is not None:
                fault = tmpdir_fault(
                    found.path,
                    self.rules,
                    roots=self._profile.roots,
                    own=self._facts.own_tmpdir,
                    home=self._facts.home,
                    disk=self._disk,
                )
                if fault is not None:
                    word = "writable" if access == "write" else "readable"
                    raise InvalidParams(
                        f"sandbox entry `tmpdir` cannot make `{found.path}` {word}: {fault}"
                    )
            yield PathRequest(path, access)

    # -- links

    def _judge_links(self) -> None:
        for request, found in self._linked:
            self._refuse_links(request.path, request.access, found)
            if request.access == "deny" and (found.itself or "").startswith("/"):
                # No server accepts these links, so no client relies on them. Hiding the file but
                # not the link would be worse than a refusal.
                raise CannotEnforce(
                    f"cannot enforce sandbox deny-read path {request.path} because it is an "
                    f"absolute symlink: deny {found.path} instead"
                )
            # A denied path needs no links: no command has to find it.
            if request.access != "deny":
                self.links += found.links

    def _refuse_links(self, path: str, access: str, found: Traced) -> None:
        """
        Raise `CannotEnforce` if a path leads through a link that the command may change.

        The rule of the next command would follow the changed link. A writable path is
        harmless as long as it ends where writing is allowed anyway.
        """
        for link, _ in found.links:
            over = self._above(link)
            if over is None or over.access != "write":
                continue
            if access == "write":
                end = self._above(found.path)
                if end is not None and end.access == "write":
                    continue
            raise CannotEnforce(texts.writable_link(_WORDS[access], path, link))

    # -- rules that no entry asks for

    def _add_found(self, path: str, why: Why) -> None:
        found = trace(path, self._disk)
        if found.kind is not None:
            self.links += found.links
            self.rules.setdefault(found.path, Rule(found.path, "read", found.kind, why))

    def _with_real_folder(self, pattern: Glob) -> Glob:
        """Return the pattern with the real path of its directory, so that matches are real."""
        found = trace(pattern.folder, self._disk)
        if found.path == pattern.folder:
            return pattern
        # The link must not be writable: a command could point it elsewhere before the next one.
        self._refuse_links(pattern.pattern, "deny", found)
        resolved = pattern.within(found.path)
        self.globs.append(resolved)
        return resolved

    def _deny_match(self, path: str) -> None:
        """
        Deny a file that matches a pattern, or the file that a matching link leads to.

        A command may have made the link, to learn from the result what it cannot see. So there is
        no rule for a file that no rule shows, nor for a directory, at which the link may point
        after the search.
        """
        found = trace(path, self._disk)
        if found.kind in (None, "directory") or (found.links and is_private(found.path)):
            return
        for name in (found.path, *self._facts.mounts.names(found.path)):
            over = self.rules.get(name) or self._above(name)
            if over is not None and over.access != "deny":
                self.rules[name] = Rule(name, "deny", found.kind, "glob")

    def _hide_socket(self, path: str) -> None:
        found = trace(path, self._disk)
        # A command may have made a link in `/tmp`, to take programs away from the next one.
        if found.links and (found.kind != "other" or is_private(found.path)):
            return
        # An entry that names the socket shows it on purpose.
        if found.kind is None or found.path in self.rules:
            return
        for name in (found.path, *self._facts.mounts.names(found.path)):
            self.rules.setdefault(name, Rule(name, "deny", found.kind, "socket"))

    def _hide_settings(self, path: str) -> None:
        """Deny a directory with secrets, unless the profile or the command needs it."""
        cwd = self._facts.cwd or "/"
        if not any(covers(path, needed) for needed in (*self.rules, cwd)):
            self._hide_from_all(path)

    def _hide_from_all(self, path: str) -> None:
        """Deny a path of a Holdfast server under all its names."""
        path = trace(path, self._disk).path
        aliases = self._facts.mounts.aliases(path)
        for name in (path, *aliases.whole, *aliases.parts):
            self._hide(name)

    def _hide(self, path: str) -> None:
        """Deny a path if it exists, and drop all rules at or below it."""
        found = trace(path, self._disk)
        if found.kind is None:
            return
        # Unlike other sockets, no entry can show these: they would end all isolation.
        for below in [known for known in self.rules if covers(found.path, known)]:
            del self.rules[below]
        over = self._above(found.path)
        if over is None or over.access == "deny":
            # No rule shows a directory above, so the path does not exist inside.
            return
        self.rules[found.path] = Rule(found.path, "deny", found.kind, "server")

    def _drop_reading_below_denied(self) -> None:
        """Drop readable rules below a denied one: only writing reopens it."""
        for path in sorted(self.rules):
            if self.rules[path].access == "read":
                over = self._above(path)
                if over is not None and over.access == "deny":
                    del self.rules[path]

    def _protect(self, root: Rule) -> None:
        """Make the protected names of a writable root read-only, or keep them missing."""
        if root.kind != "directory":
            return
        if ".git" in root.path.split("/"):
            self._protect_present(root.path, GIT_NAMES)
        over = self._above(root.path)
        if (
            root.path.rpartition("/")[2] in (*PROTECTED_NAMES, *KEPT_NAMES)
            and over is not None
            and (over.access == "write" or over.why == "protected")
        ):
            # An entry names this protected directory, to make it writable on purpose.
            return
        start = root.path.rstrip("/")
        for name in PROTECTED_NAMES:
            path = f"{start}/{name}"
            if path not in self.rules and path not in self._lifted:
                self._protect_name(root.path, path)
        self._protect_present(root.path, KEPT_NAMES)
        git = self.rules.get(f"{start}/.git")
        if git is not None and git.access != "write" and git.kind == "file":
            self._protect_pointed(start, git.path)

    def _protect_present(self, root: str, names: Iterable[str]) -> None:
        """Make the names of these that exist in a writable root read-only."""
        for name in names:
            path = f"{root.rstrip('/')}/{name}"
            # A link here was made by a command: it needs no protection, and `_protect_name`
            # would refuse the start because of it.
            if path not in self.rules and self._disk.kind(path) in ("directory", "file"):
                self._protect_name(root, path)

    def _protect_name(self, root: str, path: str) -> None:
        kind = self._disk.kind(path)
        # A missing name needs no cover where this user cannot create it. In `/` no mount
        # point is ever made (13, rule 16).
        if kind is None and (root == "/" or not self._disk.can_create(root)):
            return
        if kind == "link":
            self._refuse_links(path, "read", trace(path, self._disk))
            return
        empty = kind == "directory" and self._disk.is_empty(path)
        self.rules[path] = Rule(path, "read", kind, "protected", empty)

    def _protect_pointed(self, root: str, pointer: str) -> None:
        """Protect the directory that a `.git` file points to (a worktree or a submodule)."""
        said = self._disk.text(pointer).lstrip()
        if not said.startswith("gitdir:"):
            return
        # As in git: relative paths start from the directory of the file.
        path = said.removeprefix("gitdir:").strip().rstrip("\0")
        path = path if path.startswith("/") else f"{root}/{path}"
        found = trace(path, self._disk)
        # Outside a writable root it cannot be written anyway.
        over = self._above(found.path)
        if over is None or over.access != "write":
            return
        self._refuse_links(path, "read", found)
        # A missing one is covered, too: git would use what a command creates there as the
        # repository, with its hooks.
        self.rules.setdefault(found.path, Rule(found.path, "read", found.kind, "gitdir"))

    def _cover_or_pin(self, rule: Rule) -> None:
        """Add rules so that no directory above a rule in a writable root can be renamed."""
        over = self._above(rule.path)
        if over is None or over.access != "write" or rule.access == "write":
            return
        path = rule.path
        # Of a missing path, only the first missing component can be covered: the others have
        # no directory to be in.
        if rule.kind is None:
            path, kind = self._first_missing(path, over.path)
            if over.kind != "directory" or (
                kind is None and not self._disk.can_create(parent_of(path))
            ):
                # This user cannot create it, so there is nothing to prevent.
                del self.rules[rule.path]
                return
            empty = kind is not None and self._disk.is_empty(path)
            self.rules.setdefault(path, Rule(path, "read", kind, "cover", empty))
        elif rule.why in _MAY_BE_EMPTY and self._disk.is_empty(path):
            self.rules[path] = rule._replace(empty=True)
        # All directories between the rule and its writable root become mount points, which the
        # kernel refuses to rename.
        path = parent_of(path)
        while path != over.path:
            self.rules.setdefault(path, Rule(path, "write", "directory", "pin"))
            path = parent_of(path)

    def _first_missing(self, path: str, root: str) -> tuple[str, Kind | None]:
        """Return the first component of a missing path that is not a directory, and its kind."""
        parts = path.removeprefix(root).strip("/").split("/")
        at = root.rstrip("/")
        kind: Seen | None = "directory"
        for part in parts:
            at = f"{at}/{part}"
            kind = self._disk.kind(at)
            if kind != "directory":
                break
        # If every component were a directory, the path would not be missing.
        assert kind != "directory"
        # `trace` has followed all links in the path.
        assert kind != "link"
        return at, kind

    def _above(self, path: str) -> Rule | None:
        """Return the rule of the nearest directory above a path, or None."""
        return rule_above(self.rules, path)


def _refuse_impossible(path: str) -> None:
    """
    Refuse a path that no system call accepts.

    Looking up each component of an overlong path could take minutes.

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


# Reasons of rules for files and directories that may be mount points of another command.
_MAY_BE_EMPTY: Final = frozenset({"entry", "protected", "gitdir", "code", "settings"})

_WORDS: Final = {"read": "read-only", "write": "writable", "deny": "deny-read"}

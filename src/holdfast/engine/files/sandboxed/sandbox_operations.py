"""
Chooses the file operations for a sandbox context [fs.sandbox.*].

Questions about the profile alone are answered in the event loop. Building its policy examines the
disk, and runs in a thread. Each operation needs a policy for the current state of the disk; an
earlier one is reused if the disk gives the same answers. A profile that allows reading everything
needs no policy for reading, since the disk then only affects writing.
"""

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

from holdfast.base.dialect import texts
from holdfast.base.errors import (
    CannotEnforce,
    InvalidParams,
    InvalidPermissionPath,
    InvalidRequest,
    OperationFailed,
)
from holdfast.base.local_servers import Reachable, reachable
from holdfast.engine.files.operations import DIRECT, Operations
from holdfast.engine.files.sandboxed.sandboxed_trees import SandboxedFiles
from holdfast.engine.linux.capabilities import WITHOUT_CAPABILITIES
from holdfast.engine.linux.kernel_cache import mount_changes
from holdfast.engine.linux.mounts import MountTable, mount_table
from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.policy.disk import HostDisk, Seen
from holdfast.engine.sandbox.policy.own_paths import OwnPath, own_paths
from holdfast.engine.sandbox.policy.policy import Policy, Rule
from holdfast.engine.sandbox.profile import entries
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ManagedProfile,
    RestrictedFiles,
    SandboxContext,
)

__all__ = [
    "as_a_command",
    "operations",
    "reading_operations",
    "restricts_files",
    "shows_as_is",
]


class _LinksOnly(HostDisk):
    """
    Disk of the host, without the queries that only a command needs.

    For a command, all files that match a pattern are masked before it starts. A file operation
    compares each path with the patterns when it resolves the path [sandbox.globs]. Only links are
    searched for: what a matching one leads to is denied under its own name, too.
    """

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        return [found for found in super().entries(path) if found[1] in ("directory", "link")]

    def is_empty(self, path: str) -> bool:
        return False


_DISK = _LinksOnly()


def restricts_files(sandbox: SandboxContext | None) -> bool:
    """Return True if a context restricts file operations."""
    return (
        sandbox is not None
        and isinstance(sandbox.permissions, ManagedProfile)
        and isinstance(sandbox.permissions.file_system, RestrictedFiles)
    )


@lru_cache(maxsize=256)
def as_a_command(sandbox: SandboxContext) -> AbstractContextManager[None]:
    """
    Return a block in which a thread has the capabilities of a command in this context.

    An isolated command has none (see `Policy.isolates`), whatever the server has.
    """
    if isinstance(sandbox.permissions, DisabledProfile):
        return nullcontext()
    if sandbox.permissions.network == "restricted":
        return WITHOUT_CAPABILITIES
    try:
        free = not restricts_files(sandbox) or entries.writes_everything(sandbox)
    except InvalidParams:
        # The operation itself reports the error.
        free = False
    return nullcontext() if free else WITHOUT_CAPABILITIES


def operations(sandbox: SandboxContext | None) -> Operations:
    """
    Return the file operations that a context allows.

    Raises:
        InvalidParams: The context lacks a directory that its entries need.
        InvalidRequest: A path belongs to another operating system.
        OperationFailed: The profile cannot be enforced.
    """
    if sandbox is None or not restricts_files(sandbox):
        return DIRECT
    return _within(_policy(sandbox))


def reading_operations(sandbox: SandboxContext | None) -> Operations:
    """
    Return the file operations that a context allows, for reading only.

    Raises:
        InvalidParams: See `operations`.
        InvalidRequest: See `operations`.
        OperationFailed: See `operations`.
    """
    if sandbox is None or not restricts_files(sandbox):
        return DIRECT
    try:
        if entries.reads_everything(sandbox):
            return _reading_all(_hidden().secrets)
    except InvalidPermissionPath as error:
        raise InvalidRequest(str(error)) from None
    return operations(sandbox)


@lru_cache(maxsize=8)
def _reading_all(secrets: tuple[str, ...]) -> Operations:
    """Return file operations that read everything except the secrets of servers."""
    rules = {"/": Rule("/", "read", "directory")}
    for path in secrets:
        rules[path] = Rule(path, "deny", "directory", "server")
    return SandboxedFiles(Policy(network="restricted", full_write=False, rules=rules))


class _Hidden(NamedTuple):
    """Paths that every sandbox hides or keeps read-only, with the time until which they hold."""

    until: float
    changes: int | None
    """Number of changes of the mounts; invalid as soon as it differs."""
    reachable: Reachable
    secrets: tuple[str, ...]
    """All paths of its secrets: they may be mounted several times."""
    below: tuple[str, ...]
    """The secrets with a trailing slash: prefixes of the paths below them."""
    own: tuple[OwnPath, ...]
    """Code and settings of Holdfast."""
    mounts: MountTable


_known: _Hidden | None = None

# Seconds that it is valid. The directory with the tokens is always in it, so only other files of a
# server that has just started may be missing. A search for links that match a pattern is valid as
# long: a file that such a link has led to since then was readable a moment ago anyway, as by a
# command that was started then.
_FRESH = 0.05


def _hidden() -> _Hidden:
    global _known
    # Listing the servers of a user takes several system calls, and this runs for each look-up.
    now = time.monotonic()
    changes = mount_changes()
    known = _known
    if known is None or now >= known.until or known.changes != changes:
        found = reachable(os.environ)
        mounts = mount_table()
        aliases = map(mounts.aliases, found.secrets + found.settings)
        more = (path for each in aliases for path in (*each.whole, *each.parts))
        secrets = tuple(dict.fromkeys((*found.secrets, *found.settings, *more)))
        below = tuple(f"{path}/" for path in secrets)
        own = own_paths(os.environ).paths
        known = _Hidden(now + _FRESH, changes, found, secrets, below, own, mounts)
        _known = known
    return known


# Directories that a sandbox has itself.
_OF_A_SANDBOX = ("/dev", "/proc", "/sys")


def shows_as_is(sandbox: SandboxContext, path: str) -> bool:
    """
    Return True if a context certainly allows reading what is at a path of the host.

    Args:
        sandbox: A context; for an invalid one the result is False.
        path: Absolute path without links.
    """
    try:
        reads = not restricts_files(sandbox) or entries.reads_everything(sandbox)
    except InvalidParams:
        return False
    return (
        reads
        and not path.startswith(_OF_A_SANDBOX)
        # With a slash, so that the secrets themselves match as well as what is below them.
        and not f"{path}/".startswith(_hidden().below)
    )


# The same number as for policies, to which these belong.
_KEPT_AT_MOST = 128


def _policy(sandbox: SandboxContext) -> Policy:
    try:
        policy = resolve(sandbox, _facts())
    except InvalidPermissionPath as error:
        raise InvalidRequest(str(error)) from None
    except CannotEnforce as error:
        # Not a refusal: clients take it for a helper process that failed to start.
        raise OperationFailed(str(error)) from None
    if policy.full_write:
        return policy
    if sandbox.windows_sandbox_level == "mxc":
        raise InvalidRequest(texts.mxc_not_prepared())
    if policy.legacy_landlock:
        raise OperationFailed(texts.NO_LANDLOCK)
    return policy


@lru_cache(maxsize=_KEPT_AT_MOST)
def _within(policy: Policy) -> Operations:
    # `resolve` returns the same object as long as the disk gives the same answers. A
    # profile without restrictions protects nothing.
    return DIRECT if policy.full_write else SandboxedFiles(policy)


def _facts() -> PolicyInputs:
    # Variables of the server, so that a client cannot decide what it may write.
    tmpdir = os.environ.get("TMPDIR")
    hidden = _hidden()
    return PolicyInputs(
        cwd=None,
        tmpdir=tmpdir,
        own_tmpdir=tmpdir,
        home=os.environ.get("HOME"),
        uid=os.getuid(),
        reachable=hidden.reachable,
        own=hidden.own,
        mounts=hidden.mounts,
        makes=True,
        search_valid=_FRESH,
        disk=_DISK,
    )

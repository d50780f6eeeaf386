"""
Which operations a sandbox context leaves [fs.sandbox.*].

Asking about the profile alone costs nothing and can be done anywhere. To make its
policy looks at the disk, so that is for threads. Each operation asks the disk anew:
links and missing paths are judged as they are by then, and only if every answer is
still the same, the policy that was made from it is used again. Only whoever reads, and
may read everything, need not ask: what is on the disk decides what can be written then,
and nothing else.
"""

import os
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from holdfast.errors import (
    CannotEnforce,
    InvalidParams,
    InvalidPermissionPath,
    InvalidRequest,
    OperationFailed,
)
from holdfast.filesystem.operations import DIRECT, Operations
from holdfast.filesystem.sandboxed.trees import SandboxedFiles
from holdfast.local_servers import reachable
from holdfast.protocol.sandbox import ManagedProfile, RestrictedFiles, SandboxContext
from holdfast.sandbox.policy.build import ProfileContext, resolve
from holdfast.sandbox.policy.disk import HostDisk, Seen
from holdfast.sandbox.policy.policy import NO_LANDLOCK, NO_MXC, Policy, Rule
from holdfast.sandbox.profile import entries

__all__ = [
    "operations",
    "reading_operations",
    "reads_everything",
    "restricts_files",
    "shows_secrets",
]


class _Unsearched(HostDisk):
    """
    The disk, without the questions that only matter to a command.

    A command needs the files that match a pattern, and to know which are empty, to have
    them masked. An operation on files meets its paths one by one, and each is compared
    with the patterns when it is met [sandbox.globs].
    """

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        return ()

    def is_empty(self, path: str) -> bool:
        return False


_DISK = _Unsearched()


def restricts_files(sandbox: SandboxContext | None) -> bool:
    """Whether a context says anything about files."""
    return (
        sandbox is not None
        and isinstance(sandbox.permissions, ManagedProfile)
        and isinstance(sandbox.permissions.file_system, RestrictedFiles)
    )


def operations(sandbox: SandboxContext | None) -> Operations:
    """
    The operations that keep to a context.

    Raises:
        InvalidParams: It lacks something that its entries need.
        InvalidRequest: One of its paths belongs to another system.
        OperationFailed: What it asks for cannot be kept.
    """
    if sandbox is None or not restricts_files(sandbox):
        return DIRECT
    return _within(_policy(sandbox))


def reading_operations(sandbox: SandboxContext | None) -> Operations:
    """
    The same, for whoever only reads.

    Raises:
        InvalidParams: As for `operations`.
        InvalidRequest: Likewise.
        OperationFailed: Likewise.
    """
    if sandbox is None or not restricts_files(sandbox):
        return DIRECT
    try:
        if entries.reads_everything(sandbox):
            return _reading_all(_secrets().paths)
    except InvalidPermissionPath as error:
        raise InvalidRequest(str(error)) from None
    return operations(sandbox)


def reads_everything(sandbox: SandboxContext | None) -> bool:
    """Whether everything may be read, whatever is on the disk; not if the context is wrong."""
    if sandbox is None or not restricts_files(sandbox):
        return True
    try:
        return entries.reads_everything(sandbox)
    except InvalidParams:
        return False


@lru_cache(maxsize=8)
def _reading_all(secrets: tuple[str, ...]) -> Operations:
    """Return what is right for reading all but these, whatever else is on the disk."""
    rules = {"/": Rule("/", "read", "directory")}
    for path in secrets:
        rules[path] = Rule(path, "deny", "directory", "server")
    return SandboxedFiles(Policy(network="restricted", full_write=False, rules=rules))


class _Secrets(NamedTuple):
    """The paths that no sandbox shows, and until when that list is believed."""

    until: float = 0.0
    paths: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


_known_secrets = _Secrets()

_FRESH = 0.05
"""Seconds. The folder with the tokens is hidden from the first moment; other files follow."""


def _secrets() -> _Secrets:
    global _known_secrets
    now = time.monotonic()
    if now >= _known_secrets.until:
        paths = reachable(os.environ).secrets
        _known_secrets = _Secrets(now + _FRESH, paths, tuple(f"{path}/" for path in paths))
    return _known_secrets


def shows_secrets(path: str) -> bool:
    """Return True if a path without links is one that no sandbox shows, or below one."""
    secrets = _secrets()
    return path.startswith(secrets.below) or path in secrets.paths


_KEPT_AT_MOST = 128


def _policy(sandbox: SandboxContext) -> Policy:
    try:
        policy = resolve(sandbox, _facts())
    except InvalidPermissionPath as error:
        raise InvalidRequest(str(error)) from None
    except CannotEnforce as error:
        # The real server's helper fails to start.
        raise OperationFailed(str(error)) from None
    if policy.full_write:
        return policy
    if sandbox.windows_sandbox_level == "mxc":
        raise InvalidRequest(
            f"failed to prepare fs sandbox: failed to prepare MXC sandbox: {NO_MXC}"
        )
    if policy.legacy_landlock:
        raise OperationFailed(NO_LANDLOCK)
    return policy


@lru_cache(maxsize=_KEPT_AT_MOST)
def _within(policy: Policy) -> Operations:
    # `resolve` hands out the same policy as long as the disk says the same. As in the
    # real server: where nothing is narrowed, nothing is protected either.
    return DIRECT if policy.full_write else SandboxedFiles(policy)


def _facts() -> ProfileContext:
    # Of the server: what a client says about these would decide what it may write.
    tmpdir = os.environ.get("TMPDIR")
    return ProfileContext(
        cwd=None,
        tmpdir=tmpdir,
        own_tmpdir=tmpdir,
        home=os.environ.get("HOME"),
        uid=os.getuid(),
        reachable=reachable(os.environ),
        disk=_DISK,
    )

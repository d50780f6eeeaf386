"""
Which operations a sandbox context leaves (filesystem spec 4).

Asking about the profile alone costs nothing and can be done anywhere. To make its
policy looks at the disk, so that is for threads, and happens anew for each operation:
links and missing paths are judged as they are by then.
"""

import os
from collections.abc import Sequence

from holdfast.errors import CannotEnforce, InvalidPermissionPath, InvalidRequest, OperationFailed
from holdfast.filesystem.operations import DIRECT, Operations
from holdfast.filesystem.sandboxed_trees import SandboxedFiles
from holdfast.protocol.sandbox import ManagedProfile, RestrictedFiles, SandboxContext
from holdfast.sandbox.disk import HostDisk, Seen
from holdfast.sandbox.resolve import Facts, resolve

__all__ = ["operations", "restricts_files"]


class _Unsearched(HostDisk):
    """
    The disk, without the questions that only matter to a command.

    A command needs the files that match a pattern, and to know which are empty, to have
    them masked. An operation on files meets its paths one by one, and each is compared
    with the patterns when it is met (sandbox spec 13, rule 11).
    """

    def entries(self, path: str) -> Sequence[tuple[str, Seen]]:
        return ()

    def is_blank(self, path: str) -> bool:
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
    try:
        policy = resolve(sandbox, _facts())
    except InvalidPermissionPath as error:
        raise InvalidRequest(str(error)) from None
    except CannotEnforce as error:
        # The real server's helper fails to start.
        raise OperationFailed(str(error)) from None
    # As in the real server: nothing is narrowed, so nothing is protected either.
    return DIRECT if policy.full_write else SandboxedFiles(policy)


def _facts() -> Facts:
    # Of the server: what a client says about these would decide what it may write.
    return Facts(
        cwd=None,
        tmpdir=os.environ.get("TMPDIR"),
        home=os.environ.get("HOME"),
        uid=os.getuid(),
        disk=_DISK,
    )

"""
Makes all changes of a plan, or none.

Each file is replaced atomically. If a change fails, the files changed before it are restored. Links
are removed last, since they cannot be restored.
"""

import logging
from dataclasses import dataclass

from holdfast.agent.patching.patch_errors import PatchFailed, PatchMismatch
from holdfast.agent.patching.plan import PatchPlan, PlannedRemoval, PlannedWrite
from holdfast.backends import FileSystem
from holdfast.base.errors import ConnectionLost, HoldfastError, NotFound, Refused
from holdfast.wire.protocol.fs import (
    CreateDirectoryParams,
    FileContent,
    GetMetadataParams,
    ReadFileParams,
    RemoveParams,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["AnyPatchSandbox", "PatchSandboxes", "commit"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSandboxes:
    """Sandboxes of a patch that may change certain files outside the usual sandbox."""

    usual: SandboxContext | None
    """For files not in `beyond`; None for no sandbox."""
    wider: SandboxContext | None
    """For the files in `beyond`; None for no sandbox."""
    beyond: frozenset[PathUri]
    """Real paths, as in `PlannedWrite.real` and `PlannedRemoval.real`."""

    def of(self, path: PathUri) -> SandboxContext | None:
        """Return the sandbox for the file at a real path."""
        return self.wider if path in self.beyond else self.usual


AnyPatchSandbox = SandboxContext | PatchSandboxes | None
"""Sandbox of a patch: one for all of its files, two, or none."""


async def commit(plan: PatchPlan, *, files: FileSystem, sandbox: AnyPatchSandbox) -> None:
    """
    Write and remove the files of a plan.

    Run it in a task that is not cancelled: a cancellation would leave half of the changes.

    Raises:
        PatchMismatch: A file has changed since the plan was made. Nothing was written.
        PatchFailed: A file could not be changed. Files changed before it were restored.
    """
    if not isinstance(sandbox, PatchSandboxes):
        sandbox = PatchSandboxes(usual=sandbox, wider=None, beyond=frozenset())
    # Waiting for an approval may have taken an hour.
    changes: list[PlannedWrite | PlannedRemoval] = [*plan.writes, *plan.removals]
    for change in changes:
        if await _has_changed(change, files, sandbox.of(change.real)):
            raise PatchMismatch(
                f"{change.name} changed while the patch was being decided about", path=change.name
            )
    rollback = _Rollback(files, sandbox)
    # Writes before removals: a moved file briefly exists twice, and is never lost.
    for write in plan.writes:
        await rollback.write(write)
    for removal in plan.removals:
        await rollback.remove(removal)


async def _has_changed(
    change: PlannedWrite | PlannedRemoval, files: FileSystem, sandbox: SandboxContext | None
) -> bool:
    """Return True if a file is known to differ from its state in the plan."""
    try:
        if change.before is not None:
            data = await files.read_file(
                ReadFileParams(change.real, follow_symlinks=False, sandbox=sandbox)
            )
            return data != change.before
        if isinstance(change, PlannedWrite):
            await files.get_metadata(
                GetMetadataParams(change.real, follow_symlinks=False, sandbox=sandbox)
            )
            return True
    except NotFound:
        return change.before is not None
    except Refused:
        # The write will fail with a better error.
        return False
    return False


class _Rollback:
    """Makes changes, and restores the files if a change fails."""

    def __init__(self, files: FileSystem, sandboxes: PatchSandboxes) -> None:
        self._files = files
        self._sandboxes = sandboxes
        # Created directories, with the sandboxes used.
        self._directories: dict[PathUri, SandboxContext | None] = {}
        self._changed: list[PlannedWrite | PlannedRemoval] = []

    async def write(self, write: PlannedWrite) -> None:
        """Write a file, after creating missing parent directories."""
        sandbox = self._sandboxes.of(write.real)
        for directory in write.missing_directories:
            # Several files of a patch may share a new directory.
            if directory in self._directories:
                continue
            try:
                await self._files.create_directory(
                    CreateDirectoryParams(
                        directory, recursive=True, follow_symlinks=False, sandbox=sandbox
                    )
                )
            except HoldfastError as error:
                text = f"Failed to create parent directories for {write.name}"
                raise await self._undone(text, write, error) from error
            self._directories[directory] = sandbox
        # An unchanged file keeps its inode and times.
        if write.data == write.before:
            return
        try:
            await self._overwrite(write.real, write.data)
        except HoldfastError as error:
            text = f"Failed to write file {write.name}"
            raise await self._undone(text, write, error) from error
        self._changed.append(write)

    async def remove(self, removal: PlannedRemoval) -> None:
        """Remove a file or a link."""
        try:
            # With `follow_symlinks=False`, the server refuses to remove a link.
            await self._remove(
                removal.real,
                sandbox=self._sandboxes.of(removal.real),
                follow_symlinks=removal.before is None,
            )
        except HoldfastError as error:
            text = f"Failed to delete file {removal.name}"
            raise await self._undone(text, removal, error) from error
        self._changed.append(removal)

    async def _undone(
        self, text: str, failed: PlannedWrite | PlannedRemoval, error: HoldfastError
    ) -> PatchFailed:
        """Restore the changed files and return the error to raise."""
        left = []
        if isinstance(error, ConnectionLost):
            # The change may have been made although its response was lost.
            left.append(failed.name)
        for change in reversed(self._changed):
            try:
                await self._restore(change)
            except HoldfastError:
                logger.warning("%s could not be restored", change.name, exc_info=True)
                left.append(change.name)
        # Innermost first; only directories that this patch has created.
        for directory, sandbox in reversed(self._directories.items()):
            try:
                await self._remove(directory, sandbox=sandbox)
            # Another process may have put files there.
            except HoldfastError:
                logger.debug("%s stays", directory, exc_info=True)
        return PatchFailed(text, path=failed.name, left=tuple(left))

    async def _restore(self, change: PlannedWrite | PlannedRemoval) -> None:
        if change.before is not None:
            await self._overwrite(change.real, change.before)
        elif isinstance(change, PlannedWrite):
            await self._remove(change.real, sandbox=self._sandboxes.of(change.real))
        else:
            raise NotFound("a link cannot be restored")

    async def _overwrite(self, path: PathUri, data: bytes) -> None:
        sandbox = self._sandboxes.of(path)
        await self._files.write_file(
            WriteFileParams(
                path, data_base64=FileContent(data), follow_symlinks=False, sandbox=sandbox
            )
        )

    async def _remove(
        self, path: PathUri, *, sandbox: SandboxContext | None, follow_symlinks: bool = False
    ) -> None:
        await self._files.remove(
            RemoveParams(
                path, recursive=False, force=False, follow_symlinks=follow_symlinks, sandbox=sandbox
            )
        )

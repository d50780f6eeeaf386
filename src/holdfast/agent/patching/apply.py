"""Applies a patch to the files of any environment."""

import asyncio
from dataclasses import dataclass

from holdfast.agent.patching.commit import AnyPatchSandbox, commit
from holdfast.agent.patching.parse import Patch, parse_patch
from holdfast.agent.patching.patch_errors import InvalidPatch, PatchError
from holdfast.agent.patching.plan import FileChange, PatchPlan, Rules, make_plan
from holdfast.agent.patching.report import summary_text
from holdfast.backends import FileSystem
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["EmptyPatch", "PatchResult", "apply_patch", "apply_plan", "plan_patch", "read_patch"]

CANCEL_LIMIT = 30.0
"""Seconds that a cancelled call waits for writes in progress."""

# Length above which a patch is parsed in a thread, to not block the event loop.
_LONG = 1 << 16

# Writes that continue after their call was cancelled; the loop itself only keeps weak references.
_under_way: set[asyncio.Task[None]] = set()


class EmptyPatch(PatchError):
    """A patch does not name any file."""

    def __init__(self) -> None:
        super().__init__("No files were modified.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchResult:
    """The files that a patch has changed."""

    changes: tuple[FileChange, ...]
    """One change for each part of the patch, in order."""

    @property
    def text(self) -> str:
        """Output of the program `apply_patch`: a letter and a path for each file."""
        return summary_text(self.changes)


async def apply_patch(
    text: str,
    *,
    files: FileSystem,
    cwd: PathUri | str,
    sandbox: SandboxContext | None = None,
    rules: Rules = "tool",
) -> PatchResult:
    """
    Apply a patch completely or not at all.

    Every file is read and every chunk is located before the first write. If a write fails,
    earlier files are restored. A cancelled call has either written nothing or completes.

    Args:
        text: Patch, from `*** Begin Patch` to `*** End Patch`.
        files: File system, the `filesystem` of an environment.
        cwd: Directory that relative paths start from.
        sandbox: Sandbox context for file operations; None for no restriction.
        rules: Accepted patches; see `Rules`.

    Raises:
        InvalidPatch: The text is not a patch.
        EmptyPatch: The patch does not name any file.
        PatchMismatch: The patch does not fit the files.
        PatchFailed: A file could not be changed.
    """
    plan = await plan_patch(
        await read_patch(text), files=files, cwd=cwd, sandbox=sandbox, rules=rules
    )
    return await apply_plan(plan, files=files, sandbox=sandbox)


async def read_patch(text: str) -> Patch:
    """
    Parse a patch; a long one is parsed in a thread.

    Raises:
        InvalidPatch: The text is not a patch.
    """
    if len(text) < _LONG:
        return parse_patch(text)
    return await asyncio.to_thread(parse_patch, text)


async def plan_patch(
    patch: Patch,
    *,
    files: FileSystem,
    cwd: PathUri | str,
    sandbox: SandboxContext | None = None,
    rules: Rules = "tool",
) -> PatchPlan:
    """
    Return the changes of a patch without making them, for approval; see `apply_patch`.

    Raises:
        PatchError: The patch cannot be applied.
    """
    # An empty patch is valid, but models expect an error.
    if not patch.hunks:
        raise EmptyPatch
    directory = cwd if isinstance(cwd, PathUri) else _directory(cwd)
    return await make_plan(patch, files=files, cwd=directory, sandbox=sandbox, rules=rules)


def _directory(cwd: str) -> PathUri:
    if not cwd.startswith("/"):
        raise InvalidPatch(f"cwd is {cwd!r}, it must be an absolute path")
    return PathUri.from_path(cwd)


async def apply_plan(
    plan: PatchPlan, *, files: FileSystem, sandbox: AnyPatchSandbox = None
) -> PatchResult:
    """
    Make all changes of a plan, or none.

    Raises:
        PatchMismatch: A file has changed since the plan was made.
        PatchFailed: A file could not be changed.
    """
    # A separate task, since a cancelled call must not stop between two files.
    writing = asyncio.get_running_loop().create_task(commit(plan, files=files, sandbox=sandbox))
    _under_way.add(writing)
    writing.add_done_callback(_under_way.discard)
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        # Half of a patch is worse than all of it, so writes in progress continue.
        await asyncio.wait([writing], timeout=CANCEL_LIMIT)
        if writing.done() and not writing.cancelled():
            # So that asyncio does not log the exception as never retrieved.
            writing.exception()
        raise
    return PatchResult(changes=plan.changes)

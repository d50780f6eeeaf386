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
"""Seconds that a cancelled call waits for writes that have begun."""

# Characters above which a patch is parsed in a thread, so that the event loop stays free.
_LONG = 1 << 16

# Writes that go on after their call was cancelled; the loop itself keeps weak references only.
_under_way: set[asyncio.Task[None]] = set()


class EmptyPatch(PatchError):
    """A patch names no file."""

    def __init__(self) -> None:
        super().__init__("No files were modified.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchResult:
    """Files that a patch has changed."""

    changes: tuple[FileChange, ...]
    """One for each part of the patch, in its order."""

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
    Apply a patch: all of it, or nothing.

    Every file is read and every chunk is located before the first write. If a write fails, the
    files before it are restored. A cancelled call has written nothing, or writes everything.

    Args:
        text: Patch, from `*** Begin Patch` to `*** End Patch`.
        files: File system, the `filesystem` of an environment.
        cwd: Directory that relative paths start from.
        sandbox: Sandbox context for file operations; None for no restriction.
        rules: Accepted patches; see `Rules`.

    Raises:
        InvalidPatch: The text is not a patch.
        EmptyPatch: The patch names no file.
        PatchMismatch: The patch does not fit the files.
        PatchFailed: A file could not be changed.
    """
    plan = await plan_patch(
        await read_patch(text), files=files, cwd=cwd, sandbox=sandbox, rules=rules
    )
    return await apply_plan(plan, files=files, sandbox=sandbox)


async def read_patch(text: str) -> Patch:
    """
    Parse a patch, a long one in a thread.

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
    Return the changes of a patch without making them, for an approval; see `apply_patch`.

    Raises:
        PatchError: The patch cannot be applied.
    """
    # A valid patch, but models expect an error.
    if not patch.hunks:
        raise EmptyPatch
    folder = cwd if isinstance(cwd, PathUri) else _folder(cwd)
    return await make_plan(patch, files=files, cwd=folder, sandbox=sandbox, rules=rules)


def _folder(cwd: str) -> PathUri:
    if not cwd.startswith("/"):
        raise InvalidPatch(f"cwd is {cwd!r}, it must be an absolute path")
    return PathUri.from_path(cwd)


async def apply_plan(
    plan: PatchPlan, *, files: FileSystem, sandbox: AnyPatchSandbox = None
) -> PatchResult:
    """
    Make the changes of a plan: all of them, or none.

    Raises:
        PatchMismatch: A file has changed since the plan was made.
        PatchFailed: A file could not be changed.
    """
    # A task of its own, since a cancelled call must not stop between two files.
    writing = asyncio.get_running_loop().create_task(commit(plan, files=files, sandbox=sandbox))
    _under_way.add(writing)
    writing.add_done_callback(_under_way.discard)
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        # Half of a patch is worse than all of it, so writes that have begun go on.
        await asyncio.wait([writing], timeout=CANCEL_LIMIT)
        if writing.done() and not writing.cancelled():
            # Retrieved, so that asyncio does not log it as never retrieved.
            writing.exception()
        raise
    return PatchResult(changes=plan.changes)

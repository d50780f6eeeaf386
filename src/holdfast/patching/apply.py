"""Applies a patch to the files of any environment."""

import asyncio
from dataclasses import dataclass

from holdfast.backends import FileSystem
from holdfast.patching.commit import commit
from holdfast.patching.errors import InvalidPatch, PatchError
from holdfast.patching.parse import Patch, parse_patch
from holdfast.patching.plan import FileChange, PatchPlan, Rules, make_plan
from holdfast.patching.report import summary_text
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import SandboxContext

__all__ = ["EmptyPatch", "PatchResult", "apply_patch", "apply_plan", "plan_patch", "read_patch"]

CANCEL_LIMIT = 30.0
"""Seconds that a cancelled call waits for the writes that have begun."""

_LONG = 1 << 16
"""Characters above which a patch is read in a thread."""

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
        """What the program `apply_patch` prints: a letter and a path for each file."""
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

    Every file is read and every chunk is placed before the first write. If a write fails, what
    was written before is put back. A call that is cancelled has either written nothing or
    writes everything.

    Args:
        text: The patch, from `*** Begin Patch` to `*** End Patch`.
        files: Where the files are: the `filesystem` of an environment.
        cwd: The directory that relative paths start from.
        sandbox: What may be read and written; None for everything.
        rules: What is accepted; see `Rules`.

    Raises:
        InvalidPatch: The text is no patch.
        EmptyPatch: It names no file.
        PatchMismatch: It does not fit the files.
        PatchFailed: A file could not be changed.
    """
    plan = await plan_patch(
        await read_patch(text), files=files, cwd=cwd, sandbox=sandbox, rules=rules
    )
    return await apply_plan(plan, files=files, sandbox=sandbox)


async def read_patch(text: str) -> Patch:
    """
    Return what a patch says; a long one is read in a thread.

    Raises:
        InvalidPatch: It is none.
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
    Return what a patch would change, for whoever has to agree first; see `apply_patch`.

    Raises:
        PatchError: It cannot be applied.
    """
    if not patch.hunks:
        raise EmptyPatch
    folder = cwd if isinstance(cwd, PathUri) else _folder(cwd)
    return await make_plan(patch, files=files, cwd=folder, sandbox=sandbox, rules=rules)


def _folder(cwd: str) -> PathUri:
    if not cwd.startswith("/"):
        raise InvalidPatch(f"cwd is {cwd!r}, it must be an absolute path")
    return PathUri.from_path(cwd)


async def apply_plan(
    plan: PatchPlan, *, files: FileSystem, sandbox: SandboxContext | None = None
) -> PatchResult:
    """
    Write what a plan says: all of it, or nothing.

    Raises:
        PatchMismatch: A file has changed since the plan was made.
        PatchFailed: A file could not be changed.
    """
    writing = asyncio.get_running_loop().create_task(commit(plan, files=files, sandbox=sandbox))
    _under_way.add(writing)
    writing.add_done_callback(_under_way.discard)
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        # Half of a patch is worse than all of it: the writes that have begun go on.
        await asyncio.wait([writing], timeout=CANCEL_LIMIT)
        if writing.done() and not writing.cancelled():
            writing.exception()  # seen: nobody waits for it any more
        raise
    return PatchResult(changes=plan.changes)

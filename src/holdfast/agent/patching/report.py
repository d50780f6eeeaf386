"""Result texts of a patch: the output of the program, and the tool's answer to a model."""

from collections.abc import Iterable

from holdfast.agent.patching.patch_errors import InvalidPatch, PatchError, PatchFailed
from holdfast.agent.patching.plan import FileChange

__all__ = [
    "EMPTY_PATCH",
    "PATCH_DECLINED",
    "result_text",
    "summary_text",
    "tool_error_text",
]

EMPTY_PATCH = "patch rejected: empty patch"
PATCH_DECLINED = "patch rejected by user"

# In the order of the list, with the letters of `git status`.
_LETTERS = (("add", "A"), ("update", "M"), ("delete", "D"))


def summary_text(changes: Iterable[FileChange]) -> str:
    """Return the list of changed files: added files first, then changed, then removed ones."""
    listed = tuple(changes)
    lines = [
        f"{letter} {change.name}\n"
        for kind, letter in _LETTERS
        for change in listed
        if change.kind == kind
    ]
    return "".join(["Success. Updated the following files:\n", *lines])


def result_text(output: str, *, exit_code: int, seconds: float) -> str:
    """Return the tool's result text for a patch that was attempted."""
    return f"Exit code: {exit_code}\nWall time: {round(seconds, 1):g} seconds\nOutput:\n{output}"


def tool_error_text(error: PatchError, *, seconds: float = 0.0) -> str:
    """Return the tool's result text for a patch that was not applied."""
    # The patch was attempted, so the result looks like a program's.
    if isinstance(error, PatchFailed):
        return result_text(f"{error}\n", exit_code=1, seconds=seconds)
    if isinstance(error, InvalidPatch):
        if error.line is None:
            detail = f"invalid patch: {error.detail}"
        else:
            detail = f"invalid hunk at line {error.line}, {error.detail}"
        return f"apply_patch verification failed: {detail}"
    return f"apply_patch verification failed: {error}"

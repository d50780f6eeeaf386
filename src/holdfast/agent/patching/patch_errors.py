"""Errors of patches: invalid text, a mismatch with the files, or a failed change."""

from holdfast.base.errors import HoldfastError

__all__ = ["InvalidPatch", "PatchError", "PatchFailed", "PatchMismatch"]


class PatchError(HoldfastError):
    """A patch was not applied; models know the error texts."""


class InvalidPatch(PatchError):
    """A text is not a valid patch; `line` counts from 1, or None if unknown."""

    def __init__(self, detail: str, *, line: int | None = None) -> None:
        where = "Invalid patch" if line is None else f"Invalid patch hunk on line {line}"
        super().__init__(f"{where}: {detail}")
        self.detail = detail
        self.line = line


class PatchMismatch(PatchError):
    """A patch does not match the current files. Nothing was written."""


class PatchFailed(PatchError):
    """
    A file could not be written or removed.

    Files changed before it were restored. `left` names those for which that failed, or whose state
    is unknown because the connection was lost. It is almost always empty.
    """

    def __init__(
        self, message: str, *, path: str | None = None, left: tuple[str, ...] = ()
    ) -> None:
        # For the user, who has to repair these files manually.
        if left:
            message = f"{message}\nThese files could not be restored: {', '.join(left)}"
        super().__init__(message, path=path)
        self.left = left

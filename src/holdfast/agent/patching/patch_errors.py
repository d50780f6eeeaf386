"""Errors of patches: invalid text, a mismatch with the files, or a failed change."""

from holdfast.base.errors import HoldfastError

__all__ = ["InvalidPatch", "PatchError", "PatchFailed", "PatchMismatch"]


class PatchError(HoldfastError):
    """A patch was not applied; models know the text."""


class InvalidPatch(PatchError):
    """A text is not an accepted patch; `line` counts from 1, or is None."""

    def __init__(self, detail: str, *, line: int | None = None) -> None:
        where = "Invalid patch" if line is None else f"Invalid patch hunk on line {line}"
        super().__init__(f"{where}: {detail}")
        self.detail = detail
        self.line = line


class PatchMismatch(PatchError):
    """A patch does not fit the files as they are. Nothing was written."""


class PatchFailed(PatchError):
    """
    A file could not be written or removed.

    The files before it are restored. `left` names the files for which that failed, or whose
    state is unknown because the connection was lost. It is empty almost always.
    """

    def __init__(
        self, message: str, *, path: str | None = None, left: tuple[str, ...] = ()
    ) -> None:
        # For people: such files have to be repaired by hand.
        if left:
            message = f"{message}\nThese files could not be put back: {', '.join(left)}"
        super().__init__(message, path=path)
        self.left = left

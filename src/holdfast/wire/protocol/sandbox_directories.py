"""The working directory and the project roots of a sandbox context, as paths of this machine."""

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams, InvalidPermissionPath
from holdfast.wire.protocol.paths import ForeignPathUri, PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["check_directories", "policy_directories", "sandbox_directories"]


def check_directories(context: SandboxContext) -> None:
    """
    Check the working directory and the roots of a context whose profile does not restrict files.

    Raises:
        InvalidParams: One of them is a path of another operating system.
    """
    # Any working directory works: only the conversion of the URIs matters.
    sandbox_directories(context, "/")


def sandbox_directories(context: SandboxContext, cwd: str | None) -> tuple[str, tuple[str, ...]]:
    """
    Return the directory that relative patterns start from, and the project roots.

    The error texts for commands differ from those for file operations.
    """
    # Without a working directory, patterns are absolute or were refused earlier.
    base, roots = policy_directories(context)
    try:
        start = base.native if base is not None else cwd or "/"
    except ForeignPathUri as error:
        if cwd is None:
            raise InvalidPermissionPath(str(error)) from None
        raise _foreign(base, "cwd", error) from None
    found: list[str] = []
    for root in roots:
        try:
            found.append(root.native)
        except ForeignPathUri as error:
            if cwd is None:
                raise InvalidPermissionPath(texts.foreign_root(error)) from None
            raise _foreign(root, "workspace root", error) from None
    return start, tuple(found)


def _foreign(uri: PathUri | None, what: str, error: ForeignPathUri) -> InvalidParams:
    return InvalidParams(texts.foreign_directory(what, uri, error))


def policy_directories(context: SandboxContext) -> tuple[PathUri | None, tuple[PathUri, ...]]:
    """Return the working directory and the project roots that the entries are relative to."""
    if context.policy_context is None:
        return context.cwd, context.workspace_roots
    # A policy context replaces the roots even if it names only the working directory.
    return context.policy_context.cwd or context.cwd, context.policy_context.workspace_roots

"""Turns the additional permissions that a model asks for into absolute paths."""

import posixpath

import msgspec

from holdfast.approvals.permissions import AddedPermissions, denies_paths
from holdfast.environments.environment import Environment
from holdfast.errors import HoldfastError, InvalidParams
from holdfast.protocol.paths import ForeignPathUri, PathUri
from holdfast.protocol.sandbox import FileEntry, SandboxContext
from holdfast.unified_exec.arguments.requested_permissions import RequestedPermissions
from holdfast.unified_exec.errors import CallRefused

__all__ = ["added_permissions"]


async def added_permissions(
    requested: RequestedPermissions,
    environment: Environment,
    cwd: PathUri,
    sandbox: SandboxContext | None,
) -> AddedPermissions:
    """
    Return what a call asks for, with absolute paths.

    If the profile denies paths, links are resolved where the command runs: a link must not
    lead below a denied path.

    Raises:
        CallRefused: A path makes no sense.
    """
    try:
        folder = cwd.native
    except ForeignPathUri as error:
        raise CallRefused(str(error)) from error
    files = requested.file_system
    real = denies_paths(sandbox)

    async def placed(paths: tuple[str, ...] | None) -> tuple[str, ...]:
        return tuple([await _placed(path, folder, environment, real=real) for path in paths or ()])

    given = (None if files is None else files.entries) or ()
    entries = [await _entry(one, folder, environment, real=real) for one in given]
    return AddedPermissions(
        network=bool(requested.network),
        read=await placed(None if files is None else files.read),
        write=await placed(None if files is None else files.write),
        entries=tuple(entries),
    )


async def _entry(
    given: dict[str, object], folder: str, environment: Environment, *, real: bool
) -> FileEntry:
    path = given.get("path")
    if isinstance(path, dict) and path.get("type") == "path":
        text = await _placed(str(path["path"]), folder, environment, real=real)
        given = {**given, "path": {"type": "path", "path": str(PathUri.from_path(text))}}
    try:
        return msgspec.convert(given, FileEntry, dec_hook=_decode_path)
    except (msgspec.ValidationError, InvalidParams) as error:
        raise CallRefused(f"additional_permissions: {error}") from error


def _decode_path(kind: type, value: object) -> object:
    if kind is PathUri and isinstance(value, str):
        return PathUri.parse(value)
    raise NotImplementedError


async def _placed(path: str, folder: str, environment: Environment, *, real: bool) -> str:
    if not path or "\0" in path:
        raise CallRefused(f"additional_permissions: {path!r} is no path")
    text = posixpath.normpath(posixpath.join(folder, path))
    return await _resolved(text, environment) if real else text


async def _resolved(path: str, environment: Environment) -> str:
    """Return a path without links; of what does not exist yet, the part that does."""
    rest: list[str] = []
    current = path
    while current != "/":
        try:
            found = await environment.filesystem.canonicalize(PathUri.from_path(current))
        except HoldfastError:
            current, name = posixpath.split(current)
            rest.append(name)
            continue
        return posixpath.join(found.native, *reversed(rest))
    return path

"""Resolves the additional permissions that a model requests to absolute paths."""

import posixpath

import msgspec

from holdfast.agent.approvals.permissions import (
    AddedPermissions,
    denied_paths,
    denies_paths,
    refuse_below,
)
from holdfast.agent.unified_exec.arguments.requested_permissions import RequestedPermissions
from holdfast.agent.unified_exec.tool_errors import CallRefused
from holdfast.base.errors import HoldfastError, InvalidParams
from holdfast.environments.environment import Environment
from holdfast.wire.protocol.fs import CanonicalizeParams
from holdfast.wire.protocol.paths import ForeignPathUri, PathUri
from holdfast.wire.protocol.sandbox import FileEntry, SandboxContext

__all__ = ["added_permissions"]


async def added_permissions(
    requested: RequestedPermissions,
    environment: Environment,
    cwd: PathUri,
    sandbox: SandboxContext | None,
) -> AddedPermissions:
    """
    Return the permissions that a call requests, with absolute paths.

    If the profile denies paths, links are resolved in the command's environment: neither a link
    to a denied path nor the target of a denied link may be added.

    Raises:
        CallRefused: A path is invalid or denied.
    """
    try:
        directory = cwd.native
    except ForeignPathUri as error:
        raise CallRefused(str(error)) from error
    paths = _PathResolver(environment, directory)
    if denies_paths(sandbox):
        await paths.deny(sandbox)
    files = requested.file_system
    entries = (None if files is None else files.entries) or ()
    return AddedPermissions(
        network=bool(requested.network),
        read=await paths.absolute(None if files is None else files.read),
        write=await paths.absolute(None if files is None else files.write),
        entries=tuple([await paths.entry(entry) for entry in entries]),
    )


class _PathResolver:
    """Resolves the paths of one request in the command's environment."""

    def __init__(self, environment: Environment, directory: str) -> None:
        self._environment = environment
        self._directory = directory
        self._denied: tuple[str, ...] | None = None

    async def deny(self, sandbox: SandboxContext | None) -> None:
        """Refuse paths that the profile denies, including through links."""
        try:
            paths = denied_paths(sandbox)
        except InvalidParams as error:
            raise CallRefused(str(error)) from error
        resolved = [await self._resolved(path) for path in paths]
        self._denied = (*paths, *(path for path in resolved if path is not None))

    async def absolute(self, paths: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the paths as absolute paths."""
        return tuple([await self._absolute(path) for path in paths or ()])

    async def entry(self, given: dict[str, object]) -> FileEntry:
        """Return an entry of a profile with an absolute path."""
        path = given.get("path")
        if isinstance(path, dict) and path.get("type") == "path":
            uri = PathUri.from_path(await self._absolute(str(path["path"])))
            given = {**given, "path": {"type": "path", "path": str(uri)}}
        try:
            return msgspec.convert(given, FileEntry, dec_hook=_decode_path)
        except (msgspec.ValidationError, InvalidParams) as error:
            raise CallRefused(f"additional_permissions: {error}") from error

    async def _absolute(self, path: str) -> str:
        if not path or "\0" in path:
            raise CallRefused(f"additional_permissions: {path!r} is no path")
        text = posixpath.normpath(posixpath.join(self._directory, path))
        if self._denied is None:
            return text
        try:
            refuse_below(text, self._denied)
            real = await self._resolved(text)
            if real is None:
                # A missing path may be a dangling link that could later lead to a denied path.
                raise InvalidParams(f"`{text}` is missing, and the permission profile denies paths")
            refuse_below(real, self._denied)
        except InvalidParams as error:
            raise CallRefused(f"additional_permissions: {error}") from error
        return real

    async def _resolved(self, path: str) -> str | None:
        """Return a path with links resolved, or None if it does not exist."""
        try:
            found = await self._environment.filesystem.canonicalize(
                CanonicalizeParams(PathUri.from_path(path))
            )
            return found.native
        except HoldfastError:
            return None


def _decode_path(kind: type, value: object) -> object:
    if kind is PathUri and isinstance(value, str):
        return PathUri.parse(value)
    raise NotImplementedError

"""
Handler for `capabilityRoots/discoverV1`: files of plugins and skills below given directories.

Files are only interpreted to find other files to read. Everything is limited, and unreadable files
become warnings, so that one broken file does not hide others. See [discovery.roots.*]; the default
`.app.json` was observed on the real server.
"""

import asyncio
import json
from collections.abc import Sequence

from holdfast.backends import FileSystem
from holdfast.base.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.codex.discovery.uri_paths import ancestors, below, parent_of
from holdfast.wire.protocol.discovery import (
    CapabilityFile,
    CapabilityRoot,
    DiscoveredRoot,
    PluginFiles,
    SkillFiles,
)
from holdfast.wire.protocol.fs import GetMetadataParams, ReadFileParams, WalkOptions, WalkParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["MANIFESTS", "MAX_ROOTS", "discover_root", "discover_roots"]

MAX_ROOTS = 128
"""Most directories in one request."""

MANIFESTS = (".codex-plugin", ".claude-plugin", ".cursor-plugin")
"""Directories whose `plugin.json` makes the parent a plugin; the first one counts."""

# Most bytes of one file, and of all files below one root.
_MAX_FILE = 1 << 20
_MAX_ROOT = 16 << 20

# Roots to scan concurrently.
_AT_ONCE = 8

_SCAN = WalkOptions(
    max_depth=6, max_directories=2_000, max_entries=20_000, follow_directory_symlinks=True
)


async def discover_roots(
    files: FileSystem, roots: Sequence[CapabilityRoot]
) -> list[DiscoveredRoot]:
    """
    Scan directories and return one result for each, in order.

    Raises:
        InvalidRequest: There are too many directories.
    """
    if len(roots) > MAX_ROOTS:
        raise InvalidRequest(f"capability root discovery accepts at most {MAX_ROOTS} roots")
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def discover(root: CapabilityRoot) -> DiscoveredRoot:
        async with at_once:
            return await discover_root(files, root)

    async with asyncio.TaskGroup() as tasks:
        scans = [tasks.create_task(discover(root)) for root in roots]
    return [scan.result() for scan in scans]


async def discover_root(files: FileSystem, root: CapabilityRoot) -> DiscoveredRoot:
    """Scan a directory; errors are part of the result."""
    return await _Scan(files, root).run()


class _Skipped(Exception):
    """A file is left out; the text becomes a warning."""


class _Scan:
    """The scan of one directory, with its remaining byte budget."""

    def __init__(self, files: FileSystem, root: CapabilityRoot) -> None:
        self._files = files
        self._id = root.id
        self._root = root.path
        self._sandbox: SandboxContext | None = root.sandbox
        self._warnings: list[str] = []
        self._bytes = 0

    async def run(self) -> DiscoveredRoot:
        root = self._root
        try:
            metadata = await self._files.get_metadata(
                GetMetadataParams(root, sandbox=self._sandbox)
            )
        except HoldfastError as error:
            return self._failed(f"failed to inspect capability root {root}: {error}")
        if not metadata.is_directory:
            return self._failed(f"capability root {root} is not a directory")
        try:
            found = await self._files.walk(WalkParams(root, options=_SCAN, sandbox=self._sandbox))
        except HoldfastError as error:
            return self._failed(f"failed to scan capability root {root}: {error}")
        self._warnings += [
            f"failed to scan capability path {error.path}: {error.message}"
            for error in found.errors
        ]
        if found.truncated:
            self._warnings.append(f"capability scan reached its traversal limit (root: {root})")
        paths = [entry.path for entry in found.entries if entry.kind == "file"]
        own = await self._manifest_of(root)
        namespaces = await self._namespaces(own, paths)
        plugin = None if own is None else await self._plugin(own)
        skills = await self._skills(paths)
        return DiscoveredRoot(
            id=self._id,
            path=root,
            plugin=plugin,
            skills=tuple(skills),
            namespace_manifests=tuple(namespaces),
            warnings=tuple(self._warnings),
        )

    def _failed(self, error: str) -> DiscoveredRoot:
        return DiscoveredRoot(id=self._id, path=self._root, error=error)

    # -- plugins

    async def _manifest_of(self, directory: PathUri) -> CapabilityFile | None:
        for kind in MANIFESTS:
            path = below(directory, kind, "plugin.json")
            manifest = None if path is None else await self._read(path)
            if manifest is not None:
                return manifest
        return None

    async def _namespaces(
        self, own: CapabilityFile | None, paths: Sequence[PathUri]
    ) -> list[CapabilityFile]:
        """Return the manifest that covers the directory, then one for each plugin inside."""
        covering = own
        if covering is None:
            for above in ancestors(self._root):
                # A skill directory may be inside a plugin whose root was not requested.
                covering = await self._manifest_of(above)
                if covering is not None:
                    break
        manifests = [] if covering is None else [covering]
        seen = {_plugin_of(manifest.path) for manifest in manifests}
        inside = [(plugin, path) for path in paths if (plugin := _plugin_of(path)) is not None]
        for plugin, path in sorted(inside, key=lambda pair: (str(pair[0]), _priority(pair[1]))):
            if plugin in seen:
                continue
            seen.add(plugin)
            manifest = await self._read(path)
            if manifest is not None:
                manifests.append(manifest)
        return manifests

    async def _plugin(self, manifest: CapabilityFile) -> PluginFiles:
        declared = _declarations(manifest.contents)
        return PluginFiles(
            manifest=manifest,
            mcp_config=await self._declared(declared, "mcpServers", ".mcp.json", manifest),
            apps_config=await self._declared(declared, "apps", ".app.json", manifest),
        )

    async def _declared(
        self, declared: dict[str, object], field: str, default: str, manifest: CapabilityFile
    ) -> CapabilityFile | None:
        value = declared.get(field)
        if isinstance(value, dict):
            # The servers are in the manifest itself.
            return None
        path: PathUri | None = None
        if isinstance(value, str):
            problem, path = self._inside(value)
            if problem:
                self._warnings.append(f"ignoring {field} in {manifest.path}: {problem}")
        path = path or below(self._root, default)
        return None if path is None else await self._read(path)

    def _inside(self, value: str) -> tuple[str, PathUri | None]:
        """Return the fault of a path declared in a manifest, or the path."""
        if not value.startswith("./"):
            return "path must start with `./`", None
        names = [name for name in value.split("/") if name not in {"", "."}]
        # A backslash separates names on Windows.
        climbs = ".." in value.replace("\\", "/").split("/")
        path = None if climbs or not names else below(self._root, *names)
        return ("path must remain below the capability root", None) if path is None else ("", path)

    # -- skills

    async def _skills(self, paths: Sequence[PathUri]) -> list[SkillFiles]:
        skills: list[SkillFiles] = []
        for path in sorted((path for path in paths if _last(path) == "SKILL.md"), key=str):
            instructions = await self._read(path)
            if instructions is None:
                continue
            directory = parent_of(path)
            beside = None if directory is None else below(directory, "agents", "openai.yaml")
            metadata = None if beside is None else await self._read(beside)
            skills.append(SkillFiles(instructions=instructions, metadata=metadata))
        return skills

    # -- files

    async def _read(self, path: PathUri) -> CapabilityFile | None:
        """Return a file, or None if it is missing; other errors become warnings."""
        try:
            return await self._text(path)
        except _Skipped as skipped:
            self._warnings.append(str(skipped))
            return None

    async def _text(self, path: PathUri) -> CapabilityFile | None:
        try:
            metadata = await self._files.get_metadata(
                GetMetadataParams(path, sandbox=self._sandbox)
            )
        except NotFound:
            return None
        except HoldfastError as error:
            raise _Skipped(f"failed to inspect capability file {path}: {error}") from error
        if not metadata.is_file:
            return None
        if metadata.size > _MAX_FILE:
            raise _Skipped(f"capability file {path} exceeds the {_MAX_FILE}-byte limit")
        # Check the size first, to avoid reading huge files.
        if self._bytes + metadata.size > _MAX_ROOT:
            raise _Skipped(f"capability root bundle exceeds the {_MAX_ROOT}-byte limit")
        try:
            data = await self._files.read_file(ReadFileParams(path, sandbox=self._sandbox))
        except HoldfastError as error:
            raise _Skipped(f"failed to read capability file {path}: {error}") from error
        # The file has grown since its size was read.
        if len(data) > _MAX_FILE or self._bytes + len(data) > _MAX_ROOT:
            raise _Skipped(f"capability file {path} exceeded its read limit")
        try:
            contents = data.decode()
        except UnicodeDecodeError as error:
            raise _Skipped(f"capability file {path} is not UTF-8: {_not_utf8(error)}") from error
        self._bytes += len(data)
        return CapabilityFile(path=path, contents=contents)


def _last(path: PathUri) -> str:
    return str(path).rpartition("/")[2]


def _plugin_of(path: PathUri) -> PathUri | None:
    """Return the plugin directory of a manifest; None if the file is not a manifest."""
    directory = parent_of(path)
    if directory is None or _last(path) != "plugin.json" or _last(directory) not in MANIFESTS:
        return None
    return parent_of(directory)


def _priority(manifest: PathUri) -> int:
    directory = parent_of(manifest)
    # `_plugin_of` has accepted the manifest before.
    assert directory is not None
    return MANIFESTS.index(_last(directory))


def _declarations(text: str) -> dict[str, object]:
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _not_utf8(error: UnicodeDecodeError) -> str:
    if error.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {error.start}"
    return f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"

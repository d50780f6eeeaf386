"""
Handler for `capabilities/discoverV2`: the installed plugins and skills.

Plugins are in the cache of the Codex home, `plugins/cache/MARKETPLACE/NAME/VERSION`. Skills are in
three directories: of the Codex home, of the user and of the system. The client decides which are
enabled; skills of projects are not searched. The handler never fails. Unreadable files are left out
with a generic warning, since a precise text could reveal files that the client may not see.

The real server reads everything once and watches the files; here they are read for each request.
See [discovery.installed]; the rest was observed on the real server.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from errno import EACCES
from typing import NamedTuple

import msgspec

from holdfast.backends import FileSystem
from holdfast.base.errors import HoldfastError, NotFound
from holdfast.codex.discovery.roots import discover_root
from holdfast.codex.discovery.skill_text import SkillTextError, read_head, read_metadata
from holdfast.codex.discovery.uri_paths import ancestors, below, name_of, parent_of
from holdfast.codex.discovery.versions import active_version, is_marketplace_name, is_plugin_name
from holdfast.wire.protocol.discovery import (
    CapabilityFile,
    CapabilityRoot,
    DiscoveredRoot,
    DiscoverInstalledResponse,
    InstalledPlugin,
    InstalledSkill,
    SkillFiles,
    SkillSource,
)
from holdfast.wire.protocol.fs import (
    GetMetadataParams,
    ReadDirectoryParams,
    ReadFileParams,
    WalkOptions,
    WalkParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext
from holdfast.wire.protocol.wire_types import Wire

__all__ = ["discover_installed"]

# The real server's limits: directories to search, plugins and skills in them, warnings and bytes of
# the answer.
_MAX_LOCATIONS = 512
_MAX_CAPABILITIES = 2_048
_MAX_WARNINGS = 64
_MAX_BYTES = 4 << 20

# Most characters of a skill's name including its plugin's.
_MAX_NAME = 129

_MAX_INSTALL_FILE = 16 << 10
_MAX_REMOTE_ID = 1024
_INSTALL_FILE = ".codex-remote-plugin-install.json"

# Directories to search concurrently.
_AT_ONCE = 8
_CACHE = WalkOptions(
    max_depth=1, max_directories=2_000, max_entries=20_000, follow_directory_symlinks=True
)

_NO_LOCATION = "some capability locations could not be resolved; discovery may be incomplete"
_NO_METADATA = "some capability metadata could not be loaded; discovery may be incomplete"
_TOO_MUCH = "capability discovery size limit reached"


class _Unreadable(Exception):
    """Error for a file with unexpected content."""


class _Plugin(NamedTuple):
    id: str
    version: str
    remote_id: str | None


class _Location(NamedTuple):
    root: PathUri
    plugin: _Plugin | None = None
    # The id of a skill directory.
    source: str = ""


class _ScanResult(NamedTuple):
    plugin: InstalledPlugin | None = None
    skills: Sequence[InstalledSkill] = ()
    complete: bool = True


async def discover_installed(
    files: FileSystem,
    *,
    codex_home: str,
    user_home: str | None,
    system_directory: str,
    sandbox: SandboxContext | None = None,
) -> DiscoverInstalledResponse:
    """
    Return the installed plugins and skills.

    Args:
        files: The file system.
        codex_home: Absolute path, like the other two.
        user_home: The user's home, if any.
        system_directory: The directory of the system's files.
        sandbox: Files that it does not permit to read count as not installed.
    """
    home = PathUri.from_path(codex_home)
    plugins, complete = await _cached_plugins(files, below(home, "plugins", "cache"), sandbox)
    directories = [
        ("codex-home-skills", below(home, "skills")),
        ("system-skills", below(PathUri.from_path(system_directory), "skills")),
    ]
    if user_home is not None:
        user = below(PathUri.from_path(user_home), ".agents", "skills")
        directories.insert(1, ("user-agent-skills", user))
    skills = [_Location(root, source=name) for name, root in directories if root is not None]
    locations = [*plugins, *skills][:_MAX_LOCATIONS]
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def look(location: _Location) -> _ScanResult:
        async with at_once:
            return await _look(files, location, sandbox)

    async with asyncio.TaskGroup() as tasks:
        scans = [tasks.create_task(look(location)) for location in locations]
    answer = _ResponseBuilder([] if complete else [_NO_LOCATION])
    for scan in scans:
        answer.add(scan.result())
    return answer.finish()


# -- where to look


async def _cached_plugins(
    files: FileSystem, cache: PathUri | None, sandbox: SandboxContext | None
) -> tuple[list[_Location], bool]:
    """Return the plugins in use in the cache, and True if the cache was read completely."""
    if cache is None:
        return [], True
    try:
        found = await files.walk(WalkParams(cache, options=_CACHE, sandbox=sandbox))
    except NotFound:
        return [], True
    except HoldfastError:
        return [], False
    complete = not found.errors and not found.truncated
    packages: dict[str, PathUri] = {}
    for entry in found.entries:
        marketplace = parent_of(entry.path)
        if entry.kind == "directory" and marketplace is not None and marketplace != cache:
            name, market = name_of(entry.path), name_of(marketplace)
            # Other directories are not part of the cache's layout.
            if is_plugin_name(name) and is_marketplace_name(market):
                packages[f"{name}@{market}"] = entry.path
    locations: list[_Location] = []
    for plugin_id, package in sorted(packages.items()):
        version = active_version([name async for name in _subdirectories(files, package, sandbox)])
        root = None if version is None else below(package, version)
        if version is None or root is None:
            continue
        try:
            remote_id = await _remote_id(files, below(package, _INSTALL_FILE), sandbox)
        except (_Unreadable, HoldfastError):
            # Without the file, only the id is missing.
            remote_id, complete = None, False
        locations.append(_Location(root, _Plugin(plugin_id, version, remote_id)))
    return locations, complete


async def _subdirectories(
    files: FileSystem, package: PathUri, sandbox: SandboxContext | None
) -> AsyncIterator[str]:
    """Yield the names of subdirectories, excluding links."""
    try:
        entries = await files.read_directory(ReadDirectoryParams(package, sandbox=sandbox))
    except HoldfastError:
        return
    for entry in entries:
        path = below(package, entry.file_name) if entry.is_directory else None
        if path is None:
            continue
        try:
            metadata = await files.get_metadata(GetMetadataParams(path, sandbox=sandbox))
        except HoldfastError:
            continue
        if not metadata.is_symlink:
            yield entry.file_name


async def _remote_id(
    files: FileSystem, path: PathUri | None, sandbox: SandboxContext | None
) -> str | None:
    """Return the remote id of a plugin, or None if it has none."""
    if path is None:
        return None
    try:
        data = await files.read_file(ReadFileParams(path, sandbox=sandbox))
    except NotFound:
        return None
    if len(data) > _MAX_INSTALL_FILE:
        raise _Unreadable
    table = _table(data.decode(errors="replace"))
    remote_id = table.get("remote_plugin_id")
    if table.get("schema_version") != 1 or not isinstance(remote_id, str):
        raise _Unreadable
    remote_id = remote_id.strip()
    if not remote_id or len(remote_id.encode(errors="replace")) > _MAX_REMOTE_ID:
        raise _Unreadable
    return remote_id


# -- results


async def _look(
    files: FileSystem, location: _Location, sandbox: SandboxContext | None
) -> _ScanResult:
    try:
        metadata = await files.get_metadata(GetMetadataParams(location.root, sandbox=sandbox))
    except HoldfastError as error:
        # Missing or inaccessible directories are normal on most machines.
        unknown = not isinstance(error, NotFound) and error.errno != EACCES
        return _ScanResult(complete=not unknown)
    if not metadata.is_directory:
        return _ScanResult()
    root = CapabilityRoot(id="", path=location.root, sandbox=sandbox)
    scan = await discover_root(files, root)
    complete = not scan.warnings and scan.error is None
    prefixes = dict(_prefixes(scan.namespace_manifests))
    source: SkillSource | msgspec.UnsetType = msgspec.UNSET
    if location.plugin is None:
        source = SkillSource(id=location.source, path=location.root)
    skills: list[InstalledSkill] = []
    for skill in scan.skills:
        try:
            skills.append(_skill(skill, prefixes, source))
        except SkillTextError:
            complete = False
    if location.plugin is None:
        return _ScanResult(skills=skills, complete=complete)
    try:
        return _ScanResult(plugin=_plugin(location, scan, skills), complete=complete)
    except _Unreadable:
        return _ScanResult(complete=False)


def _prefixes(manifests: Sequence[CapabilityFile]) -> Iterator[tuple[PathUri, str]]:
    """Yield each plugin's directory with the name prefix of its skills."""
    for manifest in manifests:
        directory = parent_of(manifest.path)
        plugin = None if directory is None else parent_of(directory)
        if plugin is None:
            continue
        try:
            yield plugin, _manifest_name(_table(manifest.contents), plugin)
        except _Unreadable:
            continue


def _skill(
    skill: SkillFiles, prefixes: Mapping[PathUri, str], source: SkillSource | msgspec.UnsetType
) -> InstalledSkill:
    path = skill.instructions.path
    directory = parent_of(path)
    head = read_head(skill.instructions.contents, "" if directory is None else name_of(directory))
    prefix = next((prefixes[above] for above in ancestors(path) if above in prefixes), None)
    name = head.name if prefix is None else f"{prefix}:{head.name}"
    if len(name) > _MAX_NAME:
        raise SkillTextError("the name is too long")
    dependencies, policy = (
        (None, None) if skill.metadata is None else read_metadata(skill.metadata.contents)
    )
    return InstalledSkill(
        name=name,
        description=head.description,
        short_description=head.short_description,
        path=path,
        discovery_root=source,
        dependencies=dependencies,
        policy=policy,
    )


def _plugin(
    location: _Location, scan: DiscoveredRoot, skills: list[InstalledSkill]
) -> InstalledPlugin:
    files = scan.plugin
    # The caller has checked this.
    assert location.plugin is not None
    if files is None:
        raise _Unreadable
    manifest = _table(files.manifest.contents)
    name = _manifest_name(manifest, location.root)
    interface = manifest.get("interface")
    if not isinstance(manifest.get("apps"), str | None) or not isinstance(interface, dict | None):
        raise _Unreadable
    shown = (interface or {}).get("displayName")
    if not isinstance(shown, str | None):
        raise _Unreadable
    servers = manifest.get("mcpServers")
    if isinstance(servers, dict):
        inline = CapabilityFile(
            path=files.manifest.path, contents=_inline_servers(files.manifest.contents)
        )
        files = msgspec.structs.replace(files, mcp_config=inline)
    return InstalledPlugin(
        id=location.plugin.id,
        display_name=(shown or "").strip() or name,
        remote_plugin_id=location.plugin.remote_id,
        version=location.plugin.version,
        root=location.root,
        files=files,
        skills=skills,
    )


def _manifest_name(manifest: Mapping[str, object], plugin: PathUri) -> str:
    name = manifest.get("name", "")
    if not isinstance(name, str):
        raise _Unreadable
    return name if name.strip() else name_of(plugin)


class _Servers(Wire, frozen=True, kw_only=True):
    mcp_servers: msgspec.Raw


def _inline_servers(manifest: str) -> str:
    """Return the servers as spelled in the manifest, without insignificant whitespace."""
    raw = msgspec.json.decode(manifest.encode(), type=_Servers).mcp_servers
    return msgspec.json.format(bytes(raw), indent=-1).decode()


def _table(text: str) -> dict[str, object]:
    try:
        # Codex's parser refuses duplicate keys; Python's uses the last one.
        table = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _Unreadable from error
    if not isinstance(table, dict):
        raise _Unreadable
    return table


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("duplicate key")
    return table


# -- limits of the answer


class _ResponseBuilder:
    """A response that stops growing at its limits."""

    def __init__(self, warnings: list[str]) -> None:
        self._plugins: list[InstalledPlugin] = []
        self._skills: list[InstalledSkill] = []
        self._warnings = warnings
        self._count = 0
        self._bytes = 0
        self._full = False

    def add(self, found: _ScanResult) -> None:
        if not found.complete and len(self._warnings) < _MAX_WARNINGS:
            self._warnings.append(_NO_METADATA)
        if found.plugin is not None:
            plugin = found.plugin
            room = _MAX_CAPABILITIES - self._count - 1
            # A plugin that does not fit is shortened; a later one may still fit completely.
            if len(plugin.skills) > room >= 0:
                self._full = True
                plugin = msgspec.structs.replace(plugin, skills=plugin.skills[:room])
            if self._admit(plugin, 1 + len(plugin.skills)):
                self._plugins.append(plugin)
        self._skills += [skill for skill in found.skills if self._admit(skill, 1)]

    def _admit(self, what: Wire, count: int) -> bool:
        size = len(_encode(what))
        if self._count + count > _MAX_CAPABILITIES or self._bytes + size > _MAX_BYTES:
            self._full = True
            return False
        self._count += count
        self._bytes += size
        return True

    def finish(self) -> DiscoverInstalledResponse:
        plugins = sorted(self._plugins, key=lambda plugin: plugin.id)
        skills, warnings = self._skills, self._warnings
        # The warning about the limit comes first, so that it is not cut off itself.
        if self._full:
            warnings = [_TOO_MUCH, *warnings[: _MAX_WARNINGS - 1]]
        return DiscoverInstalledResponse(plugins=plugins, skills=skills, warnings=warnings)


_encode = msgspec.json.Encoder(enc_hook=str).encode

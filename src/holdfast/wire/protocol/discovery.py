"""Capability discovery: plugins and skills on the executor's side [discovery.*]."""

import msgspec

from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext
from holdfast.wire.protocol.wire_types import Wire

__all__ = [
    "CapabilityFile",
    "CapabilityRoot",
    "DiscoverInstalledParams",
    "DiscoverInstalledResponse",
    "DiscoverRootsParams",
    "DiscoverRootsResponse",
    "DiscoveredRoot",
    "InstalledPlugin",
    "InstalledSandbox",
    "InstalledSkill",
    "PluginFiles",
    "SkillDependencies",
    "SkillFiles",
    "SkillPolicy",
    "SkillSource",
    "SkillTool",
]

# -- capabilityRoots/discoverV1: directories that the client names


class CapabilityRoot(Wire, frozen=True, kw_only=True):
    """A directory to search; ids are the client's and need not be unique."""

    id: str
    path: PathUri
    sandbox: SandboxContext | None = None


class DiscoverRootsParams(Wire, frozen=True, kw_only=True):
    roots: list[CapabilityRoot]


class CapabilityFile(Wire, frozen=True, kw_only=True):
    path: PathUri
    contents: str


class PluginFiles(Wire, frozen=True, kw_only=True):
    manifest: CapabilityFile
    mcp_config: CapabilityFile | None
    apps_config: CapabilityFile | None


class SkillFiles(Wire, frozen=True, kw_only=True):
    instructions: CapabilityFile
    metadata: CapabilityFile | None


class DiscoveredRoot(Wire, frozen=True, kw_only=True):
    """The capabilities of a directory, or the reason why they cannot be read."""

    id: str
    path: PathUri
    plugin: PluginFiles | None = None
    """Set only if the directory is a plugin itself."""
    skills: tuple[SkillFiles, ...] = ()
    namespace_manifests: tuple[CapabilityFile, ...] = ()
    """Manifests that give the skills below them their prefix; that of the directory comes first."""
    warnings: tuple[str, ...] = ()
    error: str | None = None


class DiscoverRootsResponse(Wire, frozen=True, kw_only=True):
    roots: list[DiscoveredRoot]


# -- capabilities/discoverV2: what is installed on the executor


class InstalledSandbox(SandboxContext, frozen=True, kw_only=True):
    """A `SandboxContext` whose `cwd` is required."""

    cwd: PathUri


class DiscoverInstalledParams(Wire, frozen=True, kw_only=True):
    cwd: PathUri
    """Has no effect: capabilities of a project are not searched."""
    sandbox: InstalledSandbox | None = None


class SkillTool(Wire, frozen=True, kw_only=True):
    """A tool that a skill needs."""

    type: str
    value: str
    description: str | None = None
    transport: str | None = None
    command: str | None = None
    url: str | None = None
    # Always null: `agents/openai.yaml` has no such key here.
    oauth_callback_port: int | None = None


class SkillDependencies(Wire, frozen=True, kw_only=True):
    tools: list[SkillTool]


class SkillPolicy(Wire, frozen=True, kw_only=True):
    allow_implicit_invocation: bool | None = None
    products: tuple[str, ...] = ()


class SkillSource(Wire, frozen=True, kw_only=True):
    """The skill directory in which a skill was found."""

    id: str
    path: PathUri


class InstalledSkill(Wire, frozen=True, kw_only=True):
    name: str
    """The name; `plugin:skill` if it belongs to a plugin."""
    description: str
    short_description: str | None
    path: PathUri
    """The path of its `SKILL.md`."""
    discovery_root: SkillSource | msgspec.UnsetType = msgspec.UNSET
    """Unset for skills of an installed plugin."""
    dependencies: SkillDependencies | None = None
    policy: SkillPolicy | None = None


class InstalledPlugin(Wire, frozen=True, kw_only=True):
    id: str
    """`name@marketplace`."""
    display_name: str
    remote_plugin_id: str | None
    version: str
    root: PathUri
    files: PluginFiles
    skills: list[InstalledSkill]


class DiscoverInstalledResponse(Wire, frozen=True, kw_only=True):
    plugins: list[InstalledPlugin]
    skills: list[InstalledSkill]
    """Skills that belong to no plugin."""
    warnings: list[str]

"""Capability discovery: plugins and skills on the executor's side [discovery.*]."""

import msgspec

from holdfast.protocol.base import Wire
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import SandboxContext

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

# -- capabilityRoots/discoverV1: folders that the client names


class CapabilityRoot(Wire, frozen=True, kw_only=True):
    """A folder to look into; ids are the client's and need not differ."""

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
    """What is in a folder, or why that cannot be told."""

    id: str
    path: PathUri
    plugin: PluginFiles | None = None
    """Only if the folder is a plugin itself."""
    skills: tuple[SkillFiles, ...] = ()
    namespace_manifests: tuple[CapabilityFile, ...] = ()
    """Manifests that give the skills below them their prefix; the folder's own comes first."""
    warnings: tuple[str, ...] = ()
    error: str | None = None


class DiscoverRootsResponse(Wire, frozen=True, kw_only=True):
    roots: list[DiscoveredRoot]


# -- capabilities/discoverV2: what is installed on the executor


class InstalledSandbox(SandboxContext, frozen=True, kw_only=True):
    """As elsewhere, but with a folder that has to be named."""

    cwd: PathUri


class DiscoverInstalledParams(Wire, frozen=True, kw_only=True):
    cwd: PathUri
    """Plays no part in the answer: what belongs to a project is not looked for."""
    sandbox: InstalledSandbox | None = None


class SkillTool(Wire, frozen=True, kw_only=True):
    """What a skill needs to work."""

    type: str
    value: str
    description: str | None = None
    transport: str | None = None
    command: str | None = None
    url: str | None = None
    oauth_callback_port: int | None = None


class SkillDependencies(Wire, frozen=True, kw_only=True):
    tools: list[SkillTool]


class SkillPolicy(Wire, frozen=True, kw_only=True):
    allow_implicit_invocation: bool | None = None
    products: tuple[str, ...] = ()


class SkillSource(Wire, frozen=True, kw_only=True):
    """The folder of skills in which one was found."""

    id: str
    path: PathUri


class InstalledSkill(Wire, frozen=True, kw_only=True):
    name: str
    """With the name of its plugin in front, if it is part of one: `plugin:skill`."""
    description: str
    short_description: str | None
    path: PathUri
    """Of its `SKILL.md`."""
    discovery_root: SkillSource | msgspec.UnsetType = msgspec.UNSET
    """Not there for the skills of an installed plugin."""
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
    """Those outside of plugins."""
    warnings: list[str]

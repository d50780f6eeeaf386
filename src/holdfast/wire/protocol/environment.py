"""`environmentConfig/read`: the executor's own configuration [environment.config]."""

from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.wire_types import Wire

__all__ = ["ConfigLayer", "ConfigReadParams", "ConfigReadResponse", "ConfigStack"]


class ConfigReadParams(Wire, frozen=True, kw_only=True):
    cwd: PathUri
    config_paths: list[list[str]]
    """Key paths: `[["mcp_servers"]]` asks for that table of each layer."""
    requirements_paths: list[list[str]]


class ConfigLayer(Wire, frozen=True, kw_only=True):
    source: str
    base_dir: str
    toml: str


class ConfigStack(Wire, frozen=True, kw_only=True):
    layers: list[ConfigLayer]
    """From the lowest precedence to the highest."""
    cloud_insertion_index: int


class ConfigReadResponse(Wire, frozen=True, kw_only=True):
    user_home_dir: str | None
    codex_home_dir: str | None
    hostname: str | None
    config: ConfigStack
    requirements: ConfigStack

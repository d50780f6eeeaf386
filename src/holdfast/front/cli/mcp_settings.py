"""Settings of `holdfast mcp`, from its options and a file."""

import argparse
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from holdfast.base.errors import InvalidConfig
from holdfast.base.own_files import keep_unchanged
from holdfast.environments.config.home import holdfast_home
from holdfast.front.mcp.mcp_options import KEEP, MAX_WAIT, PROFILES

__all__ = ["McpSettings", "read_settings"]

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e7)]

_FILE = "mcp.toml"


class McpSettings(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """
    All settings, named like their options.

    Paths are relative to the file's directory, but those of `sandbox_write` to the workspace.
    """

    listen: str = "stdio"
    environment: str | None = None
    cwd: str | None = None
    sandbox: str = "workspace-write"
    sandbox_write: list[str] = []
    ask_for_approval: Literal["never", "on-request"] = "on-request"
    ask_after_denial: bool = False
    rules: list[str] = []
    rules_leave_sandbox: bool = False
    max_wait: _Seconds = MAX_WAIT
    on_cancel: Literal["stop", "keep"] = "stop"
    no_notes: bool = False
    keep: _Seconds = KEEP
    token_file: str | None = None
    no_auth: bool = False
    allowed_host: list[str] = []
    allowed_origin: list[str] = []


_PATHS = ("cwd", "token_file")


def read_settings(options: argparse.Namespace) -> McpSettings:
    """
    Return the settings; options override the file.

    Args:
        options: `config` names the file; by default `mcp.toml` in Holdfast's home, if it
            exists.

    Raises:
        InvalidConfig: The file cannot be read, or a setting is invalid.
    """
    file = None if options.config is None else Path(options.config)
    found = _from_file(holdfast_home(os.environ) / _FILE if file is None else file, file is None)
    given = {name: getattr(options, name) for name in McpSettings.__struct_fields__}
    # These are argparse's defaults for missing options.
    chosen = {name: value for name, value in given.items() if value not in (None, [], False)}
    merged = msgspec.to_builtins(msgspec.structs.replace(found, **chosen))
    try:
        # Converted again for validation, which `replace` does not do.
        return msgspec.convert(merged, McpSettings)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"invalid option: {error}") from error


def _from_file(path: Path, may_be_missing: bool) -> McpSettings:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
        found = msgspec.convert(content, McpSettings)
    except FileNotFoundError as error:
        if may_be_missing:
            return McpSettings()
        raise InvalidConfig(f"{path} does not exist") from error
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidConfig(f"{path}: {error}") from error
    keep_unchanged(path)
    # Relative to the file, not to the cwd, which the agent chooses.
    below: dict[str, Any] = {
        name: str(path.parent / value)
        for name in _PATHS
        if (value := getattr(found, name)) is not None
    }
    if found.sandbox not in PROFILES:
        below["sandbox"] = str(path.parent / found.sandbox)
    below["rules"] = [str(path.parent / rules) for rules in found.rules]
    return msgspec.structs.replace(found, **below)

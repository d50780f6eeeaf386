"""
Late imports of the command line: one table, and the one function that imports.

A subcommand pays only for its own modules: `holdfast run` of a local command must not load the
client. The guardian lives as long as its worker and should stay small, so it loads no module
of the worker; the worker does, after the fork.
"""

from importlib import import_module

# Not `typing.TYPE_CHECKING`: loading `typing` would make every guardian larger.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # For tools that follow imports: the table names these modules as strings.
    from holdfast.cli import app_server as app_server
    from holdfast.cli import bridge as bridge
    from holdfast.cli import completion as completion
    from holdfast.cli import connect as connect
    from holdfast.cli import doctor as doctor
    from holdfast.cli import env as env
    from holdfast.cli import fs_list as fs_list
    from holdfast.cli import fs_transfer as fs_transfer
    from holdfast.cli import guarded as guarded
    from holdfast.cli import mcp as mcp
    from holdfast.cli import policy as policy
    from holdfast.cli import run as run
    from holdfast.cli import run_foreground as run_foreground
    from holdfast.cli import sandbox as sandbox
    from holdfast.cli import shell as shell

__all__ = ["load"]

# The module of each function that is loaded late.
_MODULES = {
    # Subcommands, called by the parsers. Those that start others fork a guardian first.
    "serve": "holdfast.cli.serve",
    "run": "holdfast.cli.run",
    "app_server": "holdfast.cli.guarded",
    "mcp": "holdfast.cli.guarded",
    "shell": "holdfast.cli.guarded",
    "fs": "holdfast.cli.fs",
    "connect": "holdfast.cli.connect",
    "env": "holdfast.cli.env",
    "check": "holdfast.cli.policy",
    "explain": "holdfast.cli.policy",
    "explain_sandbox": "holdfast.cli.sandbox",
    "doctor": "holdfast.cli.doctor",
    "completion": "holdfast.cli.completion",
    # Workers, called after the fork.
    "run_server": "holdfast.cli.server_worker",
    "run_app_server": "holdfast.cli.app_server",
    "run_mcp": "holdfast.cli.mcp",
    "run_shell": "holdfast.cli.shell",
    "run_attended": "holdfast.cli.run_foreground",
    # Parts that only some calls of a subcommand need.
    "start_kept": "holdfast.cli.bridge",
    "attach": "holdfast.cli.bridge",
    "Keeping": "holdfast.server.kept",
    "McpServer": "holdfast.mcp_server.server",
    "HttpAccess": "holdfast.mcp_server.http",
    "limits_of": "holdfast.cli.sandbox_options",
    "explain_failure": "holdfast.cli.sandbox_options",
    "list_paths": "holdfast.cli.fs_list",
    "get": "holdfast.cli.fs_transfer",
    "put": "holdfast.cli.fs_transfer",
    "cat": "holdfast.cli.fs_transfer",
    "move": "holdfast.filesystem.trees",
    "ServerUrl": "holdfast.environments.config.snapshot",
    "UrlProvider": "holdfast.environments.config.providers",
    "provider_from_env": "holdfast.environments.config.providers",
    "RemoteEnvironment": "holdfast.environments.remote",
    "Target": "holdfast.client.target",
    "program_target": "holdfast.environments.ssh.target",
    "parse_toml": "tomllib",
    "uvloop_run": "uvloop",
}

# Names that differ from those in their modules, where two would be the same.
_RENAMED = {"explain_sandbox": "explain", "parse_toml": "loads", "uvloop_run": "run"}


def load(name: str) -> "Any":
    """
    Import the module of a function and return the function.

    Raises:
        ImportError: The module is not installed.
    """
    return getattr(import_module(_MODULES[name]), _RENAMED.get(name, name))

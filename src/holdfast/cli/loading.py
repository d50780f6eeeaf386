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

    from holdfast.cli import app_server as app_server

    # For tools that follow imports: the table names these modules as strings.
    from holdfast.cli import app_server_parser as app_server_parser
    from holdfast.cli import bridge as bridge
    from holdfast.cli import completion as completion
    from holdfast.cli import connect as connect
    from holdfast.cli import connect_parser as connect_parser
    from holdfast.cli import doctor as doctor
    from holdfast.cli import env as env
    from holdfast.cli import env_parser as env_parser
    from holdfast.cli import fs_list as fs_list
    from holdfast.cli import fs_parser as fs_parser
    from holdfast.cli import fs_transfer as fs_transfer
    from holdfast.cli import guarded as guarded
    from holdfast.cli import mcp as mcp
    from holdfast.cli import mcp_parser as mcp_parser
    from holdfast.cli import policy as policy
    from holdfast.cli import policy_parser as policy_parser
    from holdfast.cli import run as run
    from holdfast.cli import run_foreground as run_foreground
    from holdfast.cli import run_parser as run_parser
    from holdfast.cli import sandbox as sandbox
    from holdfast.cli import sandbox_parser as sandbox_parser
    from holdfast.cli import serve_parser as serve_parser
    from holdfast.cli import shell as shell
    from holdfast.cli import shell_parser as shell_parser
    from holdfast.cli import tokens as tokens
    from holdfast.cli import tokens_parser as tokens_parser

__all__ = ["load"]

# The module of each function that is loaded late.
_MODULES = {
    # Options of subcommands, added by `make_parser`.
    "add_serve": "holdfast.cli.serve_parser",
    "add_exec_server": "holdfast.cli.serve_parser",
    "add_app_server": "holdfast.cli.app_server_parser",
    "add_mcp": "holdfast.cli.mcp_parser",
    "add_run": "holdfast.cli.run_parser",
    "add_shell": "holdfast.cli.shell_parser",
    "add_fs": "holdfast.cli.fs_parser",
    "add_connect": "holdfast.cli.connect_parser",
    "add_env": "holdfast.cli.env_parser",
    "add_token": "holdfast.cli.tokens_parser",
    "add_policy": "holdfast.cli.policy_parser",
    "add_sandbox": "holdfast.cli.sandbox_parser",
    "add_doctor": "holdfast.cli.sandbox_parser",
    "add_completion": "holdfast.cli.parser",
    # Subcommands, called by the parsers. Those that start others fork a guardian first.
    "serve": "holdfast.cli.serve",
    "run": "holdfast.cli.run",
    "app_server": "holdfast.cli.guarded",
    "mcp": "holdfast.cli.guarded",
    "shell": "holdfast.cli.guarded",
    "fs": "holdfast.cli.fs",
    "connect": "holdfast.cli.connect",
    "env": "holdfast.cli.env",
    "token": "holdfast.cli.tokens",
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
    "also_writing": "holdfast.environments.sandbox",
    "explain_failure": "holdfast.cli.sandbox_options",
    "list_paths": "holdfast.cli.fs_list",
    "get": "holdfast.cli.fs_transfer",
    "put": "holdfast.cli.fs_transfer",
    "cat": "holdfast.cli.fs_transfer",
    "move": "holdfast.filesystem.trees",
    "bearer_token": "holdfast.cli.token",
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

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

    from holdfast.front.cli import app_server as app_server

    # For tools that follow imports: the table names these modules as strings.
    from holdfast.front.cli import app_server_parser as app_server_parser
    from holdfast.front.cli import bridge as bridge
    from holdfast.front.cli import completion as completion
    from holdfast.front.cli import connect as connect
    from holdfast.front.cli import connect_parser as connect_parser
    from holdfast.front.cli import doctor as doctor
    from holdfast.front.cli import env as env
    from holdfast.front.cli import env_parser as env_parser
    from holdfast.front.cli import fs_list as fs_list
    from holdfast.front.cli import fs_parser as fs_parser
    from holdfast.front.cli import fs_transfer as fs_transfer
    from holdfast.front.cli import guarded as guarded
    from holdfast.front.cli import mcp as mcp
    from holdfast.front.cli import mcp_parser as mcp_parser
    from holdfast.front.cli import policy as policy
    from holdfast.front.cli import policy_parser as policy_parser
    from holdfast.front.cli import run as run
    from holdfast.front.cli import run_foreground as run_foreground
    from holdfast.front.cli import run_parser as run_parser
    from holdfast.front.cli import sandbox as sandbox
    from holdfast.front.cli import sandbox_parser as sandbox_parser
    from holdfast.front.cli import serve_parser as serve_parser
    from holdfast.front.cli import shell as shell
    from holdfast.front.cli import shell_parser as shell_parser
    from holdfast.front.cli import tokens as tokens
    from holdfast.front.cli import tokens_parser as tokens_parser

__all__ = ["load"]

# The module of each function that is loaded late.
_MODULES = {
    # Options of subcommands, added by `make_parser`.
    "add_serve": "holdfast.front.cli.serve_parser",
    "add_exec_server": "holdfast.front.cli.serve_parser",
    "add_app_server": "holdfast.front.cli.app_server_parser",
    "add_mcp": "holdfast.front.cli.mcp_parser",
    "add_run": "holdfast.front.cli.run_parser",
    "add_shell": "holdfast.front.cli.shell_parser",
    "add_fs": "holdfast.front.cli.fs_parser",
    "add_connect": "holdfast.front.cli.connect_parser",
    "add_env": "holdfast.front.cli.env_parser",
    "add_token": "holdfast.front.cli.tokens_parser",
    "add_policy": "holdfast.front.cli.policy_parser",
    "add_sandbox": "holdfast.front.cli.sandbox_parser",
    "add_doctor": "holdfast.front.cli.sandbox_parser",
    "add_completion": "holdfast.front.cli.parser",
    # Subcommands, called by the parsers. Those that start others fork a guardian first.
    "serve": "holdfast.front.cli.serve",
    "run": "holdfast.front.cli.run",
    "app_server": "holdfast.front.cli.guarded",
    "mcp": "holdfast.front.cli.guarded",
    "shell": "holdfast.front.cli.guarded",
    "fs": "holdfast.front.cli.fs",
    "connect": "holdfast.front.cli.connect",
    "env": "holdfast.front.cli.env",
    "token": "holdfast.front.cli.tokens",
    "check": "holdfast.front.cli.policy",
    "explain": "holdfast.front.cli.policy",
    "explain_sandbox": "holdfast.front.cli.sandbox",
    "doctor": "holdfast.front.cli.doctor",
    "completion": "holdfast.front.cli.completion",
    # Workers, called after the fork.
    "run_server": "holdfast.front.cli.server_worker",
    "run_app_server": "holdfast.front.cli.app_server",
    "run_mcp": "holdfast.front.cli.mcp",
    "run_shell": "holdfast.front.cli.shell",
    "run_attended": "holdfast.front.cli.run_foreground",
    # Parts that only some calls of a subcommand need.
    "start_kept": "holdfast.front.cli.bridge",
    "attach": "holdfast.front.cli.bridge",
    "Keeping": "holdfast.server.kept",
    "McpServer": "holdfast.front.mcp.mcp_server",
    "HttpAccess": "holdfast.front.mcp.streamable_http",
    "limits_of": "holdfast.front.cli.sandbox_options",
    "also_writing": "holdfast.environments.sandbox",
    "explain_failure": "holdfast.front.cli.sandbox_options",
    "list_paths": "holdfast.front.cli.fs_list",
    "get": "holdfast.front.cli.fs_transfer",
    "put": "holdfast.front.cli.fs_transfer",
    "cat": "holdfast.front.cli.fs_transfer",
    "move": "holdfast.engine.files.trees",
    "bearer_token": "holdfast.front.cli.token",
    "ServerUrl": "holdfast.environments.config.snapshot",
    "UrlProvider": "holdfast.environments.config.providers",
    "provider_from_env": "holdfast.environments.config.providers",
    "RemoteEnvironment": "holdfast.environments.remote",
    "Target": "holdfast.client.target",
    "program_target": "holdfast.environments.ssh.ssh_target",
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

"""
Environments: machines to run commands on, local and remote, behind one interface.

The names below are loaded on first use. `holdfast run` only starts a process: it needs neither the
files of an environment nor a profile of a sandbox. With every command it pays for what it loads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.environments import remote_choice as remote_choice
    from holdfast.environments.commands.commands import Commands as Commands
    from holdfast.environments.sandbox import ProfileContext as ProfileContext
    from holdfast.environments.sandbox import home_here as home_here
    from holdfast.environments.sandbox import resolve_sandbox as resolve_sandbox
    from holdfast.environments.shell import find_shell as find_shell
    from holdfast.environments.shell import shell_kind as shell_kind
    from holdfast.server.info import environment_info as environment_info

LOCAL: Final = "local"
"""The id of this machine."""

_HOMES = {
    "Commands": "holdfast.environments.commands.commands",
    "ProfileContext": "holdfast.environments.sandbox",
    "environment_info": "holdfast.server.info",
    "find_shell": "holdfast.environments.shell",
    "home_here": "holdfast.environments.sandbox",
    "resolve_sandbox": "holdfast.environments.sandbox",
    "shell_kind": "holdfast.environments.shell",
}


def __getattr__(name: str) -> object:
    if name == "remote_choice":
        return import_module("holdfast.environments.remote_choice")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value

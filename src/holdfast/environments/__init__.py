"""
Environments: machines to run commands on, local and remote, behind one interface.

The names below are loaded on first use: `holdfast run` pays for its imports with every command, and
needs neither the files of an environment nor sandbox profiles.
"""

from typing import TYPE_CHECKING, Final

from holdfast.base.late_import import late_names

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

__getattr__ = late_names(
    globals(),
    {
        "Commands": "holdfast.environments.commands.commands:Commands",
        "ProfileContext": "holdfast.environments.sandbox:ProfileContext",
        "environment_info": "holdfast.server.info:environment_info",
        "find_shell": "holdfast.environments.shell:find_shell",
        "home_here": "holdfast.environments.sandbox:home_here",
        "remote_choice": "holdfast.environments.remote_choice",
        "resolve_sandbox": "holdfast.environments.sandbox:resolve_sandbox",
        "shell_kind": "holdfast.environments.shell:shell_kind",
    },
)

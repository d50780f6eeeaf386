"""Options of `holdfast sandbox` and `holdfast doctor`, whose code is imported when run."""

import argparse
from typing import TypeAlias

from holdfast.front.cli.sandbox_options_parser import add_sandbox_write
from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_doctor", "add_sandbox"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
Show what a command with a profile could read, write and connect to on this machine, how that
is enforced, and which gaps remain. Nothing is run.

A profile is read-only, workspace-write, disabled, or a file PROFILE.toml.
"""

_EXAMPLES = """\
examples:
  holdfast sandbox explain workspace-write
  holdfast sandbox explain ./ci.toml --cwd /srv/app --json

exit status: 0, or 1 if the profile cannot be read or enforced here.
"""

_DOCTOR = """\
Check this machine: what Holdfast finds and uses, whether sandboxes can be enforced, and what
to change if not. Nothing is changed.

exit status: 0, or 1 if no sandbox can be enforced.
"""


def add_sandbox(commands: _Commands) -> None:
    """Add `sandbox` and its subcommand."""
    sandbox = commands.add_parser("sandbox", help="show the effect of a sandbox profile")
    operations: _Commands = sandbox.add_subparsers(
        title="operations", metavar="OPERATION", required=True
    )
    explain = operations.add_parser(
        "explain",
        help="show what a profile allows, and how it is enforced",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explain.add_argument("profile", metavar="PROFILE")
    explain.add_argument(
        "--cwd",
        metavar="PATH",
        help="the workspace and directory of the command (default: the current directory)",
    )
    add_sandbox_write(explain)
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.set_defaults(run=late("holdfast.front.cli.sandbox:explain"))


def add_doctor(commands: _Commands) -> None:
    """Add `doctor`."""
    doctor = commands.add_parser(
        "doctor",
        help="check this machine: what it has, what can be enforced, what to change",
        description=_DOCTOR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=late("holdfast.front.cli.doctor:doctor"))

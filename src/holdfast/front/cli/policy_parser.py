"""Options of `holdfast policy`, whose code is imported when it is run."""

import argparse
from typing import TypeAlias

from holdfast.front.cli.sandbox_options_parser import add_sandbox_write
from holdfast.front.cli.suggesting_parser import add_command, late

__all__ = ["add_policy", "add_rules_option"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_CHECK_ABOUT = """\
Show which rules match a command, as JSON. The command is used unchanged: it is neither split
nor run.

Without --rules, the rules of all layers are used: those of $HOLDFAST_HOME/rules and of
.holdfast/rules here.
"""

_CHECK_EXAMPLES = """\
examples:
  holdfast policy check git status
  holdfast policy check --rules ./ci.rules --pretty -- cargo test
  holdfast policy check --rules a.rules --rules b.rules --resolve-host-executables /usr/bin/git

exit status: 0, or 1 if a rules file is unusable.
"""


_EXPLAIN_ABOUT = """\
Show what would happen to a command, and why: its segments, the rules that match, its sandbox.
The command is not run. A single argument is a shell script, as from a model; several are a
program and its arguments.
"""

_EXPLAIN_EXAMPLES = """\
examples:
  holdfast policy explain 'git status && rm -rf build'
  holdfast policy explain --policy never --sandbox read-only 'touch x'
  holdfast policy explain --rules ./ci.rules --escalated -- cargo test

exit status: 0, whatever the decision is.
"""


def add_policy(commands: _Commands) -> None:
    """Add `policy` and its subcommands."""
    policy = commands.add_parser("policy", help="show which rules apply to a command")
    operations: _Commands = policy.add_subparsers(
        title="operations", metavar="OPERATION", required=True
    )
    _add_check(operations)
    _add_explain(operations)


def add_rules_option(parser: argparse.ArgumentParser, use: str) -> None:
    """Add `--rules`; `use` completes the help text with the use of the files."""
    parser.add_argument(
        "--rules",
        "-r",
        metavar="FILE",
        action="append",
        default=[],
        help=f"a rules file {use}; may be repeated",
    )


def _add_check(operations: _Commands) -> None:
    check = operations.add_parser(
        "check",
        help="show the rules that match a command",
        description=_CHECK_ABOUT,
        epilog=_CHECK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--rules FILE]... [--resolve-host-executables] [--pretty] [--] ARGV...",
        allow_abbrev=False,
    )
    add_rules_option(check, "to use instead of those of the layers")
    check.add_argument(
        "--resolve-host-executables",
        action="store_true",
        help="match paths of programs by their base name, where host_executable allows it",
    )
    check.add_argument("--pretty", action="store_true", help="indent the JSON")
    add_command(check, "check", run=late("holdfast.front.cli.policy:check"))


def _add_explain(operations: _Commands) -> None:
    explain = operations.add_parser(
        "explain",
        help="show the decision on a command, and why",
        description=_EXPLAIN_ABOUT,
        epilog=_EXPLAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [OPTION]... [--] CMD...",
        allow_abbrev=False,
    )
    add_rules_option(explain, "to use instead of those of the layers")
    explain.add_argument(
        "--policy",
        default="on-request",
        choices=["on-request", "never", "untrusted"],
        help="the approval policy; default on-request",
    )
    explain.add_argument(
        "--sandbox",
        metavar="PROFILE",
        default="workspace-write",
        help="the sandbox of commands: a name or a file; default workspace-write",
    )
    add_sandbox_write(explain)
    explain.add_argument(
        "--escalated",
        action="store_true",
        help="as if the command requested to run without its sandbox",
    )
    explain.add_argument(
        "--rules-leave-sandbox",
        action="store_true",
        help="run commands that rules allow without a sandbox",
    )
    explain.add_argument(
        "--shell", metavar="PATH", default="/bin/bash", help="the shell; default /bin/bash"
    )
    explain.add_argument("--json", action="store_true", help="print JSON")
    add_command(
        explain,
        "explain",
        run=late("holdfast.front.cli.policy:explain"),
        metavar="CMD",
    )

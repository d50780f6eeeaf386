"""The options of `holdfast policy`; its code is imported when needed."""

import argparse
from typing import TypeAlias

__all__ = ["add_policy"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_CHECK_ABOUT = """\
Show which rules match a command, as JSON. The command is taken as it is: it is neither
split nor run.

Without --rules, the rules of all layers are used: those of $HOLDFAST_HOME/rules and of
.holdfast/rules here.
"""

_CHECK_EXAMPLES = """\
examples:
  holdfast policy check git status
  holdfast policy check --rules ./ci.rules --pretty -- cargo test
  holdfast policy check --rules a.rules --rules b.rules --resolve-host-executables /usr/bin/git

exit status: 0, or 1 if a rules file cannot be used.
"""


def add_policy(commands: _Commands) -> None:
    """Add `policy` and its own subcommands."""
    policy = commands.add_parser("policy", help="which rules apply to a command")
    operations: _Commands = policy.add_subparsers(
        title="operations", metavar="OPERATION", required=True
    )
    _add_check(operations)


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
    check.add_argument(
        "--rules",
        "-r",
        metavar="FILE",
        action="append",
        default=[],
        help="a rules file to use instead of those of the layers; may be repeated",
    )
    check.add_argument(
        "--resolve-host-executables",
        action="store_true",
        help="look up paths of programs by their base name, where host_executable permits it",
    )
    check.add_argument("--pretty", action="store_true", help="indent the JSON")
    check.add_argument("argv", metavar="ARGV", nargs=argparse.REMAINDER, help="the command")

    def start(options: argparse.Namespace) -> int:
        from holdfast.cli.policy import check as check_command

        if options.argv[:1] == ["--"]:
            del options.argv[0]
        if not options.argv:
            check.error("there is no command to check")
        return check_command(options)

    check.set_defaults(run=start)

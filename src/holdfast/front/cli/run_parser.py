"""Options of `holdfast run`."""

import argparse

from holdfast.front.cli.sandbox_options_parser import add_confining_options, seconds
from holdfast.front.cli.server_options_parser import add_environment_options, add_verbose_option
from holdfast.front.cli.suggesting_parser import add_command, late

__all__ = ["add_run"]

_RUN_ABOUT = """\
Run a command in the foreground, here or on a server, as if you had started it
directly: output, input, signals and window size are passed on, and its exit status
is returned (128+N if signal N killed it).

Everything after `--`, or from the first argument that is not an option, is the command.
"""

_RUN_EXAMPLES = """\
examples:
  holdfast run -- make test
  holdfast run --url ws://127.0.0.1:4500 --cwd /srv/app -e CI=1 -- make test
  holdfast run --on build -- make test
  holdfast run --sandbox workspace-write --limit-time 600 -- make test
  holdfast run --cmd "ssh build holdfast serve --listen stdio" --tty -- vim notes.txt
  tar c . | holdfast run --url unix:///run/user/1000/holdfast.sock -- tar x -C /tmp/copy

exit status: that of the command, or 125 if holdfast itself failed (no connection,
bad token), 126 if the command cannot be executed, 127 if it was not found.
"""


def add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `run`."""
    run = commands.add_parser(
        "run",
        help="run a command, here or on a server",
        description=_RUN_ABOUT,
        epilog=_RUN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--on WHERE | --url URL | --cmd COMMAND] [options] [--] ARGV...",
        # Abbreviations would make any new option a breaking change for scripts.
        allow_abbrev=False,
    )
    add_environment_options(run)
    add_verbose_option(run)
    run.add_argument(
        "--tty", "-t", action="store_true", help="run the command on a separate terminal"
    )
    run.add_argument(
        "--cwd",
        metavar="PATH",
        help="directory to run it in (default: the current one; on a server, the server's)",
    )
    run.add_argument(
        "--env",
        "-e",
        metavar="NAME=VALUE",
        type=_assignment,
        action="append",
        default=[],
        help="a variable for the command; may be repeated",
    )
    add_confining_options(run)
    # Familiar from `docker run` and others.
    run.add_argument(
        "--timeout", dest="limit_time", metavar="TIME", type=seconds, help="as --limit-time"
    )
    run.add_argument(
        "-i",
        "--interactive",
        action="store_true",
        help="has no effect: the command always gets your input; `-it` works like `-t`",
    )
    add_command(run, "run", run=late("holdfast.front.cli.guarded:run"))


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, not {text!r}")
    return name, value

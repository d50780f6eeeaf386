"""The options of every subcommand. Their code is imported only when one is run."""

import argparse

from holdfast._version import __version__
from holdfast.cli.app_server_parser import add_app_server
from holdfast.cli.arguments import SuggestingParser
from holdfast.cli.connect_parser import add_connect
from holdfast.cli.env_parser import add_env
from holdfast.cli.fs_parser import add_fs
from holdfast.cli.listen_parser import add_listen_options, add_principal_limits, positive
from holdfast.cli.loading import load
from holdfast.cli.mcp_parser import add_mcp
from holdfast.cli.operate_parser import add_operating_options
from holdfast.cli.policy_parser import add_policy
from holdfast.cli.sandbox_options_parser import add_confining_options
from holdfast.cli.sandbox_parser import add_doctor, add_sandbox
from holdfast.cli.server_options_parser import add_place_options, add_verbose_option
from holdfast.cli.shell_parser import add_shell

__all__ = ["SERVER_CONFIG", "make_parser"]

SERVER_CONFIG = "/etc/holdfast/server.toml"
"""The config file of the machine's server."""

_SHELLS = ("bash", "zsh", "fish", "tcsh")

_RUN_ABOUT = """\
Run a command in the foreground, here or on a server, as if there were nothing in
between: its output, input, signals and window size are yours, and its exit status
is returned (128+N if signal N killed it).

Everything after `--`, or from the first word that is no option, is the command.
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

_COMPLETION_EXAMPLES = """\
examples:
  holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
  holdfast completion zsh > "${fpath[1]}/_holdfast"
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
  holdfast completion tcsh > ~/.holdfast.completion.csh   # and source it in ~/.tcshrc
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; `run` of its result is the function of the chosen subcommand."""
    parser: argparse.ArgumentParser = SuggestingParser(
        prog="holdfast",
        description="Starts processes for agents, here or on another machine, and holds them fast.",
        epilog="`holdfast COMMAND --help` shows what a command takes.",
    )
    # Set by `main`; a parser used elsewhere needs a value as well.
    parser.set_defaults(arguments=())
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(
        commands,
        "serve",
        "start a server and print its URL",
        as_codex=False,
        config=SERVER_CONFIG,
    )
    # It keeps Codex's defaults, so it reads no config file of the machine.
    _add_serve(
        commands,
        "exec-server",
        "the same, with the name and the defaults of Codex",
        as_codex=True,
        config=None,
    )
    add_app_server(commands)
    add_mcp(commands)
    _add_run(commands)
    add_shell(commands)
    add_fs(commands)
    add_connect(commands)
    add_env(commands)
    add_policy(commands)
    add_sandbox(commands)
    add_doctor(commands)
    _add_completion(commands)
    return parser


def _add_serve(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    *,
    as_codex: bool,
    config: str | None,
) -> None:
    """Add a server command; with `as_codex` it requires no token unless told to."""
    serve = commands.add_parser(
        name,
        help=about,
        description="Serve the exec-server protocol. Prints one line, the URL, once it listens.",
    )
    add_listen_options(
        serve, default="ws://127.0.0.1:0", default_about="%(default)s, any free port"
    )
    serve.add_argument(
        "--concurrent-requests",
        metavar="COUNT",
        type=positive,
        help="requests of a connection that may wait at once; 1 keeps strict order",
    )
    serve.add_argument(
        "--keep",
        action="store_true",
        help="with --listen stdio: outlive a lost connection, so that --attach finds the server",
    )
    serve.add_argument(
        "--attach",
        metavar="FOLDER",
        help="with --listen stdio: be one more connection to a server that was started with --keep",
    )
    # Only exec-servers have principals with limits.
    add_principal_limits(serve)
    serve.set_defaults(as_codex=as_codex, command=name)
    add_operating_options(serve, default_config=config)

    def start(options: argparse.Namespace) -> int:
        status: int = load("serve")(options, serve)
        return status

    serve.set_defaults(run=start)


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    add_place_options(run)
    add_verbose_option(run)
    run.add_argument(
        "--tty", "-t", action="store_true", help="give the command a terminal of its own"
    )
    run.add_argument(
        "--cwd",
        metavar="PATH",
        help="the folder to run it in (default: the current one; on a server, the server's)",
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
    run.add_argument("argv", metavar="ARGV", nargs=argparse.REMAINDER, help="the command")

    def start(options: argparse.Namespace) -> int:
        # argparse leaves the separator in a REMAINDER.
        if options.argv[:1] == ["--"]:
            del options.argv[0]
        if not options.argv:
            run.error("there is no command to run")
        status: int = load("run")(options)
        return status

    run.set_defaults(run=start)


def _add_completion(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Print a script that completes commands, options, names of environments,"
        " profiles and files of holdfast in a shell.",
        epilog=_COMPLETION_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", choices=_SHELLS, help="which shell")
    completion.set_defaults(run=_run_completion)


def _run_completion(options: argparse.Namespace) -> int:
    status: int = load("completion")(options)
    return status


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, not {text!r}")
    return name, value

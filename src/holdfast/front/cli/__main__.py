"""Entry point of `holdfast`: parses the command line and imports only the chosen subcommand."""

import os
import sys

from holdfast.base.late_import import drop_script_entry
from holdfast.front.cli.parser import make_parser

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """
    Run the command line.

    Returns:
        The exit status.
    """
    if argv is None:
        drop_script_entry()
    _open_missing_streams()
    arguments = _as_options(sys.argv[1:] if argv is None else argv)
    parser = make_parser(arguments[0] if arguments else None)
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse_args(arguments)
    # For `with_config`, which parses them again on top of the config file.
    options.arguments = arguments
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        # As in a shell, for SIGINT and SIGPIPE.
        return 130
    except BrokenPipeError:
        return 141
    return status


def _as_options(arguments: list[str]) -> list[str]:
    """Turn `help run` into `run --help`, and `version` into `--version`."""
    match arguments:
        case ["help", *command]:
            return [*command, "--help"]
        case ["version"]:
            return ["--version"]
    return arguments


def _open_missing_streams() -> None:
    """Open `/dev/null` for closed standard streams, which are None in Python."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # In this order each gets its own number, the lowest that is free.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the end


if __name__ == "__main__":
    sys.exit(main())

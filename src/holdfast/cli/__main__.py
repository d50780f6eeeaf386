"""Entry point of `holdfast`: parses the command line and imports only the chosen subcommand."""

import sys

from holdfast.cli.parser import make_parser

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """
    Run the command line.

    Returns:
        The exit status.
    """
    arguments = sys.argv[1:] if argv is None else argv
    parser = make_parser(arguments[0] if arguments else None)
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse_args(arguments)
    # `with_config` parses them again, on top of the config file.
    options.arguments = arguments
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        # The exit statuses of a shell for SIGINT and SIGPIPE.
        return 130
    except BrokenPipeError:
        return 141
    return status


if __name__ == "__main__":
    sys.exit(main())

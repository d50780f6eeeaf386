"""`holdfast`: finds the subcommand and runs it, importing no more than that one needs."""

import sys

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """
    Run the command line.

    Returns:
        The exit status.
    """
    from holdfast.cli.parser import make_parser  # the guardian stays small

    arguments = sys.argv[1:] if argv is None else argv
    parser = make_parser()
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse_args(arguments)
    options.arguments = arguments  # a config file is read behind what was given here
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Options for operators of a server: config file, log and audit log."""

import argparse

from holdfast.front.cli.listen_parser import positive

__all__ = ["add_log_options", "add_operating_options"]

_LEVELS = ("error", "warning", "info", "debug")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

# Minimum size of an audit log file; a record always fits.
_SMALLEST_FILE = 64 << 10


def add_operating_options(parser: argparse.ArgumentParser, *, default_config: str | None) -> None:
    """
    Add `--config`, `--log-…` and `--audit-log…`.

    Args:
        parser: Parser of the subcommand.
        default_config: Config file to use by default, if it exists.
    """
    default = "" if default_config is None else f" (default: {default_config}, if it exists)"
    group = parser.add_argument_group("operating a server")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="a .toml file with these options by name; the command line takes precedence" + default,
    )
    add_log_options(group)
    group.add_argument(
        "--audit-log",
        metavar="PATH",
        help="append a JSON line for each command, file write and network decision to this file",
    )
    group.add_argument(
        "--audit-log-max-size",
        metavar="BYTES",
        type=_file_size,
        default=64 << 20,
        help="start a new file at this size, such as 10M (default: 64M)",
    )
    group.add_argument(
        "--audit-log-keep",
        metavar="COUNT",
        type=positive,
        default=5,
        help="number of full files to keep, as PATH.1, PATH.2 and so on (default: %(default)s)",
    )
    parser.set_defaults(default_config=default_config)


def add_log_options(parser: "argparse._ActionsContainer") -> None:
    """Add `--log-level` and `--log-format`."""
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=_LEVELS,
        help=f"{', '.join(_LEVELS)} (default: $HOLDFAST_LOG, or error)",
    )
    parser.add_argument(
        "--log-format",
        metavar="FORMAT",
        choices=("text", "json"),
        default="text",
        help="text, or json with one object per line (default: %(default)s)",
    )


def _file_size(text: str) -> int:
    number, unit = text, ""
    if text[-1:].lower() in _UNITS:
        number, unit = text[:-1], text[-1:].lower()
    if not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"expected bytes, such as 10M, not {text!r}")
    size = int(number) * _UNITS[unit]
    # A size above the upper bound is a typo.
    if not _SMALLEST_FILE <= size <= 1 << 50:
        raise argparse.ArgumentTypeError("must be at least 64K")
    return size

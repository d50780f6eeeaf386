"""Options of `holdfast run` for the sandbox and the limits of a command."""

import argparse
from math import ceil

from holdfast.base.units import parse_seconds, parse_size
from holdfast.wire.protocol.limits import LIMITS, Limit, LimitUnit

__all__ = [
    "CONFINING",
    "add_confining_options",
    "add_sandbox_write",
    "count",
    "limit_attribute",
    "seconds",
    "size",
    "whole_seconds",
]


def limit_attribute(limit: Limit) -> str:
    """Return the attribute of the parsed options for a limit."""
    return limit.option.removeprefix("--").replace("-", "_")


CONFINING = ("sandbox", "sandbox_write", *map(limit_attribute, LIMITS))
"""Attributes of the parsed options that confine a command."""


def add_confining_options(parser: argparse.ArgumentParser) -> None:
    """Add `--sandbox` and the limits."""
    parser.add_argument(
        "--sandbox",
        metavar="PROFILE",
        help="its sandbox: read-only, workspace-write, disabled, or a PROFILE.toml"
        " (see `holdfast sandbox explain`)",
    )
    add_sandbox_write(parser)
    limits = parser.add_argument_group("limits", "resource limits; the last four end the command")
    for limit in LIMITS:
        metavar, parse, example = _VALUES[limit.unit]
        note = "; needs a delegated cgroup" if limit.needs_cgroup else ""
        limits.add_argument(
            limit.option, metavar=metavar, type=parse, help=f"{limit.about}{example}{note}"
        )


def add_sandbox_write(parser: argparse.ArgumentParser) -> None:
    """Add `--sandbox-write`."""
    parser.add_argument(
        "--sandbox-write",
        metavar="PATH",
        action="append",
        help="another path that the sandbox lets it write, such as a part of .git; relative to the"
        " workspace, absolute or below ~; may be repeated",
    )


def size(text: str) -> int:
    """Parse a number of bytes with an optional unit such as `k`, `M` or `GiB`, powers of 1024."""
    try:
        value = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value == 0:
        raise argparse.ArgumentTypeError(f"expected more than 0 bytes, not {text!r}")
    return value


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    # `int` would also accept blanks, underscores and non-ASCII digits.
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a time in seconds, or with a unit such as `ms`, `m` or `h`."""
    try:
        value = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected more than 0 seconds, not {text!r}")
    return value


def whole_seconds(text: str) -> int:
    """Parse a time like `seconds`, rounded up to whole seconds."""
    return ceil(seconds(text))


# By the unit of a limit: metavar, parser, and a hint for the help text.
_VALUES = {
    LimitUnit.BYTES: ("SIZE", size, ", such as 512M"),
    LimitUnit.COUNT: ("N", count, ""),
    LimitUnit.SECONDS: ("TIME", whole_seconds, ", in seconds or such as 1m"),
    LimitUnit.MILLISECONDS: ("TIME", seconds, ", in seconds or such as 500ms, 1m or 2h"),
}

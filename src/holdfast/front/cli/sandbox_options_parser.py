"""The options of `holdfast run` that say what a command may touch and use."""

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
    """Return the attribute of the parsed options that holds a limit."""
    return limit.option.removeprefix("--").replace("-", "_")


CONFINING = ("sandbox", "sandbox_write", *map(limit_attribute, LIMITS))
"""Attributes of the parsed options that confine a command."""


def add_confining_options(parser: argparse.ArgumentParser) -> None:
    """Add `--sandbox` and the limits."""
    parser.add_argument(
        "--sandbox",
        metavar="PROFILE",
        help="what it may touch: read-only, workspace-write, disabled, or a PROFILE.toml"
        " (see `holdfast sandbox explain`)",
    )
    add_sandbox_write(parser)
    limits = parser.add_argument_group("limits", "what it may use; it is ended at the last four")
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
        help="a path that the sandbox also lets be written, such as a part of .git; relative to"
        " the workspace, absolute or below ~; may be repeated",
    )


def size(text: str) -> int:
    """Read bytes, with a unit such as `k`, `M` or `GiB` behind them: powers of 1024."""
    try:
        value = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value == 0:
        raise argparse.ArgumentTypeError(f"expected more than 0 bytes, not {text!r}")
    return value


def count(text: str) -> int:
    """Read a number from 1."""
    # `int` would also accept blanks, underscores and digits of other scripts.
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number from 1, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time, in seconds or with a unit such as `ms`, `m` or `h` behind it."""
    try:
        value = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected more than 0 seconds, not {text!r}")
    return value


def whole_seconds(text: str) -> int:
    """Read a time as `seconds` does; a part of a second counts as a whole one."""
    return ceil(seconds(text))


# The value of an option by the unit of its limit: name, parser, and a hint for people.
_VALUES = {
    LimitUnit.BYTES: ("SIZE", size, ", such as 512M"),
    LimitUnit.COUNT: ("N", count, ""),
    LimitUnit.SECONDS: ("TIME", whole_seconds, ", in seconds or such as 1m"),
    LimitUnit.MILLISECONDS: ("TIME", seconds, ", in seconds or such as 500ms, 1m or 2h"),
}

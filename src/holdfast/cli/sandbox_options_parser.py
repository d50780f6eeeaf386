"""The options of `holdfast run` that say what a command may touch and use."""

import argparse
from math import ceil

from holdfast.units import parse_seconds, parse_size

__all__ = ["CONFINING", "add_confining_options", "count", "seconds", "size", "whole_seconds"]

CONFINING = (
    "sandbox",
    "limit_address_space",
    "limit_processes",
    "limit_files",
    "limit_memory",
    "limit_cpu",
    "limit_output",
    "limit_time",
)
"""Attributes of the parsed options that confine a command."""


def add_confining_options(parser: argparse.ArgumentParser) -> None:
    """Add `--sandbox` and the limits."""
    parser.add_argument(
        "--sandbox",
        metavar="PROFILE",
        help="what it may touch: read-only, workspace-write, disabled, or a PROFILE.toml"
        " (see `holdfast sandbox explain`)",
    )
    limits = parser.add_argument_group("limits", "what it may use; it is ended at the last four")
    limits.add_argument(
        "--limit-address-space",
        metavar="SIZE",
        type=size,
        help="address space of a process, such as 2G",
    )
    limits.add_argument(
        "--limit-processes", metavar="N", type=count, help="how many processes there may be"
    )
    limits.add_argument("--limit-files", metavar="N", type=count, help="open files of a process")
    limits.add_argument(
        "--limit-memory",
        metavar="SIZE",
        type=size,
        help="memory of all its processes together, such as 512M; needs a delegated cgroup",
    )
    limits.add_argument(
        "--limit-cpu",
        metavar="TIME",
        type=whole_seconds,
        help="processor time of a process, in seconds or such as 1m",
    )
    limits.add_argument(
        "--limit-output", metavar="SIZE", type=size, help="what it may write, such as 10M"
    )
    limits.add_argument(
        "--limit-time",
        metavar="TIME",
        type=seconds,
        help="how long it may run, in seconds or such as 500ms, 1m or 2h",
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

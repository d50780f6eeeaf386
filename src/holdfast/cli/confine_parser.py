"""The options of `holdfast run` that say what a command may touch and use."""

import argparse
import re

__all__ = ["CONFINING", "add_confining_options", "count", "seconds", "size"]

CONFINING = (
    "sandbox",
    "limit_memory",
    "limit_processes",
    "limit_files",
    "limit_total_memory",
    "limit_cpu",
    "limit_output",
    "limit_time",
)
"""Where the options are in what the parser returns."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)([kmgt]?)(?:i?b)?", re.IGNORECASE)


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
        "--limit-memory", metavar="SIZE", type=size, help="address space of a process, such as 2G"
    )
    limits.add_argument(
        "--limit-processes", metavar="N", type=count, help="how many processes there may be"
    )
    limits.add_argument("--limit-files", metavar="N", type=count, help="open files of a process")
    limits.add_argument(
        "--limit-total-memory",
        metavar="SIZE",
        type=size,
        help="memory of all its processes together, such as 512M; needs a delegated cgroup",
    )
    limits.add_argument(
        "--limit-cpu", metavar="SECONDS", type=count, help="processor time of a process"
    )
    limits.add_argument(
        "--limit-output", metavar="SIZE", type=size, help="what it may write, such as 10M"
    )
    limits.add_argument(
        "--limit-time", metavar="SECONDS", type=seconds, help="how long it may run, such as 0.5"
    )


def size(text: str) -> int:
    """Bytes, with a unit such as `k`, `M` or `GiB` behind them: powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a size such as 512M, not {text!r}")
    return int(found[1]) * _UNITS[found[2].lower()]


def count(text: str) -> int:
    """A number from 1."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number from 1, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, not {text!r}")
    return value

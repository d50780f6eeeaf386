"""Splitting: the commands that one argument list would run."""

from holdfast.approvals.split.command import UNKNOWN, Split, split_command

__all__ = ["UNKNOWN", "Split", "split_command"]

"""Reading the output of a process to its end, within a bound on memory."""

__all__ = ["QUIET"]

QUIET = 0.25
"""Seconds of silence after an exit that end the reading."""

"""Collects the output of a process: up to its end, and within a bound."""

__all__ = ["QUIET"]

QUIET = 0.25
"""Seconds without output, after an exit, that end the reading."""

"""Collects the output of a process: up to its end, and within a bound."""

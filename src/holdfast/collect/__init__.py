"""Collecting what a process writes: up to its end, and within a bound."""

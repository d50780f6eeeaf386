"""Limits of time, output and memory, and what enforces each."""

"""Processes that make sure that no process outlives its owner."""

"""Processes that make sure that nothing outlives its owner."""

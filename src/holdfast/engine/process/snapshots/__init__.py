"""Snapshots of a login shell's environment."""

"""Holdfast: the process runtime for agents."""

from holdfast._version import __version__

__all__ = ["__version__"]

"""The version, in the one place it is written down."""

__all__ = ["__version__"]

__version__ = "0.1.0"

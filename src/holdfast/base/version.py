"""The version and the name of the distribution, in the one place they are written down."""

__all__ = ["DISTRIBUTION", "__version__", "install_command"]

__version__ = "0.1.0"

DISTRIBUTION = "holdfast-exec"
"""The name on the package index, where `holdfast` is another project."""


def install_command(extra: str) -> str:
    """Return the command that installs what an extra of the distribution needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]', or in a checkout: pip install '.[{extra}]'"

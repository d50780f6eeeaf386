"""
Limits of time, output and memory, and what enforces each.

`rlimits` is imported with its first use: most servers never set a limit of the kernel, and start
sooner without the code for cgroups.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from holdfast.engine.process.limits import rlimits as rlimits


def __getattr__(name: str) -> "ModuleType":
    if name == "rlimits":
        return import_module("holdfast.engine.process.limits.rlimits")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

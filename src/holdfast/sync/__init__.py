"""
The API without `await`, for scripts.

There is no second implementation. Each environment has an event loop in a thread of its own,
and every method runs its asynchronous counterpart there and waits for it. Ctrl-C cancels the
awaited call and is raised then: it ends the process of a `run`, and leaves the session of a
tool call alive.
"""

from importlib import import_module

from holdfast.sync.environment import Environment, Files, Running, connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.sync.tools import Listener, UnifiedExec

__all__ = ["Environment", "Files", "Listener", "Running", "UnifiedExec", "connect"]


def __getattr__(name: str) -> object:
    # Loaded when they are first used: most scripts only run commands.
    if name not in ("Listener", "UnifiedExec"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module("holdfast.sync.tools"), name)
    globals()[name] = value
    return value

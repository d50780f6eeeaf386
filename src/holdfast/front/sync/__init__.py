"""
The API without `await`, for scripts.

There is no second implementation. Each environment has an event loop in a thread of its own,
and every method runs its asynchronous counterpart there and waits for it. Ctrl-C cancels the
awaited call and is raised then: it ends the process of a `run`, and leaves the session of a
tool call alive.
"""

from importlib import import_module

from holdfast.front.sync.sync_environment import SyncEnvironment as Environment
from holdfast.front.sync.sync_environment import SyncFiles as Files
from holdfast.front.sync.sync_environment import SyncRunning as Running
from holdfast.front.sync.sync_environment import connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.front.sync.sync_tools import SyncListener as Listener
    from holdfast.front.sync.sync_tools import SyncUnifiedExec as UnifiedExec

__all__ = ["Environment", "Files", "Listener", "Running", "UnifiedExec", "connect"]


def __getattr__(name: str) -> object:
    # Loaded when they are first used: most scripts only run commands.
    if name not in ("Listener", "UnifiedExec"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Scripts use the names of the asynchronous classes; the classes are called `Sync…`.
    value: object = getattr(import_module("holdfast.front.sync.sync_tools"), f"Sync{name}")
    globals()[name] = value
    return value

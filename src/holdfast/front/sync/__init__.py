"""
The API without `await`, for scripts.

There is no second implementation. Each environment has an event loop in a thread of its own,
and every method runs its asynchronous counterpart there and waits for it. Ctrl-C cancels the
awaited call and is raised then: it ends the process of a `run`, and leaves the session of a
tool call alive.
"""

from holdfast.base.late_import import late_names
from holdfast.front.sync.sync_environment import SyncEnvironment as Environment
from holdfast.front.sync.sync_environment import SyncFiles as Files
from holdfast.front.sync.sync_environment import SyncRunning as Running
from holdfast.front.sync.sync_environment import connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.front.sync.sync_tools import SyncListener as Listener
    from holdfast.front.sync.sync_tools import SyncUnifiedExec as UnifiedExec

__all__ = ["Environment", "Files", "Listener", "Running", "UnifiedExec", "connect"]


# Loaded when they are used: most scripts only run commands. Scripts use the names of the
# asynchronous classes; the classes are called `Sync…`.
__getattr__ = late_names(
    globals(),
    {
        "Listener": "holdfast.front.sync.sync_tools:SyncListener",
        "UnifiedExec": "holdfast.front.sync.sync_tools:SyncUnifiedExec",
    },
)

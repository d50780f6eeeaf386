"""
The blocking API, without `await`, for scripts.

It has no separate implementation. Each environment has an event loop in its own thread, where each
method runs its asynchronous counterpart and waits for it. Ctrl-C cancels that call before it is
raised: this ends the process of a `run`, but keeps the session of a tool call alive.
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


# Loaded on first use, since most scripts only run commands. Exported under the names of the
# asynchronous classes; the classes themselves are called `Sync…`.
__getattr__ = late_names(
    globals(),
    {
        "Listener": "holdfast.front.sync.sync_tools:SyncListener",
        "UnifiedExec": "holdfast.front.sync.sync_tools:SyncUnifiedExec",
    },
)

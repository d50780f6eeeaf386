"""The tools `exec_command` and `write_stdin`, on any environment (unified-exec spec)."""

from holdfast.unified_exec.errors import CallRefused, UnifiedExecError
from holdfast.unified_exec.hooks import Attempt, DeniedAttempt, Hooks, StartRequest
from holdfast.unified_exec.manager import SessionInfo
from holdfast.unified_exec.options import Options
from holdfast.unified_exec.result import ExecResult, ReadResult, ToolError
from holdfast.unified_exec.tools import UnifiedExec

__all__ = [
    "Attempt",
    "CallRefused",
    "DeniedAttempt",
    "ExecResult",
    "Hooks",
    "Options",
    "ReadResult",
    "SessionInfo",
    "StartRequest",
    "ToolError",
    "UnifiedExec",
    "UnifiedExecError",
]

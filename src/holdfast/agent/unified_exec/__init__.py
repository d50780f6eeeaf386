"""
The tools `exec_command` and `write_stdin` for a model, on any environment.

A program creates a `UnifiedExec`; the other names are its options, results, events and errors.
"""

from holdfast.agent.unified_exec.arguments.schemas import SchemaKind
from holdfast.agent.unified_exec.arguments.tool_arguments import (
    ArgumentError,
    ExecArguments,
    PermissionArguments,
    WaitForArguments,
    WriteArguments,
)
from holdfast.agent.unified_exec.hooks import (
    Attempt,
    DeniedAttempt,
    Hooks,
    InputRequest,
    PatchRequest,
    StartRequest,
)
from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.output.pages import Page
from holdfast.agent.unified_exec.output.selection import Selected
from holdfast.agent.unified_exec.result import (
    ExecResult,
    ImageResult,
    PermissionGrant,
    ReadResult,
    ToolError,
)
from holdfast.agent.unified_exec.sessions.command_session import SessionInfo
from holdfast.agent.unified_exec.sessions.session_events import (
    CommandBegan,
    CommandEnded,
    InputSent,
    InputWanted,
    Listener,
    OutputDelta,
    OutputMissing,
    ToolEvent,
)
from holdfast.agent.unified_exec.text.answer import aborted_exec_text, aborted_write_text
from holdfast.agent.unified_exec.text.truncate import TruncationPolicy
from holdfast.agent.unified_exec.tool_errors import (
    CallInterrupted,
    CallRefused,
    CreateProcess,
    ProcessFailed,
    SessionStdinClosed,
    UnifiedExecError,
    UnknownProcessId,
    WriteToStdin,
    rejected_text,
)
from holdfast.agent.unified_exec.tools import UnifiedExec
from holdfast.environments.notes import Note, NoteKind
from holdfast.events import WaitingFor

__all__ = [
    "ArgumentError",
    "Attempt",
    "CallInterrupted",
    "CallRefused",
    "CommandBegan",
    "CommandEnded",
    "CreateProcess",
    "DeniedAttempt",
    "ExecArguments",
    "ExecResult",
    "Hooks",
    "ImageResult",
    "InputRequest",
    "InputSent",
    "InputWanted",
    "Listener",
    "Note",
    "NoteKind",
    "Options",
    "OutputDelta",
    "OutputMissing",
    "Page",
    "PatchRequest",
    "PermissionArguments",
    "PermissionGrant",
    "ProcessFailed",
    "ReadResult",
    "SchemaKind",
    "Selected",
    "SessionInfo",
    "SessionStdinClosed",
    "StartRequest",
    "ToolError",
    "ToolEvent",
    "TruncationPolicy",
    "UnifiedExec",
    "UnifiedExecError",
    "UnknownProcessId",
    "WaitForArguments",
    "WaitingFor",
    "WriteArguments",
    "WriteToStdin",
    "aborted_exec_text",
    "aborted_write_text",
    "rejected_text",
]

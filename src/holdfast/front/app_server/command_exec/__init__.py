"""
`command/exec` as a library: runs commands for a client application, in any environment.

    async with CommandExec(env) as commands:
        command = await commands.start(["make", "-j4"], timeout=60, stdin=True, stream=True)
        async for delta in command.output():
            ...
        done = await command.wait()
"""

from holdfast.front.app_server.command_exec.command import Command, Done
from holdfast.front.app_server.command_exec.command_errors import (
    CommandExecClosed,
    CommandExecError,
    CommandLost,
    DuplicateCommand,
    EmptyCommand,
    ExtensionMissing,
    InvalidSize,
    NegativeTimeout,
    NoLongerRunning,
    NotATerminal,
    SizeNeedsTerminal,
    SpawnRefused,
    StdinAlreadyClosed,
    StdinNotStreamed,
    UnknownCommand,
    quoted_id,
)
from holdfast.front.app_server.command_exec.command_manager import CommandExec, Compat
from holdfast.front.app_server.command_exec.command_options import (
    CODEX_0_166_0,
    CommandOptions,
    DrainPolicy,
    Extension,
)
from holdfast.front.app_server.command_exec.output import Delta, Deltas

__all__ = [
    "CODEX_0_166_0",
    "Command",
    "CommandExec",
    "CommandExecClosed",
    "CommandExecError",
    "CommandLost",
    "CommandOptions",
    "Compat",
    "Delta",
    "Deltas",
    "Done",
    "DrainPolicy",
    "DuplicateCommand",
    "EmptyCommand",
    "Extension",
    "ExtensionMissing",
    "InvalidSize",
    "NegativeTimeout",
    "NoLongerRunning",
    "NotATerminal",
    "SizeNeedsTerminal",
    "SpawnRefused",
    "StdinAlreadyClosed",
    "StdinNotStreamed",
    "UnknownCommand",
    "quoted_id",
]
